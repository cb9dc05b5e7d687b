"""Which capabilities are weak: named so that naming any by chance has a probability under 5 % in all.

A capability is weak where tasks that hold it are solved less often than the rest of the pool *beside the
other named weaknesses*: one that only occurs together with a weak one is explained by it, and where the
data cannot tell two apart, both are said. Each p-value is the larger of two: a mixed model's, for which
tasks of one template are alike (`mixed_model`), and a stratified permutation test's, which is right for rare
failures (`strata`). The level is split in halves:

- Holm's step-down over all tested capabilities, each given those named before;
- sets of K >= 2 capabilities that show only together (many weak templates hide each other in the spread of
  templates): a set is named where every member, given the others, is significant after a Bonferroni
  correction over all sets of that size, at the level / 2^K, which sums to its half.

The scale that a mixed model's p-value is taken on beside shares is that of log-odds for one more capability,
where a single odd template must not make a weakness, and that of angles for sets, where the correction over
all sets leaves no such chance.

Capabilities that hold for the same tasks are one. Templates are tested, too, given the named capabilities
(Holm): a statement about this pool's template, not about a capability. Not covered: interactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from math import comb
from typing import Any

from data.messages import Record
from pipeline.checks.stats import holm
from pipeline.diagnosis.mixed_model import Effect, MixedModel, Scale
from pipeline.diagnosis.outcomes import Cells, Column, Outcomes
from pipeline.diagnosis.strata import failures_p_value

LEVEL = 0.05
"""Of adjusted p-values."""
MIN_TASKS = 10
"""Tasks that must hold a capability, and lack it, for it to be tested; decided before outcomes are seen."""
MAX_TESTED = 200
"""The capabilities of most tasks are tested."""
_MAX_TOGETHER = 8
_ALIKE = 0.5
"""Shared tasks (of those that hold either) from which on it is asked whether two can be told apart."""
_WORTH_A_LOOK = 1.5
"""z-value below which the search for weaknesses goes no further."""
_UNSURE = 0.05
"""Unadjusted level from which on a difference counts as not shown where two capabilities are told apart."""


class Standing(StrEnum):
    """What is known of a capability."""

    WEAK = "weak"
    EXPLAINED = "explained"
    """Solved less often than the rest, but no longer once the weaknesses in `beside` are allowed for."""
    WITHIN_SPREAD = "within_spread"
    """Solved less often than the rest, but by no more than templates differ among themselves."""
    NOT_SHOWN = "not_shown"
    TOO_FEW = "too_few"
    """Fewer than MIN_TASKS tasks hold it, or lack it, or MAX_TESTED others are more common: not tested."""


class Capability(Record):
    """One capability of a pool. Shares are of tasks, each the mean over its rewarded trajectories."""

    name: str
    same_as: tuple[str, ...] = ()
    """Other names that hold for exactly the same tasks: not separable from this one."""
    standing: Standing
    num_tasks: int
    num_templates: int
    share: float
    """Solved, of tasks that hold it."""
    rest: float | None
    """Solved, of tasks that lack it; None where there are none."""
    difference: float
    """With minus without, the named weaknesses allowed for."""
    low: float
    high: float
    """95 % interval of the difference, templates as clusters; [-1, 1] where it cannot be told."""
    p_value: float
    p_adjusted: float
    """Family-wise."""
    beside: tuple[str, ...] = ()
    """Of a weak one: capabilities it cannot be told apart from. Of an explained one: what explains it."""


class WeakTemplate(Record):
    """A template that is solved less often than others of the same weaknesses, in this pool."""

    template: str
    share: float
    """Solved, of its tasks that are `num_tasks`."""
    rest: float
    """Solved, of the tasks of other templates that have the same weaknesses."""
    num_tasks: int
    """Its tasks of whose weaknesses other templates have tasks, too."""
    p_adjusted: float
    only_here: tuple[str, ...]
    """Capabilities that no other template of the pool has: not separable from the template."""


class Weaknesses(Record):
    """The weakness test of a pool."""

    num_tasks: int
    num_templates: int
    num_tested: int
    template_spread: float
    """Standard deviation between templates that no named weakness explains, in shares."""
    capabilities: tuple[Capability, ...]
    """Weak ones first, largest difference first; then by name."""
    templates: tuple[WeakTemplate, ...]

    @property
    def weak(self) -> tuple[Capability, ...]:
        """The named weaknesses."""
        return tuple(each for each in self.capabilities if each.standing is Standing.WEAK)


def weaknesses(outcomes: Outcomes) -> Weaknesses:
    """The weakness test of collected outcomes."""
    cells = _most_common(outcomes.cells(min_tasks=MIN_TASKS))
    if not cells.columns:
        return _untested(cells)
    model = MixedModel(cells)
    named = _name(model)
    chosen = tuple(sorted(named))
    fit = model.fit(chosen)
    beside = fit.others()
    effects = [fit.member(each) if each in named else beside[each] for each in range(len(cells.columns))]
    found = [_capability(model, effects, number, named) for number in range(len(effects))]
    found += [_too_few(cells, column) for column in cells.too_few]
    found.sort(key=lambda each: (each.standing is not Standing.WEAK, each.difference, each.name))
    weak = sum(each.standing is Standing.WEAK for each in found)
    return Weaknesses(
        num_tasks=cells.num_tasks,
        num_templates=len(cells.templates),
        num_tested=len(cells.columns),
        template_spread=fit.variance**0.5,
        capabilities=(*found[:weak], *sorted(found[weak:], key=lambda each: each.name)),
        templates=tuple(_weak_templates(cells, chosen)),
    )


def _name(model: MixedModel) -> dict[int, float]:
    """The named columns with their adjusted p-values."""
    count = len(model.cells.columns)
    named: dict[int, float] = {}
    for members in _together(model):
        size, p_values = len(members), _p_values(model, members, Scale.ANGLES)
        adjusted = {each: comb(count, size) * size * 2**size * p for each, p in p_values.items()}
        if size > max(1, len(named)) and max(adjusted.values()) < LEVEL:
            named = adjusted
    while len(named) < count:
        before = sorted(named)
        found = {_strongest(model, before, outside=outside) for outside in (False, True)}
        tested = {
            each: _p_values(model, (*before, each), Scale.LOG_ODDS)[each]
            for each in found
            if each is not None
        }
        if not tested:
            break
        best, p_value = min(tested.items(), key=lambda item: (item[1], item[0]))
        adjusted_next = max(2 * (count - len(named)) * p_value, *named.values(), 0.0)
        if adjusted_next >= LEVEL:
            break
        named[best] = adjusted_next
    return named


def _p_values(model: MixedModel, members: Sequence[int], scale: Scale) -> dict[int, float]:
    """Per member the larger of its two p-values, given the other members."""
    fit, cells = model.fit(members), model.cells
    return {
        each: max(
            fit.p_value(each, scale=scale),
            failures_p_value(
                cells,
                cells.columns[each].holds,
                _pattern(cells, [other for other in members if other != each]),
            ),
        )
        for each in members
    }


def _together(model: MixedModel) -> Iterator[tuple[int, ...]]:
    """Sets of 2 and more columns worth a look: each next the strongest beside, or outside, those before.

    From the largest, members are then dropped that matter least. However sets are found, their number is
    allowed for.
    """
    for outside in (False, True):
        members: list[int] = []
        while len(members) < min(_MAX_TOGETHER, len(model.cells.columns)):
            best = _strongest(model, members, outside=outside)
            if best is None:
                break
            members.append(best)
            yield tuple(sorted(members))
        while len(members) > 2:
            fit = model.fit(members)
            members.remove(min(members, key=lambda each: fit.member(each).strength))
            yield tuple(sorted(members))


def _strongest(model: MixedModel, members: Sequence[int], *, outside: bool) -> int | None:
    """The column of the strongest negative effect; `outside`: among tasks that hold none of the members."""
    effects = model.fit(members).others(outside=outside)
    others = [each for each in range(len(effects)) if each not in members]
    best = max(others, key=lambda each: effects[each].strength, default=None)
    return best if best is not None and effects[best].strength >= _WORTH_A_LOOK else None


def _capability(
    model: MixedModel, effects: Sequence[Effect], number: int, named: dict[int, float]
) -> Capability:
    cells, column, effect = model.cells, model.cells.columns[number], effects[number]
    beside = [each for each in sorted(named) if each != number]
    p_value = max(effect.p_value, failures_p_value(cells, column.holds, _pattern(cells, beside)))
    standing, others = _standing(model, number, named)
    adjusted = named.get(number, min(1.0, 2 * max(1, len(cells.columns) - len(named)) * p_value))
    low, high = effect.interval()
    return Capability(
        name=column.names[0],
        same_as=column.names[1:],
        standing=standing,
        num_tasks=column.num_tasks,
        num_templates=column.num_templates,
        share=_share(cells, column.holds),
        rest=_rest(cells, column),
        difference=effect.value,
        low=low,
        high=high,
        p_value=p_value,
        p_adjusted=adjusted,
        beside=others,
    )


def _standing(model: MixedModel, number: int, named: dict[int, float]) -> tuple[Standing, tuple[str, ...]]:
    cells, columns = model.cells, model.cells.columns
    holds = columns[number].holds
    if number in named:
        return Standing.WEAK, tuple(columns[each].names[0] for each in _rivals(model, number, named))
    if failures_p_value(cells, holds, _pattern(cells, ())) * len(columns) > LEVEL:
        return Standing.NOT_SHOWN, ()
    if failures_p_value(cells, holds, _pattern(cells, tuple(named))) * len(columns) <= LEVEL:
        return Standing.WITHIN_SPREAD, ()
    explains = [each for each in sorted(named) if _goes_with(cells, columns[each].holds, holds)]
    return (Standing.EXPLAINED, tuple(columns[each].names[0] for each in explains))


def _rivals(model: MixedModel, number: int, named: dict[int, float]) -> Iterator[int]:
    """Columns that could stand in the place of a named one: beside each, the named one shows no effect."""
    cells, without = model.cells, [each for each in named if each != number]
    clean = _pattern(cells, without) == 0
    for each, column in enumerate(cells.columns):
        if each in named:
            continue
        if _overlap(cells, cells.columns[number].holds & clean, column.holds & clean) >= _ALIKE:
            instead = _p_values(model, [*without, each], Scale.ANGLES)[each]
            beside = _p_values(model, [*named, each], Scale.ANGLES)[number]
            if beside > _UNSURE >= instead:
                yield each


def _overlap(cells: Cells, one: Any, two: Any) -> float:
    """Tasks that hold both, of those that hold either."""
    either = float(cells.count[one | two].sum())
    return float(cells.count[one & two].sum()) / either if either else 0.0


def _goes_with(cells: Cells, cause: Any, holds: Any) -> bool:
    """Whether tasks that hold the one hold the cause more often than others do."""
    count = cells.count
    inside = float(count[holds & cause].sum()) / float(count[holds].sum())
    outside = float(count[~holds & cause].sum()) / float(count[~holds].sum())
    return inside > outside


def _weak_templates(cells: Cells, chosen: Sequence[int]) -> list[WeakTemplate]:
    import numpy as np

    pattern = _pattern(cells, chosen)
    p_values = [
        failures_p_value(cells, cells.template == number, pattern) for number in range(len(cells.templates))
    ]
    found = []
    for number, adjusted in enumerate(holm(p_values)):
        here = cells.template == number
        if adjusted < LEVEL:
            alike = here & np.isin(pattern, pattern[~here])
            columns = (*cells.columns, *cells.too_few)
            only = [name for column in columns if not (column.holds & ~here).any() for name in column.names]
            found.append(
                WeakTemplate(
                    template=cells.templates[number],
                    share=_share(cells, alike),
                    rest=_rest_alike(cells, alike, ~here, pattern),
                    num_tasks=int(cells.count[alike].sum()),
                    p_adjusted=adjusted,
                    only_here=tuple(only),
                )
            )
    return sorted(found, key=lambda each: (each.share, each.template))


def _rest_alike(cells: Cells, alike: Any, others: Any, pattern: Any) -> float:
    """Solved, of `others`, were they as often of each pattern as the tasks in `alike` are."""
    patterns = sorted(set(pattern[alike].tolist()))
    weights = [float(cells.count[alike & (pattern == each)].sum()) for each in patterns]
    shares = [_share(cells, others & (pattern == each)) for each in patterns]
    return sum(weight * share for weight, share in zip(weights, shares, strict=True)) / sum(weights)


def _pattern(cells: Cells, columns: Sequence[int]) -> Any:
    """Per cell a number that says which of the columns it holds."""
    import numpy as np

    found = np.zeros(len(cells.count), dtype=np.int64)
    for place, number in enumerate(columns):
        found += cells.columns[number].holds.astype(np.int64) << place
    return found


def _share(cells: Cells, where: Any) -> float:
    tasks = float(cells.count[where].sum())
    return float(cells.first[where].sum()) / tasks if tasks else 0.0


def _rest(cells: Cells, column: Column) -> float | None:
    return None if column.num_tasks == cells.num_tasks else _share(cells, ~column.holds)


def _too_few(cells: Cells, column: Column) -> Capability:
    share, rest = _share(cells, column.holds), _rest(cells, column)
    return Capability(
        name=column.names[0],
        same_as=column.names[1:],
        standing=Standing.TOO_FEW,
        num_tasks=column.num_tasks,
        num_templates=column.num_templates,
        share=share,
        rest=rest,
        difference=0.0 if rest is None else share - rest,
        low=-1.0,
        high=1.0,
        p_value=1.0,
        p_adjusted=1.0,
    )


def _untested(cells: Cells) -> Weaknesses:
    return Weaknesses(
        num_tasks=cells.num_tasks,
        num_templates=len(cells.templates),
        num_tested=0,
        template_spread=0.0,
        capabilities=tuple(_too_few(cells, column) for column in cells.too_few),
        templates=tuple(_weak_templates(cells, ())),
    )


def _most_common(cells: Cells) -> Cells:
    """With at most MAX_TESTED columns to test."""
    ranked = sorted(cells.columns, key=lambda column: -column.num_tasks)
    kept = {column.names for column in ranked[:MAX_TESTED]}
    return replace(
        cells,
        columns=tuple(column for column in cells.columns if column.names in kept),
        too_few=(*cells.too_few, *(column for column in cells.columns if column.names not in kept)),
    )
