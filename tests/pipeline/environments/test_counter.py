"""The counter: its tasks, its splits, what scores and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from data.tasks import Budget
from pipeline.environments.counter import load, make_task
from pipeline.environments.play import play
from pipeline.errors import ConfigError
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.scripts import listed


@pytest.mark.parametrize(
    ("amounts", "played", "total"),
    [
        ([3], [3], 1.0),
        ([3], [], 0.0),
        ([3], [4], 0.0),
        ([3], [1, 2], 0.0),
        ([3, 2], [3, 2], 1.0),
        ([3, 2], [2, 3], 0.0),
        ([3, 2], [5], 0.0),
        ([3], [3, 1], 0.0),
    ],
)
def test_only_the_amounts_asked_for_score(
    run: Run, amounts: list[int], played: list[int], total: float
) -> None:
    agent = listed(*[("add", {"amount": amount}) for amount in played], "Done.")
    trajectory = run(play(load(), make_task("train", 12, amounts), agent))
    assert trajectory.reward.total == total


def test_gold_solves_and_closes(run: Run) -> None:
    environment = load()
    for task in [make_task("train", 10, [9]), make_task("dev", 18, [1, 9])]:
        assert run(play(environment, task, environment.gold(task))).reward.total == 1.0
    assert environment.num_open == 0


def test_out_of_range_amounts_change_nothing(run: Run) -> None:
    agent = listed(("add", {"amount": 10}), ("add", {"amount": True}), ("add", {"amount": 3}), "Done.")
    assert run(play(load(), make_task("train", 12, [3]), agent)).reward.total == 1.0


def test_a_slow_server_has_the_usual_time() -> None:
    assert make_task("train", 10, [9]).budget.max_seconds == Budget().max_seconds


def test_splits_are_distinct_and_large() -> None:
    environment = load()
    tasks = {split: list(environment.tasks(split)) for split in environment.splits}
    ids = [task.task_id for split in tasks.values() for task in split]
    assert len(tasks["train"]) >= 1000
    assert len(ids) == len(set(ids))
    prompts = {split: {task.prompt[0].text for task in split_tasks} for split, split_tasks in tasks.items()}
    assert not prompts["train"] & (prompts["dev"] | prompts["heldout"])
    states = {split: {task.state for task in split_tasks} for split, split_tasks in tasks.items()}
    assert not states["train"] & states["heldout"]


def test_unknown_split_names_the_splits() -> None:
    with pytest.raises(ConfigError, match=r"no split 'test'; it has train, dev, heldout"):
        next(load().tasks("test"))


@pytest.mark.parametrize("options", [{"steps": [2, 3]}, {"steps": []}, {"digits": 1}, {"digits": 6}])
def test_options_without_tasks_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"counter: steps are of \[1, 2\] and digits 2 to 5, got"):
        load(**options)
