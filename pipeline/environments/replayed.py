"""Sessions of foreign worlds that keep no snapshots: a snapshot is the list of calls, made again.

Decided here, once for every such world: a restored session is brought to its place before its next call or
its verdict, in a fresh world, or in the one it has where that only lacks the later calls; an answer that
differs then, or a world that cannot be made, poisons the session, since nothing after it could be trusted.
Not covered: worlds whose answers change by themselves (record those with a cassette).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from data import canonical
from data.messages import ToolResult, ToolSpec, ToolStatus, Turn
from data.tasks import Task
from pipeline.environments.guarded import GuardedSession
from pipeline.errors import EnvironmentFailure

Made = tuple[str, str, str]
"""Call id, tool and arguments of a call that was answered."""


class Replays(GuardedSession):
    """Subclasses write `start` (a fresh world), `_leave` (its end) and `_again` (one call in it), add to
    `_history` what was answered, and ask `_catch_up` before they use the world.

    `_fresh` is false where a world is still to be made.
    """

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(task, **options)
        self._history: list[Made] = []
        self._pending: list[Made] = []
        """Calls of the history that the world has not seen yet."""
        self._fresh = False

    @abstractmethod
    async def start(self) -> None:
        """Begin a fresh world. Raises EnvironmentFailure."""

    @abstractmethod
    async def _leave(self) -> None:
        """End the world as it is; the session goes on in a fresh one."""

    @abstractmethod
    async def _again(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """One call in the world as it is, for the second time."""

    def _is_effect(self, name: str) -> bool:
        """Whether a call may have changed the world; only these are made again."""
        return True

    def snapshot(self) -> bytes:
        """The calls answered so far, with their answers."""
        self._refuse_if_poisoned()
        results = {key: result.model_dump(mode="json") for key, result in self._results.items()}
        return canonical.dumps([self.task.task_id, self._history, results]).encode("ascii")

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot of the same task; the world is brought there before the next call."""
        self._refuse_if_poisoned()
        task_id, history, results = canonical.loads(snapshot.decode("ascii"))
        self._refuse_foreign(task_id)
        self._rewind([(call_id, name, arguments) for call_id, name, arguments in history])
        self._results = {key: ToolResult.model_validate(value) for key, value in results.items()}

    def _rewind(self, history: list[Made]) -> None:
        """Make `history` the session's; nothing is made again where the world has seen just that."""
        done, wanted = self._effects(self._history), self._effects(history)
        if self._pending or wanted[: len(done)] != done:
            self._fresh, done = False, []
        self._history, self._pending = history, wanted[len(done) :]

    def _effects(self, history: Sequence[Made]) -> list[Made]:
        return [made for made in history if self._is_effect(made[1])]

    async def _catch_up(self) -> None:
        """A world in the state the history stands for. Raises EnvironmentFailure."""
        pending, self._pending = self._pending, []  # first, for what follows may ask to catch up itself
        try:
            if not self._fresh:
                self._fresh = True
                await self._leave()
                await self.start()
            for call_id, name, arguments in pending:
                now = await self._again(name, canonical.loads(arguments), call_id)
                if now != self._results[call_id]:
                    raise EnvironmentFailure(
                        f"{name} answered the same call differently when made again: {now.text!r:.60}; it is "
                        "not deterministic, or its fresh world is not complete"
                    )
        except BaseException as error:
            self._poison = self._poison or f"its world could not be brought back: {error}"
            raise


class ReplayedSession(Replays):
    """Subclasses write `start`, `_answered` (one call) and `_release` (the session's end)."""

    tools: tuple[ToolSpec, ...]

    def __init__(self, task: Task, *, seed: int = 0) -> None:
        super().__init__(task, seed=seed)
        self._fresh = True

    @abstractmethod
    async def _answered(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """One call in the world as it is. Raises EnvironmentFailure."""

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """None: these worlds ask once."""
        return None

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

    async def _again(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        return await self._answered(name, arguments, call_id)

    async def _leave(self) -> None:
        await self._release()
