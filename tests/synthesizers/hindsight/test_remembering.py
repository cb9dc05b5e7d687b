"""Which entries a memory is made of: one success a template, the same bytes in any order, no mixing up."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from pipeline.environments.counter import CounterEnvironment
from pipeline.environments.gold import call
from pipeline.memory.entries import Entry, Kind
from pipeline.memory.stored import load_memory
from synthesizers.hindsight.remembering import Remembered, remember_all
from tests.synthesizers.hindsight.lab import SEARCH, desk, episode, looked_back, paris_to_miami


def entry(name: str, goal: str, workflow: str) -> Entry:
    return Entry(goal=goal, workflow=workflow, task_id=f"task of {name}", trajectory_id=name, split="train")


def remembered(name: str, template: str, *, own: bool = True, workflow: str = "add 1") -> Remembered:
    """An episode that reached what its name says, and, with `own`, was a success at its template's goal."""
    mine = entry(name, f"Do {template}", workflow) if own else None
    return Remembered(name, template, (entry(name, f"Reach {name}", workflow),), mine)


EPISODES = (
    remembered("e1", "count", own=False),
    remembered("e2", "count", workflow="add 1 twice"),
    remembered("e3", "count", workflow="add"),
    remembered("e4", "sing"),
)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_a_memory_is_the_same_bytes_whatever_the_order(order: tuple[int, ...], tmp_path: Path) -> None:
    """AWM's script pairs files in the order the disk lists them with tasks by position."""
    made = {}
    for name, places in (("sorted", range(4)), ("shuffled", order)):
        remember_all(
            (EPISODES[place] for place in places),
            kinds=list(Kind),
            folder=tmp_path / name,
            environment=CounterEnvironment(),
        )
        made[name] = [(tmp_path / name / f"{kind}.json").read_bytes() for kind in Kind]
    assert made["sorted"] == made["shuffled"]
    for kind in Kind:
        held = load_memory(tmp_path / "shuffled", kind, CounterEnvironment()).entries
        assert all(each.task_id == f"task of {each.trajectory_id}" for each in held)
    goals = {kind: load_memory(tmp_path / "sorted", kind, CounterEnvironment()).entries for kind in Kind}
    assert [each.goal for each in goals[Kind.ECHO]] == ["Reach e1", "Reach e2", "Reach e3", "Reach e4"]
    for kind in (Kind.AWM, Kind.AWM_SHORTEST):
        taken = [(each.trajectory_id, each.workflow) for each in goals[kind]]
        assert taken == [("e2", "add 1 twice"), ("e4", "add 1")], "one a template, the first by its id"


def test_of_two_successes_at_one_template_one_is_remembered(tmp_path: Path, renderer: Any) -> None:
    task = paris_to_miami()
    rows = [
        episode(task, SEARCH, *middle, call("book", flight="F111"), index=index, reward=1.0)
        for index, middle in enumerate([(), (call("profile"),)])
    ]
    for number, given in enumerate(itertools.permutations(rows)):
        root = tmp_path / str(number)
        looked_back(root, renderer, [task], given, memory=("awm",))
        [only] = load_memory(root / "memory", Kind.AWM, desk()).entries
        assert only.trajectory_id == min(row.trajectory_id for row in rows)
        assert only.task_id == task.task_id
