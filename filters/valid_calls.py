"""Keeps trajectories whose every trained call parses and fits the schema the model was shown.

Calls of turns of weight 0 are context and are not looked at: what nobody learns may be wrong. Reasons are the
values of `data.messages.ParseStatus` (`ok`, `not_json`, `unknown_tool`, ...): that of the first bad call. The
score is the share of good calls (1 where there are none). Not covered: whether a call was sensible
(`verified_outcome`, `efficiency`).
"""

from __future__ import annotations

from data.trajectories import Trajectory
from filters.base import ItemFilter, Judgement
from pipeline.checks.attempts import attempts, first_invalid


class ValidCalls(ItemFilter):
    """Schema-valid calls."""

    name = "valid_calls"

    def judge(self, trajectory: Trajectory) -> Judgement:
        """Check each call against the tools of its own segment."""
        turns = trajectory.turns
        calls = [attempt for attempt in attempts(trajectory) if turns[attempt.turn].weight > 0.0]
        bad = first_invalid(calls)
        if bad is None:
            return Judgement(True, score=1.0)
        share = sum(attempt.call.ok for attempt in calls) / len(calls)
        return Judgement(
            False, bad.call.status, score=share, detail=f"turn {bad.turn}: {bad.call.error or bad.call.name}"
        )
