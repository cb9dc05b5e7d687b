"""Equal result sets, less a penalty for work a better query would not have done.

R = result * (1 - penalty * min(1, max(0, cost_ratio - 1))), in [0, 1]. `result` is the verifier's comparison
(equal rows, in order only where gold orders) and `cost_ratio` the query's cost over gold's, counted in engine
steps or rows scanned, never in seconds, so the same query always scores the same. A wrong query scores 0
whatever it cost: else asking nothing would beat trying.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.errors import ConfigError
from pipeline.rewards.base import Measured, ProgramReward, component, known_component


class Sql(ProgramReward):
    """Parts: `result`, `excess` (in [0, 1])."""

    name = "sql"

    def __init__(
        self, *, result: str = "success", cost_ratio: str = "cost_ratio", penalty: float = 0.1
    ) -> None:
        """`result`, `cost_ratio`: components of the verifier; an answer without a query costs nothing."""
        if not 0 <= penalty <= 1:
            raise ConfigError(f"reward sql needs a penalty between 0 and 1, got {penalty}")
        self.result, self.cost_ratio, self.penalty = result, cost_ratio, penalty

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Result less the excess cost."""
        result = component(trajectory, self.result, reward=self.name)
        ratio = known_component(trajectory, self.cost_ratio)
        excess = 0.0 if ratio is None or not result else min(1.0, max(0.0, ratio - 1.0))
        return Measured(result * (1.0 - self.penalty * excess), {"result": result, "excess": excess})
