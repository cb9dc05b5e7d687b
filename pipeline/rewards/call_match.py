"""All or nothing: the calls made are exactly the gold calls, as a multiset.

R = 1 where the multisets of (name, arguments) are equal, else 0; where gold calls nothing, 1 for no call at
all. Source: LoopTool (arXiv 2511.09148), section 3.2 and its released matcher. For models that already call
well; for worlds with state prefer verified success, since other calls may reach the same end.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.matching import made_calls, num_matched, same_calls
from pipeline.rewards.base import GoldCalls, Measured, ProgramReward, gold_calls


class CallMatch(ProgramReward):
    """Parts: `matched` and `made`, numbers of calls."""

    name = "call_match"
    needs_gold = True

    def __init__(self, *, gold: GoldCalls | None = None, gold_key: str = "") -> None:
        """`gold_key`: key of the private part that lists the calls; "" takes those that gold played."""
        self.gold, self.gold_key = gold, gold_key

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Compare the multisets."""
        wanted = gold_calls(task, self.gold, self.gold_key, reward=self.name)
        made = made_calls(trajectory.turns)
        parts = {"matched": num_matched(wanted, made), "made": len(made)}
        return Measured(float(same_calls(wanted, made)), parts)
