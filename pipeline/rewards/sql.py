"""Equal result sets, less a penalty for work a better query would not have done.

R = result * (1 - penalty * excess), excess = min(1, max(0, cost / gold_cost - 1)), in [0, 1]. `result` is the
verifier's comparison (`pipeline.checks.tables`: row order counts only under ORDER BY); the cost is counted
in rows scanned or engine steps, never in seconds, so the same query always scores the same. A wrong query
scores 0 whatever it cost: else asking nothing would beat trying.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.errors import ConfigError
from pipeline.rewards.base import Measured, ProgramReward, component, known_component


class Sql(ProgramReward):
    """Parts: `result`, `excess`."""

    name = "sql"

    def __init__(
        self,
        *,
        result: str = "result",
        cost: str = "steps",
        gold_cost: str = "gold_steps",
        penalty: float = 0.0,
    ) -> None:
        """`result`, `cost`, `gold_cost`: names of the verifier's components."""
        if not 0 <= penalty <= 1:
            raise ConfigError(f"reward sql needs a penalty between 0 and 1, got {penalty}")
        self.result, self.cost, self.gold_cost, self.penalty = result, cost, gold_cost, penalty

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Result less the excess cost."""
        result = component(trajectory, self.result, reward=self.name)
        excess = self._excess(trajectory) if self.penalty and result else 0.0
        return Measured(result * (1.0 - self.penalty * excess), {"result": result, "excess": excess})

    def _excess(self, trajectory: Trajectory) -> float:
        if known_component(trajectory, self.result) is None:
            return 0.0
        cost = component(trajectory, self.cost, reward=self.name)
        gold = component(trajectory, self.gold_cost, reward=self.name)
        return min(1.0, max(0.0, cost / gold - 1.0)) if gold > 0 else 0.0
