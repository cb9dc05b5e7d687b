"""Capabilities are those of the task and its gold, whatever the policy did."""

from __future__ import annotations

import asyncio
import json

import pytest

from data import messages
from data.messages import ToolCall, ToolResult, ToolSpec, ToolStatus, Turn, assistant
from data.tasks import Task
from pipeline.diagnosis.capabilities import LONG_CONTEXT, capabilities_of
from pipeline.environments.blueprint import (
    Blueprint,
    Expects,
    Outage,
    PlannedCall,
    PlannedTurn,
    Source,
    blueprint_task,
)
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from tests.samples import TOOLS, call, dialogue, trajectory, turns_of_calls

LIMITED = ToolSpec(
    name="search",
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {"city": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["city"],
        }
    ),
)


def task(*tags: str) -> Task:
    return Task(
        environment="desk",
        split="train",
        template="trip",
        tags=tags,
        prompt=(),
        verifier="desk/1",
        private='{"a": 1}',
    )


def features(gold: tuple[Turn, ...], *, tools: tuple[ToolSpec, ...] = TOOLS) -> set[str]:
    found = capabilities_of(trajectory("x", tools=tools), task(), gold)
    return {name.removeprefix("call:") for name in found if name.startswith("call:")}


def answered(*steps: tuple[ToolCall, str], said: str = "Go to Rome.", end: str = "DONE") -> tuple[Turn, ...]:
    """A dialogue of calls and what each was answered."""
    turns = [messages.system("Be brief."), messages.user(said)]
    for number, (made, text) in enumerate(steps):
        result = ToolResult(call_id=f"c{number}", name=made.name, parts=messages.text_parts(text))
        turns += [assistant("", made), messages.tool(result)]
    return (*turns, assistant(end))


def test_names_are_prefixed_sorted_and_complete() -> None:
    gold = dialogue(call("search", city="Rome"), call("book", offer=1), call("cancel", offer=1), "DONE")
    assert capabilities_of(trajectory("x"), task("choice", "recover"), gold) == (
        "call:recovery",
        "environment:desk",
        "pair:book>cancel",
        "pair:search>book",
        "tag:choice",
        "tag:recover",
        "tool:book",
        "tool:cancel",
        "tool:search",
    )


def test_what_the_policy_did_changes_nothing() -> None:
    """A policy that failed, called other tools, or never acted: the same capabilities."""
    gold = answered((call("search", city="Rome"), "F123"), (call("book", offer="F123"), "ok"))
    acted = [
        trajectory(call("search", city="Rome"), call("book", offer=1), "Done."),
        trajectory(call("cancel", offer=3), call("cancel", offer=4), "No.", reward=0.0),
        trajectory("I cannot.", reward=0.0),
        trajectory("", reward=None),
    ]
    assert len({capabilities_of(each, task("choice"), gold) for each in acted}) == 1


@pytest.mark.parametrize(
    ("gold", "expected"),
    [
        (answered((call("search", city="Rome"), "F123")), set()),
        (answered((call("search", city="Rome"), "F123"), (call("book", offer="F123"), "ok")), {"dependent"}),
        (answered((call("search", city="Rome"), "in Rome"), (call("book", offer="Rome"), "ok")), set()),
        (answered((call("search", city="Rome"), "F1234"), (call("book", offer="F123"), "ok")), set()),
        (answered((call("search", city="Rome", limit=2), "F123")), {"optional_parameter"}),
        (answered((call("search", city={"name": "Rome"}), "F123")), {"nested_arguments"}),
        (answered((call("search", city=[]), "F123")), set()),
        (answered((call("search", city="Rome"), "F" * LONG_CONTEXT)), {"long_context"}),
        (answered(end="ASK day"), {"missing_parameter"}),
        (answered(end="REFUSE tool"), {"irrelevance"}),
        (answered(end="Hello."), {"irrelevance"}),
        (answered((call("search", city="Rome"), "none"), end="REFUSE budget"), {"refusal"}),
        (
            (
                *answered(end="REFUSE tool"),
                messages.user("Now."),
                *answered((call("book", offer=1), "ok"))[2:],
            ),
            {"missing_function", "multi_turn"},
        ),
        (dialogue((call("search", city="Rome"), ToolStatus.TOOL_ERROR), "DONE"), {"recovery"}),
        ((assistant("", call("book", offer=1), call("book", offer=2)),), {"parallel"}),
        (turns_of_calls([call("book", offer=1), call("book", offer=2)]), set()),
    ],
)
def test_each_feature_and_only_it(gold: tuple[Turn, ...], expected: set[str]) -> None:
    assert features(gold, tools=(LIMITED, *TOOLS[1:])) == expected


def test_without_gold_only_what_is_declared_is_known() -> None:
    assert capabilities_of(trajectory(call("book", offer=1)), task("miss_func")) == (
        "call:missing_function",
        "environment:desk",
        "tag:miss_func",
    )
    assert capabilities_of(trajectory("x", tags=("choice",)), None) == ("environment:desk", "tag:choice")
    with pytest.raises(ValueError, match="neither"):
        capabilities_of(None, None)


def test_gold_of_a_shipped_world_says_what_its_tasks_need() -> None:
    environment = load_environment("travel_desk", templates=["cheapest"])
    first = next(iter(environment.tasks("train")))
    played = asyncio.run(play(environment, first, environment.gold(first)))
    found = capabilities_of(None, first, played.turns)
    assert {
        "environment:travel_desk",
        "tool:flights",
        "tool:book",
        "pair:flights>book",
        "call:dependent",
    } <= set(found)
    assert set(found) >= {f"tag:{tag}" for tag in first.tags}


def test_a_planned_task_is_read_from_its_plan() -> None:
    """Without playing it: its calls, where their values come from, what is down, what is asked."""
    base = task()
    looked = PlannedCall(name="search", arguments='{"city":"Rome"}', result="0")
    source = Source(argument="offer", provenance="output", of="search#1:id")
    booked = PlannedCall(name="book", arguments='{"offer":"F1"}', result="1", sources=(source,))
    turns = (
        PlannedTurn(text="Book it.", reply="ASK city", state="0", expects=Expects.ASK),
        PlannedTurn(text="Rome.", reply="DONE", state="1", calls=(looked, booked)),
    )
    blueprint = Blueprint(base=base, turns=turns, outages=(Outage(turn=1, name="book", text="down"),))
    planned = blueprint_task(blueprint, synthesizer="test", template="planned", tags=("miss_params",))
    assert capabilities_of(None, planned) == (
        "call:dependent",
        "call:missing_parameter",
        "call:multi_turn",
        "call:recovery",
        "environment:desk",
        "pair:search>book",
        "tag:miss_params",
        "tool:book",
        "tool:search",
    )
