"""Tasks whose tools have other names: same world, same gold, same verdict, and the old names are gone."""

from __future__ import annotations

import asyncio
import random
from itertools import islice
from typing import Any

import pytest

from data import leaks
from data.messages import ToolStatus
from data.tasks import Task
from pipeline.environments.base import Session
from pipeline.environments.blueprint_session import BlueprintEnvironment
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.environments.renamed import can_rename, is_renamed, read_renaming, renamed_task


def renamed(environment: BlueprintEnvironment, task: Task) -> Task:
    async def tools() -> Any:
        session = await environment.open(task.model_copy(update={"tools": None}))
        try:
            return session.tools
        finally:
            await session.close()

    return renamed_task(task, asyncio.run(tools()), rng=random.Random(1), synthesizer="test")


@pytest.mark.parametrize("name", ["travel_desk", "counter"])
def test_gold_scores_under_other_names_and_the_old_ones_are_no_tools(name: str) -> None:
    environment = load_environment(name)
    for task in islice(environment.tasks("train"), 8):
        other = renamed(environment, task)
        assert is_renamed(other) and not can_rename(other) and can_rename(task)
        assert other.task_id != task.task_id and other.parents == (task.task_id,)
        assert other.prompt == task.prompt and other.tags == task.tags
        base, renaming = read_renaming(other)
        assert base.private_value() == task.private_value() and base.tools == task.tools
        names = {each.own: each.shown for each in renaming.names}
        assert len(set(names.values())) == len(names) and not set(names) & set(names.values())
        gold = asyncio.run(play(environment, task, environment.gold(task)))
        played = asyncio.run(play(environment, other, environment.gold(other)))
        assert played.success
        made = [call.name for turn in played.turns for call in turn.tool_calls]
        assert made == [names[call.name] for turn in gold.turns for call in turn.tool_calls]
        wrong = asyncio.run(play(environment, other, environment.gold(task)))
        assert not wrong.success or not made
        leaks.check_trajectory(played, other)


def test_a_renamed_session_answers_to_shown_names_and_keeps_its_snapshots() -> None:
    environment = load_environment("travel_desk")
    task = next(each for each in environment.tasks("train") if "flights" in (each.tools or ()))
    other = renamed(environment, task)
    _, renaming = read_renaming(other)
    shown = {each.own: each.shown for each in renaming.names}

    async def run() -> None:
        session: Session = await environment.open(other)
        assert [spec.name for spec in session.tools] == list(other.tools or ())
        refused = await session.call("flights", {"src": "A", "dst": "B", "day": "C"}, "one")
        assert refused.status is ToolStatus.TOOL_ERROR and other.tools is not None
        assert f"no tool flights; tools: {other.tools[0]}" in refused.text
        kept = session.snapshot()
        found = await session.call(shown["flights"], {"src": "A", "dst": "B", "day": "C"}, "two")
        assert (found.name, found.text, found.status) == (shown["flights"], "none", ToolStatus.OK)
        session.restore(kept)
        assert session.end_state()["member"] == task.state_value()["member"]  # type: ignore[attr-defined]
        await session.close()

    asyncio.run(run())
