"""Success less the cost of the tools that were used.

R = success - weight * tool_cost, tool_cost = sum over the calls that were executed of the tool's cost
(`costs`, 1 where a tool is not listed). In [-weight * cost, 1]. A weight that is too large teaches to check
less and to stop early: the part `early_finish` (ended by the agent, without success, with fewer calls than
gold needs) says when that happens, and its mean is in the training log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.attempts import attempts
from pipeline.errors import ConfigError
from pipeline.rewards.base import GoldCalls, Measured, ProgramReward
from pipeline.rewards.efficient import early_finish


class ToolCost(ProgramReward):
    """Parts: `success`, `tool_cost`, `early_finish`."""

    name = "tool_cost"
    helped_by_gold = True

    def __init__(
        self,
        *,
        gold: GoldCalls | None = None,
        weight: float = 0.05,
        costs: Mapping[str, Any] | None = None,
        only_success: bool = False,
    ) -> None:
        """`costs`: tool name to cost per call; `only_success`: failures pay nothing, so that failing after a
        try is never worse than not trying."""
        self.costs = {name: _cost(name, cost) for name, cost in (costs or {}).items()}
        if weight < 0:
            raise ConfigError(f"reward tool_cost: weight must be at least 0, got {weight}")
        self.gold, self.weight, self.only_success = gold or {}, weight, only_success

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Success less cost."""
        calls = list(attempts(trajectory))
        success = float(bool(trajectory.success))
        cost = sum(self.costs.get(attempt.call.name, 1.0) for attempt in calls if attempt.executed)
        early = early_finish(task, trajectory, self.gold, num_calls=len(calls))
        charged = 0.0 if self.only_success and not success else self.weight * cost
        parts = {"success": success, "tool_cost": cost, "early_finish": float(early)}
        return Measured(success - charged, parts)


def _cost(name: str, cost: Any) -> float:
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < float("inf"):
        raise ConfigError(f"reward tool_cost: the cost of {name!r} must be a number >= 0, got {cost!r}")
    return float(cost)
