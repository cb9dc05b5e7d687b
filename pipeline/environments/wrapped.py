"""An environment around another one: same tasks, gold and verifier, with something between it and the agent.

Whatever the inner environment offers beyond the contract (`media`, `inline`, `foreign`, ...) is reached
through the wrapper. Not covered: sessions, which each wrapper wraps in its own way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data.tasks import Task
from pipeline.environments.base import Environment, GoldScript


class WrappedEnvironment:
    """Subclasses write `open`."""

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

    def __getattr__(self, name: str) -> Any:
        """What else the inner environment offers."""
        if name == "inner":  # not set yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def tasks(self, split: str) -> Iterator[Task]:
        """See `Environment.tasks`."""
        return self.inner.tasks(split)

    def gold(self, task: Task) -> GoldScript:
        """See `Environment.gold`; a gold script meets what any agent meets."""
        return self.inner.gold(task)
