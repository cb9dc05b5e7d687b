"""Strict mode without a chat: rules, policies of a world, what a program reviews, feedback rounds."""

from __future__ import annotations

from typing import Any

import pytest

from data import canonical
from data.messages import ToolCall, ToolResult, text_parts
from pipeline.environments.blueprint import PlannedCall, PlannedTurn, Source
from pipeline.environments.direction import Review
from pipeline.environments.travel_desk.policies import budget, miles, notice
from synthesizers.director_actor.strict import (
    Draft,
    approved,
    program_reviews,
    rule_problems,
    state_difference,
)
from synthesizers.execution import Executed
from tests.synthesizers.director_actor.lab import bases, made

STATE: dict[str, Any] = {
    "flights": [
        {"id": "F1", "price": 300, "day": "May 14"},
        {"id": "F2", "price": 100, "day": "May 20"},
    ],
    "bookings": [{"id": "B1", "ref": "F1"}, {"id": "B2", "ref": "F2"}],
    "member": {"miles": 6000},
}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "text": "done", "ok": True}


@pytest.mark.parametrize(
    ("calls", "said", "broken"),
    [
        ([called("book", flight="F1")], "At most $250, please.", "F1 costs $300"),
        ([called("book", flight="F2")], "At most $250, please.", ""),
        ([called("book", flight="F1") | {"ok": False}], "At most $250, please.", ""),
        ([called("book", flight="F1")], "The dearest.", ""),
    ],
)
def test_budget(calls: list[Any], said: str, broken: str) -> None:
    assert budget(STATE, calls, said).startswith(broken) and bool(budget(STATE, calls, said)) == bool(broken)


def test_notice_counts_from_the_day_the_user_says_it_is() -> None:
    cancel = [called("cancel", booking="B1")]
    assert "less than 3 days" in notice(STATE, cancel, "Today is May 12. Cancel it.")
    assert notice(STATE, cancel, "Today is May 10. Cancel it.") == ""
    assert (
        notice(STATE, cancel, "Cancel it.")
        == ""
        == notice(STATE, [called("cancel", booking="B2")], "Today is May 12.")
    )


def test_miles_are_spent_by_upgrades() -> None:
    once = called("upgrade", booking="B1")
    assert miles(STATE, [once], "") == "" and "5000 miles" in miles(STATE, [once, once], "")


def draft(turn: PlannedTurn, *, changes: bool = True, **more: Any) -> Draft:
    call = ToolCall(call_id="c", name="book", arguments='{"flight":"F1"}')
    result = ToolResult(call_id="c", name="book", parts=text_parts("booked B3"))
    executed = Executed(call, result, "a", "b" if changes else "a")
    return Draft([turn], [executed], STATE, "+ bookings[]", ["book", "flights"], **more)


def turn(text: str = "Reserve F1 for me.", **more: Any) -> PlannedTurn:
    call = PlannedCall(
        name="book",
        arguments='{"flight":"F1"}',
        result="0" * 16,
        changes=True,
        sources=(Source(argument="flight", provenance="user"),),
    )
    return PlannedTurn(**({"text": text, "calls": (call,), "reply": "Done.", "state": "s"} | more))


def test_rules_name_what_is_wrong() -> None:
    assert rule_problems(draft(turn())) == []
    assert rule_problems(draft(turn("Please book F1."))) == ["turn 0 names the tool book"]
    assert rule_problems(draft(turn(calls=()))) == ["turn 0 does nothing"]
    assert rule_problems(draft(turn(reply=" "))) == ["turn 0 is empty"]
    assert "nothing is changed" in rule_problems(draft(turn(), changes=False))[0]
    assert rule_problems(draft(turn(must_say=("B3",)), changes=False)) == []
    refused = rule_problems(draft(turn("Reserve F1, at most $200.")), [budget, miles])
    assert refused == ["F1 costs $300, the user said at most $200"]


def test_a_program_reviews_three_criteria_and_says_so() -> None:
    reviews = program_reviews(draft(turn()))
    assert [(review.criterion, review.by, review.approved) for review in reviews] == [
        ("correctness", "program", 1),
        ("completeness", "program", 1),
        ("satisfaction", "program", 1),
    ]
    assert (
        approved(reviews)
        and not approved(program_reviews(draft(turn("Reserve it for me."))))
        and not approved([])
    )
    tie = [Review(criterion="correctness", by="a+b", approved=1, votes=2)]
    assert not approved(tie), "half is no majority"


def test_the_difference_of_two_states() -> None:
    after = canonical.loads(canonical.dumps(STATE))
    after["member"]["miles"] = 1000
    after["bookings"].append({"id": "B3"})
    assert state_difference(STATE, after).splitlines() == [
        "- member.miles: 6000",
        '+ bookings[]: {"id":"B3"}',
        "+ member.miles: 1000",
    ]
    assert state_difference(STATE, STATE) == ""


def test_strict_plans_keep_the_worlds_policies(renderer: Any) -> None:
    tasks = bases("travel_desk", 8)
    policies = ["pipeline.environments.travel_desk.policies:POLICIES"]
    records = made(
        "travel_desk", tasks, renderer, strict=True, policies=policies, gold_tasks=20, recombine=0.2
    )
    assert len(records.tasks) + len(records.verdicts) == 8 and len(records.tasks) >= 5
    for task, blueprint in zip(records.tasks, records.blueprints, strict=True):
        assert "strict" in task.tags and {review.by for review in blueprint.reviews} == {"program"}
        changed = [call for turn in blueprint.turns for call in turn.calls if call.changes]
        assert changed or any(turn.must_say for turn in blueprint.turns)
        upgrades = [call for call in changed if call.name == "upgrade"]
        assert task.state_value()["member"]["miles"] >= 5000 * len(upgrades)


def test_a_rule_that_nothing_satisfies_gives_up_after_all_rounds(renderer: Any) -> None:
    seen: list[str] = []

    def never(state: Any, calls: Any, said: str) -> str:
        seen.append(said)
        return "the desk is closed"

    records = made("travel_desk", bases("travel_desk", 1), renderer, strict=True, policies=[never], rounds=2)
    assert records.reasons == ["not_approved"] and "closed" in records.verdicts[0].detail
    assert 1 <= len(seen) <= 3
