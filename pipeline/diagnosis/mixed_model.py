"""How much less tasks with a capability are solved, where tasks of one template are alike: a mixed model.

    share solved = mean of the combination of chosen capabilities + a random effect of the template + noise

Every combination of the chosen capabilities that occurs has a mean of its own, so that two weaknesses in one
task need not add up. The model is linear and fitted to cells by generalised least squares; the template's
variance by restricted maximum likelihood (REML), the noise from the binomial variance within a combination,
scaled by what tasks of a cell really vary. The effect of a chosen capability is the difference of the
combinations with and without it, beside those others with which it is seen best. It has a t-distribution:
with (templates - combinations) degrees of freedom where the capability does not vary within templates, since
then templates are what was sampled. Standard errors are never scaled down. Not covered: effects that differ
by template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from pipeline.diagnosis.outcomes import Cells

_COLLINEAR = 1e-7
"""Of a column's own weight: with less of it left beside the others it is a combination of them."""
_FAR = 1e9
"""Variance that takes a cell out of a fit."""
_LARGEST_SPREAD = 0.6
"""Standard deviation between templates, in shares: above what shares in [0, 1] can have."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one capability: with minus without, in shares of solved tasks."""

    value: float
    error: float
    """Standard error; infinite where the data cannot tell it."""
    freedom: float
    """Degrees of freedom."""

    @property
    def p_value(self) -> float:
        """One-sided: that the effect is not below zero."""
        from scipy.special import stdtr

        if self.error == inf or self.freedom <= 0:
            return 1.0
        return float(stdtr(self.freedom, self.value / self.error))

    @property
    def strength(self) -> float:
        """Minus its z-value where the effect is negative, else 0."""
        return max(0.0, -self.value / self.error)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The two-sided interval, within [-1, 1]."""
        from scipy.special import stdtrit

        if self.error == inf or self.freedom <= 0:
            return (-1.0, 1.0)
        half = float(stdtrit(self.freedom, 0.5 + confidence / 2)) * self.error
        return (max(-1.0, self.value - half), min(1.0, self.value + half))


UNKNOWN = Effect(0.0, inf, 0.0)


class MixedModel:
    """The cells of a pool and the design of all their capabilities, to be fitted with any few of them."""

    def __init__(self, cells: Cells) -> None:
        import numpy as np

        self.cells = cells
        self.design: Any = np.stack([column.holds for column in cells.columns], axis=1).astype(float)
        self.num_templates = len(cells.templates)
        self._mean: Any = cells.first / cells.count
        self._starts: Any = np.flatnonzero(np.diff(cells.template, prepend=-1))
        self._varies = [_varies(cells, column.holds) for column in cells.columns]

    def fit(self, chosen: Sequence[int]) -> Fit:
        """The model with the columns `chosen` (numbers into `cells.columns`)."""
        from scipy.optimize import minimize_scalar

        base, group = self._combinations(chosen)
        noise = self._noise(group)
        best = minimize_scalar(
            lambda root: self._criterion(noise, root * root, base),
            bounds=(0.0, _LARGEST_SPREAD),
            method="bounded",
            options={"xatol": 1e-3},
        )
        at_zero = self._criterion(noise, 0.0, base) <= float(best.fun) or self.num_templates < 3
        return Fit(self, tuple(chosen), base, noise, 0.0 if at_zero else float(best.x) ** 2)

    def products(self, noise: Any, variance: float, design: Any) -> tuple[Any, Any, float]:
        """X'V⁻¹X, X'V⁻¹y and y'V⁻¹y of a design with one row per cell."""
        import numpy as np

        weight = 1 / noise
        scaled = design * weight[:, None]
        by_template = np.add.reduceat(scaled, self._starts, axis=0)
        outcomes = np.add.reduceat(weight * self._mean, self._starts)
        shrink = variance / (1 + variance * np.add.reduceat(weight, self._starts))
        gram = design.T @ scaled - by_template.T @ (by_template * shrink[:, None])
        cross = scaled.T @ self._mean - by_template.T @ (shrink * outcomes)
        own = float((weight * self._mean**2).sum() - (shrink * outcomes**2).sum())
        return gram, cross, own

    def freedom(self, number: int, num_parameters: int) -> float:
        """Degrees of freedom of column `number`'s effect."""
        if self._varies[number]:
            return max(1.0, self.cells.num_tasks - len(self.cells.count))
        return float(self.num_templates - num_parameters)

    def _combinations(self, chosen: Sequence[int]) -> tuple[Any, Any]:
        """One indicator column per combination that occurs, and each cell's combination."""
        import numpy as np

        held = self.design[:, list(chosen)]
        code = held @ (2.0 ** np.arange(len(chosen)))
        _, group = np.unique(code, return_inverse=True)
        return np.eye(int(group.max()) + 1)[group], group

    def _criterion(self, noise: Any, variance: float, base: Any) -> float:
        """Minus twice the restricted log-likelihood, up to a constant."""
        import numpy as np

        gram, cross, own = self.products(noise, variance, base)
        weights = np.add.reduceat(1 / noise, self._starts)
        logs = float(np.log(noise).sum() + np.log1p(variance * weights).sum())
        return logs + float(np.linalg.slogdet(gram)[1]) + own - float(cross @ np.linalg.solve(gram, cross))

    def _noise(self, group: Any) -> Any:
        """Variance of each cell's mean, were its template's effect known."""
        import numpy as np

        cells = self.cells
        solved = np.bincount(group, weights=cells.first)
        tasks = np.bincount(group, weights=cells.count)
        share = ((solved + 1) / (tasks + 2))[group]
        binomial = share * (1 - share)
        spare = float(((cells.count - 1) * binomial).sum())
        varied = float((cells.second - cells.first**2 / cells.count).sum())
        scale = min(1.0, max(0.05, varied / spare)) if cells.num_tasks - len(cells.count) >= 30 else 1.0
        return binomial * scale / cells.count


class Fit:
    """A fitted model: the effects of its chosen columns, and of others beside them."""

    def __init__(
        self, model: MixedModel, chosen: tuple[int, ...], base: Any, noise: Any, variance: float
    ) -> None:
        self.model, self.chosen, self.variance, self.noise = model, chosen, variance, noise
        self._base = base

    def member(self, number: int) -> Effect:
        """The effect of a chosen column."""
        import numpy as np

        pair = self._best_pair(number)
        if pair is None:
            return UNKNOWN
        gram, cross, own = self.model.products(self.noise, self.variance, self._base)
        contrast = np.zeros(len(cross))
        contrast[list(pair)] = (1.0, -1.0)
        inverse = np.linalg.inv(gram)
        means = inverse @ cross
        error = sqrt(
            self._misfit(own - float(cross @ means), len(means)) * float(contrast @ inverse @ contrast)
        )
        return Effect(float(contrast @ means), error, self.model.freedom(number, len(means)))

    def others(self) -> list[Effect]:
        """The effect of every column, alone beside the chosen ones; UNKNOWN where these determine it."""
        import numpy as np

        design = self.model.design
        gram, cross, own = self.model.products(
            self.noise, self.variance, np.concatenate([self._base, design], axis=1)
        )
        size = self._base.shape[1]
        fitted = np.linalg.solve(gram[:size, :size], np.column_stack([cross[:size], gram[:size, size:]]))
        left = np.diag(gram)[size:] - (gram[size:, :size] * fitted[:, 1:].T).sum(axis=1)
        pull = cross[size:] - gram[size:, :size] @ fitted[:, 0]
        rest = own - float(cross[:size] @ fitted[:, 0])
        effects = []
        for number in range(design.shape[1]):
            if left[number] <= _COLLINEAR * gram[size + number, size + number]:
                effects.append(UNKNOWN)
                continue
            value = float(pull[number] / left[number])
            misfit = self._misfit(rest - value * float(pull[number]), size + 1)
            effects.append(
                Effect(value, sqrt(misfit / float(left[number])), self.model.freedom(number, size + 1))
            )
        return effects

    def outside(self) -> list[Effect]:
        """The effect of every column among tasks that hold none of the chosen ones."""
        import numpy as np

        held = self.model.design[:, list(self.chosen)].any(axis=1)
        far = np.where(held, _FAR, self.noise)
        return Fit(self.model, (), np.ones((len(far), 1)), far, self.variance).others()

    def _misfit(self, squares: float, num_parameters: int) -> float:
        """The factor of the squared standard errors, at least 1."""
        return max(1.0, squares / max(1, len(self.noise) - num_parameters))

    def _best_pair(self, number: int) -> tuple[int, int] | None:
        """Two combinations that differ in this column only: those of most templates and tasks."""
        import numpy as np

        held = self.model.design[:, list(self.chosen)].astype(bool)
        group = self._base.argmax(axis=1)
        place = self.chosen.index(number)
        first = {tuple(held[np.flatnonzero(group == each)[0]]): each for each in range(self._base.shape[1])}
        best, pair = (0.0, 0.0), None
        for held_here, inside in first.items():
            without = first.get((*held_here[:place], False, *held_here[place + 1 :]))
            if not held_here[place] or without is None:
                continue
            weight = self._information(group == inside, group == without)
            if weight > best:
                best, pair = weight, (inside, without)
        return pair

    def _information(self, one: Any, two: Any) -> tuple[float, float]:
        """What two groups of cells tell of their difference: templates first, then tasks."""
        import numpy as np

        cells = self.model.cells
        templates = [len(np.unique(cells.template[each])) for each in (one, two)]
        tasks = [float(cells.count[each].sum()) for each in (one, two)]
        return 1 / (1 / templates[0] + 1 / templates[1]), 1 / (1 / tasks[0] + 1 / tasks[1])


def _varies(cells: Cells, holds: Any) -> bool:
    """Whether most tasks that hold it are in templates with enough tasks of both kinds."""
    import numpy as np

    held = np.bincount(cells.template, weights=cells.count * holds)
    lacked = np.bincount(cells.template, weights=cells.count * ~holds)
    mixed = (held > 0) & (lacked > 0)
    balance = (held * lacked)[mixed] / (held + lacked)[mixed]
    return bool(held[mixed].sum() >= held.sum() / 2 and balance.sum() >= 5)
