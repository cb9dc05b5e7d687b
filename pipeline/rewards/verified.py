"""The default: what the environment's verifier gave, 0 or 1 for most worlds.

Source: the outcome reward of RLVR. Parts: none, the verifier's own components are on the record already.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.rewards.base import Measured, ProgramReward, verified


class Verified(ProgramReward):
    """R = the verifier's total."""

    name = "verified"

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """The verifier's total."""
        return Measured(verified(trajectory).total, {})
