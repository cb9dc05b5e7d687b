"""sql_desk: gold everywhere, shortcuts nowhere, terms that must be looked up, splits, bombs."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from data.messages import ToolStatus
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.play import play
from pipeline.environments.splits import NUM_TASKS
from pipeline.environments.sql_desk import load
from pipeline.environments.sql_desk.data import make_image
from pipeline.environments.sql_desk.desk import NUM_TWINS, open_database, same_value, twins
from pipeline.environments.sql_desk.domains import DOMAINS, SEEN_DOMAINS, UNSEEN_DOMAINS
from pipeline.environments.sql_desk.generator import LEVELS, _kinds, draw_task
from pipeline.environments.sql_desk.templates import TEMPLATES
from pipeline.environments.sql_desk.terms import find_documents, make_handbook
from pipeline.errors import ConfigError
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.scripts import listed

DESK = load()
TRAIN = list(itertools.islice(DESK.tasks("train"), 240))
NAMES = {task.template for task in TRAIN}


def of_level(level: str) -> list[Task]:
    return [task for task in TRAIN if level in task.tags]


def submit(run: Run, task: Task, sql: str) -> bool:
    return bool(run(play(DESK, task, listed(("submit", {"sql": sql})))).success)


def literal(task: Task) -> str:
    """A query that spells out the right rows without reading a table."""
    database = open_database(task.state_value()["db"])
    rows = database.run(task.private_value()["gold_sql"]).rows
    database.close()
    quoted = ("(" + ", ".join(map(_literal, row)) + ")" for row in rows)
    return f"SELECT * FROM (VALUES {', '.join(quoted)})"


def _literal(value: Any) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else repr(value)


def test_every_template_and_level_is_solved_by_gold(run: Run) -> None:
    for task in TRAIN:
        played: Trajectory = run(play(DESK, task, DESK.gold(task)))
        assert played.success, (task.template, task.prompt[-1].text)
    seen = {template.name for template in TEMPLATES if not template.unseen}
    assert (
        len(seen) >= 15 and seen <= NAMES and {level for task in TRAIN for level in task.tags} >= set(LEVELS)
    )


def test_spelling_out_the_right_rows_fails(run: Run) -> None:
    solved = [task.template for task in of_level("sql")[:100] if submit(run, task, literal(task))]
    assert solved == []


@pytest.mark.parametrize("sql", ["SELECT 0", "SELECT 1", "SELECT 3", "SELECT NULL", "SELECT 'x' WHERE 0"])
def test_constant_queries_fail(run: Run, sql: str) -> None:
    assert not any(submit(run, task, sql) for task in of_level("sql")[:60] + of_level("term"))


def test_guessing_the_most_common_answer_stays_below_five_percent() -> None:
    tasks = list(itertools.islice(load(levels=("answer",)).tasks("train"), 500))
    answers = Counter(task.private_value()["answer"] for task in tasks)
    [(answer, _)] = answers.most_common(1)
    right = sum(same_value(answer, task.private_value()["answer"]) for task in tasks)
    assert right / len(tasks) < 0.05


def test_a_null_blind_query_fails(run: Run) -> None:
    blind = [task for task in TRAIN if task.template == "not_status"]
    failed = [
        not submit(run, task, task.private_value()["gold_sql"].replace("IS NOT '", "<> '")) for task in blind
    ]
    assert len(failed) >= 4 and all(failed)


def test_a_term_must_be_looked_up(run: Run) -> None:
    for task in of_level("term")[:8]:
        book, words = make_handbook(task.state_value()["book"]), task.prompt[-1].text.split()
        label = next(word for word in words if word in book.conditions)
        subject = DOMAINS[task.state_value()["db"].split("/")[0]]
        [first, *_] = find_documents(book, f"{label} {subject.whos}")
        assert first.startswith(f"{label} {subject.a_who}:")
        others = [condition for name, condition in book.conditions.items() if name != label]
        gold = task.private_value()["gold_sql"]
        wrong = [gold.replace(book.conditions[label], condition) for condition in others]
        assert gold not in wrong and sum(submit(run, task, sql) for sql in wrong) == 0
        assert book.conditions[label] not in str([turn.text for turn in task.prompt])
    meanings = {make_handbook(f"shop/x{number}").conditions.get("amber") for number in range(30)}
    assert len(meanings) > 8


def test_splits_share_no_question_no_database_and_no_unseen_template() -> None:
    texts, databases, templates = {}, {}, {}
    for split in DESK.splits:
        tasks = list(itertools.islice(DESK.tasks(split), 240))
        texts[split] = {task.prompt[-1].text for task in tasks}
        databases[split] = {make_image(task.state_value()["db"]) for task in tasks}
        templates[split] = {task.template for task in tasks}
    for one, two in itertools.combinations(DESK.splits, 2):
        assert not texts[one] & texts[two] and not databases[one] & databases[two]
    assert templates["heldout_unseen"] == {template.name for template in TEMPLATES if template.unseen}
    assert not templates["heldout_unseen"] & templates["train"] and len(templates["heldout_unseen"]) == 3
    subjects = {task.state_value()["db"].split("/")[0] for task in itertools.islice(DESK.tasks("dev"), 99)}
    assert not subjects & {domain.name for domain in UNSEEN_DOMAINS}


def test_train_has_ten_thousand_tasks_to_the_last() -> None:
    """Every task has a database of its own among those of its template, so only that needs to hold."""
    slots = [(kind, domain) for kind in _kinds(False) for domain in SEEN_DOMAINS]
    rounds = NUM_TASKS["train"] // len(slots)
    assert NUM_TASKS["train"] >= 10_000
    tasks = [draw_task(*slot, "train", number) for slot in slots for number in (0, 1, rounds)]
    assert len({(task.template, task.tags[0], task.state_value()["db"]) for task in tasks}) == 3 * len(slots)
    assert len({task.task_id for task in tasks}) == 3 * len(slots)


def test_prompts_are_short(run: Run) -> None:
    for task in TRAIN:
        session = run(DESK.open(task))
        shown = "".join(turn.text for turn in task.prompt) + "".join(
            spec.name + spec.description + spec.parameters for spec in session.tools
        )
        assert len(shown) < 900, task.template
        run(session.close())


def test_bombs_are_worded_as_the_step_limit_and_the_episode_goes_on(run: Run) -> None:
    task = of_level("sql")[0]
    bomb = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r"
    gold = task.private_value()["gold_sql"]
    played = run(play(DESK, task, listed(("query", {"sql": bomb}), ("submit", {"sql": gold}))))
    [stopped, handed_in] = [turn.result for turn in played.turns if turn.result is not None]
    assert stopped.status is ToolStatus.TOOL_ERROR and "engine steps" in stopped.text
    assert handed_in.status is ToolStatus.OK and played.success
    assert not run(play(DESK, task, listed(("submit", {"sql": bomb})))).success


@pytest.mark.parametrize(
    ("given", "gold", "same"),
    [
        (" ada abel. ", "Ada Abel", True),
        ("1.82", "1.8157894736842106", True),
        ("1.9", "1.8157894736842106", False),
        ("3046", "3046", True),
        ("3,046", "3046", True),
        ("3046.0", "3046", True),
        ("-3046", "3046", False),
        ("12.5%", "12.5", True),
        ("about 12.5 percent.", "12.5", True),
        ("$12.50", "12.5", True),
        ("12 or 13", "12", False),
        ("1e400", "3046", False),
        ("'Ada Abel'", "Ada Abel", True),
        ("Ada Abel, Bo Cole", "Ada Abel", False),
        ("nan", "3046", False),
        ("", "Ada Abel", False),
    ],
)
def test_typed_values(given: str, gold: str, same: bool) -> None:
    assert same_value(given, gold) is same


def test_twins_are_other_databases() -> None:
    for name in {task.state_value()["db"] for task in TRAIN}:
        others = {make_image(name, twin) for twin in twins(name.split("/")[0])}
        assert len(others | {make_image(name)}) == NUM_TWINS + 1


def test_whoever_is_asked_about_is_in_every_twin() -> None:
    """Else every wrong query about a person finds the nothing that gold finds there, too."""
    for task in TRAIN:
        name, gold = task.state_value()["db"], task.private_value()["gold_sql"]
        if task.template in ("reports", "join_titles", "filter_since"):
            found = [open_database(name, twin=twin).run(gold).rows for twin in twins(name.split("/")[0])]
            assert sum(map(bool, found)) >= 3, task.prompt[-1].text


def test_right_rows_spelled_out_for_a_person_fail(run: Run) -> None:
    for task in TRAIN:
        if task.template in ("reports", "join_titles"):
            domain = DOMAINS[task.state_value()["db"].split("/")[0]]
            person = task.private_value()["gold_sql"].rsplit("'", 2)[1]
            there = (
                f"EXISTS (SELECT 1 FROM {domain.who} WHERE {domain.who_name} = '{person}' UNION "
                f"SELECT 1 FROM {domain.staff} WHERE {domain.staff_name} = '{person}')"
            )
            assert not submit(run, task, f"{literal(task)} WHERE {there}"), task.prompt[-1].text


def test_levels_are_chosen_and_named() -> None:
    tasks = list(itertools.islice(load(levels=("term",)).tasks("dev"), 20))
    assert all("term" in task.tags and "lookup" in (task.tools or ()) for task in tasks)
    with pytest.raises(ConfigError, match="levels \\['magic'\\]; it has sql, answer, term"):
        load(levels=("magic",))
