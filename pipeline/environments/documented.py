"""Sessions whose tools come from a document and whose tasks come from a task file (`task_file`).

Decides, for live and simulated tools alike: arguments are checked against the documented schema before
anything is asked; later user turns and checks come from the task; every check must pass for success. A
subclass answers calls (`_respond`), and judges the kinds of check it adds (`_passes`). Not covered: where an
answer comes from.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import Role, ToolResult, ToolSpec, ToolStatus, Turn, user
from data.tasks import Task
from data.trajectories import Reward, RewardComponent, Trajectory
from pipeline.checks.calls import argument_problems
from pipeline.environments.guarded import GuardedSession
from pipeline.environments.responses import ToolResponse
from pipeline.environments.task_checks import check_answer, check_calls
from pipeline.environments.task_file import file_checks, later_turns
from pipeline.environments.toolkit import source_digest
from pipeline.environments.tools import ToolError, ToolLimits, truncate
from pipeline.errors import BudgetExceededError, ConfigError, JudgeError, TrajsmithError


def sources_digest(module_name: str) -> str:
    """Digest of a package that builds on this module, and of what judges its tasks."""
    shared = ("documented", "task_file", "task_checks")
    names = [module_name, *(f"pipeline.environments.{name}" for name in shared)]
    return canonical.digest([source_digest(name) for name in names], length=12)


class DocumentedSession(GuardedSession):
    """`specs`: every tool by name; `reads`: those that change nothing."""

    def __init__(
        self,
        task: Task,
        *,
        specs: Mapping[str, ToolSpec],
        reads: frozenset[str],
        seed: int = 0,
        limits: ToolLimits | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(task, seed=seed)
        names = tuple(specs) if task.tools is None else task.tools
        unknown = [name for name in names if name not in specs]
        if unknown:
            raise ConfigError(f"task shows tools {unknown} that are not documented: {', '.join(specs)}")
        self._specs = {name: specs[name] for name in names}
        self._reads, self._limits, self._on_close = reads, limits or ToolLimits(), on_close

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools shown, in the task's order."""
        return tuple(self._specs.values())

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The task's next request; how many were said is read from `turns`."""
        said = sum(turn.role is Role.USER for turn in turns) - sum(
            turn.role is Role.USER for turn in self.task.prompt
        )
        later = later_turns(self.task)
        return user(later[said]) if said < len(later) else None

    async def verify(self, trajectory: Trajectory) -> Reward:
        """1 where every check passes; each check is a component. Raises JudgeError where one cannot judge."""
        self._refuse_if_poisoned()
        components = []
        for number, check in enumerate(file_checks(self.task)):
            try:
                passed = await self._judge(check, trajectory)
            except Exception as error:
                raise JudgeError(f"check {number} of task {self.task.task_id} failed: {error}") from error
            components.append(RewardComponent(name=f"{next(iter(check))}_{number}", value=float(passed)))
        success = float(all(component.value for component in components))
        return Reward(
            total=success,
            components=(RewardComponent(name="success", value=success), *components),
            verifier=self.task.verifier,
            artefact_digest=canonical.digest(self._artefact()),
        )

    @abstractmethod
    async def _respond(self, name: str, arguments: dict[str, Any]) -> ToolResponse:
        """Answer a well-formed call. ToolError is the agent's doing, anything else breaks the session."""

    @abstractmethod
    async def _passes(self, check: dict[str, Any]) -> bool:
        """Judge a check of a kind that is not generic."""

    @abstractmethod
    def _artefact(self) -> Any:
        """What was judged, as JSON."""

    async def _judge(self, check: dict[str, Any], trajectory: Trajectory) -> bool:
        turns = trajectory.turns
        if "calls" in check:
            return check_calls(check, turns, self.tools, reads=self._reads)
        return check_answer(check, turns) if "answer" in check else await self._passes(check)

    async def _execute(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        spec = self._specs.get(name)
        if spec is None:
            known = ", ".join(self._specs)
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, f"no tool {name}; tools: {known}")
        problems = argument_problems(arguments, canonical.loads(spec.parameters))
        if problems:
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, "; ".join(problems))
        try:
            response = await self._respond(name, arguments)
        except ToolError as error:
            return self._failed(call_id, name, ToolStatus.TOOL_ERROR, str(error))
        except BudgetExceededError:
            raise
        except TrajsmithError as error:
            return self._failed(call_id, name, ToolStatus.INFRA_ERROR, str(error))
        except Exception as error:
            return self._failed(call_id, name, ToolStatus.INFRA_ERROR, f"tool {name} is broken: {error!r}")
        parts, cut = truncate(response.content(), self._limits)
        return ToolResult(
            call_id=call_id, name=name, parts=parts, metrics=response.named_metrics(), truncated=cut
        )

    async def _release(self) -> None:
        if self._on_close is not None:
            self._on_close()
