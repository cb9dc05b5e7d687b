"""Verified success with a soft penalty for episodes that come near the length limit.

R = total + min(0, -(length - (limit - buffer)) / buffer), the penalty cut at -1; length = generated tokens.
Source: DAPO (arXiv 2503.14476), soft overlong punishment. Masking cut-off episodes instead keeps agents from
learning to stop (rStar2-Agent), so nothing is masked here.
"""

from __future__ import annotations

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.process import num_said
from pipeline.errors import ConfigError
from pipeline.rewards.base import Measured, ProgramReward, verified


class Overlong(ProgramReward):
    """Parts: `task`, `penalty` (in [-1, 0])."""

    name = "overlong"

    def __init__(self, *, limit: int, buffer: int) -> None:
        """Both in generated tokens: the penalty begins at `limit - buffer` and is -1 from `limit` on."""
        if not 0 < buffer <= limit:
            raise ConfigError(f"reward overlong needs 0 < buffer <= limit, got {buffer} and {limit}")
        self.limit, self.buffer = limit, buffer

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Total plus penalty."""
        penalty = overlong_penalty(num_said(trajectory), limit=self.limit, buffer=self.buffer)
        total = verified(trajectory).total
        return Measured(total + penalty, {"task": total, "penalty": penalty})


def overlong_penalty(length: int, *, limit: int, buffer: int) -> float:
    """0 up to `limit - buffer` tokens, then falling linearly to -1 at `limit`."""
    return max(-1.0, min(0.0, -(length - (limit - buffer)) / buffer))
