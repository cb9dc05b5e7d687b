"""The calls of gold solutions, for rewards that compare with them.

Gold is played in the environment, once per task, and never assumed to be right. Not covered: tasks that
several call lists solve; rewards over calls take gold's word.
"""

from __future__ import annotations

from collections.abc import Iterable

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.matching import Call, made_calls
from pipeline.environments.base import Environment
from pipeline.environments.play import play
from pipeline.errors import EnvironmentFailure, TrajsmithError


async def played_calls(
    environment: Environment, tasks: Iterable[Task], *, strict: bool = True
) -> dict[str, tuple[Call, ...]]:
    """Task id to the calls that gold made, in the world, where it scored 1.

    With `strict` an EnvironmentFailure where it did not; else such tasks are left out.
    """
    found: dict[str, tuple[Call, ...]] = {}
    for task in tasks:
        try:
            trajectory = await play(environment, task, environment.gold(task))
        except TrajsmithError:
            if strict:
                raise
            continue
        if trajectory.success:
            found[task.task_id] = made_calls(trajectory.turns)
        elif strict:
            raise EnvironmentFailure(
                f"gold of task {task.task_id} does not score 1 in {environment.name}; `trajsmith env check` "
                f"shows where"
            )
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
