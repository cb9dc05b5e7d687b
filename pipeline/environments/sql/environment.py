"""Bring your own database: a SQLite or DuckDB file and a task file, as an environment.

```yaml
# tasks.yaml (or .jsonl, one task a line)
- question: How many orders are open?
  gold_sql: SELECT count(*) FROM orders WHERE status = 'open'
  db: shop                        # may be left out where there is one database
- question: Cancel order 7.
  gold_sql: ["UPDATE orders SET status = 'cancelled' WHERE id = 7"]   # changes data: judged by the end state
  ignore_columns: [orders.changed_at]
```

Files are copied when the environment is made and never opened again. Every gold statement is executed then:
one that fails, returns too much, or changes nothing is a ConfigError naming the line. Decided per task: gold
that starts with INSERT, UPDATE, DELETE or REPLACE opens a writable copy, anything else a read-only one.
Optional keys: split, template, tags, system, tools. Not covered: generated tasks (subclass SqlSession).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Budget, Task
from data.trajectories import Trajectory
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.host import FileHost
from pipeline.environments.sql.database import Database, Source, SqlLimits
from pipeline.environments.sql.duckdb_engine import DuckSource
from pipeline.environments.sql.hard_coded import is_hard_coded
from pipeline.environments.sql.session import (
    SqlSession,
    judge_change,
    judge_query,
    same_states,
    table_states,
)
from pipeline.environments.sql.sqlite_engine import SqliteSource
from pipeline.environments.task_file import made_tasks, splits_of, validated
from pipeline.environments.toolkit import ToolEnvironment
from pipeline.environments.tools import ToolError
from pipeline.errors import ConfigError

_CHANGES = re.compile(r"\s*(insert|update|delete|replace|merge)\b", re.IGNORECASE)
_ASKING = "Find the SQL query that answers the question. Look first, then submit the query."
_CHANGING = "Change the database as asked, with SQL. Look first. End with DONE."
_READ_TOOLS = ("list_tables", "describe", "query", "submit")
_WRITE_TOOLS = ("list_tables", "describe", "query")


Statement = Annotated[str, StringConstraints(pattern=r"\S")]


class SqlTaskRow(BaseModel):
    """One task as written."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: str = Field(min_length=1)
    gold_sql: Statement | list[Statement]
    db: str = ""
    ignore_columns: list[str] = Field(default_factory=list)
    split: str = Field(default="train", min_length=1)
    template: str = "question"
    tags: list[str] = Field(default_factory=list)
    system: str = ""
    tools: list[str] | None = None

    @property
    def statements(self) -> list[str]:
        """Gold as a list."""
        return [self.gold_sql] if isinstance(self.gold_sql, str) else self.gold_sql

    @property
    def changes(self) -> bool:
        """Whether gold changes data."""
        return any(_CHANGES.match(statement) for statement in self.statements)


class FileSession(SqlSession):
    """A session on one of the environment's files."""

    sources: ClassVar[Mapping[str, Source]] = {}
    statement_limits: ClassVar[SqlLimits] = SqlLimits()

    @property
    def limits(self) -> SqlLimits:
        """The environment's."""
        return self.statement_limits

    def open_database(self) -> Database:
        """A copy of the file the task names; writable where the task says so."""
        name, writable = self.task.state_value()["db"], self.task.state_value()["writable"]
        return self.sources[name].open(writable=writable, limits=self.limits)

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """Equal results, or equal end states."""
        private, writable = self.task.private_value(), self.state["writable"]
        if writable:
            return judge_change(
                self.database,
                private["gold_sql"],
                fresh=self.open_database,
                ignored=frozenset(private["ignored"]),
            )
        submitted, gold = self.state["submitted"], private["gold_sql"][0]
        found = judge_query(submitted, gold, databases=[self.open_database])
        source = self.sources[self.task.state_value()["db"]]
        if found["success"] and is_hard_coded(submitted, gold, source=source, limits=self.limits):
            return {"success": 0.0, "submitted": 1.0, "hard_coded": 1.0}
        return found


class SqlEnvironment(FileHost, ToolEnvironment):
    """`databases`: a path or name to path; `tasks`: a .jsonl or .yaml file (see the module docstring).

    The reward is 0 or 1; a query that spells out the right rows scores 0 (`hard_coded`). What a query cost
    stands beside it as `cost_ratio`: engine steps (SQLite) or rows (DuckDB) over gold's, never seconds;
    `pipeline.rewards.sql` turns it into a penalty.
    """

    name = "sql"
    splits: tuple[str, ...] = ()

    def __init__(
        self,
        *,
        databases: str | Path | Mapping[str, str | Path],
        tasks: str | Path,
        statement_limits: SqlLimits | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        named = databases if isinstance(databases, Mapping) else {Path(databases).stem: databases}
        if not named:
            raise ConfigError("databases names no file; give a path, or a mapping of names to paths")
        limits = _limits(statement_limits or {})
        sources = {name: _source(Path(path), limits) for name, path in named.items()}
        self.session = type(
            "BoundFileSession",
            (FileSession,),
            {"sources": sources, "statement_limits": limits},
        )
        self._tasks = made_tasks(
            Path(tasks),
            lambda value, where: _task(_row(value, where), where, sources, limits),
            shown_in=__name__,
        )
        self.splits = splits_of(self._tasks)
        digests = {name: source.digest for name, source in sources.items()}
        self.version = canonical.digest(self.version, digests, repr(limits), length=12)

    def gold(self, task: Task) -> PlannedGold:
        """Look at the tables, then submit (or execute) gold's SQL."""
        return PlannedGold(_plan(task))


def load(**options: Any) -> SqlEnvironment:
    """The environment over the user's files; options are those of SqlEnvironment."""
    return SqlEnvironment(**options)


def _plan(task: Task) -> Plan:
    shown = task.tools or _READ_TOOLS
    if "list_tables" in shown:
        yield call("list_tables")
    writable = task.state_value()["writable"]
    for statement in task.private_value()["gold_sql"]:
        yield call("query" if writable else "submit", sql=statement)
    if writable:
        yield assistant("DONE")


def _limits(values: SqlLimits | Mapping[str, Any]) -> SqlLimits:
    if isinstance(values, SqlLimits):
        return values
    try:
        return SqlLimits(**values)
    except TypeError as error:
        raise ConfigError(
            f"statement_limits {dict(values)}: {error}; known: {', '.join(SqlLimits.__slots__)}"
        ) from error


def _source(path: Path, limits: SqlLimits) -> Source:
    if not path.is_file():
        raise ConfigError(f"database {path} is no file; give the path of a SQLite or DuckDB file")
    with path.open("rb") as stream:
        start = stream.read(16)
    if start[8:12] == b"DUCK":
        return DuckSource(path, limits=limits)
    if start.startswith(b"SQLite format 3") or not start:
        return SqliteSource(path)
    raise ConfigError(f"database {path} is neither a SQLite nor a DuckDB file")


def _row(value: Any, where: str) -> SqlTaskRow:
    row = validated(SqlTaskRow, value, where)
    if not row.changes and len(row.statements) != 1:
        raise ConfigError(f"{where}: gold_sql of a question is one query, got {len(row.statements)}")
    return row


def _task(row: SqlTaskRow, where: str, sources: Mapping[str, Source], limits: SqlLimits) -> Task:
    name = row.db or (next(iter(sources)) if len(sources) == 1 else "")
    if name not in sources:
        raise ConfigError(f"{where}: there is no database {name!r}; databases: {', '.join(sources)}")
    _prove_gold(row, where, sources[name], limits)
    tools = tuple(row.tools) if row.tools else _WRITE_TOOLS if row.changes else _READ_TOOLS
    needed = "query" if row.changes else "submit"
    if not {needed} <= set(tools) <= set(_READ_TOOLS):
        raise ConfigError(
            f"{where}: tools must be of {', '.join(_READ_TOOLS)} and have {needed}, got {list(tools)}"
        )
    return Task(
        environment="sql",
        split=row.split,
        template=row.template,
        tags=tuple(row.tags),
        prompt=(system(row.system or (_CHANGING if row.changes else _ASKING)), user(row.question)),
        tools=tools,
        state=canonical.dumps({"db": name, "digest": sources[name].digest, "writable": row.changes}),
        private=canonical.dumps({"gold_sql": row.statements, "ignored": row.ignore_columns}),
        verifier="sql/end_state/1" if row.changes else "sql/result_set/2",
        budget=Budget(max_turns=12),
    )


def _prove_gold(row: SqlTaskRow, where: str, source: Source, limits: SqlLimits) -> None:
    """Execute gold. Raises ConfigError where it cannot be what is wanted."""
    ignored = frozenset(row.ignore_columns)
    database = source.open(writable=row.changes, limits=limits)
    try:
        before = table_states(database, ignored) if row.changes else {}
        results = [database.run(statement) for statement in row.statements]
        unchanged = row.changes and same_states(before, table_states(database, ignored))
        unknown = _unknown_columns(database, row) if row.ignore_columns else ""
    except ToolError as error:
        raise ConfigError(f"{where}: gold_sql fails: {error}") from error
    finally:
        database.close()
    if unknown:
        raise ConfigError(
            f"{where}: ignore_columns has {unknown}, which is no table.column of {row.db or 'it'}"
        )
    if unchanged:
        raise ConfigError(f"{where}: gold_sql changes nothing, so doing nothing would score")
    if not row.changes and not results[0].complete:
        raise ConfigError(
            f"{where}: gold_sql returns more than {limits.max_rows} rows; raise statement_limits max_rows"
        )


def _unknown_columns(database: Database, row: SqlTaskRow) -> str:
    known = {f"{table}.{name}" for table, (names, _) in database.contents().items() for name in names}
    return ", ".join(name for name in row.ignore_columns if name not in known)
