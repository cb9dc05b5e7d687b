"""Keeps trajectories that the environment's verifier scored at least `threshold`.

Reasons: `ok`, `failed` (a reward below the threshold), `no_reward` (an infrastructure failure or a
cancelled episode says nothing about the policy, so it is never `failed`). The score is the reward.
"""

from __future__ import annotations

from data.errors import ConfigError
from data.trajectories import Trajectory
from filters.base import ItemFilter, Judgement


class VerifiedOutcome(ItemFilter):
    """Verified success."""

    name = "verified_outcome"

    def __init__(self, *, threshold: float = 1.0) -> None:
        """`threshold`: the least reward total that is kept."""
        if threshold != threshold:
            raise ConfigError("verified_outcome.threshold must be a number, got NaN")
        self.threshold = threshold

    def judge(self, trajectory: Trajectory) -> Judgement:
        """Compare the reward's total with the threshold."""
        if trajectory.reward is None:
            return Judgement(
                False, "no_reward", detail=f"{trajectory.termination}: {trajectory.error}".rstrip(": ")
            )
        total = trajectory.reward.total
        if total < self.threshold:
            return Judgement(False, "failed", score=total, detail=str(trajectory.termination))
        return Judgement(True, score=total)
