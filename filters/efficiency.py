"""Keeps trajectories that need no more calls than the gold solution, within a ratio.

What recovering from a tool's error costs is not counted (`pipeline.checks.attempts.num_counted`), so a
policy is not taught to give up after an injected error; the agent's own malformed calls do count.
Reasons: `ok`, `too_many_calls`, `no_gold_length` (kept: nothing to compare with). The score is gold
calls over counted calls, at most 1. The gold length is looked up by task id; it comes from a
demonstration (`demonstrated_lengths`) or from the task's private part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil

from data.errors import ConfigError
from data.trajectories import Trajectory
from filters.base import ItemFilter, Judgement
from pipeline.checks.attempts import attempts, num_counted

GoldLength = Callable[[str], int | None]
"""Task id to the number of gold calls; None where it is not known."""


class Efficiency(ItemFilter):
    """Calls against gold length."""

    name = "efficiency"

    def __init__(self, *, gold_length: GoldLength, max_ratio: float = 1.5) -> None:
        """`max_ratio`: calls allowed per gold call, rounded up (1 gold call allows 2)."""
        if not max_ratio >= 1:
            raise ConfigError(
                f"efficiency.max_ratio must be at least 1, got {max_ratio}; 1 allows no extra call"
            )
        self.gold_length = gold_length
        self.max_ratio = max_ratio

    def judge(self, trajectory: Trajectory) -> Judgement:
        """Count the calls that were not forced by a tool's error and compare."""
        gold = self.gold_length(trajectory.task_id)
        if gold is None:
            return Judgement(True, "no_gold_length")
        counted = num_counted(list(attempts(trajectory)))
        score = min(1.0, gold / counted) if counted else 1.0
        if counted > ceil(gold * self.max_ratio):
            return Judgement(
                False, "too_many_calls", score=score, detail=f"{counted} calls, gold needs {gold}"
            )
        return Judgement(True, score=score)


def demonstrated_lengths(
    trajectories: Iterable[Trajectory], *, synthesizer: str = "demonstration"
) -> dict[str, int]:
    """Task id to the fewest counted calls of a successful demonstration; pass its `.get` as `gold_length`."""
    lengths: dict[str, int] = {}
    for trajectory in trajectories:
        if trajectory.synthesizer == synthesizer and trajectory.success:
            counted = num_counted(list(attempts(trajectory)))
            lengths[trajectory.task_id] = min(counted, lengths.get(trajectory.task_id, counted))
    return lengths
