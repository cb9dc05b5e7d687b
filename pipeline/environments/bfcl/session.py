"""One episode of BFCL multi-turn: a world of its own, later user turns from the task, a log for the verifier.

Tools come from documents, not from signatures. Whatever a call raises is an observation (`tool_error`), as
upstream does it. A tool held back is not shown, so the rollout loop refuses calls of it; a call that reaches
the session runs, as upstream's does. Not covered: what benchmarks' sessions share (`benchmark`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from data import canonical
from data.messages import Role, ToolResult, ToolSpec, Turn, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.benchmark import BenchmarkSession
from pipeline.environments.bfcl.dataset import documented_tools
from pipeline.environments.bfcl.verify import PlayedCall, fresh_world, judge
from pipeline.environments.bfcl.worlds import public_value
from pipeline.environments.tools import ToolLimits
from pipeline.errors import ConfigError


class BfclSession(BenchmarkSession):
    """See `pipeline.environments.base.Session`."""

    def __init__(self, task: Task, *, limits: ToolLimits, on_close: Callable[[], None]) -> None:
        super().__init__(task, on_close=on_close, limits=limits)
        self._world = fresh_world(task)
        self._tools = shown_tools(tuple(self._world.instances), task.tools)
        self._held_back: dict[str, list[str]] = task.state_value().get("held_back", {})
        self._calls: list[PlayedCall] = []
        self._request = 0

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools shown now: those held back appear with the user turn that adds them."""
        return self._tools if not self._held_back else self._visible()

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        kept = canonical.loads(canonical.dumps(arguments))  # a world may keep and change what it is given
        answer = self._world.call(name, arguments)
        self._calls.append(PlayedCall(self._request, name, kept, answer.text))
        return self._said(call_id, name, answer.text, failed=answer.failed)

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The task's next user turn; how many were said is read from `turns`, so asking twice is harmless."""
        later = self.task.private_value()["users"]
        said = _num_user(turns) - _num_user(self.task.prompt)
        if said >= len(later):
            return None
        self._request = said + 1
        return user(later[said])

    def end_state(self) -> Any:
        """The worlds' public attributes, which is what the benchmark compares, and the current folder: what
        is asked next depends on it."""
        worlds = self._world.instances
        seen = {name: public_value(instance) for name, instance in worlds.items()}
        return {**seen, "folder": [_folder(instance) for instance in worlds.values()]}

    def _kept(self) -> Any:
        return self._world, self._calls, self._request

    def _put_back(self, kept: Any) -> None:
        self._world, self._calls, self._request = kept

    def _components(self, trajectory: Trajectory) -> Mapping[str, float]:
        return judge(self.task, self._calls).components()

    def _artefact(self, trajectory: Trajectory) -> Any:
        return [asdict(call) for call in self._calls]

    def _visible(self) -> tuple[ToolSpec, ...]:
        later = {
            name for turn, names in self._held_back.items() if self._request < int(turn) for name in names
        }
        return tuple(spec for spec in self._tools if spec.name not in later)


def _folder(world: Any) -> list[str]:
    """The names from the current folder up to the root; [] in a world without folders."""
    names, place = [], getattr(world, "_current_dir", None)
    while place is not None:
        names.append(str(place.name))
        place = place.parent
    return names


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
