"""A session over one copy of a database: the tools, what is submitted, and how the end is judged.

`list_tables`, `describe` and `query` look; `submit` names the query whose result is the answer (it runs once,
says nothing about being right, and ends the episode). A task that changes data is judged by the end state of
every table instead. What a call cost the engine is in its metrics (`engine_cost`, SQLite). Not covered: which
databases and tasks there are (`environment`, or a world that generates them).
"""

from __future__ import annotations

import asyncio
import hashlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.sql.database import Database, MachineLimitError, SqlLimits
from pipeline.environments.sql.results import ResultSet, is_ordered, normal, same_results, show
from pipeline.environments.sql.ties import is_other_order
from pipeline.environments.toolkit import ToolSession
from pipeline.environments.tools import ToolError, ToolResponse, tool

OpenDatabase = Callable[[], Database]
COST_BASE = 1000
"""Added to both costs before they are compared, so that a few steps more of a tiny query do not count."""


class SqlSession(ToolSession):
    """State: what the task says, and `submitted`: the SQL or None. Subclasses open the database."""

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(task, **options)
        self.state["submitted"] = None
        self.database = self.open_database()

    def open_database(self) -> Database:
        """A fresh copy of the task's database."""
        raise NotImplementedError

    @property
    def limits(self) -> SqlLimits:
        """Limits of one statement."""
        return SqlLimits()

    @property
    def finished(self) -> bool:
        """Handing in ends the episode."""
        return self.state["submitted"] is not None

    @tool
    def list_tables(self) -> str:
        """Names of the tables."""
        return ", ".join(self.database.tables()) or "no tables"

    @tool
    def describe(self, table: str) -> str:
        """Columns of a table."""
        return self.database.describe(table)

    @tool
    async def query(self, sql: str) -> ToolResponse:
        """Run one SQL statement."""
        return self.shown(await self.run(sql))

    @tool
    async def submit(self, sql: str) -> ToolResponse:
        """Hand in the final SQL query, once."""
        if self.state["submitted"] is not None:
            raise ToolError("a query was submitted already")
        result = await self.run(sql)
        self.state["submitted"] = sql
        return ToolResponse(text="submitted", metrics=_metrics(result))

    async def run(self, sql: str) -> ResultSet:
        """Execute a statement, in a thread unless the database is small."""
        if self.database.small:
            return self.database.run(sql)
        try:
            return await asyncio.to_thread(self.database.run, sql)
        except asyncio.CancelledError:
            self.database.interrupt()
            raise

    def shown(self, result: ResultSet) -> ToolResponse:
        """A result as the agent sees it."""
        text = show(result, max_rows=self.limits.shown_rows) if result.columns else "done"
        return ToolResponse(text=text, metrics=_metrics(result))

    def snapshot(self) -> bytes:
        """The state and the database's content."""
        return pickle.dumps((super().snapshot(), self.database.image()))

    def restore(self, snapshot: bytes) -> None:
        """Return to a snapshot."""
        state, image = pickle.loads(snapshot)
        super().restore(state)
        self.database.restore(image)

    async def close(self) -> None:
        """Release the copy, too."""
        self.database.close()
        await super().close()

    def end_state(self) -> Any:
        """The tables' content, and the rows of the submitted query in place of its text."""
        submitted, rows = self.state["submitted"], None
        if submitted is not None:
            rows = [repr(normal(row)) for row in self.database.run(submitted).rows]
            rows = rows if is_ordered(submitted) else sorted(rows)
        return {**self.state, "submitted": rows, "tables": hashlib.sha256(self.database.image()).hexdigest()}

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """`success`: the submitted query's result equals gold's; `cost_ratio`: its cost over gold's."""
        gold = self.task.private_value()["gold_sql"]
        return judge_query(self.state["submitted"], gold, databases=[self.open_database])


def judge_query(
    submitted: str | None, gold: str, *, databases: Sequence[OpenDatabase]
) -> Mapping[str, float]:
    """Compare both queries on every database; the cost is that of the first. A failing query is wrong,
    one that runs out of time or memory here (it did not when it was submitted) is a failed verdict.

    Components: `success` (0 or 1), `submitted` (0 or 1), and, where it succeeded, `cost_ratio` = (cost of
    the submitted query + COST_BASE) / (cost of gold + COST_BASE).
    """
    if submitted is None:
        return {"success": 0.0, "submitted": 0.0}
    ratio = 1.0
    for index, open_database in enumerate(databases):
        database = open_database()
        try:
            expected = database.run(gold, measured=index == 0)
            actual = _run_submitted(database, submitted, measured=index == 0)
            right = actual is not None and _is_right(gold, expected, actual, database)
        finally:
            database.close()
        if actual is None or not right:
            return {"success": 0.0, "submitted": 1.0}
        if index == 0:
            ratio = ((actual.cost or 0) + COST_BASE) / ((expected.cost or 0) + COST_BASE)
    return {"success": 1.0, "submitted": 1.0, "cost_ratio": ratio}


def _is_right(gold: str, expected: ResultSet, actual: ResultSet, database: Database) -> bool:
    """Equal results; under ORDER BY in gold's order or in another that gold asks for as well."""
    if not is_ordered(gold):
        return same_results(expected, actual, ordered=False)
    in_order = same_results(expected, actual, ordered=True)
    return in_order or is_other_order(gold, expected, actual, database=database)


def judge_change(
    database: Database, gold: Sequence[str], *, fresh: OpenDatabase, ignored: frozenset[str]
) -> Mapping[str, float]:
    """Compare the end state of every table with the one that gold's statements lead to.

    `ignored`: "table.column" names left out. Components: `success` (0 or 1), `tables` (the share equal).
    """
    expected_database = fresh()
    try:
        for statement in gold:
            expected_database.run(statement)
        expected = table_states(expected_database, ignored)
    finally:
        expected_database.close()
    actual = table_states(database, ignored)
    equal = [name in actual and _same_table(expected[name], actual[name]) for name in expected]
    success = all(equal) and actual.keys() == expected.keys()
    return {"success": float(success), "tables": sum(equal) / max(1, len(equal))}


def table_states(database: Database, ignored: frozenset[str]) -> dict[str, ResultSet]:
    """Every table's rows without the ignored columns."""
    states = {}
    for name, (columns, rows) in database.contents().items():
        kept = [index for index, column in enumerate(columns) if f"{name}.{column}" not in ignored]
        shown = tuple(tuple(row[index] for index in kept) for row in map(normal, rows))
        states[name] = ResultSet(tuple(columns[index] for index in kept), shown, True)
    return states


def same_states(left: Mapping[str, ResultSet], right: Mapping[str, ResultSet]) -> bool:
    """Whether two end states are equal."""
    return left.keys() == right.keys() and all(_same_table(left[name], right[name]) for name in left)


def _same_table(left: ResultSet, right: ResultSet) -> bool:
    return left.columns == right.columns and same_results(left, right, ordered=False)


def _run_submitted(database: Database, sql: str, *, measured: bool) -> ResultSet | None:
    """None where the query fails here. MachineLimitError as it is: it ran when it was submitted."""
    try:
        return database.run(sql, measured=measured)
    except MachineLimitError:
        raise
    except ToolError:
        return None


def _metrics(result: ResultSet) -> dict[str, float]:
    return {} if result.cost is None else {"engine_cost": float(result.cost)}
