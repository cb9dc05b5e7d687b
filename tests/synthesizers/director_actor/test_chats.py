"""Every role played by a scripted chat: what is said is used, checked, and never replaced by an invention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import Role, ToolSpec, Turn
from data.tasks import Task
from data.trajectories import Origin
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.blueprint import Expects
from synthesizers.hints import LABEL, REPEATED
from tests.synthesizers.director_actor.lab import Records, bases, calls, chat, made, results, tool_actor

ROUTE = {"src": "Paris", "dst": "Miami", "day": "May 14"}
INTENT = "Please get me the cheapest seat from Paris to Miami on May 14."
INSTRUCTION = "Look at the offers, take the lowest price, then close shortly."


@pytest.fixture(scope="module")
def base() -> Task:
    [task] = [task for task in bases("travel_desk", 4) if task.template == "cheapest"]
    assert ROUTE["src"] in task.prompt[-1].text
    return task


def outline(*goals: dict[str, Any]) -> str:
    return canonical.dumps({"goals": list(goals)})


def goal(**changed: Any) -> dict[str, Any]:
    calls_ = [{"tool": "flights", "arguments": ROUTE}, {"tool": "book", "arguments": {"flight": "F111"}}]
    return {"intent": INTENT, "calls": calls_, "instruction": INSTRUCTION} | changed


def player(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | str:
    """Looks up, books the cheapest, closes."""
    seen = results(turns)
    if not seen:
        return calls("flights", canonical.dumps(ROUTE))
    if len(seen) == 1:
        lines = seen[0].splitlines()
        cheapest = min(lines, key=lambda line: int(line.rsplit("$", 1)[1])) if "$" in seen[0] else lines[0]
        return calls("book", canonical.dumps({"flight": cheapest.split()[0]}))
    return "That is settled."


def directed(base: Task, renderer: Any, director: Any, **chats: Any) -> Records:
    options = {key: chats.pop(key) for key in ("strict", "actors", "faults", "rounds") if key in chats}
    given = director if isinstance(director, ScriptedChat) else chat(director, name="director")
    return made("travel_desk", [base], renderer, chats={"director": given, **chats}, start="task", **options)


def test_a_director_and_an_actor_by_chats(base: Task, renderer: Any) -> None:
    actor = tool_actor(player)
    records = directed(base, renderer, [outline(goal())], actor=actor)
    [blueprint] = records.blueprints
    [turn] = blueprint.turns
    assert turn.text == INTENT and turn.text_by == "director"
    assert [call.name for call in turn.calls] == ["flights", "book"] and turn.reply == "That is settled."
    assert turn.direction is not None
    assert (turn.direction.actor, turn.direction.instruction_by) == ("player", "director")
    assert not turn.direction.differs and turn.direction.lines == 3
    [kept] = records.trajectories
    assert kept.success and INSTRUCTION not in "".join(t.text for t in kept.turns)
    told = "\n".join(turn.text for turns in actor.asked for turn in turns)
    assert INSTRUCTION in told and "state+calls" not in told and "goals" not in told


def test_an_actor_sees_its_own_instruction_only(base: Task, renderer: Any) -> None:
    later = goal(
        intent="What do I have booked now?", calls=[{"tool": "bookings"}], instruction="Read the list."
    )

    def both(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | str:
        if sum(turn.role is Role.USER for turn in turns) == 1:
            return player(turns, tools)
        return calls("bookings", "{}") if not results(turns) else f"You have this: {results(turns)[0]}"

    actor = tool_actor(both)
    records = directed(base, renderer, [outline(goal(), later)], actor=actor)
    assert len(records.tasks) == 1 and len(records.blueprints[0].turns) == 2
    first = "\n".join(turn.text for turns in actor.asked[:3] for turn in turns)
    last = actor.asked[-1][0].text
    assert "Read the list." not in first and INSTRUCTION not in last and "Read the list." in last


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        ('Say "That is settled, F111 is yours." and stop.', "instruction_leaks"),
        ("Take F111 and book it.", "instruction_leaks"),
        ("Close with: that is settled.", "instruction_leaks"),
    ],
)
def test_an_instruction_that_leaks_the_line_or_a_tools_value_is_rejected(
    base: Task, renderer: Any, instruction: str, reason: str
) -> None:
    records = directed(base, renderer, [outline(goal(instruction=instruction))], actor=tool_actor(player))
    assert records.tasks == [] and records.reasons == [reason]


def test_an_actor_that_ignores_its_instruction_is_caught_by_the_goal_check(base: Task, renderer: Any) -> None:
    idle = tool_actor(lambda turns, tools: "All is well, nothing to do.")
    records = directed(base, renderer, [outline(goal())], actor=idle)
    assert records.tasks == [] and records.reasons == ["goal_unmet"]
    assert "Not yet, try 2" in idle.asked[1][0].text

    def wrong(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | str:
        other = "F773" if results(turns) else ""
        return calls("book", canonical.dumps({"flight": other})) if other else player(turns, tools)

    assert directed(base, renderer, [outline(goal())], actor=tool_actor(wrong)).reasons == ["other_state"]


def test_a_premature_line_is_cut_and_in_no_record(base: Task, renderer: Any) -> None:
    spoken = iter(["One moment, I think about it."])

    def slow(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | str:
        return next(spoken, None) or player(turns, tools)

    records = directed(base, renderer, [outline(goal())], actor=tool_actor(slow))
    [turn] = records.blueprints[0].turns
    assert turn.direction is not None and (turn.direction.cut, turn.direction.lines) == (1, 4)
    assert "moment" not in "".join(t.text for t in records.trajectories[0].turns)


@pytest.mark.parametrize(
    ("replies", "reason"),
    [
        (["no json at all"], "invalid_reply"),
        (['{"goals": []}'], "no_outline"),
        ([outline(goal(calls=[{"tool": "teleport"}]))], "invalid_reply"),
        ([outline(goal(calls=[{"tool": "book", "arguments": {"flight": "F000"}}]))], "outline_ungrounded"),
        ([outline(goal(calls=[]))], "outline_unchecked"),
    ],
)
def test_an_outline_that_is_none_becomes_a_verdict(
    base: Task, renderer: Any, replies: list[str], reason: str
) -> None:
    records = directed(base, renderer, replies)
    assert records.tasks == [] and records.reasons == [reason]


def test_the_scripted_actor_plays_a_chats_outline(base: Task, renderer: Any) -> None:
    records = directed(base, renderer, [outline(goal())])
    [turn] = records.blueprints[0].turns
    assert turn.direction is not None and turn.direction.actor == "script"
    [source] = turn.calls[1].sources
    assert (source.argument, source.provenance) == ("flight", "output") and source.of.startswith("flights#1")


def test_a_contradiction_goes_to_the_replanner(base: Task, renderer: Any) -> None:
    instead = goal(intent="Then take F219 for me.", calls=[{"tool": "book", "arguments": {"flight": "F219"}}])

    def careful(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | str:
        seen = results(turns)
        if "F219" in turns[-1].text or any("booked" in text for text in seen):
            return "Done, F219." if seen else calls("book", canonical.dumps({"flight": "F219"}))
        return "REFUSE: there is none" if seen == ["none"] else player(turns, tools)

    for seed in range(16):
        replanner = chat(lambda text: outline(instead), name="replanner")
        records = made(
            "travel_desk",
            [base],
            renderer,
            chats={
                "director": chat([outline(goal())], name="director"),
                "replanner": replanner,
                "actor": tool_actor(careful),
            },
            start="task",
            faults=1.0,
            seed=seed,
        )
        if replanner.asked:
            break
    first, second = records.blueprints[0].turns
    assert first.expects is Expects.REFUSE and first.direction is not None
    assert first.direction.contradiction == "empty"
    assert second.direction is not None and second.direction.replanned
    assert [call.name for call in second.calls] == ["book"] and second.text_by == "replanner"
    [told] = [turns[-1].text for turns in replanner.asked]
    assert "answered 'none'" in told and "REFUSE: there is none" in told
    assert all(trajectory.success for trajectory in records.trajectories)


def test_a_goal_that_no_program_can_tell_is_checked_by_a_chat(base: Task, renderer: Any) -> None:
    talk = goal(calls=[], intent="Which of both is the better one?", instruction="Weigh them up.")
    actor = tool_actor(
        lambda turns, tools: (
            player(turns, tools) if "get me" in turns[-1].text or results(turns) else "The direct one."
        )
    )
    word = {"completed": True, "reason": "it was weighed up"}
    for completed, kept in ((True, 1), (False, 0)):
        checker = chat(lambda text, c=completed: canonical.dumps(word | {"completed": c}), name="checker")
        records = directed(base, renderer, [outline(goal(), talk)], actor=actor, goal_checker=checker)
        assert len(records.tasks) == kept
        if kept:
            direction = records.blueprints[0].turns[1].direction
            assert direction is not None and direction.check == "judge"
        else:
            assert records.reasons == ["goal_unmet"]


def simulator(*texts: str) -> ScriptedChat:
    return chat([canonical.dumps({"text": text}) for text in texts], name="customer")


def test_a_simulated_user_is_checked_and_the_critic_picks(base: Task, renderer: Any) -> None:
    good = [
        "I need to get from Paris to Miami on May 14, cheaply.",
        "Paris to Miami, May 14, the lowest price please.",
    ]
    bad = ["Call profile, then Paris to Miami on May 14.", "Get me F111 from Paris to Miami on May 14."]
    user = simulator(bad[0], good[0], bad[1], good[1])
    critic = chat(['{"best": 1, "reason": "reads like a person"}'], name="critic")
    records = directed(base, renderer, [outline(goal())], user_simulator=user, reply_critic=critic)
    [turn] = records.blueprints[0].turns
    assert turn.text == good[1] and turn.text_by == "customer"
    assert len(user.asked) == 4 and "names the tool" in user.asked[1][-1].text
    shown = critic.asked[0][-1].text
    assert all(text in shown for text in good) and not any(text in shown for text in bad)
    assert "flights:" not in "".join(t.text for t in user.asked[0]), "the user knows no tools"


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["Take me to Miami.", "Go.", "Paris please.", "Fly me."], "user_reply"),
        (["Paris to Miami on May 14, and a room in Tokyo for 3000 nights."] * 4, "user_reply"),
        ([""], "invalid_reply"),
    ],
)
def test_a_user_reply_that_will_not_do_is_no_turn(
    base: Task, renderer: Any, texts: list[str], reason: str
) -> None:
    records = directed(base, renderer, [outline(goal())], user_simulator=simulator(*texts))
    assert records.tasks == [] and records.reasons == [reason]


def test_a_critic_that_picks_nobody_is_a_verdict(base: Task, renderer: Any) -> None:
    user = simulator(*(f"Paris to Miami on May 14, cheap please{'!' * n}" for n in range(4)))
    critic = chat(['{"best": 9, "reason": "none"}'], name="critic")
    records = directed(base, renderer, [outline(goal())], user_simulator=user, reply_critic=critic)
    assert records.reasons == ["invalid_reply"]


def approving(name: str, approve: bool = True) -> ScriptedChat:
    return chat(lambda text: canonical.dumps({"approve": approve, "reason": f"{name} says so"}), name=name)


def test_a_committee_approves_by_majority_and_the_record_names_it(base: Task, renderer: Any) -> None:
    judges = {"judge_1": approving("a"), "judge_2": approving("b"), "judge_3": approving("c", False)}
    records = directed(base, renderer, [outline(goal())], strict=True, **judges)
    [blueprint] = records.blueprints
    assert {(r.criterion, r.by, r.approved, r.votes) for r in blueprint.reviews} == {
        (criterion, "a+b+c", 2, 3)
        for criterion in ("correctness", "completeness", "satisfaction", "creativity")
    }
    assert "strict" in records.tasks[0].tags
    shown = judges["judge_1"].asked[0][-1].text
    assert INTENT in shown and "+ bookings[]" in shown and "F111" in shown, "the difference is judged"


def test_a_committee_of_one_raises(base: Task, renderer: Any) -> None:
    with pytest.raises(ConfigError, match="at least 2 judges"):
        directed(base, renderer, [outline(goal())], strict=True, judge_1=approving("a"))
    with pytest.raises(ConfigError, match="different names"):
        directed(base, renderer, [], strict=True, judge_1=approving("a"), judge_2=approving("a"))


def test_a_judge_that_fails_has_not_approved(base: Task, renderer: Any) -> None:
    broken = chat(lambda text: "I would rather not say", name="b")
    records = directed(
        base, renderer, [outline(goal())], strict=True, rounds=0, judge_1=approving("a"), judge_2=broken
    )
    assert records.tasks == [] and records.reasons == ["not_approved"]
    assert "gave no verdict" in records.verdicts[0].detail


def test_feedback_goes_back_to_the_director(base: Task, renderer: Any) -> None:
    asked: list[str] = []

    def strict_judge(text: str) -> str:
        return canonical.dumps({"approve": "bookings[]" in text, "reason": "nothing was booked"})

    def director(text: str) -> str:
        asked.append(text)
        if "turned down" in text:
            return outline(goal())
        only = goal(calls=goal()["calls"][:1], intent="Show me flights from Paris to Miami on May 14.")
        return outline(only | {"intent": "Which one leaves Paris for Miami on May 14?"})

    judges = {"judge_1": chat(strict_judge, name="a"), "judge_2": chat(strict_judge, name="b")}
    records = directed(base, renderer, director, strict=True, rounds=2, **judges)
    assert len(asked) == 2 and len(records.tasks) == 1, records.verdicts
    assert "turned down" in asked[1]
    hopeless = chat(lambda text: outline(goal(calls=[])), name="director")
    records = directed(base, renderer, hopeless, strict=True, rounds=2)
    assert len(hopeless.asked) == 3 and records.reasons == ["outline_unchecked"]


def test_chat_actors_of_one_outline_are_edited_and_judged_by_the_end_state(base: Task, renderer: Any) -> None:
    asked: list[str] = []

    def two_minds(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | str:
        asked.append(turns[0].text)
        if "look twice" in turns[0].text:
            return "It cannot be done."
        return player(turns, tools)

    records = directed(base, renderer, [outline(goal())], actor=tool_actor(two_minds), actors=3)
    first, *others = sorted(records.trajectories, key=lambda t: t.rollout_index)
    assert [t.rollout_index for t in others] == [2] and records.reasons == ["other_end_state"]
    [third] = others
    assert (
        third.success
        and third.policy.name == "player"
        and LABEL in third.labels
        and REPEATED not in third.labels
    )
    assert all(segment.origin is Origin.EDITED and not segment.logprobs for segment in third.segments)
    assert INSTRUCTION not in "".join(turn.text for turn in third.turns)
    assert first.labels == () and any(INSTRUCTION in text for text in asked)


def test_an_actor_that_repeats_its_stage_direction_is_asked_again(base: Task, renderer: Any) -> None:
    echo = calls("flights", canonical.dumps(ROUTE | {"day": INSTRUCTION}))
    lines: list[Turn | str] = [f"{INSTRUCTION} Here I go.", echo]
    spoken = iter(lines)

    def parrot(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | str:
        return next(spoken, None) or player(turns, tools)

    records = directed(base, renderer, [outline(goal())], actor=tool_actor(parrot))
    [turn] = records.blueprints[0].turns
    assert turn.direction is not None and (turn.direction.cut, turn.reply) == (2, "That is settled.")
    assert INSTRUCTION not in records.trajectories[0].model_dump_json()


def test_a_further_actor_that_repeats_its_stage_direction_is_not_kept(base: Task, renderer: Any) -> None:
    def parrot(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> Turn | str:
        said = player(turns, tools)
        return f"{said} {INSTRUCTION}" if "look twice" in turns[0].text and isinstance(said, str) else said

    records = directed(base, renderer, [outline(goal())], actor=tool_actor(parrot), actors=2)
    assert len(records.trajectories) == 1 and records.reasons == [REPEATED]
    assert INSTRUCTION not in records.trajectories[0].model_dump_json()


def test_a_resumed_plan_pays_for_no_reply_twice(base: Task, renderer: Any, tmp_path: Path) -> None:
    director = chat([outline(goal())], name="director", cache=tmp_path)
    first = directed(base, renderer, director)
    second = directed(base, renderer, director)
    assert len(director.asked) == 1
    assert [t.task_id for t in first.tasks] == [t.task_id for t in second.tasks]
