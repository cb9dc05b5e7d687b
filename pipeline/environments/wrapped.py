"""An environment around another one: same tasks, gold and verifier, with something between it and the agent.

Whatever the inner environment offers beyond the contract (`media`, `inline`, `foreign`, ...) is reached
through the wrapper, and so is what its sessions offer (`finished`, `live_tools`, ...) through theirs, which
are PassesOn, too. Not covered: what each wrapper does to a session's calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from data.messages import ToolResult, ToolStatus, text_parts
from data.tasks import Task
from pipeline.environments.base import Environment, GoldScript


def no_such_tool(name: str, call_id: str, *, shown: Sequence[str]) -> ToolResult:
    """The answer to a call of a tool that is not shown."""
    text = text_parts(f"no tool {name}; tools: {', '.join(shown)}")
    return ToolResult(call_id=call_id, name=name, parts=text, status=ToolStatus.TOOL_ERROR)


class PassesOn:
    """What the object itself lacks is its `inner` one's."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        """What else the inner object offers."""
        if name == "inner":  # not set yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)


class WrappedEnvironment(PassesOn):
    """Subclasses write `open`."""

    inner: Environment

    def __init__(self, inner: Environment, *, version: str) -> None:
        self.inner = inner
        self.name, self.splits, self.version = inner.name, inner.splits, version

    @property
    def media(self) -> Any:
        """The inner environment's media store."""
        return getattr(self.inner, "media", None)

    @media.setter
    def media(self, store: Any) -> None:
        if hasattr(self.inner, "media"):
            self.inner.media = store

    def tasks(self, split: str) -> Iterator[Task]:
        """See `Environment.tasks`."""
        return self.inner.tasks(split)

    def gold(self, task: Task) -> GoldScript:
        """See `Environment.gold`; a gold script meets what any agent meets."""
        return self.inner.gold(task)
