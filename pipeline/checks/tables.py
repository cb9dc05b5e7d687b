"""Whether two query results are the same table.

Rows are compared as a multiset, in order only where the query asks for one (ORDER BY outside every
subquery). Numbers compare by value within a relative tolerance, NULL equals NULL, a boolean equals 0 or 1
as SQLite has it, text is compared exactly. Column names do not count, their order does. Not covered:
parsing SQL; comments and string literals are only skipped over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

_TOKEN = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/|\(|\)|\w+", re.DOTALL)


def is_ordered(sql: str) -> bool:
    """Whether the outermost query has an ORDER BY."""
    depth, previous = 0, ""
    for token in _TOKEN.findall(sql):
        if token[0] in "'\"" or token.startswith(("--", "/*")):
            continue
        depth += (token == "(") - (token == ")")
        if depth == 0 and token.upper() == "BY" and previous == "ORDER":
            return True
        previous = token.upper()
    return False


def same_rows(
    wanted: Sequence[Sequence[Any]], given: Sequence[Sequence[Any]], *, ordered: bool, tolerance: float = 1e-6
) -> bool:
    """Whether both results hold the same rows; in the same order where `ordered`."""
    if len(wanted) != len(given):
        return False
    if not ordered:
        wanted, given = sorted(wanted, key=_sort_key), sorted(given, key=_sort_key)
    return all(_same_row(one, other, tolerance) for one, other in zip(wanted, given, strict=True))


def _same_row(one: Sequence[Any], other: Sequence[Any], tolerance: float) -> bool:
    return len(one) == len(other) and all(_same(a, b, tolerance) for a, b in zip(one, other, strict=True))


def _same(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-9)
    return bool(one == other)


def _sort_key(row: Sequence[Any]) -> list[tuple[int, Any]]:
    """An order over mixed types in which numbers that are nearly equal are neighbours."""
    keys: list[tuple[int, Any]] = []
    for value in row:
        if value is None:
            keys.append((0, 0))
        elif isinstance(value, int | float):
            keys.append((1, float(f"{value:.6g}")))
        else:
            keys.append((2, str(value)))
    return keys
