"""Blueprint tasks: any environment opens them, gold replays them, and only what the turns want passes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from data.leaks import check_trajectory
from data.messages import ToolResult, Turn, assistant, text_parts
from data.messages import tool as tool_turn
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.agents import ListedAgent, null_agent
from pipeline.environments.base import Environment, GoldScript
from pipeline.environments.blueprint import (
    Blueprint,
    Expects,
    Outage,
    PlannedCall,
    PlannedTurn,
    Source,
    blueprint_task,
    read_blueprint,
    result_digest,
)
from pipeline.environments.blueprint_session import reply_fits
from pipeline.environments.gold import call
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError
from synthesizers.execution import Trial

Calls = Sequence[tuple[str, dict[str, str]]]


def travel() -> tuple[Environment, Task]:
    environment = load_environment("travel_desk", templates=["cancel"])
    base = next(iter(environment.tasks("train")))
    return environment, base.model_copy(update={"tools": None, "task_id": ""})


async def planned(environment: Environment, base: Task, turns: Sequence[tuple[str, Calls, str]]) -> Blueprint:
    """A blueprint whose turns are (text, calls, reply), executed."""
    made = []
    async with await Trial.open(environment, base) as trial:
        for text, calls, reply in turns:
            executed = [await trial.attempt(name, arguments) for name, arguments in calls]
            made.append(
                PlannedTurn(
                    text=text,
                    reply=reply,
                    state=trial.state,
                    calls=tuple(
                        PlannedCall(
                            name=each.call.name,
                            arguments=each.call.arguments,
                            result=result_digest(each.result),
                            changes=each.changes,
                        )
                        for each in executed
                    ),
                )
            )
    return Blueprint(base=base, turns=tuple(made))


@pytest.fixture(scope="module")
def booked() -> tuple[Environment, Task]:
    """Look the bookings up, then cancel the first; two user turns."""
    environment, base = travel()
    number = base.state_value()["bookings"][0]["id"]
    turns: list[tuple[str, Calls, str]] = [
        ("What have I booked?", [("bookings", {})], f"You have {number}."),
        ("Cancel the first.", [("cancel", {"booking": number})], "DONE"),
    ]
    blueprint = asyncio.run(planned(environment, base, turns))
    first, second = blueprint.turns
    blueprint = blueprint.model_copy(
        update={"turns": (first.model_copy(update={"must_say": (number,)}), second)}
    )
    return environment, blueprint_task(blueprint, synthesizer="test", template="two_turns")


def played(environment: Environment, task: Task, agent: GoldScript) -> Trajectory:
    return asyncio.run(play(environment, task, agent))


def listed(*turns: Turn) -> ListedAgent:
    return ListedAgent(list(turns))


def score(trajectory: Trajectory) -> dict[str, float]:
    assert trajectory.reward is not None
    return {part.name: part.value for part in trajectory.reward.components}


def test_gold_passes_and_doing_nothing_does_not(booked: tuple[Environment, Task]) -> None:
    environment, task = booked
    gold = played(environment, task, environment.gold(task))
    assert score(gold) == {"success": 1, "turns": 1, "reached": 1, "state": 1, "results": 1, "reply": 1}
    assert [turn.role.value for turn in gold.turns].count("user") == 2
    nothing = played(environment, task, null_agent())
    assert score(nothing)["success"] == 0 and score(nothing)["turns"] == 0
    assert environment.num_open == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("first", "second", "failed"),
    [
        ("You have {n}.", ("flights", {"src": "Rome", "dst": "Oslo", "day": "May 3"}), "state"),
        ("You have some.", ("cancel", {"booking": "{n}"}), "reply"),
        ("REFUSE {n}", ("cancel", {"booking": "{n}"}), "reply"),
        ("", ("cancel", {"booking": "{n}"}), "reply"),
    ],
)
def test_what_a_turn_wants(
    booked: tuple[Environment, Task], first: str, second: tuple[str, dict[str, str]], failed: str
) -> None:
    environment, task = booked
    number = task.state_value()["bookings"][0]["id"]
    name, arguments = second
    filled = {key: value.format(n=number) for key, value in arguments.items()}
    agent = listed(
        call("bookings"), assistant(first.format(n=number)), call(name, **filled), assistant("DONE")
    )
    result = score(played(environment, task, agent))
    assert result["success"] == 0 and result[failed] == 0


def test_a_look_up_that_gold_needed_must_be_made(booked: tuple[Environment, Task]) -> None:
    environment, task = booked
    number = task.state_value()["bookings"][0]["id"]
    guessed = listed(assistant(f"You have {number}."), call("cancel", booking=number), assistant("DONE"))
    assert score(played(environment, task, guessed))["results"] == 0
    early = listed(call("cancel", booking=number), call("bookings"), assistant(number), assistant("DONE"))
    assert score(played(environment, task, early))["state"] == 0


def test_of_a_look_up_nobody_asked_for_only_what_was_taken_from_it_must_have_been_seen() -> None:
    environment, base = travel()
    number = base.state_value()["bookings"][0]["id"]
    calls: Calls = [("bookings", {}), ("cancel", {"booking": number})]
    blueprint = asyncio.run(planned(environment, base, [("Cancel it.", calls, "DONE")]))
    turn = blueprint.turns[0]
    looked_up, cancelled = turn.calls
    source = Source(argument="booking", provenance="output", of="bookings#1:B#")
    turn = turn.model_copy(
        update={
            "calls": (
                looked_up.model_copy(update={"mentioned": False}),
                cancelled.model_copy(update={"sources": (source,)}),
            )
        }
    )
    task = blueprint_task(blueprint.model_copy(update={"turns": (turn,)}), synthesizer="test", template="x")
    guessed = (call("cancel", booking=number), assistant("DONE"))
    assert score(played(environment, task, listed(*guessed)))["results"] == 0
    told = turn.model_copy(update={"calls": (turn.calls[0], cancelled)})
    task = blueprint_task(blueprint.model_copy(update={"turns": (told,)}), synthesizer="test", template="x")
    assert score(played(environment, task, listed(*guessed)))["success"] == 1


@pytest.mark.parametrize(
    ("value", "reply", "fits"),
    [
        ("6500", "You have 6,500 miles.", True),
        ("6500", "You have 16,500 miles.", False),
        ("3.2432432432432434", "3.24 on average", True),
        ("3.2432432432432434", "3.2 on average", False),
        ("3.24", "3.25 on average", False),
    ],
)
def test_a_number_may_be_said_as_people_write_it(value: str, reply: str, fits: bool) -> None:
    turn = PlannedTurn(text="x", reply=value, must_say=(value,), state="0")
    assert reply_fits(turn, reply) is fits


def test_asking_refusing_and_tools_that_appear() -> None:
    environment, base = travel()
    number = base.state_value()["bookings"][0]["id"]
    blueprint = asyncio.run(
        planned(environment, base, [("Cancel it.", [("cancel", {"booking": number})], "DONE")])
    )
    done = blueprint.turns[0]
    untouched = asyncio.run(planned(environment, base, [("x", [], "y")])).turns[0].state
    without = tuple(name for name in ("bookings", "profile"))
    turns = (
        PlannedTurn(text="Cancel one.", reply="ASK booking", expects=Expects.ASK, state=untouched),
        PlannedTurn(text=number, reply="REFUSE tool", expects=Expects.REFUSE, state=untouched, tools=without),
        done.model_copy(update={"tools": (*without, "cancel")}),
    )
    task = blueprint_task(
        blueprint.model_copy(update={"turns": turns}), synthesizer="test", template="missing"
    )
    assert read_blueprint(task).turns == turns
    gold = played(environment, task, environment.gold(task))
    assert score(gold)["success"] == 1
    silent = listed(assistant("DONE"))
    assert score(played(environment, task, silent))["turns"] == 0
    hasty = listed(call("cancel", booking=number), assistant("ASK booking"))
    assert score(played(environment, task, hasty))["turns"] == 0
    withheld = listed(
        assistant("ASK booking"), call("cancel", booking=number), assistant("REFUSE tool"), assistant("DONE")
    )
    outcome = played(environment, task, withheld)
    assert score(outcome)["success"] == 0
    assert "no tool cancel" in next(turn.text for turn in outcome.turns if turn.result)


def test_a_snapshot_holds_what_was_played(booked: tuple[Environment, Task]) -> None:
    environment, task = booked
    number = task.state_value()["bookings"][0]["id"]

    async def forked() -> float:
        first, second = await environment.open(task), await environment.open(task)
        result = await first.call("bookings", {}, "a")
        turns = [*task.prompt, assistant(f"{number}: {result.text}")]
        follow = await first.next_user(turns)
        assert follow is not None
        second.restore(first.snapshot())
        await first.close()
        await second.call("cancel", {"booking": number}, "b")
        made = Trajectory.model_construct(turns=(*turns, follow, assistant("DONE")))
        reward = await second.verify(made)
        await second.close()
        return reward.total

    assert asyncio.run(forked()) == 1.0


def test_blueprints_that_make_no_task(booked: tuple[Environment, Task]) -> None:
    _, task = booked
    blueprint = read_blueprint(task)
    empty = blueprint.turns[0].model_copy(update={"calls": ()})
    with pytest.raises(ConfigError, match="wants nothing"):
        blueprint_task(blueprint.model_copy(update={"turns": (empty,)}), synthesizer="test", template="empty")
    with pytest.raises(ValidationError, match="at most 23"):
        PlannedTurn(text="x", reply="y", state="", must_say=("a" * 24,))


def test_every_world_tells_its_state() -> None:
    for name in ("sql_desk", "bfcl_multi_turn", "counter"):
        environment = load_environment(name)
        base = next(iter(environment.tasks("train")))
        made = asyncio.run(gold_blueprint(environment, base))
        task = blueprint_task(made, synthesizer="test", template="gold")
        assert score(played(environment, task, environment.gold(task)))["success"] == 1, name


async def gold_blueprint(environment: Environment, base: Task) -> Blueprint:
    """The calls of a task's gold as one turn."""
    gold = await play(environment, base, environment.gold(base))
    spoken = [i for i, turn in enumerate(gold.turns) if turn.role == "assistant" and not turn.tool_calls]
    first = gold.turns[: spoken[0]] if spoken else gold.turns
    calls = [(made.name, made.parsed_arguments()) for turn in first for made in turn.tool_calls]
    return await planned(environment, base, [("Do it.", calls, "DONE")])


def test_what_tools_answer_anyway_gives_no_task_away(booked: tuple[Environment, Task]) -> None:
    """Arguments that are the text of an earlier answer, and an outage that is met, can be published."""
    environment, task = booked
    blueprint = read_blueprint(task)
    number = task.state_value()["bookings"][0]["id"]
    same = f'{{"the_reference_number":"{number}"}}'
    turn = blueprint.turns[0].model_copy(
        update={"calls": (PlannedCall(name="cancel", arguments=same, result="0" * 16),)}
    )
    outage = Outage(turn=0, name="bookings", text="error: busy, try again")
    changed = blueprint_task(
        Blueprint(base=blueprint.base, turns=(turn,), outages=(outage,)), synthesizer="test", template="t"
    )
    assert read_blueprint(changed).turns[0].calls[0].arguments == same
    answers = [
        tool_turn(ToolResult(call_id=str(place), name="bookings", parts=text_parts(text)))
        for place, text in enumerate((outage.text, same))
    ]
    shown = played(environment, task, null_agent())
    shown = shown.model_copy(update={"turns": (*changed.prompt, assistant("Wait."), *answers)})
    check_trajectory(shown, changed)
    with pytest.raises(ValidationError, match="at most 23"):
        Outage(turn=0, name="bookings", text="error: the service is busy, try again")
