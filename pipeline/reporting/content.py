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


def rate(successes: int, trials: int) -> Rate:
    """A Rate with its interval computed; without trials the interval is the whole of [0, 1]."""
    interval = wilson_interval(successes, trials)
    return Rate(successes=successes, trials=trials, low=interval.low, high=interval.high)


def ranked(counts: Counter[str]) -> tuple[ReasonCount, ...]:
    """Counts as rows, most frequent first, ties by name."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(ReasonCount(reason=reason, count=count) for reason, count in ordered)
