"""Counts of a chain of filters: how many records arrived at each, how many went on, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from data.verdicts import Verdict
from pipeline.reporting.content import FunnelRow, ranked


class FunnelCounts:
    """A sink for `run_filters(..., on_verdict=counts)`; memory is one number per filter and reason."""

    def __init__(self, names: Iterable[str]) -> None:
        """`names`: the filters of the chain, in order; those that nothing reached are shown with 0."""
        names = tuple(names)
        self._reasons: dict[str, Counter[str]] = {name: Counter() for name in names}
        self._dropped: dict[str, Counter[str]] = {name: Counter() for name in names}
        self._kept: Counter[str] = Counter()

    def __call__(self, verdict: Verdict) -> None:
        """Count one verdict."""
        self._reasons[verdict.filter][verdict.reason] += 1
        self._dropped[verdict.filter][verdict.reason] += not verdict.keep
        self._kept[verdict.filter] += verdict.keep

    def rows(self) -> tuple[FunnelRow, ...]:
        """One row per filter; reasons most frequent first, ties by name."""
        return tuple(
            FunnelRow(
                name=name,
                seen=reasons.total(),
                kept=self._kept[name],
                reasons=ranked(reasons),
                dropped=ranked(+self._dropped[name]),
            )
            for name, reasons in self._reasons.items()
        )
