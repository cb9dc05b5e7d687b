"""The tasks of sql_desk: one per round, template and subject; a round has its own database per subject.

Gold is executed when a task is drawn; a draw whose result is empty, one zero, or too long to be shown is
drawn again. A task belongs to the split that the digest of its question says, so no question of one split
occurs in another, and databases are never shared across splits. `heldout_unseen` asks templates and a subject
that occur nowhere else. Not covered: databases larger than a few kilobytes (bring your own: `sql`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from data import canonical
from data.messages import system, user
from data.tasks import Budget, Task
from pipeline.environments.gold import Plan, PlannedGold, call, last_result
from pipeline.environments.splits import NUM_TASKS, UNSEEN, split_of
from pipeline.environments.sql.results import ResultSet
from pipeline.environments.sql.session import SqlSession
from pipeline.environments.sql_desk.data import TODAY, make_data
from pipeline.environments.sql_desk.desk import LIMITS, SqlDeskSession, open_database
from pipeline.environments.sql_desk.domains import SEEN_DOMAINS, UNSEEN_DOMAINS, Domain
from pipeline.environments.sql_desk.templates import TEMPLATES, Template, fill
from pipeline.environments.sql_desk.terms import TERM_TEMPLATES, TermTemplate, fill_term, make_handbook
from pipeline.environments.toolkit import ToolEnvironment, source_digest
from pipeline.errors import ConfigError

LEVELS = ("sql", "answer", "term")
"""Submit a query; give one value; submit a query about a term of the handbook."""
MAX_DRAWS, MAX_SPARES = 60, 40
_SUBMIT = "SQLite. See tables, then submit one query."
_ANSWER = "SQLite. See tables, query, then answer with the value."
_TERM = f"SQLite, today is {TODAY.isoformat()}. Look up the term, see tables, then submit one query."

Kind = tuple[str, Template | TermTemplate]


class SqlDesk(ToolEnvironment):
    """`levels`: which of LEVELS to ask; a choice changes no task."""

    name = "sql_desk"
    splits = tuple(NUM_TASKS)
    session = SqlDeskSession

    def __init__(self, *, levels: Sequence[str] = LEVELS, **options: Any) -> None:
        super().__init__(**options)
        unknown = [level for level in levels if level not in LEVELS]
        if unknown or not levels:
            raise ConfigError(f"sql_desk has no levels {unknown}; it has {', '.join(LEVELS)}")
        self.levels = tuple(levels)
        self.version = canonical.digest(self.version, source_digest(SqlSession.__module__), length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """At most `NUM_TASKS[split]` tasks, templates and subjects taking turns."""
        self.check_split(split)
        domains = UNSEEN_DOMAINS if split == UNSEEN else SEEN_DOMAINS
        slots = [(kind, domain) for kind in _kinds(split == UNSEEN) for domain in domains]
        random.Random(f"sql_desk/{split}").shuffle(slots)
        for index in range(NUM_TASKS[split]):
            kind, domain = slots[index % len(slots)]
            if kind[0] in self.levels:
                yield draw_task(kind, domain, split, index // len(slots))

    def gold(self, task: Task) -> PlannedGold:
        """Look up what is needed, then hand in."""
        return PlannedGold(_plan(task))


def load(**options: Any) -> SqlDesk:
    """The sql_desk environment; options are those of SqlDesk."""
    return SqlDesk(**options)


def draw_task(kind: Kind, domain: Domain, split: str, number: int) -> Task:
    """The task of a level and template in a subject, on the `number`-th database of the split.

    Where that database has no such question worth asking, spare ones take its place.
    """
    for spare in range(MAX_SPARES):
        key = f"{split.replace('_', '')}{number}" + (f"spare{spare}" if spare else "")
        task = _draw_on(f"{domain.name}/{key}", kind, split)
        if task is not None:
            return task
    raise ConfigError(
        f"template {kind[1].name} has too few questions: {MAX_SPARES} databases have none of {split}"
    )


def _draw_on(name: str, kind: Kind, split: str) -> Task | None:
    level, template = kind
    data, book = make_data(name), make_handbook(name)
    database = open_database(name)
    try:
        for attempt in range(MAX_DRAWS):
            rng = random.Random(f"sql_desk/{name}/{level}/{template.name}/{attempt}")
            if isinstance(template, TermTemplate):
                question, sql = fill_term(template, rng, data, book)
            else:
                question, sql = fill(template, rng, data)
            if split in (UNSEEN, split_of(question)) and _worth_asking(result := database.run(sql)):
                return _task(kind, split, name, question, sql, result)
        return None
    finally:
        database.close()


def _kinds(unseen: bool) -> list[Kind]:
    chosen: list[Kind] = [("sql", template) for template in TEMPLATES if template.unseen == unseen]
    if not unseen:
        chosen += [("answer", template) for template in TEMPLATES if template.answer]
        chosen += [("term", template) for template in TERM_TEMPLATES]
    return chosen


def _worth_asking(result: ResultSet) -> bool:
    rows = result.rows
    return 0 < len(rows) <= LIMITS.shown_rows and rows not in (((0,),), ((None,),), ((0.0,),))


def _task(kind: Kind, split: str, name: str, question: str, sql: str, result: ResultSet) -> Task:
    level, template = kind
    shown = {
        "sql": ("tables", "query", "submit"),
        "answer": ("tables", "query", "answer"),
        "term": ("lookup", "tables", "query", "submit"),
    }[level]
    words = {"sql": _SUBMIT, "answer": _ANSWER, "term": _TERM}[level]
    value = str(result.rows[0][0]) if level == "answer" else None
    tags = template.tags if isinstance(template, Template) else ("lookup",)
    return Task(
        environment="sql_desk",
        split=split,
        template=template.name if level != "answer" else f"{template.name}_answer",
        tags=(level, *tags),
        prompt=(system(words), user(question)),
        tools=shown,
        state=canonical.dumps({"db": name, "book": name if level == "term" else ""}),
        private=canonical.dumps({"gold_sql": sql, "answer": value}),
        verifier="sql_desk/result_set/2",
        budget=Budget(max_turns=10, max_tokens=1536),
    )


def _plan(task: Task) -> Plan:
    private, question = task.private_value(), task.prompt[-1].text
    if "lookup" in (task.tools or ()):
        book = make_handbook(task.state_value()["book"])
        title = next(title for title in book.documents if f" {title}s" in question)
        yield call("lookup", term=title)
    yield call("tables")
    turns = yield call("query", sql=private["gold_sql"])
    if private["answer"] is None:
        yield call("submit", sql=private["gold_sql"])
    else:
        yield call("answer", value=last_result(turns).text.split("\n")[1])
