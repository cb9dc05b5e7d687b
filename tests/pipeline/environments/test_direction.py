"""What a director adds to blueprints: refusals that rest on calls, look-ups that find nothing once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from data.messages import ToolStatus, Turn, assistant
from data.tasks import Task
from pipeline.environments.agents import ListedAgent, null_agent
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import (
    Blueprint,
    Expects,
    Outage,
    PlannedCall,
    PlannedTurn,
    blueprint_task,
    read_blueprint,
    result_digest,
)
from pipeline.environments.direction import Contradiction, Direction, Review
from pipeline.environments.gold import call
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from synthesizers.execution import Trial


def world() -> tuple[Environment, Task, str]:
    environment = load_environment("travel_desk", templates=["cancel"])
    base = next(iter(environment.tasks("train")))
    base = Task.model_validate(base.model_copy(update={"tools": None, "task_id": ""}).model_dump())
    return environment, base, base.state_value()["bookings"][0]["id"]


@pytest.fixture(scope="module")
def refused() -> tuple[Environment, Task]:
    """A booking that is not there; then a look-up that finds nothing, and what is asked instead."""
    environment, base, number = world()

    async def plan() -> Blueprint:
        async with await Trial.open(environment, base) as trial:
            failed = await trial.attempt("cancel", {"booking": "B999"})
            empty = trial.answered("bookings", {}, text="none", status=ToolStatus.OK)
            before = trial.state
            done = await trial.attempt("cancel", {"booking": number})

            def planned(made: object) -> PlannedCall:
                return PlannedCall(
                    name=made.call.name,  # type: ignore[attr-defined]
                    arguments=made.call.arguments,  # type: ignore[attr-defined]
                    result=result_digest(made.result),  # type: ignore[attr-defined]
                    status=made.result.status,  # type: ignore[attr-defined]
                    changes=made.changes,  # type: ignore[attr-defined]
                )

            direction = Direction(goal="cancel", check="calls", contradiction=Contradiction.TOOL_ERROR)
            return Blueprint(
                base=base,
                turns=(
                    PlannedTurn(
                        text="Cancel B999.",
                        calls=(planned(failed),),
                        reply="REFUSE: no booking B999",
                        expects=Expects.REFUSE,
                        must_say=("B999",),
                        state=before,
                        direction=direction,
                    ),
                    PlannedTurn(
                        text="What have I?",
                        calls=(planned(empty),),
                        reply="REFUSE: nothing",
                        expects=Expects.REFUSE,
                        state=before,
                    ),
                    PlannedTurn(
                        text=f"Cancel {number}.", calls=(planned(done),), reply="Done.", state=trial.state
                    ),
                ),
                outages=(Outage(turn=1, name="bookings", text="none", status=ToolStatus.OK),),
                persona="planner",
                reviews=(Review(criterion="correctness", by="program", approved=1, votes=1),),
            )

    return environment, blueprint_task(asyncio.run(plan()), synthesizer="test", template="refused")


def played(refused: tuple[Environment, Task], *turns: Turn) -> dict[str, float]:
    environment, task = refused
    trajectory = asyncio.run(play(environment, task, ListedAgent(list(turns))))
    assert trajectory.reward is not None
    return {part.name: part.value for part in trajectory.reward.components}


def script(refused: tuple[Environment, Task]) -> Sequence[Turn]:
    number = refused[1].state_value()["bookings"][0]["id"]
    return (
        call("cancel", booking="B999"),
        assistant("REFUSE: there is no B999"),
        call("bookings"),
        assistant("REFUSE: nothing"),
        call("cancel", booking=number),
        assistant("Done."),
    )


def test_gold_and_whoever_does_the_same_pass(refused: tuple[Environment, Task]) -> None:
    environment, task = refused
    gold = asyncio.run(play(environment, task, environment.gold(task)))
    assert gold.success and [turn.text for turn in gold.turns if turn.result][1] == "none"
    assert played(refused, *script(refused))["success"] == 1
    blueprint = read_blueprint(task)
    assert blueprint.persona == "planner" and blueprint.reviews[0].by == "program"


def test_a_refusal_without_what_it_rests_on_does_not_pass(refused: tuple[Environment, Task]) -> None:
    good = script(refused)
    assert played(refused, *good[1:])["results"] == 0, "refused without trying"
    assert played(refused, good[0], *good[3:])["reply"] == 0, "refused without naming what is not there"
    assert played(refused, *good[:2], *good[3:])["results"] == 0, "refused without looking"
    assert played(refused, *good[:3], assistant("Here they are."))["reply"] == 0
    environment, task = refused
    assert not asyncio.run(play(environment, task, null_agent())).success


def test_a_look_up_finds_nothing_once(refused: tuple[Environment, Task]) -> None:
    good = script(refused)
    twice = played(refused, *good[:3], call("bookings"), *good[3:])
    assert twice["success"] == 1, "looking again is nobody's fault"


def test_a_trial_follows_another_and_answers_anew() -> None:
    async def run() -> None:
        environment, base, number = world()
        async with (
            await Trial.open(environment, base) as first,
            await Trial.open(environment, base) as second,
        ):
            await first.attempt("bookings", {})
            await second.attempt("profile", {})
            await second.attempt("profile", {})
            await second.attempt("cancel", {"booking": number})
            first.follow(second)
            assert first.state == second.state and len(first.executed) == 3
            again = await first.attempt("cancel", {"booking": number})
            assert not again.ok, "cancelled already; an answer from memory would be ok"
            assert first.state == second.state

    asyncio.run(run())
