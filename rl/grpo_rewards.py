"""What a policy is rewarded by in training, where that is not verified success.

Decides: scores become components of the stored record, the verifier's total stays what it was; a rollout
whose judge failed has no value and leaves its group before anything is centred, like one the infrastructure
broke; and a batch in which most judgements failed stops the run. Not covered: the rewards themselves
(`pipeline.rewards`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data import canonical
from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import RewardBy, Trajectory
from pipeline.rewards.base import PREFIX, RewardFunction, chosen_total, refuse_failures, rescored


@dataclass(frozen=True, slots=True)
class ChosenReward:
    """A reward and the tasks it may be asked about."""

    reward: RewardFunction
    row: Mapping[str, Any]
    """The recipe's row: its identity."""
    tasks: Mapping[str, Task]
    """By task id."""

    @property
    def waits(self) -> bool:
        """Whether scores are made once a batch is complete: a model judges, or rollouts are compared."""
        return self.reward.per_group or self.reward.by is not RewardBy.PROGRAM

    def identity(self) -> str:
        """Digest of the name and the options."""
        return canonical.digest("reward", dict(self.row))

    def value(self, trajectory: Trajectory) -> float | None:
        """What the trajectory is rewarded with; None where it has no reward or its judge failed."""
        return chosen_total(trajectory, self.reward.name)

    def parts(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Mean of every part of the reward over the trajectories that have it."""
        prefix, values = f"{PREFIX}{self.reward.name}/", dict[str, list[float]]()
        for trajectory in trajectories:
            for part in trajectory.reward.components if trajectory.reward is not None else ():
                if part.name.startswith(prefix):
                    values.setdefault(part.name.removeprefix(prefix), []).append(part.value)
        return {name: sum(found) / len(found) for name, found in sorted(values.items())}

    async def rescored(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The trajectories with their scores, in order."""
        groups: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            groups.setdefault(trajectory.group_id, []).append(trajectory)
        scored = await asyncio.gather(
            *(rescored(self._task(group[0]), group, self.reward) for group in groups.values())
        )
        by_id = {trajectory.trajectory_id: trajectory for group in scored for trajectory in group}
        return [by_id[trajectory.trajectory_id] for trajectory in trajectories]

    def refuse_failures(self, trajectories: Sequence[Trajectory]) -> None:
        """JudgeError where most judgements of a batch failed."""
        judged = [trajectory for trajectory in trajectories if trajectory.reward is not None]
        failed = [trajectory for trajectory in judged if self.value(trajectory) is None]
        last = failed[-1].error if failed else ""
        refuse_failures(self.reward.name, num_failed=len(failed), num_judged=len(judged), last=last)

    async def close(self) -> None:
        """Release the reward's connections."""
        await self.reward.close()

    def _task(self, trajectory: Trajectory) -> Task:
        if trajectory.task_id not in self.tasks:
            raise ConfigError(
                f"reward {self.reward.name} needs task {trajectory.task_id}, which is not among the given "
                f"{len(self.tasks)}; give the tasks of all trajectories"
            )
        return self.tasks[trajectory.task_id]
