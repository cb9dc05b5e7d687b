"""Keeps trajectories that a reward of your choice scores at least `threshold`, and stores its parts.

Reasons: `ok`, `low_reward`, `no_reward` (an episode that says nothing of the policy) and `judge_failed`,
which is never a low reward; where most judgements fail, the run stops. The score is the reward's total. The
record leaves with the parts of the reward beside the verified total, which stays as it is. Not covered:
rewards that compare the rollouts of a group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import RewardBy, Trajectory
from filters.base import Judged, Judgement, in_batches, judged
from pipeline.rewards import build_reward
from pipeline.rewards.base import GoldCalls, Score, chosen_total, refuse_failures, scored, with_score

TaskLookup = Callable[[str], Task | None]
"""Task id to the task; None where it is not known."""
_BATCH = 32
"""Trajectories that are judged at a time."""


class Rewarded:
    """A chosen reward against a threshold."""

    name = "reward"

    def __init__(
        self,
        *,
        tasks: TaskLookup,
        reward: Mapping[str, Any],
        threshold: float = 1.0,
        gold: GoldCalls | None = None,
    ) -> None:
        """`reward`: a row such as {name: tool_cost, weight: 0.1}; `threshold`: the least total kept."""
        if threshold != threshold:
            raise ConfigError("reward.threshold must be a number, got NaN")
        self.tasks, self.threshold, self.reward = tasks, threshold, build_reward(reward, gold=gold)
        if self.reward.per_group:
            raise ConfigError(
                f"reward {self.reward.name} compares the rollouts of a group and a filter sees one at a "
                f"time; use it in grpo.reward, or filter by another reward"
            )
        self._judged: dict[str, Score] = {}
        """What judges said, by trajectory: a chain may read the pool again, and they are asked once."""
        self._num_scored = self._num_failed = 0

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        """Score a stream in batches."""
        batches = in_batches(trajectories, self._scored, size=_BATCH, close=self.reward.close)
        with closing(batches) as found:
            yield from (judged(item, self.name, self.judge(item)) for item in found)

    def judge(self, trajectory: Trajectory) -> Judgement:
        """Compare the score on the record with the threshold."""
        total = chosen_total(trajectory, self.reward.name)
        if trajectory.reward is None:
            return Judgement(
                False, "no_reward", detail=f"{trajectory.termination}: {trajectory.error}".rstrip(": ")
            )
        if total is None:
            return Judgement(False, "judge_failed", detail=trajectory.error)
        return Judgement(
            total >= self.threshold, "ok" if total >= self.threshold else "low_reward", score=total
        )

    async def _scored(self, batch: list[Trajectory]) -> list[Trajectory]:
        scores = await asyncio.gather(*(self._score(item) for item in batch))
        self._refuse_failures([score for item, score in zip(batch, scores, strict=True) if item.reward])
        name, by = self.reward.name, self.reward.by
        return [with_score(item, name, score, by=by) for item, score in zip(batch, scores, strict=True)]

    def _refuse_failures(self, scores: list[Score]) -> None:
        """JudgeError where most judgements so far failed."""
        failed = [score for score in scores if score.total is None]
        self._num_scored, self._num_failed = self._num_scored + len(scores), self._num_failed + len(failed)
        last = failed[-1].error if failed else ""
        refuse_failures(self.reward.name, num_failed=self._num_failed, num_judged=self._num_scored, last=last)

    async def _score(self, trajectory: Trajectory) -> Score:
        known = self._judged.get(trajectory.trajectory_id)
        if known is not None or trajectory.reward is None:
            return known or Score(total=None)
        (score,) = await scored(self._task(trajectory), [trajectory], self.reward)
        if self.reward.by is RewardBy.MODEL:
            self._judged[trajectory.trajectory_id] = score
        return score

    def _task(self, trajectory: Trajectory) -> Task:
        task = self.tasks(trajectory.task_id)
        if task is None:
            raise ConfigError(
                f"filter reward needs task {trajectory.task_id} of trajectory {trajectory.trajectory_id}, "
                "which is not in the store; `trajsmith synth` and the gateway keep both, code of your own "
                "appends the task before its trajectories (`Store.append`)"
            )
        return task
