"""A session of a foreign world that keeps no snapshots: its snapshot is the list of calls, made again.

Decided here, once for every such world: a restored session is brought to its place before its next call or
its verdict, in a fresh world; an answer that differs then is a broken world, since nothing after it could be
trusted. Not covered: worlds whose answers change by themselves (record those with a cassette).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from data import canonical
from data.messages import ToolResult, ToolSpec, ToolStatus, Turn
from data.tasks import Task
from pipeline.environments.guarded import GuardedSession
from pipeline.errors import ConfigError, EnvironmentFailure


class ReplayedSession(GuardedSession):
    """Subclasses write `start` (a fresh world), `_answered` (one call in it), `_release` (the session's end)
    and, where that is more than the world's end, `_leave`."""

    tools: tuple[ToolSpec, ...]

    def __init__(self, task: Task, *, seed: int = 0) -> None:
        super().__init__(task, seed=seed)
        self._history: list[tuple[str, str, str]] = []
        """Call id, tool and arguments of every call that was answered, in order."""
        self._replayed = True

    @abstractmethod
    async def start(self) -> None:
        """Begin a fresh world. Raises EnvironmentFailure."""

    @abstractmethod
    async def _answered(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """One call in the world as it is. Raises EnvironmentFailure."""

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """None: these worlds ask once."""
        return None

    def snapshot(self) -> bytes:
        """The calls answered so far, with their answers."""
        self._refuse_if_poisoned()
        results = {key: result.model_dump(mode="json") for key, result in self._results.items()}
        return canonical.dumps([self.task.task_id, self._history, results]).encode("ascii")

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot of the same task; the world is brought there before the next call."""
        self._refuse_if_poisoned()
        task_id, history, results = canonical.loads(snapshot.decode("ascii"))
        if task_id != self.task.task_id:
            raise ConfigError(f"snapshot belongs to task {task_id}, this session to {self.task.task_id}")
        wanted = [(call_id, name, arguments) for call_id, name, arguments in history]
        self._replayed = self._replayed and wanted == self._history
        self._history = wanted
        self._results = {key: ToolResult.model_validate(value) for key, value in results.items()}

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        if name not in {spec.name for spec in self.tools}:
            known = ", ".join(spec.name for spec in self.tools)
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, f"no tool {name}; tools: {known}")
        try:
            await self._catch_up()
            result = await self._answered(name, arguments, call_id)
        except EnvironmentFailure as error:
            return self._failed(call_id, name, ToolStatus.INFRA_ERROR, str(error))
        self._history.append((call_id, name, canonical.dumps(arguments)))
        return result

    async def _catch_up(self) -> None:
        """After a restore: a fresh world, and the calls so far made again."""
        if self._replayed:
            return
        await self._leave()
        self._replayed = True  # before the start, which may make calls of its own
        await self.start()
        for call_id, name, arguments in self._history:
            if await self._answered(name, canonical.loads(arguments), call_id) != self._results[call_id]:
                raise EnvironmentFailure(
                    f"{name} answered the same call differently when made again; it is not deterministic"
                )

    async def _leave(self) -> None:
        """End the world as it is; the session goes on in a fresh one."""
        await self._release()
