"""Partial credit for names, argument names and values of calls, and for their format.

R = format + correctness: format is 1 where every call parses and fits its schema, else 0; correctness is
6 * (name + parameters + values) / maximum - 3 in [-3, 3] (`pipeline.checks.matching.graded_match`), -3 where
a call does not parse, and 0 where gold calls nothing and nothing was called (-3 where something was). Range
[-3, 4]. Source: ToolRL (arXiv 2504.13958). Good for a cold start; a model that calls well should get
`call_match`, since graded credit also pays for almost right calls.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.attempts import attempts
from pipeline.checks.matching import Call, graded_match, made_calls
from pipeline.checks.process import has_format_error
from pipeline.rewards.base import GoldCalls, Measured, ProgramReward, gold_calls

WORST = -3.0


class CallGraded(ProgramReward):
    """Parts: `format`, `correctness`, and the sums `name_score`, `parameter_score`, `value_score`."""

    name = "call_graded"
    needs_gold = True

    def __init__(self, *, gold: GoldCalls | None = None, gold_key: str = "") -> None:
        """`gold_key`: key of the private part that lists the calls; "" takes those that gold played."""
        self.gold, self.gold_key = gold, gold_key

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Format plus correctness."""
        wanted = gold_calls(task, self.gold, self.gold_key, reward=self.name)
        parts = {"format": float(not has_format_error(list(attempts(trajectory))))}
        parts |= graded_parts(wanted, made_calls(trajectory.turns))
        return Measured(parts["format"] + parts["correctness"], parts)


def graded_parts(wanted: tuple[Call, ...], made: tuple[Call, ...]) -> dict[str, float]:
    """`correctness` and what it is made of."""
    if any(call.arguments is None for call in made):
        return {"correctness": WORST}
    if not wanted:
        return {"correctness": WORST if made else 0.0}
    graded = graded_match(wanted, made)
    return {
        "correctness": graded.score,
        "name_score": graded.name,
        "parameter_score": graded.parameters,
        "value_score": graded.values,
    }
