"""ASTRA's seven-part score inside a synthesis, by the chats that play its judges there.

The score itself is the filter `astra_score`; here its judges are roles like all others, so that replies are
cached and paid for once. Not covered: throwing trajectories away, which is curation's work: a synthesis keeps
what it made and says what it is.
"""

from __future__ import annotations

from data.trajectories import Trajectory
from filters.astra_parts import FailedCall
from filters.astra_score import scored
from filters.base import Judged
from synthesizers.role_chats import RoleChats


async def score_trajectory(
    trajectory: Trajectory, roles: RoleChats, *, threshold: float, failed_call: FailedCall
) -> Judged:
    """The trajectory with its parts and the verdict on it; a judge that fails makes it `judge_failed`."""
    return await scored(trajectory, roles.of, threshold=threshold, failed_call=failed_call)
