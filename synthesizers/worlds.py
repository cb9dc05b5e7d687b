"""An environment as planners use it: whatever breaks in it is an error that says so.

A planner opens sessions, tries calls, takes them back and plays gold, in any environment, also one that does
not stand on our toolkit. What such an environment raises, or does not answer in time, is not the planner's
bug: EnvironmentFailure, or ConfigError where it cannot do what planning needs, which is snapshots. Not
covered: what calls answer; tools that block the event loop (`pipeline.environments.tools` has ways for them).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from data.messages import ToolResult, Turn
from data.tasks import Task
from pipeline.environments.base import Environment, GoldScript, Session
from pipeline.environments.play import play_turns
from pipeline.environments.splits import training_split as training_split
from pipeline.environments.wrapped import PassesOn, WrappedEnvironment
from pipeline.errors import ConfigError, EnvironmentFailure, TrajsmithError
from pipeline.rollout_settings import Deadlines

_Result = TypeVar("_Result")


def plannable(environment: Environment, *, deadlines: Deadlines | None = None) -> Environment:
    """`environment`, raising no error that does not say what broke; waited for as long as in a rollout."""
    return PlannableEnvironment(environment, deadlines or Deadlines())


def guarded(script: GoldScript, what: str = "the gold script") -> GoldScript:
    """A script whose failure is an EnvironmentFailure that says so; its cause is what it raised."""
    return _GuardedScript(script, what)


def whole_world(task: Task) -> Task:
    """The task with every tool of its world shown; its lineage is the caller's business."""
    if task.tools is None:
        return task
    return Task.model_validate(task.model_copy(update={"tools": None, "task_id": ""}).model_dump())


async def gold_turns(environment: Environment, task: Task, session: Session) -> list[Turn]:
    """The dialogue of the task's gold in an open session; [] where it has none that plays."""
    try:
        return await play_turns(session, task, environment.gold(task))
    except (TrajsmithError, LookupError, ValueError):
        return []


class PlannableEnvironment(WrappedEnvironment):
    """The same environment; see the module docstring."""

    def __init__(self, inner: Environment, deadlines: Deadlines) -> None:
        super().__init__(inner, version=inner.version)
        self._deadlines = deadlines

    async def open(self, task: Task, *, seed: int = 0) -> Session:
        """The inner session, guarded."""
        with _named(f"environment {self.name} could not open task {task.task_id}"):
            session = await _within(self._deadlines.open, self.inner.open(task, seed=seed))
        return _GuardedWorld(session, self.name, self._deadlines)

    def gold(self, task: Task) -> GoldScript:
        """The inner gold, guarded."""
        with _named(f"environment {self.name} has no gold for task {task.task_id}"):
            script = self.inner.gold(task)
        return guarded(script, f"the gold script of task {task.task_id}")


class _GuardedWorld(PassesOn):
    inner: Session

    def __init__(self, inner: Session, environment: str, deadlines: Deadlines) -> None:
        self.inner, self._environment, self._deadlines = inner, environment, deadlines

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """The inner call."""
        with _named(f"tool {name} of {self._environment} broke"):
            return await _within(self._deadlines.tool, self.inner.call(name, arguments, call_id))

    def snapshot(self) -> bytes:
        """The inner snapshot."""
        with self._needed("snapshot"):
            return self.inner.snapshot()

    def restore(self, snapshot: bytes) -> None:
        """The inner restore."""
        with self._needed("restore"):
            self.inner.restore(snapshot)

    @contextmanager
    def _needed(self, what: str) -> Iterator[None]:
        try:
            yield
        except TrajsmithError:
            raise
        except Exception as error:
            raise ConfigError(
                f"sessions of {self._environment} cannot {what} ({error!r}). Planning tries calls and "
                f"takes them back: write snapshot and restore, or use demonstration or rejection_sampling, "
                f"which need none"
            ) from error


class _GuardedScript:
    def __init__(self, inner: GoldScript, what: str) -> None:
        self._inner, self._what = inner, what

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The inner script's next turn."""
        with _named(f"{self._what} failed"):
            return self._inner.next_turn(turns)


async def _within(seconds: float, work: Awaitable[_Result]) -> _Result:
    """What the work gives. TimeoutError, with words, where it takes longer."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await work
    except TimeoutError as error:
        if deadline.expired():
            raise TimeoutError(f"no answer within {seconds:g} s") from error
        raise


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except TrajsmithError:
        raise
    except Exception as error:
        raise EnvironmentFailure(f"{what}: {error!r}") from error
