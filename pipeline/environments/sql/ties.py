"""Whether a result in another order is right as well, because the gold query leaves ties open.

The gold query is run twice more, its ties broken by the output columns upwards and downwards. Where both runs
have had the same rows so far, a group of ties ends; within a group any order is right. Where LIMIT cuts a
group in two, any of its rows may be left. Nothing is guessed about the sort keys, which need not be output
columns. Not covered, and compared in gold's own order: ORDER BY ALL, a LIMIT that is no number, FETCH, rows
that only a collation takes for equal, and results longer than the row cap.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from pipeline.environments.sql.database import Database, MachineLimitError
from pipeline.environments.sql.results import ResultSet, Row, is_within, masked, normal, order_by
from pipeline.environments.tools import ToolError

_TAIL = re.compile(r"\b(limit|offset|fetch)\b|;", re.IGNORECASE)
_LIMIT = re.compile(r"limit\s+(\d+)(?:\s+offset\s+(\d+)|\s*,\s*(\d+))?\s*;?\s*", re.IGNORECASE)


def is_other_order(gold: str, expected: ResultSet, other: ResultSet, *, database: Database) -> bool:
    """Whether `other` is one of the orders that `gold`, which gave `expected`, asks for.

    Raises MachineLimitError where finding out takes too much.
    """
    if not (expected.complete and other.complete) or len(expected.rows) != len(other.rows):
        return False
    start = order_by(gold)
    if start < 0 or not expected.rows or len(expected.columns) != len(other.columns):
        return False
    tail = _TAIL.search(masked(gold), start)
    end = tail.start() if tail else len(gold)
    rows = [normal(row) for row in other.rows]
    groups = _groups(gold[:end], gold[end:], len(expected.columns), database)
    if groups is not None:
        return _fits(groups, rows, skipped=0)
    limit = _LIMIT.fullmatch(masked(gold)[end:])
    groups = _groups(gold[:end], "", len(expected.columns), database) if limit else None
    if limit is None or groups is None:
        return False
    first, second, third = limit.groups()
    return _fits(groups, rows, skipped=int(first if third else second or 0))


def _groups(query: str, tail: str, num_columns: int, database: Database) -> list[list[Row]] | None:
    """The groups of ties in order; None where the two runs have other rows, or one does not run."""
    runs = []
    for direction in ("ASC NULLS FIRST", "DESC NULLS LAST"):
        breaks = ", ".join(f"{column + 1} {direction}" for column in range(num_columns))
        try:
            result = database.run(f"{query}\n, {breaks}\n{tail}")
        except MachineLimitError:
            raise
        except ToolError:
            return None
        if not result.complete:
            return None
        runs.append([normal(row) for row in result.rows])
    return None if len(runs[0]) != len(runs[1]) else _common(*runs)


def _common(upwards: Sequence[Row], downwards: Sequence[Row]) -> list[list[Row]] | None:
    """`upwards` cut wherever both have had the same rows so far; None where they never have."""
    groups, begin = [], 0
    ahead: Counter[Row] = Counter()
    for index, (one, two) in enumerate(zip(upwards, downwards, strict=True)):
        for row, step in ((one, 1), (two, -1)):
            ahead[row] += step
            if not ahead[row]:
                del ahead[row]
        if not ahead:
            groups.append(list(upwards[begin : index + 1]))
            begin = index + 1
    return None if ahead else groups


def _fits(groups: Sequence[Sequence[Row]], rows: Sequence[Row], *, skipped: int) -> bool:
    """Whether `rows`, which begin after `skipped` rows, hold each group's rows in its place."""
    return all(is_within(part, group) for group, part in _parts(groups, rows, skipped))


def _parts(
    groups: Sequence[Sequence[Row]], rows: Sequence[Row], skipped: int
) -> Iterator[tuple[Sequence[Row], Sequence[Row]]]:
    """Each group with those of `rows` that stand in its place."""
    begin = -skipped
    for group in groups:
        end = begin + len(group)
        yield group, rows[max(begin, 0) : max(end, 0)]
        begin = end
