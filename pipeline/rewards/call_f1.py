"""Balance of solving every part of the task and making no needless call.

R = 2pr / (p + r), r = solved / required, p = solved / calls made, in [0, 1]. Solved and required are
components of the verifier where they are named (sub-questions solved), else the gold calls that were made.
Source: ASTRA (arXiv 2601.21558), reward F1: recall alone makes turns explode, precision alone stops calling.
Where nothing is required, 1 for making no call, else 0.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.matching import call_f1, made_calls, num_matched
from pipeline.errors import ConfigError
from pipeline.rewards.base import GoldCalls, Measured, ProgramReward, component, gold_calls


class CallF1(ProgramReward):
    """Parts: `solved`, `required`, `made`."""

    name = "call_f1"
    needs_gold = True

    def __init__(
        self, *, gold: GoldCalls | None = None, gold_key: str = "", solved: str = "", required: str = ""
    ) -> None:
        """`solved`, `required`: components of the verifier (both or neither)."""
        if bool(solved) != bool(required):
            raise ConfigError("reward call_f1 takes both solved and required, or neither (gold calls then)")
        self.gold, self.gold_key, self.solved, self.required = gold, gold_key, solved, required

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """F1 of recall and precision."""
        made = made_calls(trajectory.turns)
        if self.solved:
            solved = component(trajectory, self.solved, reward=self.name)
            required = component(trajectory, self.required, reward=self.name)
        else:
            wanted = gold_calls(task, self.gold, self.gold_key, reward=self.name)
            solved, required = float(num_matched(wanted, made)), float(len(wanted))
        parts = {"solved": solved, "required": required, "made": float(len(made))}
        if required == 0:
            return Measured(float(not made), parts)
        return Measured(call_f1(solved, required, len(made)), parts)
