"""How far a judge can be trusted: its scores against verified outcomes of the same trajectories.

Reports agreement at a threshold (Wilson interval), AUC (bootstrap over whole clusters, since rollouts of one
template are alike), and the length bias: the rank correlation of score and answer length, the AUC that length
alone reaches, and the AUC of what is left of the score once length is regressed out. Failed judgements are
counted, never scored. A judge whose length alone does as well as its score has learned nothing else. Not
covered: making the scores (`pipeline.rewards`), and choosing the threshold, which belongs on other data.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from data.messages import Record
from data.trajectories import Trajectory
from pipeline.checks.stats import wilson_interval
from pipeline.errors import ConfigError
from pipeline.rewards.base import chosen_total
from pipeline.rewards.panel import answer_words


class Estimate(Record):
    """A figure with a 95 % interval."""

    value: float
    low: float
    high: float


class Calibration(Record):
    """A judge against the verifier."""

    reward: str
    num_scored: int
    num_failed: int
    """Verified trajectories whose judge failed; they are in no figure."""
    success_rate: float
    threshold: float
    agreement: Estimate
    """Share in which score >= threshold and verified success say the same."""
    auc: Estimate
    """Chance that a success is scored above a failure, ties half; 0.5 says nothing."""
    num_clusters: int
    length_correlation: float
    """Spearman's, of score and words of the final text."""
    length_auc: float
    """AUC of length alone."""
    auc_without_length: Estimate
    """AUC of what is left of the score's rank after regressing it on the rank of the length."""

    def lines(self) -> list[str]:
        """The report as text, a line per figure."""
        a, b, c = self.agreement, self.auc, self.auc_without_length
        return [
            f"reward {self.reward}: {self.num_scored} scored, {self.num_failed} judgements failed, "
            f"verified success {self.success_rate:.1%}",
            f"agreement at {self.threshold:g}: {a.value:.3f} [{a.low:.3f}, {a.high:.3f}]",
            f"AUC: {b.value:.3f} [{b.low:.3f}, {b.high:.3f}], bootstrap over {self.num_clusters} clusters",
            f"length: correlation {self.length_correlation:+.3f}, AUC of length alone {self.length_auc:.3f}, "
            f"AUC without length {c.value:.3f} [{c.low:.3f}, {c.high:.3f}]",
        ]


def calibrate(
    trajectories: Sequence[Trajectory],
    reward: str,
    *,
    threshold: float = 0.5,
    num_samples: int = 2_000,
    seed: int = 0,
) -> Calibration:
    """Compare the stored scores of `reward` with verified success. Clusters are the tasks' templates, or the
    tasks where there is one template. ConfigError where both outcomes or two clusters are not there."""
    verified = [item for item in trajectories if item.success is not None]
    scored = [(item, total) for item in verified if (total := chosen_total(item, reward)) is not None]
    scores, outcomes = [total for _, total in scored], [bool(item.success) for item, _ in scored]
    if len(set(outcomes)) < 2:
        raise ConfigError(
            f"calibrating reward {reward} needs verified successes and failures with a score; "
            f"got {sum(outcomes)} and {len(outcomes) - sum(outcomes)}"
        )
    templates = [item.template for item, _ in scored]
    clusters = templates if len(set(templates)) > 1 else [item.task_id for item, _ in scored]
    words = [answer_words(item) for item, _ in scored]
    agreed = sum((score >= threshold) == outcome for score, outcome in zip(scores, outcomes, strict=True))
    interval = wilson_interval(agreed, len(scored))
    rest = without_length(scores, words)
    return Calibration(
        reward=reward,
        num_scored=len(scored),
        num_failed=len(verified) - len(scored),
        success_rate=sum(outcomes) / len(outcomes),
        threshold=threshold,
        agreement=Estimate(value=agreed / len(scored), low=interval.low, high=interval.high),
        auc=_auc_estimate(scores, outcomes, clusters, num_samples, seed),
        num_clusters=len(set(clusters)),
        length_correlation=spearman(scores, words),
        length_auc=auc(words, outcomes),
        auc_without_length=_auc_estimate(rest, outcomes, clusters, num_samples, seed),
    )


def auc(scores: Sequence[float], outcomes: Sequence[bool]) -> float:
    """Chance that a success scores above a failure, ties half. ValueError without both outcomes."""
    import numpy as np

    ranks, good = _ranks(scores), np.asarray(outcomes, dtype=bool)
    wins, losses = int(good.sum()), int((~good).sum())
    if not wins or not losses:
        raise ValueError("the AUC needs successes and failures")
    return float((ranks[good].sum() - wins * (wins + 1) / 2) / (wins * losses))


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation, 0 where either side does not vary."""
    import numpy as np

    a, b = _ranks(one), _ranks(other)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def without_length(scores: Sequence[float], words: Sequence[int]) -> list[float]:
    """Residuals of the ranks of the scores on the ranks of the lengths: nothing is left of a score that only
    grows with length, whatever the curve. Rounded, so that equal ones stay equal."""
    y, x = _ranks(scores), _ranks(words)
    y, x = y - y.mean(), x - x.mean()
    slope = float(x @ y / (x @ x)) if float(x @ x) > 0 else 0.0
    return [round(float(value), 6) for value in y - slope * x]


def _ranks(values: Sequence[float]) -> Any:
    """Ranks from 1, ties share their mean."""
    import numpy as np

    _, inverse, counts = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + 1 + ends) / 2)[inverse]


def _auc_estimate(
    scores: Sequence[float], outcomes: Sequence[bool], clusters: Sequence[Hashable], samples: int, seed: int
) -> Estimate:
    """AUC with the percentile interval over resampled clusters; draws without both outcomes are left out."""
    import numpy as np

    names = list(dict.fromkeys(clusters))
    if len(names) < 2:
        raise ConfigError(f"the interval of an AUC needs at least 2 tasks or templates, got {len(names)}")
    members = [np.flatnonzero([cluster == name for cluster in clusters]) for name in names]
    values, good = np.asarray(scores, dtype=float), np.asarray(outcomes, dtype=bool)
    generator, found = np.random.default_rng(seed), []
    for _ in range(samples):
        rows = np.concatenate([members[pick] for pick in generator.integers(0, len(names), len(names))])
        if good[rows].any() and not good[rows].all():
            found.append(auc(values[rows].tolist(), good[rows].tolist()))
    low, high = np.quantile(found, [0.025, 0.975])
    return Estimate(value=auc(scores, outcomes), low=float(low), high=float(high))
