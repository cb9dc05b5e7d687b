"""Success, less what it took and less a malformed call.

R = R_task - turn_weight * T - format_weight * 1[format error]. T is the number of assistant turns; with
`relative` it is that share of the task's turn budget. R_task is the verifier's total. At the defaults (0.1
relative, 0.5) R lies in [-0.6, 1]. A try that fails scores below not trying at all: watch the part
`early_finish`, or set `only_success`, which takes the turns off successes only.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.attempts import attempts
from pipeline.checks.process import finished_early, has_format_error, num_turns
from pipeline.errors import ConfigError
from pipeline.rewards.base import GoldCalls, Measured, ProgramReward, verified


class Efficient(ProgramReward):
    """Parts: `task`, `turns` (T), `format_error`, `early_finish`."""

    name = "efficient"
    helped_by_gold = True

    def __init__(
        self,
        *,
        gold: GoldCalls | None = None,
        turn_weight: float = 0.1,
        format_weight: float = 0.5,
        relative: bool = True,
        only_success: bool = False,
    ) -> None:
        """`relative`: T is a share of the turn budget, else a number of turns."""
        if turn_weight < 0 or format_weight < 0:
            raise ConfigError(
                f"reward efficient: the weights must be at least 0, got {turn_weight} and {format_weight}"
            )
        self.gold, self.turn_weight, self.format_weight = gold or {}, turn_weight, format_weight
        self.relative, self.only_success = relative, only_success

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Task reward less turns less format."""
        calls = list(attempts(trajectory))
        turns = num_turns(trajectory) / (task.budget.max_turns if self.relative else 1)
        parts = {
            "task": verified(trajectory).total,
            "turns": turns,
            "format_error": float(has_format_error(calls)),
            "early_finish": float(early_finish(task, trajectory, self.gold, num_calls=len(calls))),
        }
        charged = 0.0 if self.only_success and not trajectory.success else self.turn_weight * turns
        return Measured(parts["task"] - charged - self.format_weight * parts["format_error"], parts)


def early_finish(task: Task, trajectory: Trajectory, gold: GoldCalls, *, num_calls: int) -> bool:
    """See `pipeline.checks.process.finished_early`, with the number of gold calls where it is known."""
    required = len(gold[task.task_id]) if task.task_id in gold else None
    return finished_early(trajectory, num_calls=num_calls, required=required)
