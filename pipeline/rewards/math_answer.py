"""Whether the final answer equals the reference as mathematics.

R = 1 where equal, else 0 (`math-verify`, in a process of its own: `pipeline.checks.math_answers`). An answer
that takes more than the allowed CPU time or memory to compare is wrong, by contract; a checker that breaks
or is starved by the machine is a failed judge and no score.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.math_answers import MathLimits, compare_answers
from pipeline.rewards.base import Measured, ProgramReward, submitted_answer
from pipeline.rewards.search import private_texts


class MathAnswer(ProgramReward):
    """Parts: `over_limit` (1 where the answer was too costly to compare), `unanswered`."""

    name = "math"

    def __init__(self, *, answer: str = "answer", cpu_seconds: int = 5) -> None:
        """`answer`: key of the private part with the reference (or several: any may be met)."""
        self.answer, self.limits = answer, MathLimits(cpu_seconds=cpu_seconds)

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Compare with every reference."""
        given = submitted_answer(trajectory)
        verdict = compare_answers(private_texts(task, self.answer, self.name), given, limits=self.limits)
        parts = {"over_limit": float(verdict.over_limit), "unanswered": float(not given)}
        return Measured(float(verdict.equal), parts)
