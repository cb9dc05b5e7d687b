"""Which rollouts of a group are trained on, where more were made than are trained: GRPO-RoC and groups kept.

GRPO-RoC (rStar2-Agent, arXiv 2508.20722): of N rollouts n are kept. Successes are drawn without replacement
with probability proportional to 1 / `roc_penalty`, so clean ones are likelier; failures are drawn uniformly
and unfiltered, for what goes wrong should stay diverse. Decided here, where the released code does otherwise:

- a draw is a draw (theirs sorts by penalty and cuts), seeded by run, batch and group alone;
- an error is a result whose *status* says so, never the word in its text;
- successes and failures add up to n for any N and n; a group of at most n rewarded rollouts is kept whole,
  never lost, and counted where it has fewer;
- rollouts without a reward leave first. Advantages are computed after the selection, over what is kept, so
  the group's mean is that of the kept ones: a bias the method accepts. What is reported of the policy
  (reward, success) is of all rollouts.

Not covered: advantages (`rl.advantages`), selection while a rollout is made (`synthesizers.tree_search`).
"""

from __future__ import annotations

import logging
import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from data import canonical
from data.errors import ConfigError
from data.messages import Role, ToolStatus
from data.trajectories import Trajectory
from pipeline.checks.process import num_turns, roc_penalty
from synthesizers.tree_search.records import is_searched, search_weight

_log = logging.getLogger("trajsmith.grpo")

ROC = "roc"


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """How the rollouts of a batch are chosen."""

    kind: str = ROC
    """`roc` is the one there is."""
    oversample: int = 2
    """Rollouts made for each one that is kept."""
    answer: str = ""
    """Closing tag of an answer, e.g. `</answer>`; "" = an assistant turn without a call is one."""

    def __post_init__(self) -> None:
        if self.kind != ROC:
            raise ConfigError(f"selection.kind must be {ROC!r}, got {self.kind!r}")
        if self.oversample < 2:
            raise ConfigError(f"selection.oversample must be at least 2, got {self.oversample}")


class Counts(NamedTuple):
    """Successes and failures that are kept."""

    positives: int
    negatives: int


@dataclass(slots=True)
class SelectionReport:
    """What a selection did to the rewarded rollouts of a batch."""

    rollouts: int = 0
    kept: int = 0
    short_groups: list[str] = field(default_factory=list)
    """Groups that were kept whole because they have fewer rewarded rollouts than are to be kept."""
    left_out_groups: list[str] = field(default_factory=list)
    """Groups left out because the rewards of others vary more."""
    penalty: float = 0.0
    """Mean process penalty of all successes."""
    kept_penalty: float = 0.0
    """The same of those that are kept."""

    def parts(self) -> dict[str, float]:
        """The figures of a step's record, those of all choices."""
        return {
            "selected": float(self.kept),
            "not_selected": float(self.rollouts - self.kept),
            "left_out_groups": float(len(self.left_out_groups)),
        }

    def drawn_parts(self) -> dict[str, float]:
        """Those of the choice within groups."""
        return {
            "short_groups": float(len(self.short_groups)),
            "penalty": self.penalty,
            "kept_penalty": self.kept_penalty,
        }


def roc_counts(positives: int, negatives: int, keep: int) -> Counts:
    """How many of each are kept of `positives + negatives` rollouts; together `keep`, or all there are.

    Successes keep their share (halves rounded to even), but each side at least 2, where it has them and
    `keep` leaves room for both.
    """
    total = positives + negatives
    if keep >= total:
        return Counts(positives, negatives)
    least = min(2, keep // 2)
    share = round(positives * keep / total)
    highest = min(positives, keep - min(least, negatives))
    lowest = max(min(least, positives), keep - negatives)
    kept = min(max(share, lowest), highest)
    return Counts(kept, keep - kept)


def penalty_of(trajectory: Trajectory, *, answer: str = "") -> float:
    """`roc_penalty` of a trajectory: errors by status among its tool results, and its answers."""
    results = [turn.result for turn in trajectory.turns if turn.result is not None]
    said = [turn for turn in trajectory.turns if turn.role is Role.ASSISTANT]
    if answer:
        num_answers = sum(turn.text.count(answer) for turn in said)
    else:  # one is right for every user turn, and no more than one can stand between two of them
        num_answers = int(any(not turn.tool_calls and turn.parts for turn in said))
    return roc_penalty(
        num_calls=len(results),
        num_errors=sum(result.status is not ToolStatus.OK for result in results),
        num_answers=num_answers,
        num_turns=num_turns(trajectory),
    )


def draw_clean(penalties: Sequence[float], count: int, rng: random.Random) -> list[int]:
    """`count` indices drawn one after the other without replacement, with probability proportional to
    1 / penalty among those left. A penalty of 0 is the limit: such ones come first, evenly among themselves.
    """
    left, drawn = list(range(len(penalties))), list[int]()
    while len(drawn) < count:
        spotless = [index for index in left if penalties[index] == 0.0]
        weights = None if spotless else [1.0 / penalties[index] for index in left]
        (index,) = rng.choices(spotless or left, weights)
        left.remove(index)
        drawn.append(index)
    return sorted(drawn)


def select_roc(
    group: Sequence[Trajectory], keep: int, rng: random.Random, *, answer: str = ""
) -> list[Trajectory]:
    """The `keep` rollouts of one group that are trained on, in their order; all of a smaller group.

    Every member must have a reward.
    """
    positives = [item for item in group if item.success]
    negatives = [item for item in group if not item.success]
    counts = roc_counts(len(positives), len(negatives), keep)
    penalties = [penalty_of(item, answer=answer) for item in positives]
    clean = draw_clean(penalties, counts.positives, rng)
    messy = rng.sample(range(len(negatives)), counts.negatives)
    kept = {positives[index].trajectory_id for index in clean}
    kept |= {negatives[index].trajectory_id for index in messy}
    return [item for item in group if item.trajectory_id in kept]


def select_rollouts(
    trajectories: Sequence[Trajectory], settings: SelectionSettings, *, keep: int, seed: str
) -> tuple[list[Trajectory], SelectionReport]:
    """What is trained on of a batch, and what was done. Each group draws by itself, from `seed` and its id.

    Rollouts without a reward stay in the result: the advantages count and leave them out.
    """
    groups = defaultdict[str, list[Trajectory]](list)
    for item in trajectories:
        groups[item.group_id].append(item)
    report, selected, penalties, kept_penalties = SelectionReport(), [], [], []
    for group_id, group in groups.items():
        rewarded = [item for item in group if item.reward is not None]
        rng = random.Random(canonical.digest("select", seed, group_id))
        kept = select_roc(rewarded, keep, rng, answer=settings.answer)
        report.rollouts += len(rewarded)
        report.kept += len(kept)
        report.short_groups += [group_id] if len(rewarded) < keep else []
        penalties += [penalty_of(item, answer=settings.answer) for item in rewarded if item.success]
        kept_penalties += [penalty_of(item, answer=settings.answer) for item in kept if item.success]
        selected += [item for item in group if item.reward is None] + kept
    report.penalty, report.kept_penalty = _mean(penalties), _mean(kept_penalties)
    return selected, report


def select_batch(
    trajectories: Sequence[Trajectory],
    settings: SelectionSettings | None,
    *,
    keep: int,
    seed: str,
    share: float,
    value: Callable[[Trajectory], float | None],
) -> tuple[list[Trajectory], dict[str, float]]:
    """What of a batch is trained on: `select_rollouts`, then `varied_groups`; and the figures of what was
    done, {} where nothing was.
    """
    selected, report = list(trajectories), SelectionReport()
    if settings is None and share == 1.0:
        return selected, {}
    if settings is not None:
        selected, report = select_rollouts(selected, settings, keep=keep, seed=seed)
    if report.short_groups:
        _log.warning(
            "%d groups have fewer than %d rollouts with a reward and are trained on whole: %s",
            len(report.short_groups), keep, ", ".join(report.short_groups[:8]),
        )  # fmt: skip
    selected, report.left_out_groups = varied_groups(selected, share, value)
    report.rollouts, report.kept = _rewarded(trajectories), _rewarded(selected)
    return selected, report.parts() | ({} if settings is None else report.drawn_parts())


def varied_groups(
    trajectories: Sequence[Trajectory], share: float, value: Callable[[Trajectory], float | None]
) -> tuple[list[Trajectory], list[str]]:
    """The instance filter of TSR (arXiv 2602.11767): the `share` of groups (rounded up) of the largest
    U = Std R, their rollouts in order; and the ids of the groups left out.

    A group with fewer than two rewarded rollouts has U = 0. Equal ones go by their id.
    """
    rewards = defaultdict[str, list[float]](list)
    for item in trajectories:
        found = value(item)
        rewards[item.group_id] += [] if found is None else [found]
    ranked = sorted(rewards, key=lambda group_id: (-_std(rewards[group_id]), group_id))
    kept = set(ranked[: math.ceil(share * len(ranked))])
    return [item for item in trajectories if item.group_id in kept], [g for g in ranked if g not in kept]


def draw_weight(trajectory: Trajectory, *, cap: float | None = None) -> float:
    """How many draws of the policy a trajectory stands for: the weight its search gave it, at most `cap`;
    1 without a search, and with one that chose by rank, which no weight corrects."""
    weight = search_weight(trajectory)
    if weight is None:
        return 1.0
    return weight if cap is None else min(weight, cap)


def search_parts(trajectories: Sequence[Trajectory], *, cap: float | None = None) -> dict[str, float]:
    """Figures of the searches that the rewarded ones of `trajectories` come from; {} without any.

    `search_biased` is the share that was chosen by rank: training on them follows no sample of the policy.
    `search_effective` is (sum w)^2 / (n sum w^2): the share of the rollouts that the weights leave.
    `search_policy_success` is the weighted share of successes, where all have a weight: what the policy alone
    would solve, while the success rate of a step is of what searches found.
    """
    searched = [item for item in trajectories if item.reward is not None and is_searched(item)]
    if not searched:
        return {}
    given = [search_weight(item) for item in searched]
    used = [draw_weight(item, cap=cap) for item in searched]
    number, squares = len(searched), math.fsum(weight**2 for weight in used)
    parts = {
        "search_biased": given.count(None) / number,
        "search_weight_max": max(used),
        "search_capped": sum(one is not None and one != two for one, two in zip(given, used, strict=True))
        / number,
        "search_effective": math.fsum(used) ** 2 / (number * squares),
    }
    weights = [weight for weight in given if weight is not None]
    if len(weights) == number:
        solved = math.fsum(weight for item, weight in zip(searched, weights, strict=True) if item.success)
        parts["search_policy_success"] = solved / math.fsum(weights)
    return parts


def _rewarded(trajectories: Sequence[Trajectory]) -> int:
    return sum(item.reward is not None for item in trajectories)


def _std(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
