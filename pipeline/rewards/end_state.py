"""Whether the world is in the wanted end state, whatever was said or called on the way.

R = the verifier's component of that name, 0 or 1 (tau-bench, APIGen-MT: judge the state, not the calls).
Unlike verified success it does not ask for the right final answer, so it is the milder one.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.rewards.base import Measured, ProgramReward, component


class EndState(ProgramReward):
    """Parts: `state`."""

    name = "end_state"

    def __init__(self, *, state: str = "state") -> None:
        """`state`: name of the verifier's component."""
        self.state = state

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """The component."""
        value = component(trajectory, self.state, reward=self.name)
        return Measured(value, {"state": value})
