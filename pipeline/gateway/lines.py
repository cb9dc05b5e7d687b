"""The tree of an episode as trajectories: one per line of dialogue, every sampled token trained once.

The main line ends in the last reply asked for (or the one named); its trajectory is the episode's. Every
other end of the tree is a line of its own: a *branch* (a choice, a retry or a parallel try that was not gone
on with) has no reward, because nothing followed from it; a *conversation* (a sub-agent) has the episode's
reward in a group of its own. Turns that an earlier line trains have weight 0, and streams without anything
to train are left out; `parents` names the earlier line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data import canonical
from data.messages import Role, Turn
from data.trajectories import Policy, Segment, Usage
from pipeline.engines.base import Engine, FinishReason, Sampling
from pipeline.gateway.tree import Exchange
from pipeline.rollout_tokens import SegmentBuilder


@dataclass(frozen=True, slots=True)
class Line:
    """A path through the tree; `own` are the exchanges that no earlier line trains."""

    path: tuple[Exchange, ...]
    own: tuple[Exchange, ...]
    parent: int
    """Number of the line that this one leaves, 0 for a conversation; -1 for the main line."""
    is_branch: bool
    name: str = "main"
    """Equal names of two rollouts of a task are comparable: the n-th conversation begun, the n-th branch."""

    @property
    def cut_off(self) -> bool:
        """Whether its last reply hit a length limit without a call that could be executed."""
        last = self.path[-1]
        return last.completion.finish_reason is FinishReason.LENGTH and not last.reply.calls

    def turns(self) -> tuple[Turn, ...]:
        """The record's turns."""
        turns: list[Turn] = []
        for one in self.path:
            weight = 1.0 if one in self.own else 0.0
            turns += [*one.asked, one.turn.model_copy(update={"weight": weight})]
        return tuple(turns)

    def segments(self) -> tuple[Segment, ...]:
        """The token streams in which something is trained."""
        streams: list[tuple[SegmentBuilder, bool]] = []
        for one in self.path:
            if one.extends:
                streams[-1][0].observed(one.piece)
            else:
                streams.append((SegmentBuilder(one.piece, one.tools), False))
            builder, trained = streams[-1]
            builder.generated(one.completion, turn=one.num_turns - 1)
            streams[-1] = builder, trained or one in self.own
        return tuple(builder.build() for builder, trained in streams if trained)

    def usage(self, segments: Sequence[Segment], *, seconds: float) -> Usage:
        """What the line cost, its shared beginning not counted."""
        generated = sum(len(one.completion.token_ids) for one in self.own)
        shown = sum(len(segment.token_ids) - segment.num_generated for segment in segments)
        calls = sum(turn.role is Role.TOOL for one in self.own for turn in one.asked)
        return Usage(
            prompt_tokens=shown,
            generated_tokens=generated,
            engine_calls=len(self.own),
            tool_calls=calls,
            seconds=seconds,
        )

    def policy(self, engine: Engine, *, renderer: str, harness: str, defaults: Sampling) -> Policy:
        """Who acted. Log-probs of requests with different distributions are no longer of one policy."""
        asked = [one.sampling for one in self.path] or [defaults]
        kinds = {(one.temperature, one.top_p, one.top_k, one.min_p) for one in asked}
        stops = sorted({text for one in asked for text in one.stop})
        sampling = max(asked, key=lambda one: one.max_tokens).identity() | {"stop": stops}
        weights = self.path[0].completion.weights_version if self.path else engine.weights_version
        return Policy(
            name=engine.name,
            weights=weights,
            renderer=renderer,
            harness=harness,
            sampling=canonical.dumps(sampling, sort_keys=True),
            logprobs_of="processed" if len(kinds) == 1 else f"processed, {len(kinds)} samplings mixed",
        )


def make_lines(exchanges: Sequence[Exchange], *, final: Exchange | None = None) -> list[Line]:
    """All lines: the main one, then by their last replies, the latest first."""
    if not exchanges:
        return []
    main = final or max(exchanges, key=lambda one: (one.number, -one.choice))
    leaves = [one for one in exchanges if not one.children and one is not main]
    ends = [main, *sorted(leaves, key=lambda one: (-one.number, one.choice))]
    owner: dict[Exchange, int] = {}
    roots: list[Exchange] = []
    lines = []
    first = sorted({end.path()[0].number for end in ends})
    for number, end in enumerate(ends):
        path = end.path()
        own = [one for one in path if one not in owner]
        shared = [owner[one] for one in path if one in owner]
        # Another reply to the first prompt shares no exchange, but leaves the same place.
        sibling = next((owner[one] for one in roots if _same_prompt(one, path[0])), None)
        parent = shared[-1] if shared else sibling
        owner |= dict.fromkeys(own, number)
        roots.append(path[0])
        is_branch = parent is not None
        name = f"branch {number}" if is_branch else f"conversation {first.index(path[0].number)}"
        if number == 0:
            lines.append(Line(tuple(path), tuple(own), -1, False))
        else:
            lines.append(Line(tuple(path), tuple(own), parent or 0, is_branch, name))
    return lines


def _same_prompt(one: Exchange, other: Exchange) -> bool:
    return one.line == other.line and one.signatures[:-1] == other.signatures[:-1]
