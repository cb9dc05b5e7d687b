"""An environment as planners use it: whatever breaks in it is an error that says so.

A planner opens sessions, tries calls, takes them back and plays gold, in any environment, also one that does
not stand on our toolkit. What such an environment raises is not the planner's bug: EnvironmentFailure, or
ConfigError where it cannot do what planning needs, which is snapshots. Not covered: what calls answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from data.messages import ToolResult, Turn
from data.tasks import Task
from pipeline.environments.base import Environment, GoldScript, Session
from pipeline.environments.splits import training_split as training_split
from pipeline.environments.wrapped import PassesOn, WrappedEnvironment
from pipeline.errors import ConfigError, EnvironmentFailure, TrajsmithError


def plannable(environment: Environment) -> Environment:
    """`environment`, raising no error that does not say what broke."""
    return PlannableEnvironment(environment, version=environment.version)


def whole_world(task: Task) -> Task:
    """The task with every tool of its world shown; its lineage is the caller's business."""
    if task.tools is None:
        return task
    return Task.model_validate(task.model_copy(update={"tools": None, "task_id": ""}).model_dump())


class PlannableEnvironment(WrappedEnvironment):
    """The same environment; see the module docstring."""

    async def open(self, task: Task, *, seed: int = 0) -> Session:
        """The inner session, guarded."""
        with _named(f"environment {self.name} could not open task {task.task_id}"):
            return _GuardedWorld(await self.inner.open(task, seed=seed), self.name)

    def gold(self, task: Task) -> GoldScript:
        """The inner gold, guarded."""
        with _named(f"environment {self.name} has no gold for task {task.task_id}"):
            return _GuardedScript(self.inner.gold(task), task.task_id)


class _GuardedWorld(PassesOn):
    inner: Session

    def __init__(self, inner: Session, environment: str) -> None:
        self.inner, self._environment = inner, environment

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """The inner call."""
        with _named(f"tool {name} of {self._environment} broke"):
            return await self.inner.call(name, arguments, call_id)

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
    def __init__(self, inner: GoldScript, task_id: str) -> None:
        self._inner, self._task_id = inner, task_id

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The inner script's next turn."""
        with _named(f"the gold script of task {self._task_id} failed"):
            return self._inner.next_turn(turns)


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except TrajsmithError:
        raise
    except Exception as error:
        raise EnvironmentFailure(f"{what}: {error!r}") from error
