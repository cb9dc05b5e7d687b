"""One episode of BFCL multi-turn: a world of its own, later user turns from the task, a log for the verifier.

Implements the Session contract directly, because tools come from documents, not from signatures. All calls
are synchronous in-memory work, so a call can neither overlap another nor be cut off half-way. Whatever a call
raises is an observation (`tool_error`), as upstream does it. A tool held back is not shown, so the rollout
loop refuses calls of it; a call that reaches the session runs, as upstream's does. Not covered: snapshots
from untrusted bytes (they are pickles).
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from data import canonical
from data.messages import Role, ToolResult, ToolSpec, ToolStatus, Turn, text_parts, user
from data.tasks import Task
from data.trajectories import Reward, RewardComponent, Trajectory
from pipeline.environments.bfcl.dataset import documented_tools
from pipeline.environments.bfcl.verify import PlayedCall, fresh_world, judge
from pipeline.environments.bfcl.worlds import public_value
from pipeline.environments.tools import ToolLimits, truncate
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError


class BfclSession:
    """See `pipeline.environments.base.Session`."""

    def __init__(self, task: Task, *, limits: ToolLimits, on_close: Callable[[], None]) -> None:
        self.task = task
        self._limits, self._on_close = limits, on_close
        self._world = fresh_world(task)
        self._tools = shown_tools(tuple(self._world.instances), task.tools)
        self._held_back: dict[str, list[str]] = task.state_value().get("held_back", {})
        self._results: dict[str, ToolResult] = {}
        self._calls: list[PlayedCall] = []
        self._request = 0
        self._closed = False

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools shown now: those held back appear with the user turn that adds them."""
        return self._tools if not self._held_back else self._visible()

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """Execute once; a repeated `call_id` answers the stored result. Raises on a closed session."""
        if call_id in self._results:
            return self._results[call_id]
        if self._closed:
            raise EnvironmentFailure(
                f"call {call_id} ({name}) on a closed session; open a new one for the task"
            )
        kept = canonical.loads(canonical.dumps(arguments))  # a world may keep and change what it is given
        answer = self._world.call(name, arguments)
        self._calls.append(PlayedCall(self._request, name, kept, answer.text))
        parts, cut = truncate(text_parts(answer.text), self._limits)
        status = ToolStatus.TOOL_ERROR if answer.failed else ToolStatus.OK
        result = ToolResult(call_id=call_id, name=name, parts=parts, status=status, truncated=cut)
        self._results[call_id] = result
        return result

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The task's next user turn; how many were said is read from `turns`, so asking twice is harmless."""
        later = self.task.private_value()["users"]
        said = _num_user(turns) - _num_user(self.task.prompt)
        if said >= len(later):
            return None
        self._request = said + 1
        return user(later[said])

    def end_state(self) -> Any:
        """The worlds' public attributes, which is what the benchmark compares."""
        return {name: public_value(instance) for name, instance in self._world.instances.items()}

    def snapshot(self) -> bytes:
        """Instances, stored results and the log, pickled."""
        return pickle.dumps((self.task.task_id, self._world, self._results, self._calls, self._request))

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot of a session of the same task. Raises ConfigError for another task's."""
        task_id, world, results, calls, request = pickle.loads(snapshot)
        if task_id != self.task.task_id:
            raise ConfigError(f"snapshot belongs to task {task_id}, this session to {self.task.task_id}")
        self._world, self._results, self._calls, self._request = world, results, calls, request

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The benchmark's verdict; see `verify.judge`. Raises JudgeError where it cannot be had."""
        try:
            outcome = judge(self.task, self._calls)
        except Exception as error:
            raise JudgeError(f"{self.task.verifier} failed on task {self.task.task_id}: {error!r}") from error
        components = outcome.components()
        return Reward(
            total=components["success"],
            components=tuple(RewardComponent(name=name, value=value) for name, value in components.items()),
            verifier=self.task.verifier,
            artefact_digest=canonical.digest([asdict(call) for call in self._calls]),
        )

    def _visible(self) -> tuple[ToolSpec, ...]:
        later = {
            name for turn, names in self._held_back.items() if self._request < int(turn) for name in names
        }
        return tuple(spec for spec in self._tools if spec.name not in later)

    async def close(self) -> None:
        """Drop the world. Idempotent."""
        if not self._closed:
            self._closed = True
            self._on_close()


@functools.lru_cache(maxsize=1024)
def shown_tools(classes: tuple[str, ...], chosen: tuple[str, ...] | None) -> tuple[ToolSpec, ...]:
    """The documented tools of `classes` named in `chosen`, in that order; None = all."""
    documented = {spec.name: spec for name in classes for spec in documented_tools(name)}
    unknown = [name for name in chosen or () if name not in documented]
    if unknown:
        raise ConfigError(
            f"task shows tools {unknown} that its classes {classes} lack; they have {[*documented]}"
        )
    return tuple(documented[name] for name in (documented if chosen is None else chosen))


def _num_user(turns: Sequence[Turn]) -> int:
    return sum(turn.role is Role.USER for turn in turns)
