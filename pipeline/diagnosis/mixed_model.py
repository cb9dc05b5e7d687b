"""How much less tasks with a capability are solved, where tasks of one template are alike: a mixed model.

    share solved = mean of the combination of chosen capabilities + a random effect of the template + noise

Every combination of the chosen capabilities that occurs has a mean of its own, so that two weaknesses in one
task need not add up. The model is fitted by generalised least squares; the template's variance by restricted
maximum likelihood (REML), the noise from the binomial variance within a combination, scaled by what tasks of
a cell really vary. The effect of a chosen capability is the difference of the combinations with and without
it, beside as few others as the data have. It has a t-distribution: with (templates - combinations) degrees of
freedom where the capability does not vary within templates, since then templates are what was sampled.
Standard errors are never scaled down. A p-value is the larger of that for shares and that on another scale:
templates' shares are skewed near 0 and 1, and a normal tail of them would name what is not weak. Not covered:
effects that differ by template.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, sqrt
from typing import Any

from pipeline.diagnosis.outcomes import Cells

_COLLINEAR = 1e-7
"""Of a column's own weight: with less of it left beside the others it is a combination of them."""
_FAR = 1e9
"""Variance that takes a cell out of a fit."""
_LARGEST_SPREAD_OF_SHARES = 0.6
"""Standard deviation between templates: above what shares in [0, 1] can have."""
_FEW_TASKS = 10
_ENOUGH = 30
"""Tasks beyond the first of each cell from which on their variance is estimated."""


class Scale(StrEnum):
    """On which a p-value is taken as well as on that of shares."""

    LOG_ODDS = "log_odds"
    """Strict where few tasks are solved, or few are not: an extreme share says little on it."""
    ANGLES = "angles"
    """Arcsine of the root, Anscombe's correction: noise that does not depend on the share."""


_LARGEST_SPREAD = {Scale.LOG_ODDS: 6.0, Scale.ANGLES: 0.8}


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
        self._varies = [_varies(cells, column.holds) for column in cells.columns]

    def fit(self, chosen: Sequence[int]) -> Fit:
        """The model with the columns `chosen` (numbers into `cells.columns`)."""
        return Fit(self, tuple(chosen))

    def freedom(self, number: int, num_parameters: int) -> float:
        """Degrees of freedom of column `number`'s effect."""
        sampled = self.cells.num_tasks if self._varies[number] else self.num_templates
        return float(sampled - num_parameters)


class Fit:
    """A fitted model: the effects of its chosen columns, and of others beside them."""

    def __init__(self, model: MixedModel, chosen: tuple[int, ...]) -> None:
        import numpy as np

        self.model, self.chosen = model, chosen
        cells = model.cells
        code = model.design[:, list(chosen)] @ (2.0 ** np.arange(len(chosen)))
        _, self._combination = np.unique(code, return_inverse=True)
        self._num = int(self._combination.max()) + 1
        self._binomial, self._scale = _variances(cells, self._combination)
        keys = cells.template * self._num + self._combination
        groups, member = np.unique(keys, return_inverse=True)
        self._template, self._kind = groups // self._num, groups % self._num
        self._count = np.bincount(member, weights=cells.count)
        self._solved = np.bincount(member, weights=cells.first)
        noise = _of_group(self._binomial, member) * self._scale / self._count
        self._shares = _System(
            self._solved / self._count, noise, self._template, np.eye(self._num)[self._kind]
        )
        self.variance = self._shares.best_variance(_LARGEST_SPREAD_OF_SHARES)

    def member(self, number: int) -> Effect:
        """The effect of a chosen column, in shares."""
        return self._contrast(number, self._shares, self.variance)

    def p_value(self, number: int, *, scale: Scale) -> float:
        """One-sided, of a chosen column: the larger of shares and of `scale`."""
        import numpy as np

        solved, failed = self._solved, self._count - self._solved
        if scale is Scale.LOG_ODDS:
            values, noise = np.log((solved + 0.5) / (failed + 0.5)), 1 / (solved + 0.5) + 1 / (failed + 0.5)
        else:
            values = np.arcsin(np.sqrt((solved + 3 / 8) / (self._count + 3 / 4)))
            noise = 1 / (4 * self._count + 2)
        system = _System(values, self._scale * noise, self._template, self._shares.design)
        effect = self._contrast(number, system, system.best_variance(_LARGEST_SPREAD[scale]))
        return max(self.member(number).p_value, effect.p_value)

    def others(self, *, outside: bool = False) -> list[Effect]:
        """The effect of every column alone beside the chosen ones; UNKNOWN where these determine it.

        `outside`: among tasks that hold none of the chosen ones.
        """
        import numpy as np

        cells, design = self.model.cells, self.model.design
        noise = self._binomial * self._scale / cells.count
        base = np.eye(self._num)[self._combination]
        if outside:
            noise = np.where(design[:, list(self.chosen)].any(axis=1), _FAR, noise)
            base = np.ones((len(noise), 1))
        size = base.shape[1]
        system = _System(
            cells.first / cells.count, noise, cells.template, np.concatenate([base, design], axis=1)
        )
        gram, cross, own = system.products(self.variance)
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
            misfit = _misfit(rest - value * float(pull[number]), len(noise) - size - 1)
            freedom = self.model.freedom(number, size + 1)
            effects.append(Effect(value, sqrt(misfit / float(left[number])), freedom))
        return effects

    def _contrast(self, number: int, system: _System, variance: float) -> Effect:
        import numpy as np

        pair = self._best_pair(number)
        if pair is None:
            return UNKNOWN
        gram, cross, own = system.products(variance)
        contrast = np.zeros(self._num)
        contrast[list(pair)] = (1.0, -1.0)
        inverse = np.linalg.inv(gram)
        means = inverse @ cross
        misfit = _misfit(own - float(cross @ means), len(self._count) - self._num)
        error = sqrt(misfit * float(contrast @ inverse @ contrast))
        return Effect(float(contrast @ means), error, self.model.freedom(number, self._num))

    def _best_pair(self, number: int) -> tuple[int, int] | None:
        """Two combinations that differ in this column only, by what they can tell before outcomes are seen.

        Enough tasks of both come first; then few other weaknesses, which hide this one; then many templates.
        """
        import numpy as np

        place = self.chosen.index(number)
        held = self.model.design[:, list(self.chosen)].astype(bool)
        _, first = np.unique(self._combination, return_index=True)
        known = {tuple(held[cell].tolist()): combination for combination, cell in enumerate(first)}
        pairs = []
        for here, inside in known.items():
            without = known.get((*here[:place], False, *here[place + 1 :]))
            if here[place] and without is not None:
                tasks, templates = zip(*map(self._size, (inside, without)), strict=True)
                worth = (min(tasks) >= _FEW_TASKS, -sum(here), 1 / sum(1 / each for each in templates))
                pairs.append((worth, (inside, without)))
        return max(pairs)[1] if pairs else None

    def _size(self, combination: int) -> tuple[float, int]:
        """Tasks and templates of a combination."""
        here = self._kind == combination
        return float(self._count[here].sum()), int(here.sum())


class _System:
    """Rows with a known noise, sorted by template: values = design * means + template + noise."""

    def __init__(self, values: Any, noise: Any, template: Any, design: Any) -> None:
        import numpy as np

        self.values, self.noise, self.design = values, noise, design
        self.starts: Any = np.flatnonzero(np.diff(template, prepend=-1))

    def products(self, variance: float) -> tuple[Any, Any, float]:
        """X'V⁻¹X, X'V⁻¹y and y'V⁻¹y where templates have this variance."""
        import numpy as np

        weight = 1 / self.noise
        scaled = self.design * weight[:, None]
        by_template = np.add.reduceat(scaled, self.starts, axis=0)
        outcomes = np.add.reduceat(weight * self.values, self.starts)
        shrink = variance / (1 + variance * np.add.reduceat(weight, self.starts))
        gram = self.design.T @ scaled - by_template.T @ (by_template * shrink[:, None])
        cross = scaled.T @ self.values - by_template.T @ (shrink * outcomes)
        return gram, cross, float((weight * self.values**2).sum() - (shrink * outcomes**2).sum())

    def best_variance(self, largest: float) -> float:
        """The templates' variance of greatest restricted likelihood; 0 below 3 templates."""
        from scipy.optimize import minimize_scalar

        if len(self.starts) < 3:
            return 0.0
        best = minimize_scalar(
            lambda root: self._criterion(root * root),
            bounds=(0.0, largest),
            method="bounded",
            options={"xatol": largest * 2e-3},
        )
        return 0.0 if self._criterion(0.0) <= float(best.fun) else float(best.x) ** 2

    def _criterion(self, variance: float) -> float:
        """Minus twice the restricted log-likelihood, up to a constant."""
        import numpy as np

        gram, cross, own = self.products(variance)
        weights = np.add.reduceat(1 / self.noise, self.starts)
        fitted = float(cross @ np.linalg.solve(gram, cross))
        return float(np.log1p(variance * weights).sum() + np.linalg.slogdet(gram)[1]) + own - fitted


def _variances(cells: Cells, combination: Any) -> tuple[Any, float]:
    """Per cell the binomial variance of a task's outcome, and what part of it tasks of a cell really vary."""
    import numpy as np

    solved = np.bincount(combination, weights=cells.first)
    tasks = np.bincount(combination, weights=cells.count)
    share = ((solved + 1) / (tasks + 2))[combination]
    binomial = share * (1 - share)
    if cells.num_tasks - len(cells.count) < _ENOUGH:
        return binomial, 1.0
    varied = float((cells.second - cells.first**2 / cells.count).sum())
    return binomial, min(1.0, max(0.05, varied / float(((cells.count - 1) * binomial).sum())))


def _of_group(values: Any, member: Any) -> Any:
    """The value that all cells of a group have."""
    import numpy as np

    found = np.zeros(int(member.max()) + 1)
    found[member] = values
    return found


def _misfit(squares: float, freedom: int) -> float:
    """The factor of the squared standard errors, at least 1."""
    return max(1.0, squares / max(1, freedom))


def _varies(cells: Cells, holds: Any) -> bool:
    """Whether most tasks that hold it are in templates with enough tasks of both kinds."""
    import numpy as np

    held = np.bincount(cells.template, weights=cells.count * holds)
    lacked = np.bincount(cells.template, weights=cells.count * ~holds)
    mixed = (held > 0) & (lacked > 0)
    balance = (held * lacked)[mixed] / (held + lacked)[mixed]
    return bool(held[mixed].sum() >= held.sum() / 2 and balance.sum() >= 5)
