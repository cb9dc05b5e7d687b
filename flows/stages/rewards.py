"""The chosen reward of a run: made from the recipe, with the gold it compares with, and its mean.

Verified success is the default and needs nothing of this. Not covered: how training uses it (`rl`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.messages import Record
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.base import Environment
from pipeline.rewards import build_reward, helped_by_gold, needs_gold
from pipeline.rewards.base import chosen_total
from pipeline.rewards.gold import played_calls

if TYPE_CHECKING:
    from rl.grpo_rewards import ChosenReward

DEFAULT = "verified"


class RewardMean(Record):
    """Mean of a chosen reward over the episodes it could score."""

    name: str
    mean: float | None
    """None where no episode could be scored."""
    scored: int
    failed: int
    """Episodes whose judge failed; they are in no mean."""


async def choose_reward(
    row: Mapping[str, Any],
    *,
    environment: Environment,
    tasks: Sequence[Task],
    state_dir: Path | None = None,
) -> ChosenReward | None:
    """The reward of a recipe row over `tasks`; None for verified success. ConfigError for a wrong row."""
    from rl.grpo_rewards import ChosenReward

    if dict(row) == {"name": DEFAULT}:
        return None
    needed = needs_gold(row)
    gold = await played_calls(environment, tasks, strict=needed) if needed or helped_by_gold(row) else None
    reward = build_reward(row, gold=gold, state_dir=state_dir)
    return ChosenReward(reward=reward, row=dict(row), tasks={task.task_id: task for task in tasks})


async def mean_reward(
    rows: Sequence[Trajectory], row: Mapping[str, Any], *, environment: Environment, tasks: Sequence[Task]
) -> RewardMean | None:
    """Mean of the chosen reward over finished episodes; None for verified success, which is reported anyway.

    Scores are made anew and stored nowhere: held-out episodes must not change what training has learned.
    """
    chosen = await choose_reward(row, environment=environment, tasks=tasks)
    if chosen is None:
        return None
    try:
        scored = await chosen.rescored(rows)
    finally:
        await chosen.close()
    totals = [chosen_total(item, chosen.reward.name) for item in scored if item.reward is not None]
    found = [total for total in totals if total is not None]
    return RewardMean(
        name=chosen.reward.name,
        mean=sum(found) / len(found) if found else None,
        scored=len(found),
        failed=len(totals) - len(found),
    )
