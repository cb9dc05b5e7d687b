"""Calls tried in a real session, each of which can be taken back: how every planner here grounds its plans.

A planner never assumes what a tool answers. It tries a call, looks at the result and at whether the state
changed, and keeps it or undoes it. Not covered: choosing what to try (`grounding`, the methods).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple, Self

from data import canonical
from data.messages import ToolCall, ToolResult, ToolSpec, ToolStatus, text_parts
from data.tasks import Task
from pipeline.environments.base import Environment, Session
from pipeline.environments.end_state import state_digest
from pipeline.errors import EnvironmentFailure


class Executed(NamedTuple):
    """A call that was made, what it answered, and the state digests around it."""

    call: ToolCall
    result: ToolResult
    before: str
    after: str

    @property
    def ok(self) -> bool:
        """Whether the tool did its work."""
        return self.result.status is ToolStatus.OK

    @property
    def changes(self) -> bool:
        """Whether the state is another one afterwards."""
        return self.before != self.after

    def arguments(self) -> dict[str, Any]:
        """The call's arguments."""
        return self.call.parsed_arguments()


class Trial:
    """A session of `task` in which calls are tried. `executed` are those that were not taken back.

    Use as an async context manager; raises EnvironmentFailure where the world breaks.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.executed: list[Executed] = []
        self._undo: list[bytes] = []
        self._tried = 0

    @classmethod
    async def open(cls, environment: Environment, task: Task, *, seed: int = 0) -> Trial:
        """A trial in a fresh session."""
        return cls(await environment.open(task, seed=seed))

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools shown now."""
        return self.session.tools

    @property
    def finished(self) -> bool:
        """Whether a call has ended the episode."""
        return bool(getattr(self.session, "finished", False))

    @property
    def state(self) -> str:
        """Digest of the state now, which is the one after the last kept call."""
        return self.executed[-1].after if self.executed else self._digest()

    @property
    def shows_state(self) -> bool:
        """Whether the world says what its state is; else only its answers tell what a call did."""
        return hasattr(self.session, "end_state")

    async def attempt(self, name: str, arguments: dict[str, Any]) -> Executed:
        """Make a call and keep it; `undo` takes it back. Raises EnvironmentFailure on an infra_error."""
        before, kept = self.state, self.session.snapshot()
        call = self._call(name, arguments)
        result = await self.session.call(name, canonical.loads(call.arguments), call.call_id)
        if result.status is ToolStatus.INFRA_ERROR:
            raise EnvironmentFailure(f"{name} broke while it was tried: {result.text}")
        return self._keep(call, result, before=before, kept=kept)

    def answered(self, name: str, arguments: dict[str, Any], *, text: str, status: ToolStatus) -> Executed:
        """Keep a call that is answered without being executed: an outage of the planned world."""
        before, kept = self.state, self.session.snapshot()
        call = self._call(name, arguments)
        result = ToolResult(call_id=call.call_id, name=name, parts=text_parts(text), status=status)
        return self._keep(call, result, before=before, kept=kept)

    def follow(self, other: Trial) -> None:
        """Take over the state and the calls of another trial of the same task."""
        self.session.restore(other.session.snapshot())
        self.executed, self._undo = list(other.executed), list(other._undo)
        self._tried = max(self._tried, other._tried)  # an id used there would be answered from memory

    def _call(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        self._tried += 1
        call_id = f"try_{self._tried - 1}"
        return ToolCall(call_id=call_id, name=name, arguments=canonical.dumps(arguments))

    def _keep(self, call: ToolCall, result: ToolResult, *, before: str, kept: bytes) -> Executed:
        self._undo.append(kept)
        self.executed.append(Executed(call, result, before, ""))
        self.executed[-1] = self.executed[-1]._replace(after=self._digest())
        return self.executed[-1]

    def _digest(self) -> str:
        return state_digest(self.session, [made.call for made in self.executed if made.ok])

    def undo(self) -> None:
        """Take the last kept call back."""
        self.session.restore(self._undo.pop())
        self.executed.pop()

    def back_to(self, number: int) -> None:
        """Take calls back until `number` are kept."""
        while len(self.executed) > number:
            self.undo()

    async def __aenter__(self) -> Self:
        """The trial; its session closes at the end of the block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session."""
        await self.session.close()
