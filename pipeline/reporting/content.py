"""What a report shows, as plain records: this is also the layout of `report.json`.

Decides names and units only; `pipeline.reporting.report` draws it. Rates carry their Wilson interval
so that no table can show one without the other.
"""

from __future__ import annotations

from collections import Counter

from data.messages import Record
from pipeline.checks.stats import wilson_interval


class ReasonCount(Record):
    """How often a reason (or kind, or label) occurred."""

    reason: str
    count: int


class FunnelRow(Record):
    """One step of a funnel: how many records arrived, how many went on, and why the others did not."""

    name: str
    seen: int
    kept: int
    reasons: tuple[ReasonCount, ...] = ()
    """Every reason given, `ok` included, most frequent first."""
    dropped: tuple[ReasonCount, ...] = ()
    """The reasons of those that did not go on."""


class Rate(Record):
    """A share with its 95 % Wilson interval; `trials` 0 means nothing was measured."""

    successes: int
    trials: int
    low: float
    high: float

    @property
    def value(self) -> float | None:
        """successes / trials, None where nothing was measured."""
        return self.successes / self.trials if self.trials else None


class Series(Record):
    """One line of a chart."""

    name: str
    points: tuple[tuple[float, float], ...]
    """(x, y), in order of x."""


class Curve(Record):
    """A chart: several series over one pair of axes, e.g. loss over steps."""

    name: str
    x_label: str
    series: tuple[Series, ...]


class ResultRow(Record):
    """Success of one stage or arm on one set of tasks."""

    name: str
    """The stage or arm, e.g. "sft"."""
    group: str = ""
    """The set and how it was run, e.g. "held-out, temperature 0"; rows of one group stand together."""
    success: Rate
    valid_calls: Rate | None = None
    note: str = ""


class ComparisonRow(Record):
    """Treatment minus baseline on the same tasks, paired."""

    name: str
    """E.g. "sft vs base"."""
    group: str = ""
    difference: float
    low: float
    high: float
    p_value: float
    """Adjusted for the number of comparisons where there are several."""
    num_pairs: int
    num_clusters: int


class Fact(Record):
    """A name and a value for the head of a report, e.g. model, seed, hours."""

    name: str
    value: str


class Table(Record):
    """Any other table; cells are text, columns that hold numbers only are set flush right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def rate(successes: int, trials: int) -> Rate:
    """A Rate with its interval computed; without trials the interval is the whole of [0, 1]."""
    interval = wilson_interval(successes, trials)
    return Rate(successes=successes, trials=trials, low=interval.low, high=interval.high)


def ranked(counts: Counter[str]) -> tuple[ReasonCount, ...]:
    """Counts as rows, most frequent first, ties by name."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ReasonCount(reason=reason, count=count) for reason, count in ordered)
