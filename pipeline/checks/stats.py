"""The statistics of every table: intervals, paired comparisons, pass^k and the correction for many tests.

Decides: Wilson for one share, a bootstrap over whole clusters (templates) for the difference of two
arms on the same tasks, Holm for several comparisons. A cluster bootstrap is too narrow below some 10
clusters; the number of clusters is part of the result so that a reader sees it. Not covered: models of
several random effects.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import comb, sqrt
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class Comparison(NamedTuple):
    """Treatment minus baseline on the same tasks."""

    difference: float
    """Mean of the per-task differences."""
    low: float
    high: float
    p_value: float
    """Two-sided, from the bootstrap distribution; never below 2 / (samples + 1), nor below 2 / 2**clusters,
    the least that flipping the signs of so many clusters could give."""
    num_pairs: int
    num_clusters: int


def wilson_interval(successes: int, trials: int, *, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a share, in [0, 1]; the whole range where there are no trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie in 0..trials, got {successes} of {trials}")
    if trials == 0:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    return Interval(
        0.0 if successes == 0 else max(0.0, centre - half),
        1.0 if successes == trials else min(1.0, centre + half),
    )


def paired_bootstrap(
    baseline: Sequence[float],
    treatment: Sequence[float],
    *,
    clusters: Sequence[Hashable] | None,
    runs: Sequence[Hashable] | None = None,
    num_samples: int = 10_000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Comparison:
    """Difference of two arms scored on the same tasks, in the same order, resampling whole clusters.

    `clusters` names the cluster (template) of each pair; None resamples single pairs. `runs` names the
    training run (seed) of each pair; runs are resampled too, crossed with the clusters, so that the
    interval holds the spread between runs. Raises ValueError where lengths differ or fewer than 2
    clusters exist. Equal inputs and seed give equal results.
    """
    import numpy as np

    if not len(baseline) == len(treatment) > 0:
        raise ValueError(f"both arms need the same tasks, got {len(baseline)} and {len(treatment)} scores")
    member, num_clusters = _positions(range(len(baseline)) if clusters is None else clusters, len(baseline))
    if num_clusters < 2:
        raise ValueError(f"{num_clusters} cluster cannot be resampled; pass clusters=None to resample tasks")
    run, num_runs = _positions([0] * len(baseline) if runs is None else runs, len(baseline))
    differences = np.asarray(treatment, dtype=float) - np.asarray(baseline, dtype=float)
    cell = np.array(run) * num_clusters + np.array(member)
    sums = np.bincount(cell, weights=differences, minlength=num_runs * num_clusters)
    sizes = np.bincount(cell, minlength=num_runs * num_clusters).astype(float)
    sums, sizes = sums.reshape(num_runs, num_clusters), sizes.reshape(num_runs, num_clusters)
    generator = np.random.default_rng(seed)
    means = np.empty(num_samples)
    block = max(1, 4_000_000 // num_clusters)
    for start in range(0, num_samples, block):
        rows = min(block, num_samples - start)
        picks = generator.multinomial(num_clusters, [1 / num_clusters] * num_clusters, size=rows)
        kept = generator.multinomial(num_runs, [1 / num_runs] * num_runs, size=rows)
        drawn = ((kept @ sums) * picks).sum(axis=1)
        means[start : start + rows] = drawn / ((kept @ sizes) * picks).sum(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    extreme = 1 + min(int((means <= 0).sum()), int((means >= 0).sum()))
    p_value = min(1.0, max(2 * extreme / (num_samples + 1), 2.0 ** (1 - num_clusters)))
    return Comparison(
        float(differences.mean()), float(low), float(high), p_value, len(differences), num_clusters
    )


def pass_hat_k(successes: int, trials: int, k: int) -> float:
    """Unbiased chance that k fresh attempts all succeed (reliability): C(successes, k) / C(trials, k)."""
    _check_k(successes, trials, k)
    return comb(successes, k) / comb(trials, k)


def pass_at_k(successes: int, trials: int, k: int) -> float:
    """Unbiased chance that at least one of k fresh attempts succeeds."""
    _check_k(successes, trials, k)
    return 1 - comb(trials - successes, k) / comb(trials, k)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given: they bound the family-wise error."""
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, position in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[position]))
        adjusted[position] = running
    return adjusted


def _positions(names: Sequence[Hashable], count: int) -> tuple[list[int], int]:
    """Each name's number in order of first appearance, and how many names there are."""
    if len(names) != count:
        raise ValueError(f"every pair needs a cluster and a run, got {len(names)} names for {count} pairs")
    index = {name: position for position, name in enumerate(dict.fromkeys(names))}
    return [index[name] for name in names], len(index)


def _check_k(successes: int, trials: int, k: int) -> None:
    if not (0 <= successes <= trials and 1 <= k <= trials):
        raise ValueError(
            f"need 0 <= successes <= trials and 1 <= k <= trials, got {successes}, {trials}, k={k}"
        )
