"""A user's file as an environment: check, end states, wrong files, and the example."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from data.tasks import Task
from data.trajectories import Trajectory
from examples.own_tools import sql_shop
from pipeline.environments.check import check_environment
from pipeline.environments.play import play
from pipeline.environments.sql import SqlEnvironment
from pipeline.environments.sql.database import SqlLimits
from pipeline.environments.sql.sqlite_engine import SqliteDatabase
from pipeline.errors import ConfigError, JudgeError
from pipeline.rewards.sql import Sql
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.scripts import components, listed

ORDERED = (
    "SELECT c.name, sum(o.total) AS t FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY c.id"
)


@pytest.fixture(scope="module")
def shop() -> SqlEnvironment:
    return sql_shop.load()


def task_of(environment: SqlEnvironment, word: str) -> Task:
    return next(
        task
        for split in environment.splits
        for task in environment.tasks(split)
        if word in task.prompt[-1].text
    )


def submit(run: Run, environment: SqlEnvironment, word: str, sql: str, tool: str = "submit") -> Trajectory:
    task = task_of(environment, word)
    return run(play(environment, task, listed((tool, {"sql": sql}), "DONE")))


def write(folder: Path, rows: list[Any], name: str = "tasks.jsonl") -> dict[str, Any]:
    database, tasks = sql_shop.make_files(folder)
    tasks = folder / name
    tasks.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return {"databases": database, "tasks": tasks}


def test_the_example_passes_the_check(run: Run) -> None:
    environment = sql_shop.load()
    results = run(check_environment(environment))
    assert [result for result in results if not result.passed] == []
    assert environment.num_open == 0 and environment.splits == ("train", "heldout")


def test_duckdb_passes_the_check(run: Run, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    _, tasks = sql_shop.make_files(tmp_path)
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute(sql_shop.SCRIPT)
    environment = SqlEnvironment(databases={"shop": tmp_path / "shop.duckdb"}, tasks=tasks)
    results = run(check_environment(environment))
    assert [result for result in results if not result.passed] == []


@pytest.mark.parametrize(
    ("sql", "success"),
    [
        (f"{ORDERED} ORDER BY sum(o.total) DESC", 1.0),
        (f"{ORDERED} ORDER BY sum(o.total)", 0.0),
        ("SELECT name, 1 FROM customers", 0.0),
        ("SELECT broken", 0.0),
    ],
)
def test_equal_results_in_the_asked_order_succeed(
    run: Run, shop: SqlEnvironment, sql: str, success: float
) -> None:
    assert components(submit(run, shop, "biggest first", sql))["success"] == success


def test_a_second_submission_and_looking_alone_do_not_count(run: Run, shop: SqlEnvironment) -> None:
    gold = "SELECT count(*) FROM customers WHERE city = 'Oslo'"
    task = task_of(shop, "How many")
    played = run(play(shop, task, listed(("query", {"sql": gold}), "2")))
    assert components(played) == {"success": 0.0, "submitted": 0.0}
    played = run(play(shop, task, listed(("submit", {"sql": "SELECT 7"}), ("submit", {"sql": gold}))))
    assert components(played) == {"success": 0.0, "submitted": 1.0}
    assert len(played.turns) == len(task.prompt) + 2


def test_end_states_are_compared_over_all_tables(run: Run, shop: SqlEnvironment) -> None:
    right = "UPDATE orders SET state = 'cancelled' WHERE id = 2"
    assert components(submit(run, shop, "Cancel", right, "query")) == {"success": 1.0, "tables": 1.0}
    wide = "UPDATE orders SET state = 'cancelled' WHERE state = 'open'"
    assert components(submit(run, shop, "Cancel", wide, "query")) == {"success": 0.0, "tables": 0.5}
    task = task_of(shop, "Cancel")
    harm = listed(("query", {"sql": right}), ("query", {"sql": "DELETE FROM customers WHERE id = 4"}), "DONE")
    assert components(run(play(shop, task, harm)))["success"] == 0.0


def test_ignored_columns_and_several_statements(run: Run, tmp_path: Path) -> None:
    row = {
        "question": "Pay order 2 and note it.",
        "gold_sql": [
            "UPDATE orders SET state = 'paid' WHERE id = 2",
            "UPDATE orders SET total = 1 WHERE id = 2",
        ],
        "ignore_columns": ["orders.total"],
    }
    environment = SqlEnvironment(**write(tmp_path, [row]))
    played = submit(
        run, environment, "Pay", "UPDATE orders SET state = 'paid', total = 9 WHERE id = 2", "query"
    )
    assert played.success


def test_the_cost_is_in_steps_and_only_the_reward_that_asks_for_it_counts_it(
    run: Run, shop: SqlEnvironment
) -> None:
    slow = (
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r LIMIT 5000) "
        "SELECT count(*) FROM customers WHERE city = 'Oslo' AND (SELECT count(*) FROM r) = 5000"
    )
    task, played = task_of(shop, "How many"), submit(run, shop, "How many", slow)
    assert played.success and components(played)["cost_ratio"] > 10
    assert Sql(penalty=0.5).measure(task, played).total == pytest.approx(0.5)
    quick = submit(run, shop, "How many", "SELECT sum(city = 'Oslo') FROM customers")
    assert components(quick)["cost_ratio"] == pytest.approx(1.0, abs=0.1)


def test_a_broken_verifier_is_no_zero(run: Run, tmp_path: Path) -> None:
    environment = SqlEnvironment(**write(tmp_path, [sql_shop.TASKS[0]]))
    task = task_of(environment, "How many")
    values = task.model_dump(exclude={"task_id", "private"})
    broken = Task(**values, private=json.dumps({"gold_sql": ["SELECT broken"], "ignored": []}))
    with pytest.raises(JudgeError):
        run(play(environment, broken, listed(("submit", {"sql": "SELECT 1"}))))


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            {"question": "?", "gold_sql": "SELECT absent FROM orders"},
            "line 1: gold_sql fails: no such column",
        ),
        ({"question": "?", "gold_sql": "UPDATE orders SET total = total"}, "changes nothing"),
        ({"question": "?", "gold_sql": "DROP TABLE orders"}, "not allowed"),
        ({"question": "?", "gold_sql": "SELECT 1", "db": "mars"}, "no database 'mars'; databases: shop"),
        ({"question": "?", "gold_sql": ["SELECT 1", "SELECT 2"]}, "is one query, got 2"),
        ({"question": "?", "gold_sql": "SELECT 1", "tools": ["query"]}, "must be of list_tables"),
        ({"question": "", "gold_sql": "SELECT 1"}, "question"),
        ({"question": "?", "gold_sql": "SELECT 1", "colour": 1}, "colour"),
    ],
)
def test_wrong_tasks_are_named_with_their_line(tmp_path: Path, row: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match="line 1") as caught:
        SqlEnvironment(**write(tmp_path, [row]))
    assert text in str(caught.value)


def test_wrong_files_are_named(tmp_path: Path) -> None:
    good = write(tmp_path, [sql_shop.TASKS[0]])
    with pytest.raises(ConfigError, match="is no file"):
        SqlEnvironment(**good | {"databases": tmp_path / "absent.db"})
    with pytest.raises(ConfigError, match="neither a SQLite nor a DuckDB file"):
        SqlEnvironment(**good | {"databases": good["tasks"]})
    with pytest.raises(ConfigError, match="name must end in"):
        SqlEnvironment(**good | {"tasks": good["databases"]})
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(ConfigError, match="holds no tasks"):
        SqlEnvironment(**good | {"tasks": empty})
    with pytest.raises(ConfigError, match="max_steps"):
        SqlEnvironment(**good, statement_limits={"steps": 1})


def test_yaml_tasks(tmp_path: Path) -> None:
    options = write(tmp_path, [])
    file = tmp_path / "tasks.yaml"
    file.write_text("- question: How many?\n  gold_sql: SELECT count(*) FROM orders\n", encoding="utf-8")
    environment = SqlEnvironment(**options | {"tasks": file})
    assert [task.prompt[-1].text for task in environment.tasks("train")] == ["How many?"]


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"question": "a", "gold_sql": " "}, "line 1: gold_sql"),
        ({"question": "a", "gold_sql": "SELECT 1", "split": ""}, "line 1: split"),
        (
            {"question": "a", "gold_sql": "UPDATE orders SET total = 0", "ignore_columns": ["orders.none"]},
            "line 1: ignore_columns has orders.none",
        ),
    ],
)
def test_more_wrong_rows_are_named(tmp_path: Path, row: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        SqlEnvironment(**write(tmp_path, [row]))


def test_the_same_task_twice_is_told(tmp_path: Path) -> None:
    row = {"question": "a", "gold_sql": "SELECT 1"}
    with pytest.raises(ConfigError, match="line 2: the same task as in line 1"):
        SqlEnvironment(**write(tmp_path, [row, row]))


@pytest.mark.parametrize(
    ("word", "sql", "success"),
    [
        ("How many", "SELECT 2", 0.0),
        ("How many", "SELECT 2 FROM customers LIMIT 1", 0.0),
        ("How many", "SELECT 2 FROM orders LIMIT 1", 0.0),
        ("How many", "SELECT count(*) * 0 + 2 FROM customers", 0.0),
        ("How many", "WITH t(n) AS (VALUES (2)) SELECT n FROM t", 0.0),
        ("biggest first", "VALUES ('Bo', 99.9), ('Ada', 24.5), ('Cleo', 19.25)", 0.0),
        ("no order", "SELECT 'Dov'", 0.0),
        ("no order", "SELECT name FROM customers WHERE name = 'Dov'", 1.0),  # mixed: not covered
        ("How many", "SELECT sum(city = 'Oslo') FROM customers", 1.0),
        ("How many", "SELECT count(id) FROM (SELECT * FROM customers) WHERE city LIKE 'oslo'", 1.0),
        (
            "biggest first",
            "SELECT (SELECT name FROM customers WHERE id = customer_id), sum(total) FROM orders "
            "GROUP BY customer_id ORDER BY 2 DESC",
            1.0,
        ),
        (
            "no order",
            "SELECT name FROM customers c LEFT JOIN orders o ON o.customer_id = c.id WHERE o.id IS NULL",
            1.0,
        ),
        (
            "no order",
            "SELECT name FROM customers EXCEPT SELECT name FROM customers c, orders o WHERE c.id = "
            "o.customer_id",
            1.0,
        ),
    ],
)
def test_spelling_the_rows_out_is_no_query(
    run: Run, shop: SqlEnvironment, word: str, sql: str, success: float
) -> None:
    found = components(submit(run, shop, word, sql))
    assert found["success"] == success and (success or found["hard_coded"] == 1.0)


VIEW = "CREATE VIEW people AS SELECT c.name AS who, c.city FROM customers c WHERE c.id > 0"


@pytest.mark.parametrize(
    ("sql", "success"),
    [
        ("SELECT 2", 0.0),
        ("SELECT 2 FROM orders LIMIT 1", 0.0),
        ("SELECT count(*) * 0 + 2 FROM people", 0.0),
        ("SELECT count(*) FROM customers WHERE city = 'Oslo'", 1.0),
        ("SELECT count(who) FROM people WHERE city ILIKE 'oslo'", 1.0),
        (
            "SELECT count(*) FROM customers WHERE id IN (SELECT customer_id FROM orders) AND city = 'Oslo'",
            1.0,
        ),
    ],
)
@pytest.mark.parametrize("gold", ["customers", "people"])
def test_spelling_the_rows_out_is_no_query_for_duckdb(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gold: str, sql: str, success: float
) -> None:
    duckdb = pytest.importorskip("duckdb")
    tasks = tmp_path / "tasks.jsonl"
    row = {"question": "How many?", "gold_sql": f"SELECT count(*) FROM {gold} WHERE city = 'Oslo'"}
    tasks.write_text(json.dumps(row), encoding="utf-8")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute(f"{sql_shop.SCRIPT}; {VIEW}")
    copies = tmp_path / "copies"
    copies.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    environment = SqlEnvironment(databases=tmp_path / "shop.duckdb", tasks=tasks)
    found = components(submit(run, environment, "How many", sql))
    assert found["success"] == success and (success or found["hard_coded"] == 1.0)
    assert len(list(copies.iterdir())) == 1  # the source's own


def test_a_join_that_changes_nothing_may_be_left_out(run: Run, tmp_path: Path) -> None:
    joined = "SELECT DISTINCT o.state FROM orders o JOIN customers c ON c.id = o.customer_id"
    environment = SqlEnvironment(**write(tmp_path, [{"question": "Which states?", "gold_sql": joined}]))
    assert submit(run, environment, "Which", "SELECT DISTINCT state FROM orders").success
    assert submit(run, environment, "Which", "SELECT state FROM orders GROUP BY state").success


def test_a_starved_machine_is_no_wrong_answer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query ran when it was submitted; running out of time in the verifier is not the agent's doing."""
    sql = "SELECT count(*) FROM customers WHERE city = 'Oslo' AND name > ''"
    environment = SqlEnvironment(**write(tmp_path, sql_shop.TASKS[:1]))
    task = task_of(environment, "How many")
    original, runs = SqliteDatabase.run, []

    def starved(self: SqliteDatabase, text: str, *, measured: bool = False) -> Any:
        runs.append(text)
        if text == sql and runs.count(sql) > 1:
            self._limits = SqlLimits(max_seconds=1e-9)
            heavy = "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n LIMIT 9999) SELECT i FROM n"
            return original(self, heavy, measured=measured)
        return original(self, text, measured=measured)

    monkeypatch.setattr(SqliteDatabase, "run", starved)
    with pytest.raises(JudgeError, match="stopped after 1e-09 s"):
        run(play(environment, task, listed(("submit", {"sql": sql}))))
    assert runs.count(sql) == 2
