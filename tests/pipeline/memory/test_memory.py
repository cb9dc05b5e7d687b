"""Workflow memory: the update rule, what is one goal, what is shown, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data.messages import system, user
from data.tasks import Task
from pipeline.environments.counter import CounterEnvironment
from pipeline.errors import ConfigError
from pipeline.memory.entries import Entry, Kind, Memory, goal_key, is_shorter, plain
from pipeline.memory.showing import HEADING, ShownMemory
from pipeline.memory.stored import load_memory, save_memory
from pipeline.rollout_settings import RolloutSettings


def entry(goal: str, workflow: str, **changes: Any) -> Entry:
    values: dict[str, Any] = {"task_id": "t", "trajectory_id": workflow[:8], "split": "train"} | changes
    return Entry(goal=goal, workflow=workflow, **values)


def memory(kind: Kind = Kind.ECHO, *entries: Entry, split: str = "train") -> Memory:
    held = Memory(kind=kind, environment="counter", split=split)
    for each in entries:
        held = held.remember(each)
    return held


def test_the_shorter_description_is_kept() -> None:
    """The raw rule of the paper's code: 120 characters stored, 90 replace it, 130 do not."""
    assert is_shorter("x" * 90, "x" * 120) and not is_shorter("x" * 130, "x" * 120)
    assert not is_shorter("x" * 120, "y" * 120)
    held = memory(Kind.ECHO, entry("Count to 3", "x" * 120))
    assert held.remember(entry("Count to 3", "y" * 90)).entries[0].workflow == "y" * 90
    assert held.remember(entry("Count to 3", "y" * 130)) == held


def test_a_goal_in_other_words_of_politeness_is_one_goal() -> None:
    """ECHO's code keys by the exact string, so that "the" makes two entries of one goal."""
    held = memory(
        Kind.ECHO,
        entry("Pick up the red key", "go to the red key; pick up"),
        entry("pick up red key", "pick up"),
    )
    assert [each.workflow for each in held.entries] == ["pick up"]
    same = ("Could you pick up the red key?", "Please pick up a red key.", "I'd like you to pick up red keys")
    assert {goal_key(goal) for goal in same} == {goal_key("Pick up the red key")}
    assert goal_key("Move A to B") != goal_key("Move B to A")
    assert goal_key("Pick up the red key") != goal_key("Pick up the blue key")
    assert plain("Thanks. Now could you pick up the key, please?") == "Pick up the key"


def test_kinds_differ_by_who_wins() -> None:
    first, longer = entry("Count", "add 1"), entry("Count", "add 1, then add 0")
    assert memory(Kind.AWM, first, longer).entries == (longer,)
    assert memory(Kind.AWM_SHORTEST, first, longer).entries == (first,)


@pytest.mark.parametrize(("goal", "workflow"), [("", "add 1"), ("Count", " "), (" ", "")])
def test_an_empty_goal_or_workflow_abstains(goal: str, workflow: str) -> None:
    assert memory(Kind.ECHO, entry(goal, workflow)).entries == ()


def test_only_the_training_split_is_remembered(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="comes from split 'heldout'"):
        memory(Kind.ECHO, entry("Count", "add 1", split="heldout"))
    folder = tmp_path / "memory"
    path = save_memory(folder, memory(Kind.ECHO, entry("Count", "add 1")))
    assert load_memory(folder, Kind.ECHO, CounterEnvironment()).entries[0].goal == "Count"
    save_memory(folder, memory(Kind.ECHO, entry("Count", "add 1", split="heldout"), split="heldout"))
    with pytest.raises(ConfigError, match="learned on split 'heldout'; allowed: 'train'"):
        load_memory(path, Kind.ECHO, CounterEnvironment())
    text = path.read_text().replace('"split": "heldout"\n  }', '"split": "train"\n  }')
    path.write_text(text)
    with pytest.raises(ConfigError, match="a memory holds what was learned on 'heldout' only"):
        load_memory(path, Kind.ECHO, CounterEnvironment())
    with pytest.raises(ConfigError, match=r"awm\.json does not exist"):
        load_memory(folder, Kind.AWM, CounterEnvironment())


def test_a_memory_of_another_environment_or_kind_is_refused(tmp_path: Path) -> None:
    path = save_memory(tmp_path, memory(Kind.ECHO).model_copy(update={"environment": "travel_desk"}))
    with pytest.raises(ConfigError, match="learned in travel_desk, and the environment is counter"):
        load_memory(path, Kind.ECHO, CounterEnvironment())
    with pytest.raises(ConfigError, match="of kind echo, not awm"):
        load_memory(path, Kind.AWM, CounterEnvironment())
    path.write_text("{}")
    with pytest.raises(ConfigError, match="cannot be used"):
        load_memory(path, Kind.ECHO, CounterEnvironment())


def task(request: str, **changes: Any) -> Task:
    made = next(CounterEnvironment().tasks("heldout"))
    prompt = (system("Count."), user(request))
    return Task.model_validate(
        made.model_copy(update={"task_id": "", "prompt": prompt} | changes).model_dump()
    )


def test_the_entries_that_fit_best_are_shown_behind_the_system_prompt() -> None:
    held = memory(
        Kind.ECHO,
        entry("Book a flight to {city}", "flights; book"),
        entry("Book a flight", "book it"),
        entry("Sing a song", "sing"),
        entry("Book a flight for my cat", "cats", tools=("no_such_tool",)),
    )
    asked = task("Please book a flight to Rome.", tools=("add",))
    turns = ShownMemory(held, max_entries=2).prompt(asked)
    assert len(turns) == len(asked.prompt) and turns[1:] == asked.prompt[1:]
    told = turns[0].text.removeprefix(asked.prompt[0].text)
    assert told == f"\n\n{HEADING}\n- Book a flight to {{city}}: flights; book\n- Book a flight: book it"
    assert ShownMemory(held).prompt(task("Count my words")) == task("Count my words").prompt


def test_a_request_without_system_prompt_gets_the_workflows_in_front() -> None:
    asked = task("Sing a song")
    bare = Task.model_validate(
        asked.model_copy(update={"task_id": "", "prompt": asked.prompt[-1:]}).model_dump()
    )
    shown = ShownMemory(memory(Kind.ECHO, entry("Sing a song", "sing"))).prompt(bare)
    assert [turn.text for turn in shown] == [f"{HEADING}\n- Sing a song: sing\n\nSing a song"]


def test_the_workflow_of_the_very_task_is_never_shown() -> None:
    asked = task("Sing a song")
    held = memory(Kind.ECHO, entry("Sing a song", "sing", task_id=asked.task_id))
    assert ShownMemory(held).prompt(asked) == asked.prompt


def test_the_harness_digest_names_the_memory() -> None:
    plain_digest = RolloutSettings().digest
    one = ShownMemory(memory(Kind.ECHO, entry("Sing a song", "sing")))
    other = ShownMemory(memory(Kind.ECHO, entry("Sing a song", "hum")))
    fewer = ShownMemory(one.memory, max_entries=1)
    digests = {RolloutSettings(memory=shown).digest for shown in (one, other, fewer)}
    assert len(digests | {plain_digest}) == 4
    with pytest.raises(ConfigError, match="at least 1"):
        ShownMemory(one.memory, max_entries=0)
