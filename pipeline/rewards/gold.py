"""The calls of gold solutions, for rewards that compare with them.

Gold is played in the environment, once per task and never assumed: a solution that does not score 1 is an
EnvironmentFailure. Not covered: tasks that several call lists solve; rewards over calls take gold's word.
"""

from __future__ import annotations

from collections.abc import Iterable

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.matching import Call, made_calls
from pipeline.environments.base import Environment
from pipeline.environments.play import play
from pipeline.errors import EnvironmentFailure


async def played_calls(environment: Environment, tasks: Iterable[Task]) -> dict[str, tuple[Call, ...]]:
    """Task id to the calls that gold made. Raises EnvironmentFailure where gold does not score 1."""
    found: dict[str, tuple[Call, ...]] = {}
    for task in tasks:
        trajectory = await play(environment, task, environment.gold(task))
        if not trajectory.success:
            raise EnvironmentFailure(
                f"gold of task {task.task_id} does not score 1 in {environment.name}; `trajsmith env check` "
                f"shows where"
            )
        found[task.task_id] = made_calls(trajectory.turns)
    return found


def demonstrated_calls(
    trajectories: Iterable[Trajectory], *, synthesizer: str = "demonstration"
) -> dict[str, tuple[Call, ...]]:
    """Task id to the calls of its shortest successful demonstration."""
    found: dict[str, tuple[Call, ...]] = {}
    for trajectory in trajectories:
        if trajectory.synthesizer == synthesizer and trajectory.success:
            calls = made_calls(trajectory.turns)
            known = found.get(trajectory.task_id)
            found[trajectory.task_id] = calls if known is None or len(calls) < len(known) else known
    return found
