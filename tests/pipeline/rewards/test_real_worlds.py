"""Rewards over the worlds that ship: gold gets full marks, doing nothing gets none."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import pytest

from data.messages import Turn, assistant
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.errors import EnvironmentFailure
from pipeline.rewards import build_reward
from pipeline.rewards.gold import demonstrated_calls, played_calls

WORLDS: dict[str, list[dict[str, Any]]] = {
    "counter": [{"name": "call_match"}, {"name": "call_f1"}, {"name": "end_state", "state": "value"}],
    "travel_desk": [{"name": "call_match"}, {"name": "end_state"}, {"name": "tool_cost", "weight": 0.0}],
    "search_desk": [{"name": "search", "cost": 0.0}, {"name": "search", "measure": "f1", "cost": 0.0}],
    "sql_desk": [{"name": "sql"}],
}


class Null:
    """Ends the episode at once."""

    def next_turn(self, turns: list[Turn]) -> Turn | None:
        """One empty turn."""
        return None if turns and turns[-1].role == "assistant" else assistant("")


async def _episodes(name: str) -> tuple[list[Task], list[Trajectory], list[Trajectory], dict[str, Any]]:
    environment = load_environment(name)
    tasks = list(islice(environment.tasks("train"), 3))
    gold = [await play(environment, task, environment.gold(task)) for task in tasks]
    null = [await play(environment, task, Null()) for task in tasks]
    return tasks, gold, null, await played_calls(environment, tasks)


@pytest.mark.parametrize("name", WORLDS)
def test_gold_gets_full_marks_and_nothing_gets_none(name: str) -> None:
    tasks, gold, null, calls = asyncio.run(_episodes(name))
    for row in WORLDS[name]:
        reward = build_reward(row, gold=calls)
        for task, right, nothing in zip(tasks, gold, null, strict=True):
            (full,), (none,) = (asyncio.run(reward.score(task, [item])) for item in (right, nothing))
            assert full.total == pytest.approx(1.0) and full.success, (row, task.prompt[-1].text)
            assert none.total is not None and none.total <= 0.0, (row, task.prompt[-1].text)
    graded = build_reward({"name": "call_graded"}, gold=calls)
    for task, right in zip(tasks, gold, strict=True):
        assert asyncio.run(graded.score(task, [right]))[0].total in (4.0, 1.0)


def test_wrong_gold_is_never_compared_with() -> None:
    environment = load_environment("counter")
    tasks = list(islice(environment.tasks("train"), 1))
    environment.gold = lambda task: Null()  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(EnvironmentFailure, match="does not score 1 in counter"):
        asyncio.run(played_calls(environment, tasks))
    assert asyncio.run(played_calls(environment, tasks, strict=False)) == {}


def test_the_shortest_demonstration_is_gold() -> None:
    tasks, gold, *_ = asyncio.run(_episodes("counter"))
    twice = gold[0].model_copy(update={"turns": (*gold[0].turns, *gold[0].turns)})
    rows = [item.model_copy(update={"synthesizer": "demonstration"}) for item in (twice, gold[0])]
    found = demonstrated_calls([*rows, gold[1]])
    assert list(found) == [tasks[0].task_id] and len(found[tasks[0].task_id]) in (1, 2)
