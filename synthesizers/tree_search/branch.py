"""One line of a search: an episode that is played step by step and can be forked between two steps.

A step is an assistant turn with everything that follows it until the next one. A fork gets a fresh session,
brought to the same place by the parent's snapshot, or, where a session keeps none, by making its calls again;
an answer that differs then is the world's failure, not the agent's. Tokens, deadlines, budgets and blame are
those of every rollout (`pipeline.rollout_episode`). Not covered: which branch goes on (`search`).
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from data import canonical
from data.messages import ParseStatus, Role, ToolResult, ToolStatus, Turn
from data.trajectories import Blame, Reward, SpanKind, Termination, Trajectory
from pipeline.environments.base import Session
from pipeline.errors import EnvironmentFailure, classify
from pipeline.rollout_author import EpisodeEnd, SamplingAuthor
from pipeline.rollout_episode import STOP_EVERYTHING, Episode, Step

_UNREADABLE = {
    *(ParseStatus.NOT_JSON, ParseStatus.NOT_A_CALL),
    *(ParseStatus.TRUNCATED, ParseStatus.SALVAGEABLE),
}
"""What no parser reads as a call. An unknown tool or wrong arguments are readable, and an error."""


@dataclass(slots=True)
class Cost:
    """What a whole search sampled and called, of candidates that were dropped, too."""

    tokens: int = 0
    engine_calls: int = 0
    tool_calls: int = 0


class Branch(Episode):
    """See the module docstring. `begin` it, `advance` it until it is `over`, `close` it."""

    author: SamplingAuthor

    def __init__(self, *args: Any, cost: Cost, replay: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cost, self.replay = cost, replay
        self.end: EpisodeEnd | None = None
        self.last = 0
        """Index of the assistant turn of the latest step."""
        self._seconds = 0.0
        self._finished: Trajectory | None = None

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.end is not None

    @property
    def broken(self) -> bool:
        """Whether it ended without a reward: nothing is known of the agent."""
        return self._finished is not None and self._finished.reward is None

    @property
    def parsable(self) -> bool:
        """Whether the latest step says something, and every call in it can be read."""
        if self.last >= len(self.turns):
            return False
        turn = self.turns[self.last]
        said = bool(turn.tool_calls or turn.parts or turn.reasoning)
        return said and not any(call.status in _UNREADABLE for call in turn.tool_calls)

    async def begin(self) -> None:
        """Open the session and show the prompt. Raises only what stops everything."""
        await self._bounded(self._begin())

    async def advance(self, *, to_the_end: bool = False) -> None:
        """One step, or all that are left; where the episode ends, it is judged and its session closed."""
        before = len(self.author.logprobs), self.author.engine_calls, self.tool_calls
        while not self.over:
            await self._bounded(self._step())
            if not to_the_end:
                break
        self.cost.tokens += len(self.author.logprobs) - before[0]
        self.cost.engine_calls += self.author.engine_calls - before[1]
        self.cost.tool_calls += self.tool_calls - before[2]
        if self.over:
            await self.finished()

    async def finished(self) -> Trajectory:
        """The judged record of a branch that is over."""
        assert self.end is not None, "the episode goes on"
        if self._finished is None:
            record = self._record(self.end, seconds=self._seconds)
            self._finished = await self._judged(record)
            await self.close()
        return self._finished

    def so_far(self) -> Trajectory:
        """The record as if the agent had ended the episode here, without a reward; the judged one after its
        end."""
        return self._finished or self._record(EpisodeEnd(Termination.FINISHED), seconds=self._seconds)

    async def judged_now(self) -> Reward:
        """What the verifier would say if the agent ended here. It is asked of a copy of the world, which the
        judging may change. Raises JudgeError and what opening a world raises."""
        if self._finished is not None and self._finished.reward is not None:
            return self._finished.reward
        session = await self._copied(self._snapshot())
        try:
            judging = session.verify(self.so_far())
            return await self._held(Blame.JUDGE, judging, self.settings.deadlines.verify)
        finally:
            await session.close()

    def sampled_ids(self) -> list[int]:
        """Every token that was sampled so far, in order."""
        segments = self.author.segments()
        spans = ((segment, span) for segment in segments for span in segment.spans)
        return [
            token
            for segment, span in spans
            if span.kind is SpanKind.GENERATED
            for token in segment.token_ids[span.start : span.end]
        ]

    async def forks(self, count: int) -> list[Branch]:
        """`count` branches that start here, this one the first: they draw their next steps independently."""
        kept = self._snapshot() if count > 1 else None
        twins = [self._twin(number) for number in range(1, count)]
        await self._move(twins, kept)
        return [self, *twins]

    async def ahead(self, depth: int) -> Branch:
        """A branch that went `depth` steps further, or to its end; this one stays where it is.

        Its draws are none that a later fork of this one repeats: a step that was looked at is not the next.
        """
        twin = self._twin(0)
        await self._move([twin], self._snapshot())
        for _ in range(depth):
            await twin.advance()
        return twin

    async def close(self) -> None:
        """Release the session; idempotent."""
        await self._close()
        self._session = None

    def _twin(self, number: int) -> Branch:
        twin = copy.copy(self)
        twin.turns = list(self.turns)
        drawn = self.author.draw
        lane = canonical.digest("lane", drawn.rollout_index, self._num_written, number, length=15)
        twin.author = self.author.fork(type(drawn)(drawn.task_id, drawn.seed, int(lane, 16)))
        twin._session = None
        return twin

    async def _move(self, twins: Sequence[Branch], snapshot: bytes | None) -> None:
        """Give every twin a session at the place of this branch; none stays open where that raises."""

        async def move(twin: Branch) -> None:
            twin._session = await twin._copied(snapshot)

        try:
            await together([twin._bounded(move(twin)) for twin in twins])
        except BaseException:
            for twin in twins:
                await twin.close()
            raise

    async def _copied(self, snapshot: bytes | None) -> Session:
        """A fresh session at the place of this branch."""
        session = await self._opened()
        try:
            if snapshot is None:
                await self._again(session)
            else:
                session.restore(snapshot)
        except BaseException:
            await session.close()
            raise
        return session

    def _snapshot(self) -> bytes | None:
        """The world's state; None where its calls are to be made again."""
        if self.replay:
            return None
        try:
            return self._world().snapshot()
        except Exception:  # foreign sessions have no one way of saying that they keep none
            self.replay = True
            return None

    async def _again(self, session: Session) -> None:
        """Make every call of this branch again, and hear every user turn, in order."""
        start = next((i for i, turn in enumerate(self.turns) if turn.role is Role.ASSISTANT), len(self.turns))
        said: Turn = self.turns[start - 1]
        for index in range(start, len(self.turns)):
            turn = self.turns[index]
            if turn.role is Role.ASSISTANT:
                said = turn
            elif turn.result is not None:
                await self._repeat(session, said, turn.result)
            elif turn.role is Role.USER:
                work = session.next_user(self.turns[:index])
                heard = await self._held(Blame.USER_SIMULATOR, work, self.settings.deadlines.user)
                if heard is None or heard.text != turn.text:
                    raise EnvironmentFailure("the user said something else when the episode was played again")

    async def _repeat(self, session: Session, said: Turn, wanted: ToolResult) -> None:
        place, call = next((i, c) for i, c in enumerate(said.tool_calls) if c.call_id == wanted.call_id)
        if not call.ok or place >= self.settings.max_parallel_calls:
            return  # the loop refused it, no tool was asked
        work = session.call(call.name, call.parsed_arguments(), call.call_id)
        result = await self._held(Blame.TOOL, work, self.settings.deadlines.tool)
        if (result.status, result.text) != (wanted.status, wanted.text):
            raise EnvironmentFailure(
                f"{call.name} answered the same call differently when it was made again: {result.text!r:.60}"
            )

    async def _step(self) -> None:
        """One assistant turn and what follows it; a summary before it belongs to it."""
        written, step = self._num_written, self._generate
        following: Step = step
        while following != step or self._num_written == written:
            following = await following()

    async def _generate(self) -> Step:
        self.last = len(self.turns)
        return await super()._generate()

    async def _bounded(self, work: Any) -> None:
        """Await a piece of the episode within the time that it has left."""
        started = time.perf_counter()
        left = self.task.budget.max_seconds - self._seconds
        try:
            async with asyncio.timeout(max(left, 0.0)):
                await work
        except EpisodeEnd as end:
            self.end = end
        except TimeoutError:
            self.end = self._out_of_time(group=False)
        except STOP_EVERYTHING:
            raise
        except Exception as error:
            self.end = EpisodeEnd(*classify(error), f"{type(error).__name__}: {error}")
        finally:
            self._seconds += time.perf_counter() - started


async def together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all of `work` at once; the first error is raised when all have ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def num_errors(turns: Sequence[Turn]) -> int:
    """Calls that could not be executed as they were written, or that their tool answered with an error."""
    unanswered = {call.call_id for turn in turns for call in turn.tool_calls if not call.ok}
    failed = {
        turn.result.call_id
        for turn in turns
        if turn.result is not None and turn.result.status is ToolStatus.TOOL_ERROR
    }
    return len(unanswered | failed)
