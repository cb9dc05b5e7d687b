"""The tools of sql_desk over one generated database, and the judgement of what was handed in.

A submitted query is judged on the session's database and on eleven others of the same subject, with the same
people and places and other events, so a query that only spells out the right rows fails. A typed answer
(`answer`) is one value. Not covered: generating tasks (`generator`).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.answers import bare, numbers_in
from pipeline.environments.sql.database import Database, SqlLimits
from pipeline.environments.sql.session import SqlSession, judge_query
from pipeline.environments.sql.sqlite_engine import SqliteDatabase
from pipeline.environments.sql_desk.data import make_image
from pipeline.environments.sql_desk.domains import DOMAINS
from pipeline.environments.sql_desk.terms import find_documents, make_handbook
from pipeline.environments.tools import ToolError, tool

LIMITS = SqlLimits(max_steps=500_000, max_rows=500, shown_rows=20, max_cell_bytes=10_000)
NUM_TWINS = 11
_TOLERANCE = 0.0051


class SqlDeskSession(SqlSession):
    """State: {"db": subject/key, "book": subject/key or "", "submitted": SQL, "answer": text}."""

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(task, **options)
        self.state["answer"] = None

    @property
    def limits(self) -> SqlLimits:
        """Limits of one statement."""
        return LIMITS

    @property
    def finished(self) -> bool:
        """Handing in a query or a value ends the episode."""
        return super().finished or self.state["answer"] is not None

    def open_database(self) -> Database:
        """The task's database, read-only."""
        return open_database(self.task.state_value()["db"])

    @tool
    def tables(self) -> str:
        """Tables and their columns."""
        return describe_tables(self.state["db"].split("/")[0])

    @tool
    def lookup(self, term: str) -> str:
        """Look up a term in the handbook."""
        found = find_documents(make_handbook(self.state["book"]), term) if self.state["book"] else []
        return "\n".join(found) or "nothing found"

    @tool
    def answer(self, value: str) -> str:
        """Hand in the answer, once."""
        if self.state["answer"] is not None:
            raise ToolError("an answer was given already")
        self.state["answer"] = value
        return "noted"

    def end_state(self) -> Any:
        """See `SqlSession`; a typed answer as `same_value` reads it."""
        answer = self.state["answer"]
        return {**super().end_state(), "answer": None if answer is None else _plain(answer)}

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """`success`: the handed-in query or value is right."""
        private = self.task.private_value()
        if private["answer"] is not None:
            given = self.state["answer"]
            return {"success": float(given is not None and same_value(given, private["answer"]))}
        name = self.state["db"]
        others = [functools.partial(open_database, name, twin=twin) for twin in twins(name.split("/")[0])]
        databases = [functools.partial(open_database, name), *others]
        return judge_query(self.state["submitted"], private["gold_sql"], databases=databases)


def open_database(name: str, *, twin: str = "") -> SqliteDatabase:
    """A fresh read-only copy of `subject/key`, or of the `twin` with its people and places."""
    return SqliteDatabase(make_image(name, twin), limits=LIMITS)


@functools.cache
def twins(subject: str) -> Sequence[str]:
    """Other databases of the subject."""
    return tuple(f"{subject}/twin{number}" for number in range(NUM_TWINS))


def same_value(given: str, gold: str) -> bool:
    """Whether a typed answer equals gold: text whatever its case and quotes, numbers as rounded to two
    decimals, written as one likes (`1,200`, `12.5 %`, `7 loans`) as long as there is one."""
    try:
        wanted = float(gold)
    except ValueError:
        return bare(given).casefold() == gold.casefold()
    numbers = numbers_in(given)
    return len(numbers) == 1 and abs(numbers[0] - wanted) <= _TOLERANCE


def _plain(answer: str) -> str:
    """The only number to two decimals, else the bare text: alike for what `same_value` takes for one."""
    numbers = numbers_in(answer)
    return f"{numbers[0]:.2f}" if len(numbers) == 1 else bare(answer).casefold()


@functools.cache
def describe_tables(subject: str) -> str:
    """`table(column, column, ...)`, one a line."""
    domain = DOMAINS[subject]
    lines = (
        (domain.who, domain.who_id, domain.who_name, domain.place, domain.since, domain.contact),
        (domain.what, domain.what_id, domain.title, domain.kind, domain.price),
        (domain.event, domain.event_id, domain.event_who, domain.event_what, domain.day, domain.amount,
         domain.score, domain.status),
        (domain.staff, domain.staff_id, domain.staff_name, domain.boss, domain.pay),
    )  # fmt: skip
    return "\n".join(f"{table}({', '.join(columns)})" for table, *columns in lines)
