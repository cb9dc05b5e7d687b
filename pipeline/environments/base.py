"""The Environment and Session contract: tools + state + verifier.

An environment opens one isolated session per rollout. `verify` judges after the end and is not
reachable by the agent. A tool's own error is an observation (`tool_error`); anything that is not
the agent's doing raises EnvironmentFailure or answers `infra_error`, and never becomes a reward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from data.messages import ToolResult, ToolSpec, Turn
from data.tasks import Task
from data.trajectories import Reward, Trajectory


class Session(Protocol):
    """One episode's world. Not safe for concurrent calls of itself; sessions are isolated from each other.

    A session may have an attribute `finished`: where it is true after the calls of a turn, the episode is
    over (a tool such as `finish` submitted the work). Sessions without it end with a turn without calls.
    """

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools shown now; a change mid-episode starts a new segment."""
        ...

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """Execute once. A repeated `call_id` returns the stored result and executes nothing."""
        ...

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The next user turn after an assistant turn without calls, or None where the episode is over."""
        ...

    def snapshot(self) -> bytes:
        """The whole state, restorable in this or another session of the same task."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot."""
        ...

    async def verify(self, trajectory: Trajectory) -> Reward:
        """Judge the finished episode. Raises JudgeError where it cannot."""
        ...

    async def close(self) -> None:
        """Release everything; idempotent."""
        ...


class Environment(Protocol):
    """A world. `version` is a digest of what changes its behaviour.

    It may also have `inline`, an InlineFormat or None: how calls are written where they are no chat turns;
    rollouts follow it. `media`, a MediaStore, is where images and the like that its tools answer are kept.
    """

    name: str
    version: str
    splits: tuple[str, ...]

    def tasks(self, split: str) -> Iterator[Task]:
        """The tasks of a split, in a fixed order; may be long, so take what is needed."""
        ...

    async def open(self, task: Task, *, seed: int = 0) -> Session:
        """A fresh, isolated session."""
        ...

    def gold(self, task: Task) -> GoldScript:
        """A script that solves the task, from `task.private`."""
        ...


class GoldScript(Protocol):
    """The gold policy of one task, driven turn by turn so that later steps may depend on results."""

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The gold agent's next assistant turn given the dialogue so far; None when it is done."""
        ...
