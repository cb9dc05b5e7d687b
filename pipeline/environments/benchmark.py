"""Sessions of public benchmarks, over worlds in memory: what theirs share beside the worlds and the verdicts.

Calls are synchronous work, so none overlaps another or is cut off half-way. Snapshots are pickles of what the
session names; the reward is the benchmark's verdict. Not covered: snapshots from untrusted bytes.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import ToolResult, ToolStatus, Turn, text_parts
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.environments.guarded import GuardedSession
from pipeline.environments.tools import ToolLimits, truncate
from pipeline.errors import JudgeError


class BenchmarkSession(GuardedSession):
    """Subclasses write `_execute`, `_kept` and `_put_back` (their state), `_components` and `_artefact`."""

    def __init__(self, task: Task, *, on_close: Callable[[], None], limits: ToolLimits | None = None) -> None:
        super().__init__(task)
        self._on_close, self._limits = on_close, limits or ToolLimits()

    def snapshot(self) -> bytes:
        """The state and the stored results, pickled."""
        self._refuse_if_poisoned()
        return pickle.dumps((self.task.task_id, self._results, self._kept()))

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot of a session of the same task. Raises ConfigError for another task's."""
        self._refuse_if_poisoned()
        task_id, results, kept = pickle.loads(snapshot)
        self._refuse_foreign(task_id)
        self._results = results
        self._put_back(kept)

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The benchmark's verdict. Raises JudgeError where it cannot be had."""
        self._refuse_if_poisoned()
        try:
            components = self._components(trajectory)
        except Exception as error:
            raise JudgeError(f"{self.task.verifier} failed on task {self.task.task_id}: {error!r}") from error
        digest = canonical.digest(self._artefact(trajectory))
        return Reward.of(components, verifier=self.task.verifier, artefact_digest=digest)

    @abstractmethod
    def _components(self, trajectory: Trajectory) -> Mapping[str, float]:
        """Components by name; `success` is the total."""

    @abstractmethod
    def _artefact(self, trajectory: Trajectory) -> Any:
        """What was judged, as JSON."""

    @abstractmethod
    def _kept(self) -> Any:
        """What a snapshot keeps beside the results."""

    @abstractmethod
    def _put_back(self, kept: Any) -> None:
        """Return to what `_kept` gave."""

    def _played(self, trajectory: Trajectory) -> Sequence[Turn]:
        """The turns after the prompt."""
        return trajectory.turns[len(self.task.prompt) :]

    def _said(self, call_id: str, name: str, text: str, *, failed: bool) -> ToolResult:
        """What the world said, as far as the limits let it through."""
        parts, cut = truncate(text_parts(text), self._limits)
        status = ToolStatus.TOOL_ERROR if failed else ToolStatus.OK
        return ToolResult(call_id=call_id, name=name, parts=parts, status=status, truncated=cut)

    async def _release(self) -> None:
        self._on_close()
