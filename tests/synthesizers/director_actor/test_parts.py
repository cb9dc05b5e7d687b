"""Gold as raw material, sub-goals and motifs, personas, the actor's script, checks: each alone."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from data.messages import ToolResult, ToolStatus, assistant, text_parts, tool, user
from data.tasks import Task
from pipeline.environments.registry import load_environment
from synthesizers.director_actor.actors import Instruction, Scene, ScriptedActor, instruction_of, leak_in
from synthesizers.director_actor.goldwork import GoldEpisode, gold_episode
from synthesizers.director_actor.groups import motifs_of, own_goals
from synthesizers.director_actor.outline import Library, draw_outage, draw_outline
from synthesizers.director_actor.personas import PERSONAS, Persona, draw_persona
from synthesizers.director_actor.rehearsal import Rehearsal, Rehearsed, rivals_of
from synthesizers.director_actor.subgoals import Read, Step, SubGoal, dependents, place_of, read_value
from synthesizers.director_actor.users import foreign_value
from synthesizers.execution import Trial
from synthesizers.grounding.reading import rows_of
from synthesizers.phrasing.requests import TurnCalls
from synthesizers.worlds import whole_world
from tests.synthesizers.director_actor.lab import bases, calls

OFFERS = "F773 Sun 07:20 1 stop $310\nF219 Star 15:10 direct $230\nF111 Star 13:00 1 stop $200"


def episode(template: str) -> GoldEpisode:
    environment = load_environment("travel_desk", templates=[template])
    found = asyncio.run(gold_episode(environment, next(iter(environment.tasks("train")))))
    assert found is not None
    return found


def test_gold_is_grouped_by_what_depends_on_what() -> None:
    goals = own_goals(episode("return_stay"), prefix="o")
    assert [goal.goal for goal in goals] == ["flights > book", "flights > book", "hotels > room"]
    assert len({step.uid for goal in goals for step in goal.steps}) == 6
    [read] = goals[0].steps[1].reads.values()
    assert read.step == goals[0].steps[0].uid and read.field == 0
    assert all(goal.text_by == "template" for goal in goals)


def test_a_call_that_failed_is_planned_with_what_worked_as_its_fallback() -> None:
    [goal] = own_goals(episode("full_flight"), prefix="o")
    look, book = goal.steps
    assert (look.tool, book.tool) == ("flights", "book")
    assert book.fallback is not None and book.fallback != book.arguments and look.fallback is None


def test_values_that_nobody_said_need_the_tasks_own_words() -> None:
    environment = load_environment("sql_desk", levels=["sql"])
    found = asyncio.run(gold_episode(environment, next(iter(environment.tasks("train")))))
    assert found is not None
    [goal] = own_goals(found, prefix="o")
    assert goal.text == found.texts[0] and goal.text_by == "task" and goal.finishes
    assert motifs_of([found]) == []


def test_motifs_are_distinct_shapes_without_values() -> None:
    motifs = motifs_of([episode("cheapest"), episode("earliest"), episode("cancel")])
    assert [[step.tool for step in motif] for motif in motifs] == [
        ["flights", "book"],
        ["bookings", "cancel"],
    ]
    assert motifs[0][1].reads == (("flight", 0, 0),)


def test_what_needs_what_is_kept_in_an_outline() -> None:
    goals = [
        SubGoal("a", ()),
        SubGoal("b", (), frozenset({"a"})),
        SubGoal("c", ()),
        SubGoal("d", (), frozenset({"b"})),
    ]
    assert dependents(goals, "a") == {"a", "b", "d"} and dependents(goals, "c") == {"c"}


@pytest.mark.parametrize(
    ("wants", "row"), [("cheap", 2), ("dear", 0), ("early", 0), ("late", 1), ("first", 0), ("last", 2)]
)
def test_personas_choose_rows_by_what_they_want(wants: str, row: int) -> None:
    persona = Persona("x", wants, "open", 2, "plain")
    assert persona.choose(rows_of(OFFERS), rng=random.Random(0)) == row
    assert persona.choose(rows_of("a\nb"), rng=random.Random(0)) in (0, 1)


def test_personas_are_varied_and_named_once() -> None:
    assert len({persona.name for persona in PERSONAS}) == len(PERSONAS) >= 10
    rng = random.Random(0)
    assert len({draw_persona(rng).name for _ in range(200)}) == len(PERSONAS)
    assert all(0 < persona.patience <= 4 and persona.described() for persona in PERSONAS)
    chatty = next(persona for persona in PERSONAS if persona.style == "chatty")
    assert chatty.framed("Do it.", first=True, rng=rng).find("Do it.") > 0


def test_places_and_rivals() -> None:
    assert (
        place_of(OFFERS, "F219") == (1, 0)
        and place_of(OFFERS, "F2") is None
        and place_of("True", True) is None
    )
    assert read_value(OFFERS, Read("s", 2, 0)) == "F111"
    with pytest.raises(LookupError):
        read_value("none", Read("s", 2, 0))
    assert [value for _, value in rivals_of(OFFERS, "F219")] == ["F773", "F219", "F111"]


def test_an_outline_is_tried_and_taken_back() -> None:
    async def run() -> None:
        environment = load_environment("travel_desk")
        library = Library(environment, num_episodes=16)
        await library.learn()
        base = bases("travel_desk", 2)[1]
        async with await Trial.open(environment, whole_world(base)) as trial:
            rehearsal = Rehearsal(trial)
            start = trial.state
            persona = Persona("x", "cheap", "open", 3, "plain")
            goals = await draw_outline(
                library, base, rehearsal, persona=persona, from_task=True, max_goals=3, rng=random.Random(3)
            )
            assert len(goals) >= 2 and goals[-1].state == trial.state
            assert [each.call.name for goal in goals for each in goal.executed] == [
                each.call.name for each in trial.executed
            ]
            rehearsal.begin()
            assert trial.state == start and trial.executed == []
            assert [
                goal.goal.goal for goal in [await rehearsal.of_goal(goal.goal) for goal in goals] if goal
            ] == [goal.goal.goal for goal in goals]

    asyncio.run(run())


def scene(instruction: Instruction, *turns: Any) -> Scene:
    return Scene(turns, (), instruction, TurnCalls((), (), ()))


def answered(text: str, *, call_id: str = "c", status: ToolStatus = ToolStatus.OK) -> Any:
    return tool(ToolResult(call_id=call_id, name="flights", parts=text_parts(text), status=status))


def test_the_script_reads_what_the_dialogue_says_not_what_was_planned() -> None:
    look = Step("a", "flights", {"day": "May 14"})
    book = Step("b", "book", {"flight": "F219"}, {"flight": Read("a", 1, 0)})
    instruction = instruction_of([look, book], {})
    assert "F219" not in instruction.text and "May 14" not in instruction.text
    actor = ScriptedActor(random.Random(0))

    def line(*turns: Any) -> Any:
        return asyncio.run(actor.line(scene(instruction, user("Go."), *turns)))

    asked = calls("flights", '{"day":"May 14"}')
    assert line().tool_calls[0].name == "flights"
    [call] = line(asked, answered(OFFERS.replace("F219", "F555"))).tool_calls
    assert call.parsed_arguments() == {"flight": "F555"}
    assert line(asked, answered("none")).text.startswith("REFUSE")
    busy = line(asked, answered("busy", status=ToolStatus.TOOL_ERROR))
    assert busy.tool_calls[0].name == "flights", "what failed is tried again"
    assert asyncio.run(actor.line(scene(Instruction("x", refuse="F1 is full"), user("Go.")))) == assistant(
        "REFUSE: F1 is full"
    )


def test_what_an_instruction_gives_away() -> None:
    line = "Your flight is settled."
    assert leak_in("Close: your flight is settled.", line=line, values=()) == "the line"
    assert leak_in('Tell them "your seat is settled now".', line="", values=()) == "the line"
    assert leak_in("Take F12.", line=line, values=["F12"]) == "the value 'F12'"
    assert leak_in("Take the cheapest, then close.", line=line, values=["F12", 7]) == ""


def test_what_a_user_cannot_know() -> None:
    known = "Paris to Miami on May 14"
    assert foreign_value("Miami, May 14.", known, ["Tokyo"]) == ""
    assert "F12" in foreign_value("Take F12.", known)
    assert "Tokyo" in foreign_value("To Tokyo.", known, ["Tokyo", "Miami"])


def test_a_world_without_gold_gives_no_episode() -> None:
    environment = load_environment("travel_desk")
    base = bases("travel_desk", 1)[0]
    broken = Task.model_validate(
        base.model_copy(
            update={"private": '{"goal": {}}', "task_id": "", "template": "cheapest"}
        ).model_dump()
    )
    assert asyncio.run(gold_episode(environment, broken)) is None


def test_who_watches_the_money_names_a_limit_that_fits() -> None:
    rows = rows_of(OFFERS)
    tight, open_ = (Persona("x", "cheap", budget, 2, "plain") for budget in ("tight", "open"))
    assert [tight.limit(row) for row in rows] == [410, 300, 260]
    assert tight.limit(rows_of("F1 $205")[0]) == 270 and tight.limit(rows_of("F1")[0]) is None
    assert open_.limit(rows[0]) is None


def test_an_outage_is_of_the_user_turn_that_its_call_is_in() -> None:
    """Also behind a goal that only a judge can tell reached, which has no call."""
    world = load_environment("travel_desk")
    [base] = bases("travel_desk", 1)

    async def rehearsed() -> Rehearsed:
        async with await Trial.open(world, whole_world(base)) as trial:
            found = await Rehearsal(trial).of_goal(SubGoal("a", (Step("s", "profile", {}),)))
            assert found is not None
            return found

    looked = asyncio.run(rehearsed())
    asked = Rehearsed(SubGoal("j", (), judged=True), (), looked.state)
    for seed in range(10):
        [outage] = draw_outage([asked, looked, asked], rng=random.Random(seed))
        assert (outage.turn, outage.name) == (1, "profile")
