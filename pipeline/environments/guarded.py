"""What every session owes the loop, decided once: run once, trust nothing after a break, close once.

- A repeated `call_id` answers the stored result and executes nothing.
- An `infra_error`, a call cut off by cancellation, or overlapping calls poison the session: all later calls
  answer `infra_error`, `verify`, `snapshot` and `restore` raise, because the state can no longer be trusted.
- A closed session refuses calls.

Not covered: what a call does and what its errors mean; subclasses say that in `_execute`.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from data import canonical
from data.messages import ToolResult, ToolStatus, text_parts
from data.tasks import Task
from pipeline.errors import ConfigError, EnvironmentFailure

MAX_ERROR_LENGTH = 200


class GuardedSession(ABC):
    """The base of sessions: `call` is final, subclasses write `_execute` and `_release`."""

    def __init__(self, task: Task, *, seed: int = 0) -> None:
        self.task, self.seed = task, seed
        self._results: dict[str, ToolResult] = {}
        self._running = ""
        self._poison = ""
        self._closed = False

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """Execute once; see the module docstring. Raises EnvironmentFailure on a closed session."""
        stored = self._results.get(call_id)
        if stored is not None:
            return stored
        if self._closed:
            raise EnvironmentFailure(
                f"call {call_id} ({name}) on a closed session; open a new one for the task"
            )
        if self._running:
            self._poison = self._poison or f"call {call_id} began while {self._running} was running"
        self._running = call_id
        try:
            if self._poison:
                text = f"session unusable: {self._poison}"
                result = self._failed(call_id, name, ToolStatus.INFRA_ERROR, text)
            else:
                result = await self._execute(name, arguments, call_id)
        except BaseException:
            self._poison = self._poison or f"call {call_id} ({name}) was cut off; its effects are unknown"
            raise
        self._running = ""
        self._results[call_id] = result
        return result

    async def close(self) -> None:
        """Release everything. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._release()

    async def __aenter__(self) -> Self:
        """The session itself; it closes at the end of the block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    @abstractmethod
    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """One call on a session that is fit for it."""

    @abstractmethod
    async def _release(self) -> None:
        """Give back what the session holds; called once."""

    def _refuse_if_poisoned(self) -> None:
        if self._poison:
            raise EnvironmentFailure(f"session of task {self.task.task_id} is unusable: {self._poison}")

    def _refuse_foreign(self, task_id: str) -> None:
        """Raise ConfigError for another task's snapshot."""
        if task_id != self.task.task_id:
            raise ConfigError(f"snapshot belongs to task {task_id}, this session to {self.task.task_id}")

    def _failed(self, call_id: str, name: str, status: ToolStatus, text: str) -> ToolResult:
        if status is ToolStatus.INFRA_ERROR:
            self._poison = self._poison or text
        return ToolResult(
            call_id=call_id, name=name, parts=text_parts(text[:MAX_ERROR_LENGTH]), status=status
        )


class JsonStateSession(GuardedSession):
    """A session whose `state` is a JSON value: its snapshot is that and the results given so far."""

    state: Any

    def snapshot(self) -> bytes:
        """State and results. A poisoned session raises EnvironmentFailure."""
        self._refuse_if_poisoned()
        results = {key: item.model_dump(mode="json") for key, item in self._results.items()}
        return canonical.dumps([self.task.task_id, self.state, results]).encode("ascii")

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot of a session of the same task. A poisoned session cannot be restored."""
        self._refuse_if_poisoned()
        task_id, state, results = canonical.loads(snapshot.decode("ascii"))
        self._refuse_foreign(task_id)
        self.state = state
        self._results = {key: ToolResult.model_validate(item) for key, item in results.items()}


def said(error: BaseException, *, shown: Callable[[BaseException], str] = str) -> str:
    """The text of an exception of foreign code, whose text may itself raise."""
    try:
        return shown(error)
    except Exception:
        return f"{type(error).__name__} (its text cannot be read)"


def pickled(whole: Any, *, parts: Mapping[str, Any], environment: str) -> bytes:
    """`whole` for a snapshot. Raises ConfigError naming the one of `parts` that cannot be pickled."""
    try:
        return pickle.dumps(whole)
    except Exception as error:  # whatever an object raises that is asked for its state
        holder = next((name for name, part in parts.items() if not _is_picklable(part)), "something")
        raise ConfigError(
            f"{holder} of {environment} holds what no snapshot can keep: {said(error, shown=repr)}; "
            "keep data there, and open files, connections and locks where they are used"
        ) from error


def _is_picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True
