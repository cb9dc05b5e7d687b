"""Hindsight with chats: what roles are told, what their replies become, and replies that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.messages import assistant
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.gold import call
from pipeline.environments.registry import load_environment
from pipeline.environments.sql_desk.desk import describe_tables
from pipeline.memory.entries import Kind
from pipeline.memory.stored import load_memory
from synthesizers.hindsight.roles import (
    ANSWERER,
    GOAL_LISTER,
    SUMMARISER,
    WORKFLOW_WRITER,
    Asked,
    Episode,
    Listing,
    ShownCall,
    Summary,
    ToWrite,
)
from synthesizers.roles import ChatRole, Exchange
from tests.synthesizers.hindsight.lab import MARKS, SEARCH, chat, desk, episode, looked_back, paris_to_miami

GOLDEN = Path(__file__).parent / "golden"
CALLS = (
    ShownCall(number=0, name="flights", arguments='{"src":"Rome"}', answer="F1 $90\nF2 $80"),
    ShownCall(number=1, name="book", arguments='{"flight":"F2"}', answer='booked "B7"'),
)
SEEN = Summary(phases=("It looked for flights.", "It booked one."), seen=("F1", "F2", "B7"))
REQUESTS: list[tuple[ChatRole[Any, Any], Exchange]] = [
    (SUMMARISER, Episode(calls=CALLS)),
    (GOAL_LISTER, Listing(calls=CALLS, summary=SEEN, most=3)),
    (WORKFLOW_WRITER, ToWrite(goal="Book flight F2.", calls=CALLS, summary=SEEN)),
    (
        ANSWERER,
        Asked(question="How dear is F2?", tool="query", does="Run SQL.", parameters="sql", seen=CALLS[:1]),
    ),
]
LISTED = {"goals": [{"goal": "Book flight F219 for me.", "calls": [1]}]}
STEPS = {"steps": ["look flights up", "book the one from Paris on May 14"]}


@pytest.mark.parametrize(("role", "request_"), REQUESTS, ids=[role.name for role, _ in REQUESTS])
def test_prompts_are_golden(role: ChatRole[Any, Any], request_: Exchange) -> None:
    system, user = role.turns(request_)
    assert f"{system.text}\n---\n{user.text}\n" == (GOLDEN / f"{role.name}.txt").read_text(encoding="utf-8")


def past(**changes: Any) -> Any:
    return episode(paris_to_miami(), SEARCH, call("book", flight="F219"), **changes)


def chats(**changes: Any) -> dict[str, Any]:
    replies: dict[str, list[Any]] = {
        "summariser": [SEEN.model_dump()],
        "goal_lister": [LISTED],
        "workflow_writer": [STEPS],
    } | changes
    return {role: chat(said, name=role) for role, said in replies.items()}


def test_goals_come_from_the_lister_and_workflows_from_the_writer(tmp_path: Path, renderer: Any) -> None:
    roles = chats()
    made = looked_back(tmp_path, renderer, [paris_to_miami()], [past()], chats=roles, memory=("echo",))
    assert made.calls == [["flights", "book"]] and made.ends == ["failure_turned"]
    (entry,) = load_memory(tmp_path / "memory", Kind.ECHO, desk()).entries
    assert (entry.goal, entry.workflow) == (
        "Book flight F219 for me",
        "look flights up; book the one from {src} on {day}",
    )
    assert "F1" in roles["goal_lister"].asked[0][-1].text, "the lister reads the summary"


def test_no_role_sees_what_was_asked_said_or_scored(tmp_path: Path, renderer: Any) -> None:
    """The success flag is never shown: equal episodes with other outcomes ask the same."""
    asked = {}
    for reward in (0.0, 1.0):
        roles = chats()
        root = tmp_path / str(reward)
        looked_back(root, renderer, [paris_to_miami()], [past(reward=reward)], chats=roles)
        asked[reward] = [role.asked for role in roles.values()]
        texts = canonical.dumps([[[t.text for t in turns] for turns in c.asked] for c in roles.values()])
        assert not [mark for mark in MARKS if mark in texts]
        assert "reward" not in texts.lower() and "success" not in texts.lower()
    assert asked[0.0] == asked[1.0]


def test_an_end_that_had_to_be_typed_stays_behind_the_writers_steps(tmp_path: Path, renderer: Any) -> None:
    refused = episode(paris_to_miami(), SEARCH, assistant("REFUSE budget"), reward=1.0)
    roles = chats(goal_lister=[{"goals": []}])
    looked_back(tmp_path, renderer, [paris_to_miami()], [refused], chats=roles, memory=("awm",))
    (entry,) = load_memory(tmp_path / "memory", Kind.AWM, desk()).entries
    assert entry.workflow.startswith("look flights up; ") and entry.workflow.endswith("; say REFUSE budget")


@pytest.mark.parametrize("role", ["summariser", "goal_lister"])
def test_a_reply_that_is_none_is_a_verdict(tmp_path: Path, renderer: Any, role: str) -> None:
    """The released code drops what it cannot parse and says nothing."""
    roles = chats(**{role: ["sorry, no"]})
    made = looked_back(tmp_path, renderer, [paris_to_miami()], [past()], chats=roles)
    assert made.reasons == ["invalid_reply"] and made.tasks == [] and made.ends == ["failure_left"]


def test_a_workflow_that_is_none_costs_the_memory_and_not_the_data(tmp_path: Path, renderer: Any) -> None:
    roles = chats(workflow_writer=["1. flights"])
    made = looked_back(tmp_path, renderer, [paris_to_miami()], [past()], chats=roles, memory=("echo",))
    assert made.reasons == ["invalid_reply"] and made.calls == [["flights", "book"]]
    assert load_memory(tmp_path / "memory", Kind.ECHO, desk()).entries == ()


@pytest.mark.parametrize(
    ("role", "reply", "reasons", "data"),
    [
        ("goal_lister", {"goals": []}, ["nothing_reached"], 0),
        ("goal_lister", {"goals": [{"goal": "", "calls": []}]}, ["abstained"], 0),
        ("workflow_writer", {"steps": []}, [], 1),
    ],
)
def test_an_empty_reply_abstains(
    tmp_path: Path, renderer: Any, role: str, reply: Any, reasons: list[str], data: int
) -> None:
    made = looked_back(
        tmp_path, renderer, [paris_to_miami()], [past()], chats=chats(**{role: [reply]}), memory=("echo",)
    )
    assert (made.reasons, len(made.tasks)) == (reasons, data)
    assert load_memory(tmp_path / "memory", Kind.ECHO, desk()).entries == ()


def test_a_number_that_no_call_has_is_no_reply(tmp_path: Path, renderer: Any) -> None:
    roles = chats(goal_lister=[{"goals": [{"goal": "Book it.", "calls": [7]}]}])
    made = looked_back(tmp_path, renderer, [paris_to_miami()], [past()], chats=roles)
    assert made.reasons == ["invalid_reply"] and "7 is not one of [0, 1]" in made.verdicts[0].detail


@pytest.mark.parametrize(
    ("request_", "reasons"),
    [
        ("Get me the flight at 15:10 from Paris to Miami on May 14.", []),
        ("Get me, as number PX8841, the flight at 15:10 from Paris to Miami on May 14.", ["old_goal_said"]),
    ],
)
def test_a_request_that_a_chat_wrote_says_nothing_of_the_old_one(
    tmp_path: Path, renderer: Any, request_: str, reasons: list[str]
) -> None:
    roles = chats(back_translator=[{"request": request_}])
    made = looked_back(tmp_path, renderer, [paris_to_miami()], [past()], chats=roles)
    assert made.reasons == reasons
    assert [task.prompt[-1].text for task in made.tasks] == ([] if reasons else [request_])


def test_replies_are_paid_for_once(tmp_path: Path, renderer: Any) -> None:
    for asks in (1, 0):
        roles = chats()
        made = looked_back(tmp_path, renderer, [paris_to_miami()], [past()], chats=roles)
        assert [len(role.asked) for role in roles.values()] == [asks] * 3 and made.reasons == []


QUERY = "SELECT COUNT(*) FROM {table}"


@pytest.mark.parametrize(
    ("answer", "reasons"),
    [
        ({"arguments": {"sql": "SELECT COUNT(1) AS n FROM {table}"}}, []),
        ({"arguments": {"sql": "SELECT COUNT(*) + 1 FROM {table}"}}, ["question_unclear"]),
        ({"arguments": {"sql": "SELECT FROM"}}, ["question_unclear"]),
        ({"arguments": {}}, ["invalid_reply"]),
        (None, ["written_argument"]),
    ],
)
def test_a_question_counts_where_somebody_who_saw_only_the_question_answers_it_alike(
    tmp_path: Path, renderer: Any, answer: Any, reasons: list[str]
) -> None:
    world = load_environment("sql_desk")
    task = next(task for task in world.tasks("train") if task.tools == ("tables", "query", "submit"))
    table = describe_tables(task.state_value()["db"].split("/")[0]).split("(")[0]
    sql = QUERY.replace("{table}", table)
    failed = episode(task, call("tables"), call("query", sql=sql), environment=world)
    goal = f"How many {table} are there in all?"
    roles = {"goal_lister": chat([{"goals": [{"goal": goal, "calls": [1]}]}])}
    if answer is not None:
        roles["answerer"] = chat([canonical.loads(canonical.dumps(answer).replace("{table}", table))])
    made = looked_back(tmp_path, renderer, [task], [failed], environment=world, chats=roles)
    assert made.reasons == reasons
    if not reasons:
        assert [made.tasks[0].prompt[-1].text, *made.calls] == [goal, ["tables", "query"]]
        (turn,) = read_blueprint(made.tasks[0]).turns
        assert turn.must_say and [c.mentioned for c in turn.calls] == [False, False]
        assert sql not in canonical.dumps([[t.text for t in turns] for turns in roles["answerer"].asked])
