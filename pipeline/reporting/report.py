"""The report of a run: `index.html` that opens without a network, and `report.json` with the same content.

Decides what stands in a report and in which order; numbers come in as records and are not recomputed.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from data.files import write_atomically
from data.messages import Record
from pipeline.diagnosis.diagnose import Diagnosis, Group
from pipeline.diagnosis.kinds import FailureKind, SuccessKind
from pipeline.reporting.content import ComparisonRow, Curve, Fact, FunnelRow, ResultRow, Table
from pipeline.reporting.html import page

_KIND_ORDER = [*SuccessKind, *FailureKind]


class Report(Record):
    """Everything a report shows; empty parts are left out of the page."""

    title: str
    subtitle: str = ""
    facts: tuple[Fact, ...] = ()
    results: tuple[ResultRow, ...] = ()
    comparisons: tuple[ComparisonRow, ...] = ()
    curves: tuple[Curve, ...] = ()
    funnel: tuple[FunnelRow, ...] = ()
    diagnosis: Diagnosis | None = None
    diagnosis_of: str = ""
    """Which policy and tasks the diagnosis is of."""
    diagnosis_page: str = ""
    """Where the whole diagnosis is, relative to the page."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


def write_report(report: Report, directory: Path) -> Path:
    """Write `index.html` and `report.json` into `directory` (made where missing); returns the page's path.

    Each file is replaced whole. Raises StoreError where they cannot be written.
    """
    content = json.dumps(report.model_dump(mode="json"), indent=1, allow_nan=False)
    write_atomically(directory / "report.json", f"{content}\n")
    write_atomically(directory / "index.html", report_html(report).decode())
    return directory / "index.html"


def report_html(report: Report) -> bytes:
    """The page as UTF-8 bytes."""
    return page(
        "report.html.j2",
        report=report,
        results=_grouped(report.results),
        comparisons=_grouped(report.comparisons),
        kinds=kinds_present(report.diagnosis),
        declared=_declared(report.diagnosis),
        stack=stack,
        kind_class=kind_class,
        numeric=_numeric_columns,
    )


def kind_class(kind: str) -> str:
    """CSS class of a success or failure kind; fixed, so that colours mean the same in every report."""
    return f"k{_KIND_ORDER.index(kind)}" if kind in _KIND_ORDER else "k0"


def stack(group: Group) -> list[tuple[str, int, str]]:
    """The parts of a group's stacked bar in the fixed order of kinds."""
    shares = sorted([*group.successes, *group.failures], key=lambda share: _KIND_ORDER.index(share.kind))
    return [(share.kind, share.rate.successes, kind_class(share.kind)) for share in shares]


def kinds_present(diagnosis: Diagnosis | None) -> list[tuple[str, str]]:
    """The kinds that occur, with their CSS classes, in the fixed order."""
    if diagnosis is None:
        return []
    return [(name, style) for name, _, style in stack(diagnosis.overall)]


def _declared(diagnosis: Diagnosis | None) -> list[Group]:
    """The groups of declared tags: what is derived stands on the diagnosis's own page."""
    groups = () if diagnosis is None else diagnosis.by_capability
    return [group for group in groups if group.name.startswith("tag:")]


def _grouped(rows: tuple[Any, ...]) -> list[tuple[str, list[Any]]]:
    """Rows by group, groups in order of first appearance."""
    order = list(dict.fromkeys(row.group for row in rows))
    ordered = sorted(rows, key=lambda row: order.index(row.group))
    return [(name, list(members)) for name, members in groupby(ordered, key=lambda row: row.group)]


def _numeric_columns(table: Table) -> list[bool]:
    return [all(_is_number(row[column]) for row in table.rows) for column in range(len(table.columns))]


def _is_number(cell: str) -> bool:
    return cell.strip("+-% ").replace(",", "").replace(".", "", 1).isdigit() or cell in ("", "-")
