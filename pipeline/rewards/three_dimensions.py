"""Completion, process and efficiency in one number, every part defined.

R = 0.5 * completion + 0.3 * process + 0.2 * efficiency (weights are options), in [0, 1].

- completion: the verifier's total, cut to [0, 1].
- process = 0.4 * effective + 0.3 * coherence + 0.3 * recovery.
  effective: share of calls that were well formed, answered without an error and no repetition of an answer
  already had. coherence: 1 - share of calls that repeat the call right before them. recovery: share of
  failed calls after which the same tool succeeded within three calls, 1 where none failed. Without any call,
  and where the agent gave up before it made as many calls as gold, all three are the completion, so that
  doing nothing, or one harmless call, earns nothing unless it was the right thing to do.
- efficiency = completion * mean of: min(1, gold calls / calls) (where gold is not known, the share of the
  turn budget left), the share of the turn budget left, the share of the token budget left. A failed episode
  is not efficient.

Source: the usual three-way split of agent rewards; the parts are ours, since the source leaves them open.
Parts that are designed by hand reward their own letter: verified success stands beside the total.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.attempts import Attempt, attempts
from pipeline.checks.process import (
    num_effective,
    num_said,
    num_turns,
    recovery_share,
    repetition_share,
)
from pipeline.errors import ConfigError
from pipeline.rewards.base import GoldCalls, Measured, ProgramReward, verified
from pipeline.rewards.efficient import early_finish


class ThreeDimensions(ProgramReward):
    """Parts: `completion`, `process`, `efficiency`, `effective`, `coherence`, `recovery`."""

    name = "three_dimensions"
    helped_by_gold = True

    def __init__(
        self,
        *,
        gold: GoldCalls | None = None,
        completion: float = 0.5,
        process: float = 0.3,
        efficiency: float = 0.2,
    ) -> None:
        """The weights of the three dimensions."""
        if min(completion, process, efficiency) < 0 or completion <= 0:
            raise ConfigError("reward three_dimensions: no weight may be negative, and completion must count")
        self.gold, self.weights = gold or {}, (completion, process, efficiency)

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """The weighted sum."""
        calls = list(attempts(trajectory))
        completion = min(1.0, max(0.0, verified(trajectory).total))
        gave_up = early_finish(task, trajectory, self.gold, num_calls=len(calls))
        parts = {"completion": completion, **_process([] if gave_up else calls, completion)}
        parts["efficiency"] = completion * self._efficiency(task, trajectory, len(calls))
        dimensions = (parts["completion"], parts["process"], parts["efficiency"])
        return Measured(sum(w * d for w, d in zip(self.weights, dimensions, strict=True)), parts)

    def _efficiency(self, task: Task, trajectory: Trajectory, num_calls: int) -> float:
        turns_left = max(0.0, 1.0 - num_turns(trajectory) / task.budget.max_turns)
        tokens_left = max(0.0, 1.0 - _tokens(trajectory) / task.budget.max_tokens)
        gold = self.gold.get(task.task_id)
        calls = turns_left if gold is None else min(1.0, len(gold) / num_calls) if num_calls else 1.0
        return (calls + turns_left + tokens_left) / 3


def _process(calls: list[Attempt], completion: float) -> dict[str, float]:
    if not calls:
        return dict.fromkeys(("effective", "coherence", "recovery", "process"), completion)
    recovery = recovery_share(calls)
    parts = {
        "effective": num_effective(calls) / len(calls),
        "coherence": 1.0 - repetition_share(calls),
        "recovery": 1.0 if recovery is None else recovery,
    }
    process = 0.4 * parts["effective"] + 0.3 * parts["coherence"] + 0.3 * parts["recovery"]
    return {**parts, "process": process}


def _tokens(trajectory: Trajectory) -> int:
    return trajectory.usage.prompt_tokens + num_said(trajectory)
