"""When two result sets are equal, and how one is shown to an agent.

Equal: the same rows as a multiset (a duplicate row counts), in the same order where the gold query orders at
its top level. Columns count in their order; their names do not. Numbers are equal within 1e-6 relative or
1e-9 absolute, whatever their type (3 = 3.0 = true); text, blobs and dates exactly; NULL equals NULL only. Not
covered: ties under ORDER BY (`ties`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Row = tuple[Any, ...]

_RELATIVE, _ABSOLUTE = 1e-6, 1e-9
_MAX_CELL_LENGTH = 200
_SKIPPED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ResultSet:
    """What a query returned, and what it cost."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    complete: bool
    """False where the row cap cut it."""
    cost: int | None = None
    """Engine steps (SQLite) or rows handled (DuckDB), where measured; never seconds."""


def same_results(gold: ResultSet, other: ResultSet, *, ordered: bool) -> bool:
    """Whether the two are equal; see the module docstring. An incomplete result equals nothing."""
    if not (gold.complete and other.complete) or len(gold.rows) != len(other.rows):
        return False
    if gold.rows and len(gold.columns) != len(other.columns):
        return False
    if ordered:
        return all(map(same_row, gold.rows, other.rows))
    return is_within([normal(row) for row in gold.rows], [normal(row) for row in other.rows])


def same_row(left: Row, right: Row) -> bool:
    """Whether two rows are equal cell by cell."""
    return len(left) == len(right) and all(map(_same_cell, normal(left), normal(right)))


def is_ordered(sql: str) -> bool:
    """Whether a query orders at its top level: ORDER BY outside parentheses, text and comments."""
    return order_by(sql) >= 0


def order_by(sql: str) -> int:
    """Where the top-level ORDER BY begins; -1 where there is none."""
    found = re.search(r"\border\s+by\b", masked(sql), re.IGNORECASE)
    return found.start() if found else -1


def masked(sql: str) -> str:
    """The query with blanks for what stands in parentheses, text, quoted names and comments."""
    depth, outside = 0, []
    for character in _SKIPPED.sub(lambda match: " " * len(match[0]), sql):
        depth += (character == "(") - (character == ")")
        outside.append(character if depth == 0 and character != ")" else " ")
    return "".join(outside)


def normal(row: Row) -> Row:
    """The cells as one of int, float, str, bytes, None, so that they compare."""
    return tuple(map(_normal_cell, row))


def show(result: ResultSet, *, max_rows: int) -> str:
    """Column names and rows, one a line, cells joined by `|`; says so where rows are missing."""
    if not result.rows:
        return "no rows"
    lines = ["|".join(result.columns)]
    lines += ["|".join(map(_show_cell, row)) for row in result.rows[:max_rows]]
    if len(result.rows) > max_rows or not result.complete:
        lines.append(f"... only the first {min(max_rows, len(result.rows))} rows are shown")
    return "\n".join(lines)


def _normal_cell(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes):
        return value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return str(value)


def _same_cell(left: Any, right: Any) -> bool:
    if isinstance(left, int | float) and isinstance(right, int | float):
        both_nan = left != left and right != right
        return both_nan or math.isclose(left, right, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return type(left) is type(right) and bool(left == right)


def is_within(left: Sequence[Row], right: Sequence[Row]) -> bool:
    """Whether each of `left` has a row of its own in `right`; for as many rows: equal multisets.

    Cells are normal. Exact rows are paired first; of the rest, each takes one equal within the tolerance.
    """
    spare = Counter(right)
    unpaired = []
    for row in left:
        if spare[row] > 0:
            spare[row] -= 1
        else:
            unpaired.append(row)
    rest: dict[Row, list[Row]] = {}
    for row in spare.elements():
        rest.setdefault(_without_numbers(row), []).append(row)
    for row in unpaired:
        candidates = rest.get(_without_numbers(row), [])
        found = next((index for index, other in enumerate(candidates) if same_row(row, other)), None)
        if found is None:
            return False
        del candidates[found]
    return True


def _without_numbers(row: Row) -> Row:
    return tuple(0 if isinstance(cell, int | float) else cell for cell in row)


def _show_cell(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes | bytearray | memoryview):
        text = f"x'{bytes(value)[: _MAX_CELL_LENGTH // 2].hex()}'"
    else:
        text = str(value).replace("\\", "\\\\").replace("\n", "\\n").replace("|", "\\|")
    return text if len(text) <= _MAX_CELL_LENGTH else text[:_MAX_CELL_LENGTH] + "..."
