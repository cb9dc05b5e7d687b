"""A stratified comparison of tasks that hold a capability with tasks that do not: do more of them fail?

The reference is the permutation distribution within strata (Cochran-Mantel-Haenszel's for outcomes 0 and 1):
in each stratum the tasks with the capability are a sample without replacement of all its tasks. Its first
three cumulants are exact; the tail is that of the Pearson type III (gamma) distribution with them, which
keeps the skew of rare failures that a normal tail would miss; no p-value is below one over the number of
samples. Not covered: outcomes that hang together within a template (`mixed_model`).
"""

from __future__ import annotations

from math import exp, lgamma, sqrt
from typing import Any

from pipeline.diagnosis.outcomes import Cells

_ALMOST = 1e-9


def failures_p_value(cells: Cells, holds: Any, strata: Any) -> float:
    """One-sided p-value that the tasks where `holds` fail no more often than others of their stratum.

    `holds`: bool per cell; `strata`: a stratum's number per cell. 1.0 where no stratum has both kinds.
    """
    import numpy as np

    excess = variance = third = log_samples = 0.0
    for stratum in np.unique(strata):
        here = strata == stratum
        inside = here & holds
        total, held = float(cells.count[here].sum()), float(cells.count[inside].sum())
        if held == 0 or held == total:
            continue
        mean = float(cells.first[here].sum()) / total
        square = float(cells.second[here].sum()) / total
        cube = float(cells.third[here].sum()) / total
        spread = max(0.0, square - mean**2)
        skew = cube - 3 * mean * square + 2 * mean**3
        excess += held * mean - float(cells.first[inside].sum())
        variance += held * (total - held) / (total - 1) * spread
        if total > 2:
            factor = held * (total - held) * (total - 2 * held) / ((total - 1) * (total - 2))
            third -= factor * skew  # of failures, whose skew is the opposite of successes'
        log_samples += lgamma(total + 1) - lgamma(held + 1) - lgamma(total - held + 1)
    if variance <= _ALMOST:
        return 1.0
    score = (excess - cells.step / 2) / sqrt(variance)
    floor = exp(-log_samples) if log_samples < 700 else 0.0
    return min(1.0, max(floor, _upper_tail(score, third / variance**1.5)))


def _upper_tail(score: float, skew: float) -> float:
    """P(Z >= score) of a standardised Pearson type III variable."""
    from scipy.special import gammainc, gammaincc, ndtr

    if abs(skew) < 1e-4:
        return float(ndtr(-score))
    shape = 4 / skew**2
    point = shape + (score if skew > 0 else -score) * sqrt(shape)
    if point <= 0:
        return 1.0 if skew > 0 else 0.0
    return float(gammaincc(shape, point) if skew > 0 else gammainc(shape, point))
