"""Equal result sets: the rule, case by case."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pytest

from pipeline.environments.sql.results import ResultSet, is_ordered, same_results, show


def table(*rows: tuple[Any, ...], columns: int = 0, complete: bool = True) -> ResultSet:
    width = columns or (len(rows[0]) if rows else 1)
    return ResultSet(tuple(f"c{index}" for index in range(width)), rows, complete)


@pytest.mark.parametrize(
    ("gold", "other", "ordered", "equal"),
    [
        (table((1, "a"), (2, "b")), table((2, "b"), (1, "a")), False, True),
        (table((1, "a"), (2, "b")), table((2, "b"), (1, "a")), True, False),
        (table((1,), (1,)), table((1,)), False, False),
        (table((1,), (1,), (2,)), table((1,), (2,), (2,)), False, False),
        (table((3,)), table((3.0,)), False, True),
        (table((Decimal("2.50"),)), table((2.5,)), False, True),
        (table((0.1 + 0.2,)), table((0.3,)), False, True),
        (table((1.0, "a"), (1.0000001, "a")), table((1.0000002, "a"), (1.0, "a")), False, True),
        (table((1000,)), table((1001,)), False, False),
        (table((100.0,)), table((100.001,)), False, False),
        (table((None,)), table((0,)), False, False),
        (table((None,)), table(("",)), False, False),
        (table((None,)), table((None,)), False, True),
        (table(("1",)), table((1,)), False, False),
        (table(("a",)), table(("A",)), False, False),
        (table((True,)), table((1,)), False, True),
        (table((1, 2)), table((2, 1)), False, False),
        (table((1, 2)), table((1,)), False, False),
        (table((b"x",)), table(("x",)), False, False),
        (table((datetime.date(2031, 6, 30),)), table(("2031-06-30",)), False, True),
        (table(columns=1), table(columns=2), False, True),
        (table((1,)), table((1,), complete=False), False, False),
    ],
)
def test_equality(gold: ResultSet, other: ResultSet, ordered: bool, equal: bool) -> None:
    assert same_results(gold, other, ordered=ordered) is equal
    assert same_results(other, gold, ordered=ordered) is equal


@pytest.mark.parametrize(
    ("sql", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n by a desc limit 3", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT rank() OVER (ORDER BY a) FROM t", False),
        ("SELECT 'order by' FROM t", False),
        ("SELECT a FROM t -- order by a", False),
        ("SELECT a /* order by */ FROM t", False),
        ("WITH x AS (SELECT 1 ORDER BY 1) SELECT * FROM x ORDER BY 1", True),
        ("SELECT '(' FROM t ORDER BY a", True),
        ('SELECT "order by" FROM t', False),
    ],
)
def test_order_counts_at_the_top_level_only(sql: str, ordered: bool) -> None:
    assert is_ordered(sql) is ordered


def test_shown_results_stay_readable() -> None:
    assert show(table((None, "a|b\nc"), (1.5, b"\x01")), max_rows=5) == "c0|c1\nNULL|a\\|b\\nc\n1.5|x'01'"
    assert show(table(columns=2), max_rows=5) == "no rows"
    assert show(table(*[(number,) for number in range(9)]), max_rows=2).splitlines() == [
        "c0", "0", "1", "... only the first 2 rows are shown",
    ]  # fmt: skip
    assert len(show(table(("x" * 10_000,)), max_rows=1)) < 300
