"""Preference pairs from the student's own errors: turns against gold's, and trajectories misled by them.

The first user turn that failed is compared with gold's where both got there by the same calls with the same
answers (what was said may differ): prompt is the student's dialogue up to its first wrong step there, chosen
gold's rest of that user turn, rejected the student's. With `rollouts`, the wrong calls are also fed back as a
misleading hint, and every wrong dialogue that comes of it is rejected against gold's whole one. A judge may
acquit. Without a judge calls are compared by program. Not covered: the preference loss (`rl`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from data import canonical
from data.messages import Role, Turn
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Pair
from pipeline.chat.base import Chat
from pipeline.checks.matching import Call, made_calls, same_calls
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.play import play
from pipeline.errors import StructuredReplyError
from pipeline.renderers.base import Renderer
from synthesizers.hints import REPEATED, with_hints, without_hints
from synthesizers.magnet.roles import ERROR_JUDGE, CallError, JudgeRequest
from synthesizers.rejection_sampling import RejectionSampling


class Mistake(NamedTuple):
    """A student's wrong turn: user turn `turn`, from 0. `prompt` ends where the two part."""

    turn: int
    prompt: tuple[Turn, ...]
    chosen: tuple[Turn, ...]
    rejected: tuple[Turn, ...]


@dataclass(kw_only=True)
class Negatives:
    """Pairs of one task; see the module docstring."""

    environment: Environment
    renderer: Renderer
    sampler: RejectionSampling | None
    rollouts: int
    judge: Chat | None
    name: str

    async def pairs(self, task: Task, taught: Sequence[Trajectory]) -> AsyncIterator[Pair]:
        """From each failed trajectory at most one pair of turns, and one per misled trajectory."""
        wrong = [trajectory for trajectory in taught if trajectory.success is False]
        if not wrong:
            return
        gold = (await play(self.environment, task, self.environment.gold(task))).turns
        seen: set[str] = set()
        for trajectory in sorted(wrong, key=lambda each: each.trajectory_id):
            mistake = find_mistake(task, trajectory, gold)
            if mistake is None or (key := _key(mistake)) in seen or await self._acquitted(mistake):
                continue
            seen.add(key)
            parents = (trajectory.trajectory_id,)
            yield self._pair(mistake.prompt, mistake.chosen, mistake.rejected, trajectory, parents)
            if self.sampler is not None:
                async with aclosing(self._misled(task, mistake)) as misled:
                    async for other in misled:
                        start = len(task.prompt)
                        both = (*parents, other.trajectory_id)
                        yield self._pair(task.prompt, gold[start:], other.turns[start:], trajectory, both)

    async def _misled(self, task: Task, mistake: Mistake) -> AsyncGenerator[Trajectory]:
        """Dialogues that went wrong with the wrong calls as a hint, hints taken out."""
        assert self.sampler is not None
        told = "; ".join(_shown(call) for call in made_calls(mistake.rejected)) or _said(mistake.rejected)
        hints = [""] * len(read_blueprint(task).turns)
        hints[mistake.turn] = f"Do this: {told}"
        self.sampler.k = self.rollouts
        async with aclosing(self.sampler.synthesize([with_hints(task, hints)])) as rolled:
            async for trajectory in rolled:
                if trajectory.success is False:
                    bare = without_hints(trajectory, task, hints, self.renderer)
                    if REPEATED not in bare.labels:
                        yield bare

    async def _acquitted(self, mistake: Mistake) -> bool:
        """Whether a judge sees no error; one whose reply is never valid acquits, as nothing is proved."""
        if self.judge is None:
            return False
        request = JudgeRequest(
            request=next(turn.text for turn in reversed(mistake.prompt) if turn.role is Role.USER),
            reference=tuple(_shown(call) for call in made_calls(mistake.chosen)),
            predicted=tuple(_shown(call) for call in made_calls(mistake.rejected)),
        )
        try:
            return (await ERROR_JUDGE.ask(self.judge, request)).error is CallError.OK
        except StructuredReplyError:
            return True

    def _pair(
        self,
        prompt: Sequence[Turn],
        chosen: Sequence[Turn],
        rejected: Sequence[Turn],
        trajectory: Trajectory,
        parents: tuple[str, ...],
    ) -> Pair:
        tools = trajectory.first_tools
        for turn in prompt:
            tools = tools if turn.tools_changed is None else turn.tools_changed
        content = [
            [turn.model_dump(mode="json", exclude={"started_at", "seconds"}) for turn in side]
            for side in (prompt, chosen, rejected)
        ]
        return Pair(
            pair_id=canonical.digest(self.name, *parents, content, length=24),
            prompt=tuple(prompt),
            tools=tools,
            chosen=tuple(chosen),
            rejected=tuple(rejected),
            parents=parents,
            synthesizer=self.name,
        )


def find_mistake(task: Task, trajectory: Trajectory, gold: Sequence[Turn]) -> Mistake | None:
    """The first failed user turn from where it parts from gold's; None where the way there was another one,
    or its calls are gold's."""
    mine, theirs = _by_user_turn(trajectory.turns), _by_user_turn(gold)
    index = _failed(trajectory, len(read_blueprint(task).turns))
    if index >= min(len(mine), len(theirs)) or any(
        _trace(one) != _trace(other) for one, other in zip(mine[:index], theirs[:index], strict=True)
    ):
        return None
    made, wanted = mine[index], theirs[index]
    if _trace(made) == _trace(wanted):
        return None
    common = next(place for place, turn in enumerate(made) if turn.role is Role.USER) + 1
    first = common
    while (
        common < min(len(made), len(wanted))
        and _trace(made[: common + 1]) == _trace(wanted[: common + 1])
        and bool(made[common].tool_calls) == bool(wanted[common].tool_calls)
    ):
        common += 1
    while common > first and made[common - 1].role is Role.ASSISTANT:
        common -= 1
    prompt = [turn for part in mine[:index] for turn in part] + made[:common]
    chosen, rejected = tuple(wanted[common:]), tuple(made[common:])
    if not chosen or not rejected or rejected[0].role is not Role.ASSISTANT:
        return None
    if same_calls(made_calls(chosen), made_calls(rejected)) and made_calls(chosen):
        return None
    return Mistake(index, tuple(prompt), chosen, rejected)


def _failed(trajectory: Trajectory, number: int) -> int:
    """The index of the first user turn that went wrong."""
    values = {part.name: part.value for part in trajectory.reward.components} if trajectory.reward else {}
    return round(values.get("turns", 0.0) * number)


def _by_user_turn(turns: Sequence[Turn]) -> list[list[Turn]]:
    """The system prompt stays with the first user turn."""
    parts: list[list[Turn]] = []
    head: list[Turn] = []
    for turn in turns:
        if turn.role is Role.USER:
            parts.append([*head, turn])
            head = []
        elif parts:
            parts[-1].append(turn)
        else:
            head.append(turn)
    return parts


def _trace(turns: Sequence[Turn]) -> list[str]:
    """Calls and answers in order, words left out."""
    calls = [call.key() for call in made_calls(turns)]
    return calls + [turn.text for turn in turns if turn.result is not None]


def _key(mistake: Mistake) -> str:
    return canonical.digest(mistake.turn, _trace(mistake.rejected), _trace(mistake.prompt))


def _shown(call: Call) -> str:
    return f"{call.name} {canonical.dumps(call.arguments)}"


def _said(turns: Sequence[Turn]) -> str:
    return next((turn.text for turn in turns if turn.text and turn.result is None), "nothing")
