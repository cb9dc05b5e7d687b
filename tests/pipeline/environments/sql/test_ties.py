"""Ties under ORDER BY: every order that gold leaves open is right, and no other."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from pipeline.environments.sql.database import Database, SqlLimits
from pipeline.environments.sql.duckdb_engine import DuckSource
from pipeline.environments.sql.session import judge_query
from pipeline.environments.sql.sqlite_engine import SqliteSource

SCRIPT = """
CREATE TABLE goods (name TEXT, kind TEXT, price REAL, stock INTEGER);
INSERT INTO goods VALUES ('cup', 'ware', 2.0, 5), ('jug', 'ware', 2.0, NULL), ('pan', 'ware', 9.0, 5),
  ('nail', 'iron', 1.0, 7), ('bolt', 'iron', 1.0, 7), ('rope', 'cord', 2.0, NULL);
"""
NAMES = ("cup", "jug", "pan", "nail", "bolt", "rope")


@pytest.fixture(scope="module", params=["sqlite", "duckdb"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("ties") / "goods.db"
    engine = pytest.importorskip("duckdb" if request.param == "duckdb" else "sqlite3")
    connection = engine.connect(str(path))
    (connection.executescript if request.param == "sqlite" else connection.execute)(SCRIPT)
    connection.close()
    return SqliteSource(path) if request.param == "sqlite" else DuckSource(path, limits=SqlLimits())


def success(source: Any, gold: str, names: tuple[str, ...]) -> bool:
    """Whether a query that gives these names in this order is right."""
    rows = " UNION ALL ".join(f"SELECT {place} AS p, '{name}' AS n" for place, name in enumerate(names))
    submitted = f"SELECT n FROM ({rows}) ORDER BY p"

    def opened() -> Database:
        return source.open(writable=False, limits=SqlLimits())  # type: ignore[no-any-return]

    return judge_query(submitted, gold, databases=[opened])["success"] == 1.0


@pytest.mark.parametrize(
    ("gold", "groups"),
    [
        ("SELECT name FROM goods ORDER BY price", [{"nail", "bolt"}, {"cup", "jug", "rope"}, {"pan"}]),
        (
            "SELECT name FROM goods ORDER BY price DESC, kind; -- cheap last",
            [{"pan"}, {"rope"}, {"cup", "jug"}, {"nail", "bolt"}],
        ),
        (
            "SELECT name FROM goods ORDER BY stock IS NULL, stock",
            [{"cup", "pan"}, {"nail", "bolt"}, {"jug", "rope"}],
        ),
        ("SELECT name FROM goods ORDER BY name", [{name} for name in sorted(NAMES)]),
    ],
)
def test_any_order_within_a_group_of_ties_and_no_other(
    source: Any, gold: str, groups: list[set[str]]
) -> None:
    right = {
        tuple(itertools.chain(*parts))
        for parts in itertools.product(*(itertools.permutations(group) for group in groups))
    }
    for names in itertools.islice(itertools.permutations(NAMES), 0, None, 43):
        assert success(source, gold, names) is (names in right), names
    assert all(success(source, gold, names) for names in right)


@pytest.mark.parametrize(
    ("tail", "right", "wrong"),
    [
        (
            "LIMIT 4",
            [("nail", "bolt", "cup", "rope"), ("bolt", "nail", "rope", "jug")],
            [("nail", "bolt", "cup", "cup"), ("nail", "bolt", "cup", "pan"), ("cup", "nail", "bolt", "jug")],
        ),
        ("LIMIT 2 OFFSET 3", [("cup", "jug"), ("rope", "cup")], [("cup", "nail"), ("pan", "cup")]),
        ("LIMIT 1", [("nail",), ("bolt",)], [("cup",)]),
        ("LIMIT 2", [("nail", "bolt"), ("bolt", "nail")], [("nail", "cup")]),
    ],
)
def test_where_a_limit_cuts_ties_any_of_them_may_be_left(
    source: Any, tail: str, right: list[tuple[str, ...]], wrong: list[tuple[str, ...]]
) -> None:
    gold = f"SELECT name FROM goods ORDER BY price {tail}"
    assert [success(source, gold, names) for names in right] == [True] * len(right)
    assert [success(source, gold, names) for names in wrong] == [False] * len(wrong)


def test_what_cannot_be_told_is_compared_in_golds_own_order(source: Any) -> None:
    gold = "SELECT name FROM goods ORDER BY price LIMIT (SELECT 2)"
    assert not success(source, gold, ("nail", "pan"))
    database = source.open(writable=False, limits=SqlLimits())
    first = [name for (name,) in database.run(gold).rows]
    database.close()
    assert success(source, gold, tuple(first))


def test_rows_of_different_width_or_number_are_never_right(source: Any) -> None:
    assert not success(source, "SELECT name FROM goods ORDER BY price", NAMES[:5])
    assert not success(source, "SELECT name, kind FROM goods ORDER BY price", NAMES)
