"""One episode: the state machine generate -> execute -> [user] -> finish, and who is to blame for its end.

The episode owns the session and every deadline. Whatever escapes a boundary (engine, tool, simulated
user, verifier) is named after it; an infrastructure failure ends the episode without a reward.
The task's turn and token budgets end it with `task.budget.exhausted_reward`; so do repetition and a full
context, which are the agent's doing as well. Time is not: it tells how fast a server, a tool or a user was,
so an episode that ran out of it has no reward. Not covered: tokens (`pipeline.rollout_author`), retries and
concurrency (`pipeline.rollout`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from data.messages import Role, ToolCall, ToolResult, ToolSpec, ToolStatus, Turn, text_parts, tool
from data.tasks import Task
from data.trajectories import Blame, EnvironmentRef, Policy, Reward, Termination, Trajectory, Usage
from pipeline.checks.calls import check_call
from pipeline.environments.base import Environment, Session
from pipeline.errors import (
    BudgetExceededError,
    ConfigError,
    EngineError,
    EnvironmentFailure,
    JudgeError,
    MissingExtraError,
    TrajsmithError,
    UserSimulatorError,
    classify,
)
from pipeline.rollout_author import Author, EpisodeEnd
from pipeline.rollout_settings import RolloutSettings

T = TypeVar("T")
Step = Callable[[], Awaitable["Step"]]

STOP_EVERYTHING = (ConfigError, MissingExtraError, BudgetExceededError)
"""Errors that say nothing about one episode: they leave the loop as they are."""

_BOUNDARIES: dict[Blame, type[TrajsmithError]] = {
    Blame.AGENT: EngineError,
    Blame.TOOL: EnvironmentFailure,
    Blame.USER_SIMULATOR: UserSimulatorError,
    Blame.JUDGE: JudgeError,
}
_log = logging.getLogger("trajsmith.rollout")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which rollout this is: the fields of a Trajectory that are known before it starts."""

    group_id: str
    synthesizer: str
    policy: Policy
    seed: int = 0
    rollout_index: int = 0
    attempt: int = 0
    run_id: str = ""


class Episode:
    """One author in one session. Run it once."""

    def __init__(
        self,
        task: Task,
        *,
        environment: Environment,
        author: Author,
        settings: RolloutSettings,
        identity: Identity,
    ) -> None:
        self.task, self.environment, self.author = task, environment, author
        self.settings, self.identity = settings, identity
        memory = settings.memory
        self.turns: list[Turn] = list(task.prompt if memory is None else memory.prompt(task))
        self.tools: tuple[ToolSpec, ...] = ()
        self.holder = Blame.TOOL
        self.tool_calls = 0
        self._session: Session | None = None
        self._num_written = 0
        self._changed: tuple[ToolSpec, ...] | None = None
        self._last_round: tuple[object, ...] = ()
        self._repeats = 0

    async def run(self, *, group_deadline: float | None = None) -> Trajectory:
        """Play to the end, judge and close. `group_deadline` is a time of the running event loop.

        Raises only what `STOP_EVERYTHING` lists, and CancelledError; every other failure is on the record.
        """
        started = time.perf_counter()
        try:
            end = await self._play_bounded(group_deadline)
            return await self._judged(self._record(end, seconds=time.perf_counter() - started))
        finally:
            await self._close()

    async def _play_bounded(self, group_deadline: float | None) -> EpisodeEnd:
        budget = asyncio.get_running_loop().time() + self.task.budget.max_seconds
        cut = budget if group_deadline is None else min(budget, group_deadline)
        try:
            async with asyncio.timeout_at(cut):
                return await self._play()
        except TimeoutError:
            return self._out_of_time(group=cut < budget)
        except STOP_EVERYTHING:
            raise
        except Exception as error:
            return EpisodeEnd(*classify(error), f"{type(error).__name__}: {error}")

    async def _play(self) -> EpisodeEnd:
        try:
            await self._begin()
            step: Step = self._generate
            while True:
                step = await step()
        except EpisodeEnd as end:
            return end

    async def _begin(self) -> None:
        self._session = await self._opened()
        self.tools = self._session.tools
        self.author.begin(self.turns, self.tools)

    async def _opened(self) -> Session:
        opening = self.environment.open(self.task, seed=self.identity.seed)
        return await self._held(Blame.TOOL, opening, self.settings.deadlines.open)

    async def _generate(self) -> Step:
        started, clock = time.time(), time.perf_counter()
        written = await self._held(Blame.AGENT, self.author.write(self.turns), self.settings.deadlines.engine)
        if written is None:
            raise EpisodeEnd(Termination.FINISHED)
        if written.turn.role is Role.SYSTEM:
            self._append(written.turn, started, clock)
            if written.end is not None:
                raise written.end
            return self._generate
        calls = tuple(check_call(call, self.tools) for call in written.turn.tool_calls)
        self._append(written.turn, started, clock, tool_calls=calls, tools_changed=self._changed)
        self._changed = None
        self._num_written += 1
        if written.end is not None:
            raise written.end
        return self._execute if calls else self._user

    async def _execute(self) -> Step:
        calls, results = self.turns[-1].tool_calls, []
        for index, call in enumerate(calls):
            started, clock = time.time(), time.perf_counter()
            result = await self._answer(call, index)
            results.append(result)
            self._append(tool(result), started, clock)
            if result.status is ToolStatus.INFRA_ERROR:
                raise EpisodeEnd(Termination.INFRA_FAILURE, Blame.TOOL, f"tool {call.name}: {result.text}")
        if getattr(self._world(), "finished", False):
            raise EpisodeEnd(Termination.FINISHED)
        self._stop_repetition(calls, results)
        return self._observe(len(calls))

    async def _answer(self, call: ToolCall, index: int) -> ToolResult:
        if index >= self.settings.max_parallel_calls:
            return _refusal(
                call, f"not executed: at most {self.settings.max_parallel_calls} call(s) per turn"
            )
        if not call.ok:
            return _refusal(call, f"{call.status}: {call.error}" if call.error else str(call.status))
        self.tool_calls += 1
        work = self._world().call(call.name, call.parsed_arguments(), call.call_id)
        return await self._held(Blame.TOOL, work, self.settings.deadlines.tool)

    async def _user(self) -> Step:
        started, clock = time.time(), time.perf_counter()
        work = self._world().next_user(self.turns)
        turn = await self._held(Blame.USER_SIMULATOR, work, self.settings.deadlines.user)
        if turn is None:
            raise EpisodeEnd(Termination.FINISHED)
        self._append(turn, started, clock)
        return self._observe(1)

    def _observe(self, new: int) -> Step:
        """Show the author the last `new` turns, unless it has no turn left."""
        if self._num_written >= self.task.budget.max_turns:
            error = f"all {self.task.budget.max_turns} turns are used"
            raise EpisodeEnd(Termination.TURN_BUDGET, Blame.AGENT, error)
        tools = self._world().tools
        if tools == self.tools:
            self.author.read(self.turns, new=new)
        else:
            self.tools = self._changed = tools
            self.author.begin(self.turns, tools)
        return self._generate

    def _stop_repetition(self, calls: tuple[ToolCall, ...], results: list[ToolResult]) -> None:
        """Equal calls count as repetition only while the world answers them equally."""
        played = tuple(
            (c.name, c.arguments if c.ok else c.raw, r.text) for c, r in zip(calls, results, strict=True)
        )
        self._repeats = self._repeats + 1 if played == self._last_round else 1
        self._last_round = played
        if self._repeats == self.settings.max_repeats:
            error = f"the same calls got the same answers {self._repeats} times in a row"
            raise EpisodeEnd(Termination.REPETITION, Blame.AGENT, error)

    def _world(self) -> Session:
        assert self._session is not None, "the session is opened first"
        return self._session

    def _append(self, turn: Turn, started: float, clock: float, **update: Any) -> None:
        update |= {"started_at": started, "seconds": time.perf_counter() - clock}
        self.turns.append(turn.model_copy(update=update))

    async def _held(self, holder: Blame, work: Awaitable[T], seconds: float) -> T:
        """Await `work` while `holder` holds the clock; what escapes is named after that boundary."""
        self.holder = holder
        boundary = _BOUNDARIES[holder]
        try:
            async with asyncio.timeout(seconds):
                return await work
        except (EpisodeEnd, *STOP_EVERYTHING):
            raise
        except TimeoutError as error:
            raise boundary(f"no answer within {seconds:g} s") from error
        except TrajsmithError as error:
            if holder is not Blame.JUDGE or isinstance(error, JudgeError):
                raise
            raise JudgeError(f"{type(error).__name__}: {error}") from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise boundary("it cancelled itself") from error
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a tool that calls sys.exit() must not end the run
            raise boundary(f"{type(error).__name__}: {error}") from error

    def _out_of_time(self, *, group: bool) -> EpisodeEnd:
        """Whoever held the clock is to blame; while the agent's turn is awaited that is the model server."""
        blame = Blame.INFRASTRUCTURE if self.holder is Blame.AGENT else self.holder
        if not group:
            return EpisodeEnd(
                Termination.TIME_BUDGET, blame, f"{self.task.budget.max_seconds:g} s are used up"
            )
        return EpisodeEnd(Termination.CANCELLED, blame, "cut as a straggler at the group's deadline")

    def _record(self, end: EpisodeEnd, *, seconds: float) -> Trajectory:
        segments, who = self.author.segments(), self.identity
        generated = sum(segment.num_generated for segment in segments)
        usage = Usage(
            prompt_tokens=sum(len(segment.token_ids) for segment in segments) - generated,
            generated_tokens=generated,
            engine_calls=self.author.engine_calls,
            tool_calls=self.tool_calls,
            seconds=seconds,
        )
        return Trajectory(
            task_id=self.task.task_id,
            group_id=who.group_id,
            rollout_index=who.rollout_index,
            attempt=who.attempt,
            synthesizer=who.synthesizer,
            run_id=who.run_id,
            template=self.task.template,
            tags=self.task.tags,
            policy=who.policy,
            environment=EnvironmentRef(
                name=self.environment.name, version=self.environment.version, seed=who.seed
            ),
            turns=tuple(self.turns),
            segments=segments,
            termination=end.termination,
            blame=end.blame,
            error=end.error,
            usage=usage,
        )

    async def _judged(self, trajectory: Trajectory) -> Trajectory:
        """With the verifier's reward, the budget's fixed one, or none; see the module docstring."""
        if trajectory.termination is not Termination.FINISHED:
            scored = trajectory.termination.has_reward and trajectory.blame is Blame.AGENT
            fixed = Reward(total=self.task.budget.exhausted_reward, verifier=self.task.verifier)
            return trajectory.model_copy(update={"reward": fixed}) if scored else trajectory
        try:
            work = self._world().verify(trajectory)
            reward = await self._held(Blame.JUDGE, work, self.settings.deadlines.verify)
        except JudgeError as error:
            termination, blame = classify(error)
            update = {"termination": termination, "blame": blame, "error": f"JudgeError: {error}"}
            return trajectory.model_copy(update=update)
        return trajectory.model_copy(update={"reward": reward})

    async def _close(self) -> None:
        """Release the session; what goes wrong here must not cost a finished record."""
        if self._session is None:
            return
        try:
            async with asyncio.timeout(self.settings.deadlines.close):
                await self._session.close()
        except Exception as error:
            _log.warning(
                "closing a session of task %s failed: %s: %s", self.task.task_id, type(error).__name__, error
            )


def _refusal(call: ToolCall, why: str) -> ToolResult:
    text = f"error: {why}"
    return ToolResult(
        call_id=call.call_id, name=call.name, parts=text_parts(text), status=ToolStatus.TOOL_ERROR
    )
