"""The model side of an episode: who writes the assistant's turns and keeps the tokens of what was shown.

`SamplingAuthor` asks an engine. The world side (tools, user, verifier, deadlines) is
`pipeline.rollout_episode`; a demonstrator is an Author too (`synthesizers.demonstration`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from data import canonical
from data.messages import Role, ToolSpec, Turn, text_parts, user
from data.trajectories import Blame, Segment, Termination
from pipeline.engines.base import Completion, Engine, FinishReason, Sampling
from pipeline.errors import EngineProtocolError
from pipeline.renderers.base import Rendered, Renderer
from pipeline.rollout_context import Folding, drop_results, renumbered
from pipeline.rollout_settings import ContextPolicy, Mode, RolloutSettings
from pipeline.rollout_tokens import (
    CallProtocol,
    ChatProtocol,
    InlineProtocol,
    PromptCache,
    SegmentBuilder,
)


class EpisodeEnd(Exception):
    """Why an episode is over; raised inside the loop and never seen outside it."""

    def __init__(self, termination: Termination, blame: Blame = Blame.NONE, error: str = "") -> None:
        super().__init__(error)
        self.termination, self.blame, self.error = termination, blame, error


class Written(NamedTuple):
    """An assistant turn or a summary (a system turn), and the ending it brought about, if any."""

    turn: Turn
    end: EpisodeEnd | None = None


class Author(Protocol):
    """Writes assistant turns. `segments` and the counters are read once, at the end."""

    engine_calls: int

    def begin(self, turns: Sequence[Turn], tools: tuple[ToolSpec, ...]) -> None:
        """Start a segment that shows `turns` with `tools`; raises EpisodeEnd where it does not fit."""
        ...

    async def write(self, turns: Sequence[Turn]) -> Written | None:
        """The next assistant turn, or a summary that stands before it; None where the author is done."""
        ...

    def read(self, turns: Sequence[Turn], *, new: int) -> None:
        """Take notice of the last `new` turns; raises EpisodeEnd where they do not fit."""
        ...

    def segments(self) -> tuple[Segment, ...]:
        """The token truth so far."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """What fixes the sampled tokens of an episode besides the prompt."""

    task_id: str
    seed: int
    rollout_index: int

    def turn_seed(self, turn: int) -> int:
        """31-bit seed of one engine call; the same whatever else runs at the time."""
        return int(canonical.digest(self.task_id, self.seed, self.rollout_index, turn, length=8), 16) >> 1


class Due(NamedTuple):
    """A summary to be written next: the first turn it leaves as it is, and the tools shown after it."""

    kept: int
    tools: tuple[ToolSpec, ...]


class SamplingAuthor:
    """Samples turns from an engine, token-in/token-out. `max_tokens` is the budget of the whole episode."""

    def __init__(
        self,
        engine: Engine,
        *,
        renderer: Renderer,
        sampling: Sampling,
        settings: RolloutSettings,
        draw: Draw,
        max_tokens: int,
        affinity: str,
        prompts: PromptCache | None = None,
    ) -> None:
        self.prompts = prompts or PromptCache(renderer, size=1)
        self.engine, self.renderer, self.settings = engine, renderer, settings
        self.draw, self.affinity = draw, affinity
        self.protocol: CallProtocol
        if settings.mode is Mode.INLINE and settings.inline is not None:
            self.protocol = InlineProtocol(renderer, settings.inline)
        else:
            self.protocol = ChatProtocol(renderer)
        stops = sampling.stop_token_ids or renderer.stop_token_ids
        self.sampling = replace(sampling, stop_token_ids=stops, stop=(*sampling.stop, *self.protocol.stop))
        self.tokens_left = max_tokens
        self.engine_calls = 0
        self._builder: SegmentBuilder | None = None
        self._closed: list[SegmentBuilder] = []
        self._sampled: Sequence[int] = ()
        self._dropped = 0
        self._folding = Folding(0, 0)
        self._due: Due | None = None
        self._reserve = 0

    def begin(self, turns: Sequence[Turn], tools: tuple[ToolSpec, ...]) -> None:
        """Render everything anew: the first prompt, or a prompt that no longer extends what was shown."""
        shown = self.protocol.shown(tools)
        if self._builder is None:
            self._folding = Folding(len(turns), len(turns))
            if self.settings.context_policy is ContextPolicy.SUMMARISE:
                self._reserve = self.settings.summary.max_tokens + len(self._request((), 0).token_ids)
            self._builder = SegmentBuilder(self.prompts.render(self.draw.task_id, turns, shown), shown)
            self._spend(len(self._builder), size=len(self._builder))
            return
        builder, before = SegmentBuilder(self._view(turns, shown), shown), len(self._builder)
        if self._is_full(len(builder)) and self._fold_before(last_said(turns), shown):
            self._spend(max(0, len(builder) - before), size=0)
            return
        self._closed.append(self._builder)
        self._builder = builder
        self._spend(max(0, len(builder) - before), size=len(builder))

    async def write(self, turns: Sequence[Turn]) -> Written:
        """Sample one turn. Raises EngineProtocolError where the engine's answer cannot be trusted."""
        if self._due is not None:
            return await self._summarise(turns, self._due)
        builder = self._shown()
        room = min(self.tokens_left, self.settings.max_context_tokens - len(builder))
        completion = await self._sample(builder.token_ids, min(self.sampling.max_tokens, room))
        builder.generated(completion, turn=len(turns))
        self._sampled = completion.token_ids
        prefix = f"call_{self.engine_calls - 1}"
        turn = self.protocol.parse(completion.token_ids, tools=builder.tools, call_prefix=prefix)
        return Written(turn, self._cut_off(completion, turn, room=room))

    def read(self, turns: Sequence[Turn], *, new: int) -> None:
        """Extend the segment by the tokens of new turns, or end it as the context policy says."""
        builder, first = self._shown(), len(turns) - new
        extension = self.protocol.extend(self._sampled, turns[first:], first_turn=first)
        size = len(builder) + len(extension.token_ids)
        if self._is_full(size):
            if self._may_drop(turns):
                self.begin(turns, builder.tools)
                return
            if self._fold_before(first - 1, builder.tools):
                self._spend(len(extension.token_ids), size=0)
                return
        self._spend(len(extension.token_ids), size=size)
        builder.observed(extension)

    def segments(self) -> tuple[Segment, ...]:
        """Every segment that holds sampled tokens; a lone prompt where nothing was ever sampled."""
        builders = [*self._closed, *([self._builder] if self._builder else [])]
        return tuple(builder.build() for builder in builders if builder.logprobs or len(builders) == 1)

    def fork(self, draw: Draw) -> SamplingAuthor:
        """The same author at the same place, whose next turns are drawn as `draw` says."""
        twin = copy.copy(self)
        twin.draw, twin._closed = draw, list(self._closed)
        twin._builder = self._builder.copy() if self._builder else None
        return twin

    @property
    def logprobs(self) -> list[float]:
        """Of every token sampled so far, summaries included, in order."""
        builders = [*self._closed, *([self._builder] if self._builder else [])]
        return [value for builder in builders for value in builder.logprobs]

    async def _sample(self, prompt: Sequence[int], limit: int) -> Completion:
        """One completion of at most `limit` tokens, charged."""
        seed = self.draw.turn_seed(self.engine_calls)
        request = replace(self.sampling, max_tokens=limit, seed=seed)
        self.engine_calls += 1
        completions = await self.engine.generate(list(prompt), request, n=1, affinity=self.affinity)
        completion = trusted(completions, limit=limit)[0]
        self.tokens_left -= len(completion.token_ids)
        return completion

    async def _summarise(self, turns: Sequence[Turn], due: Due) -> Written:
        """End the segment with a summary of it and start the one that shows the summary.

        The request and the summary extend what was shown, so the summary is sampled where the policy still
        sees everything but the exchange that no longer fits, and that exchange stands in the new segment.
        """
        builder, form, index = self._shown(), self.settings.summary, len(turns)
        request = self._request(self._sampled, index)
        size = len(builder) + len(request.token_ids)
        self._spend(len(request.token_ids), size=size)
        limit = min(form.max_tokens, self.tokens_left, self.settings.max_context_tokens - size)
        completion = await self._sample([*builder.token_ids, *request.token_ids], limit)
        builder.observed(request)
        builder.generated(completion, turn=index)
        self._sampled = completion.token_ids
        turn = self._summary_turn(completion)
        self._due, self._folding = None, replace(self._folding, kept=due.kept, summary=index)
        if completion.finish_reason is FinishReason.LENGTH:
            used_up = self.tokens_left <= 0
            ending = Termination.TOKEN_BUDGET if used_up else Termination.CONTEXT_OVERFLOW
            return Written(turn, EpisodeEnd(ending, Blame.AGENT, f"no end of the summary in {limit} tokens"))
        if not turn.parts:
            return Written(
                turn, EpisodeEnd(Termination.CONTEXT_OVERFLOW, Blame.AGENT, "the summary is empty")
            )
        self._closed.append(builder)
        self._builder = SegmentBuilder(self._view([*turns, turn], due.tools), due.tools)
        try:
            self._spend(0, size=len(self._builder))
        except EpisodeEnd as end:
            return Written(turn, end)
        return Written(turn)

    def _summary_turn(self, completion: Completion) -> Turn:
        """The summary as the record keeps it: a system turn, with the weight its tokens are trained by."""
        ids = completion.token_ids
        text = self.renderer.decode(ids[:-1] if ids[-1] in self.renderer.stop_token_ids else ids).strip()
        weight = float(self.settings.summary.trained)
        return Turn(role=Role.SYSTEM, parts=text_parts(text), weight=weight)

    def _request(self, sampled: Sequence[int], turn: int) -> Rendered:
        return self.protocol.extend(sampled, [user(self.settings.summary.request)], first_turn=turn)

    def _view(self, turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Rendered:
        """What the context policy shows of `turns`, rendered as a prompt."""
        if self.settings.context_policy is not ContextPolicy.SUMMARISE:
            return self.renderer.render(drop_results(turns, self._dropped), tools)
        shown, indices = self._folding.shown(turns, self.settings.summary.frame)
        return renumbered(self.renderer.render(shown, tools), indices, len(turns))

    def _is_full(self, size: int) -> bool:
        """Whether a turn, and a summary where one may follow, no longer fit behind `size` tokens."""
        return size + self.sampling.max_tokens + self._reserve > self.settings.max_context_tokens

    def _fold_before(self, kept: int, tools: tuple[ToolSpec, ...]) -> bool:
        """Whether a summary can take the place of turns before `kept`; it is then what is written next."""
        if self.settings.context_policy is not ContextPolicy.SUMMARISE or kept <= self._folding.kept:
            return False
        self._due = Due(kept, tools)
        return True

    def _shown(self) -> SegmentBuilder:
        assert self._builder is not None, "begin comes first"
        return self._builder

    def _spend(self, count: int, *, size: int) -> None:
        """Charge `count` unsampled tokens; a turn must still fit behind the `size` tokens shown."""
        if count >= self.tokens_left:
            error = f"{count} more tokens, {self.tokens_left} left in the budget"
            raise EpisodeEnd(Termination.TOKEN_BUDGET, Blame.AGENT, error)
        if size >= self.settings.max_context_tokens:
            error = f"{size} tokens to show, the context holds {self.settings.max_context_tokens}"
            raise EpisodeEnd(Termination.CONTEXT_OVERFLOW, Blame.AGENT, error)
        self.tokens_left -= count

    def _may_drop(self, turns: Sequence[Turn]) -> bool:
        """Whether older results are left to drop; marks them dropped."""
        if self.settings.context_policy is not ContextPolicy.DROP_OLD_RESULTS:
            return False
        droppable = sum(turn.role is Role.TOOL for turn in turns) - self.settings.keep_results
        if droppable <= self._dropped:
            return False
        self._dropped = droppable
        return True

    def _cut_off(self, completion: Completion, turn: Turn, *, room: int) -> EpisodeEnd | None:
        """The ending a turn brings that ran into a limit before its stop token."""
        if completion.finish_reason is not FinishReason.LENGTH:
            return None
        if len(completion.token_ids) < room:
            if turn.tool_calls:
                return None
            error = f"a turn did not end within sampling.max_tokens={self.sampling.max_tokens}"
            return EpisodeEnd(Termination.TOKEN_BUDGET, Blame.AGENT, error)
        if self.tokens_left <= 0:
            return EpisodeEnd(Termination.TOKEN_BUDGET, Blame.AGENT, "the episode's token budget is used up")
        error = f"the context of {self.settings.max_context_tokens} tokens is full"
        return EpisodeEnd(Termination.CONTEXT_OVERFLOW, Blame.AGENT, error)


def last_said(turns: Sequence[Turn]) -> int:
    """Index of the last assistant turn, -1 without one."""
    return max((index for index, turn in enumerate(turns) if turn.role is Role.ASSISTANT), default=-1)


def trusted(completions: Sequence[Completion], *, limit: int, count: int = 1) -> list[Completion]:
    """`completions` as asked for: `count` of 1 to `limit` tokens, each token with a finite log-prob.

    Raises EngineProtocolError.
    """
    if len(completions) != count:
        raise EngineProtocolError(f"asked the engine for {count} completion(s), got {len(completions)}")
    for completion in completions:
        tokens, logprobs = len(completion.token_ids), len(completion.logprobs)
        if not 1 <= tokens <= limit:
            raise EngineProtocolError(f"the engine returned {tokens} tokens, 1 to {limit} were allowed")
        if tokens != logprobs:
            raise EngineProtocolError(f"the engine returned {logprobs} log-probs for {tokens} tokens")
        if not math.isfinite(sum(completion.logprobs)):
            raise EngineProtocolError("the engine returned a log-prob that is not finite")
    return list(completions)
