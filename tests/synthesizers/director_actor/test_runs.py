"""Director and actor as a stage of a run: resumable, paid once, and what its teachers make of hints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.store import Store
from data.trajectories import Origin
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.blueprint import is_blueprint
from synthesizers.hints import MARK
from tests.flows.lab import digests, recipe, trajsmith, write_recipe
from tests.pipeline.rollout_world import Speaker, call_text
from tests.synthesizers.director_actor.lab import bases, made
from tests.tiny import make_tiny_tokenizer

ASKED: list[str] = []


def user_chat() -> ScriptedChat:
    """A simulated user that repeats its intent."""

    def say(turns: Any, tools: Any) -> str:
        ASKED.append(turns[-1].text)
        intent = turns[-1].text.split("What you want now: ", 1)[1].splitlines()[0]
        return canonical.dumps({"text": intent})

    return ScriptedChat(say, name="customer")


def the_recipe(folder: Path, **options: Any) -> Path:
    model = make_tiny_tokenizer(folder / "model")
    value = recipe(model, environment={"name": "travel_desk"})
    settings = {"gold_tasks": 8, "faults": 0.3, "recombine": 0.0, "candidates": 1} | options
    value["synth"] = {"directed": {"synthesizer": "director_actor", "tasks": 3, "options": settings}}
    return write_recipe(folder, value)


def test_a_run_repeats_and_pays_for_no_reply_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chats = {"user_simulator": f"{__name__}:user_chat"}
    path = the_recipe(tmp_path, chats=chats)
    ASKED.clear()
    assert trajsmith("synth", path, "--runs", "first").code == 0
    asked = len(ASKED)
    before = digests(Path("first/small"))
    assert asked and len(set(ASKED)) == asked
    assert trajsmith("synth", path, "--runs", "first").code == 0
    assert digests(Path("first/small")) == before and len(ASKED) == asked
    assert trajsmith("synth", path, "--runs", "second").code == 0
    assert digests(Path("second/small")) == before
    with Store.open(Path("first/small")) as store:
        made = [task for task in store.tasks() if is_blueprint(task)]
        assert made and all(trajectory.success for trajectory in store.trajectories())
        assert {trajectory.task_id for trajectory in store.trajectories()} == {task.task_id for task in made}


def test_the_hinted_policy_leaves_no_instruction(renderer: Any) -> None:
    seen: list[str] = []

    def speech(prompt: list[int], _: Any) -> str:
        seen.append(renderer.decode(prompt))
        return call_text("book", flight="F393") if len(seen) == 1 else "That is done."

    base = bases("travel_desk", 1)
    records = made(
        "travel_desk", base, renderer, engine=Speaker(renderer, speech), teacher="hinted", k=1, max_goals=1
    )
    assert MARK in seen[0] and "say what came of it" in seen[0]
    [trajectory] = records.trajectories
    assert "hinted" in trajectory.labels and trajectory.task_id == records.tasks[0].task_id
    said = trajectory.model_dump_json()
    assert MARK not in said and "say what came of it" not in said
    assert all(segment.origin is Origin.EDITED for segment in trajectory.segments)


def test_the_policys_own_engine_as_actor(renderer: Any) -> None:
    spoken = iter([call_text("book", flight="F393"), "Booked for you."])
    engine = Speaker(renderer, lambda prompt, _: next(spoken))
    base = bases("travel_desk", 1)
    chats = {"actor": "policy"}
    records = made("travel_desk", base, renderer, engine=engine, chats=chats, max_goals=1, start="task")
    [turn] = records.blueprints[0].turns
    assert turn.direction is not None and turn.direction.actor == engine.name
    assert turn.reply == "Booked for you." and [call.name for call in turn.calls] == ["book"]
    assert records.trajectories[0].success
