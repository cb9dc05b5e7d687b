"""Advantages of groups of trajectories: which rewards are centred over which others, and how.

Trajectories without a reward (infrastructure failures, cancelled ones, failed judges) leave the group
before anything is centred; they are counted, never scored 0. Not covered here: which tokens carry the
advantage (`rl.rows`) and the importance ratios (`rl.grpo`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from data.errors import ConfigError
from data.messages import ToolStatus
from data.trajectories import Trajectory

_EPSILON = 1e-6


class AdvantageKind(StrEnum):
    """How rewards of one group become advantages."""

    GRPO = "grpo"
    """(reward - mean) / (std + 1e-6), unbiased std."""
    DR_GRPO = "dr_grpo"
    """reward - mean: no division, so an easy or a hard task weighs no more than another."""
    RLOO = "rloo"
    """reward - mean of the others in the group."""


class SingletonRule(StrEnum):
    """What to do with a group of one."""

    REFUSE = "refuse"
    """ConfigError where the group was planned so; dropped and counted where failures shrank it."""
    DROP = "drop"
    """Leave it out and count it."""
    REINFORCE = "reinforce"
    """Advantage = reward (mean 0, std 1)."""


@dataclass(slots=True)
class AdvantageReport:
    """Advantage per trajectory id, and what happened on the way."""

    values: dict[str, float] = field(default_factory=dict)
    groups: int = 0
    """Groups with at least one rewarded trajectory."""
    zero_variance_groups: int = 0
    """Groups of two or more whose rewards are all equal: they train nothing."""
    without_reward: int = 0
    """Trajectories that left before centring because they have no value: no reward, or a failed judge."""
    judge_failures: int = 0
    """Those of them that have a verified reward."""
    dropped_singletons: int = 0
    """Groups of one trajectory with a value, left out: nothing to centre it over."""
    reward_mean: float = 0.0
    """Over rewarded trajectories; 0 without any."""
    reward_std: float = 0.0
    """Unbiased, over rewarded trajectories; 0 for fewer than two."""
    success_rate: float = 0.0
    """Share of verified successes among trajectories with a verified reward, whatever is trained on."""
    calls_mean: float = 0.0
    """Answered calls per trajectory that has a verified reward."""
    success_errors: float = 0.0
    """Share of the answered calls of verified successes that failed, by status; 0 without any."""

    def describe(
        self, trajectories: Iterable[Trajectory], value: Callable[[Trajectory], float | None]
    ) -> None:
        """Set what is said of the rewards and successes of `trajectories`, which may be more than were
        centred: what a selection left out is told of, too."""
        everyone = list(trajectories)
        found = [(item, value(item)) for item in everyone]
        without = [item for item, reward in found if reward is None]
        totals = [reward for _, reward in found if reward is not None]
        outcomes = [item.success for item in everyone if item.success is not None]
        self.without_reward = len(without)
        self.judge_failures = sum(item.reward is not None for item in without)
        self.reward_mean = math.fsum(totals) / len(totals) if totals else 0.0
        self.reward_std = _std(totals) if len(totals) > 1 else 0.0
        self.success_rate = sum(outcomes) / len(outcomes) if outcomes else 0.0
        verified = [_failures(item) for item in everyone if item.success is not None]
        solved = [failed for item in everyone if item.success for failed in _failures(item)]
        self.calls_mean = sum(map(len, verified)) / len(verified) if verified else 0.0
        self.success_errors = sum(solved) / len(solved) if solved else 0.0

    def figures(self) -> dict[str, float]:
        """What a step's record says of rewards and episodes."""
        return {
            "reward_mean": self.reward_mean,
            "reward_std": self.reward_std,
            "zero_variance_share": self.zero_variance_share,
            "success_rate": self.success_rate,
            "calls_mean": self.calls_mean,
            "success_errors": self.success_errors,
        }

    @property
    def zero_variance_share(self) -> float:
        """Share of groups that train nothing because all their rewards are equal."""
        return self.zero_variance_groups / self.groups if self.groups else 0.0


def verified_total(trajectory: Trajectory) -> float | None:
    """What the verifier gave; None without a reward."""
    return None if trajectory.reward is None else trajectory.reward.total


def group_advantages(
    rewards: Sequence[float],
    kind: AdvantageKind = AdvantageKind.GRPO,
    *,
    weights: Sequence[float] = (),
) -> list[float]:
    """Advantages of one group, in order. A group of one gets its reward; equal rewards get exactly 0.

    With importance `weights` (of mean 1 over many groups), mean and deviation are the weighted ones and an
    advantage is multiplied by its weight: w * (reward - mean_w) / std_w, std_w^2 = n / (n - 1) * sum of
    w (r - mean_w)^2 / sum of w. But for baseline and scale, which look at the same rollouts as ever, the
    gradient is then an unbiased one of the policy that the weights refer to.
    """
    if any(weight != 1.0 for weight in weights):
        return _weighted_advantages(rewards, kind, weights)
    if len(rewards) == 1:
        return list(rewards)
    if all(reward == rewards[0] for reward in rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    if kind is AdvantageKind.RLOO:
        return [(reward - mean) * len(rewards) / (len(rewards) - 1) for reward in rewards]
    scale = _std(rewards) + _EPSILON if kind is AdvantageKind.GRPO else 1.0
    return [(reward - mean) / scale for reward in rewards]


def _weighted_advantages(
    rewards: Sequence[float], kind: AdvantageKind, weights: Sequence[float]
) -> list[float]:
    pairs, number, total = list(zip(rewards, weights, strict=True)), len(rewards), math.fsum(weights)
    if number == 1:
        return [rewards[0] * weights[0]]
    if all(reward == rewards[0] for reward in rewards):
        return [0.0] * number
    paid = math.fsum(reward * weight for reward, weight in pairs)
    if kind is AdvantageKind.RLOO:
        return [w * (r - (paid - r * w) / (total - w)) for r, w in pairs]
    mean = paid / total
    spread = math.fsum(w * (r - mean) ** 2 for r, w in pairs) / total
    scale = math.sqrt(spread * number / (number - 1)) + _EPSILON if kind is AdvantageKind.GRPO else 1.0
    return [w * (r - mean) / scale for r, w in pairs]


def advantages(
    trajectories: Iterable[Trajectory],
    *,
    kind: AdvantageKind = AdvantageKind.GRPO,
    singletons: SingletonRule = SingletonRule.REFUSE,
    value: Callable[[Trajectory], float | None] = verified_total,
    weight: Callable[[Trajectory], float] = lambda trajectory: 1.0,
) -> AdvantageReport:
    """Advantages of all `trajectories`, grouped by `group_id`; `value` is what a trajectory is rewarded with.

    `weight` is how many draws of the policy a trajectory stands for (see `group_advantages`).

    Raises ConfigError for a group that never had a second member, unless `singletons` says otherwise.
    """
    everyone = list(trajectories)
    report, groups, planned = (
        AdvantageReport(),
        defaultdict[str, list[tuple[Trajectory, float]]](list),
        defaultdict[str, set[int]](set),
    )
    report.describe(everyone, value)
    for trajectory in everyone:
        planned[trajectory.group_id].add(trajectory.rollout_index)
        found = value(trajectory)
        if found is not None:
            groups[trajectory.group_id].append((trajectory, found))
    for group_id, members in groups.items():
        if len(members) == 1 and singletons is not SingletonRule.REINFORCE:
            if singletons is SingletonRule.REFUSE and len(planned[group_id]) == 1:
                raise ConfigError(
                    f"group {group_id} (task {members[0][0].task_id}) has 1 trajectory; "
                    f"GRPO needs at least 2 to centre over: raise the group size, "
                    f"or set singletons to 'drop' or 'reinforce'"
                )
            report.dropped_singletons += 1
            continue
        rewards = [reward for _, reward in members]
        report.groups += 1
        report.zero_variance_groups += len(rewards) > 1 and all(reward == rewards[0] for reward in rewards)
        centred = group_advantages(rewards, kind, weights=[weight(member) for member, _ in members])
        for (member, _), advantage in zip(members, centred, strict=True):
            report.values[member.trajectory_id] = advantage
    return report


def _failures(trajectory: Trajectory) -> list[bool]:
    """Whether each answered call failed: by the result's status, never by its words."""
    return [turn.result.status is not ToolStatus.OK for turn in trajectory.turns if turn.result is not None]


def _std(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
