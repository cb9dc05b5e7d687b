"""Share of hidden tests passed, optionally less a penalty for time or steps.

R = pass_rate - penalty * min(1, cost / cost_limit), in [-penalty, 1]. Pass rate (the share of hidden
tests that are right) and cost are components of the environment's verifier; name a cost that counts steps,
since seconds change with the load of the machine. Partly right programs get partial credit: verified success
needs every test.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.errors import ConfigError
from pipeline.rewards.base import Measured, ProgramReward, component


class CodeTests(ProgramReward):
    """Parts: `pass_rate`, and `cost` (a share of the limit) where there is one."""

    name = "code"

    def __init__(
        self, *, passed: str = "hidden", cost: str = "", cost_limit: float = 1.0, penalty: float = 0.0
    ) -> None:
        """`passed`, `cost`: names of the verifier's components; `cost_limit` in the unit of the cost."""
        if penalty < 0 or not cost_limit > 0:
            raise ConfigError(
                f"reward code needs penalty >= 0 and cost_limit > 0, got {penalty} and {cost_limit}"
            )
        if penalty and not cost:
            raise ConfigError("reward code has a penalty but no cost; name the component that it is for")
        self.passed, self.cost, self.cost_limit, self.penalty = passed, cost, cost_limit, penalty

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Pass rate less the penalty."""
        parts = {"pass_rate": component(trajectory, self.passed, reward=self.name)}
        if self.cost:
            used = component(trajectory, self.cost, reward=self.name)
            parts["cost"] = min(1.0, max(0.0, used / self.cost_limit))
        return Measured(parts["pass_rate"] - self.penalty * parts.get("cost", 0.0), parts)
