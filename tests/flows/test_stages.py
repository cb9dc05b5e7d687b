"""Choices of the stages that decide what is trained on and what is compared with what."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from data.store import Store
from data.tasks import Task
from data.trajectories import Policy, Termination, Trajectory
from flows.commands.make import _show
from flows.stages.evaluate import Evaluation, compare, summarise
from flows.stages.progress import Meter
from flows.stages.prove_table import Cell, Key, _compare
from flows.stages.recipe import EvalSection, GrpoSection
from flows.stages.synthesize import synthesize
from flows.stages.train import grpo_tasks, latest_model
from pipeline.environments.registry import load_environment
from tests import samples


def _rollout(task_id: str, *, index: int, weights: str, success: bool) -> Trajectory:
    made = samples.trajectory(reward=float(success))
    changes = {
        "trajectory_id": f"{task_id}-{weights}-{index}",
        "task_id": task_id,
        "synthesizer": "rejection_sampling",
        "policy": Policy(name="p", weights=weights),
    }
    return made.model_copy(update=changes)


def test_only_the_weights_training_starts_from_measure_a_task(tmp_path: Path) -> None:
    section = GrpoSection(tasks=3)
    tasks = grpo_tasks_of(tmp_path / "none", [], section)
    assert len(tasks) == 3
    first, second, _ = (task.task_id for task in tasks)
    rows = [
        _rollout(first, index=0, weights="base", success=False),
        _rollout(first, index=1, weights="sft", success=True),
        _rollout(second, index=0, weights="sft", success=False),
        _rollout(second, index=1, weights="sft", success=True),
    ]
    assert [task.task_id for task in grpo_tasks_of(tmp_path / "some", rows, section)] == [second]


def grpo_tasks_of(root: Path, rows: list[Trajectory], section: GrpoSection) -> list[Task]:
    environment = load_environment("counter")
    with Store.create_or_open(root, {"name": "x"}) as store:
        for row in rows:
            store.append(row)
        return list(grpo_tasks(store, section, environment, weights="sft"))


def test_the_latest_model_is_the_one_that_finished_last(tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert latest_model(tmp_path, base) == base
    for stage, moment in (("grpo", 1_000), ("sft", 2_000)):
        folder = tmp_path / "models" / stage
        folder.mkdir(parents=True)
        (folder / "training.json").write_text("{}")
        os.utime(folder / "training.json", (moment, moment))
    assert latest_model(tmp_path, base) == tmp_path / "models" / "sft"


def test_several_episodes_a_task_tell_how_far_the_policy_can_be_relied_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three tasks of 4, 2 and 0 successes in 4 episodes, and one of which infrastructure left 1."""
    rows = [
        samples.trajectory(task=f"t{n}", index=i, reward=float(i < solved))
        for n, (solved, played) in enumerate([(4, 4), (2, 4), (0, 4), (1, 1)])
        for i in range(played)
    ]
    found = summarise(rows, name="sft", section=EvalSection(tasks=4, rollouts=4, temperature=1.0))
    pairs = [(each.k, round(each.every, 6), round(each.any, 6), each.tasks) for each in found.attempts]
    assert pairs == [
        (2, round((1 + 1 / 6) / 3, 6), round((1 + 5 / 6) / 3, 6), 3),
        (3, round(1 / 3, 6), round(2 / 3, 6), 3),
        (4, round(1 / 3, 6), round(2 / 3, 6), 3),
    ]
    assert found.row().note == found.reliability == "pass^4 33%, pass@4 67% (3 tasks)"
    _show(found, as_json=False)
    assert capsys.readouterr().out.endswith(", valid calls -, pass^4 33%, pass@4 67% (3 tasks)\n")
    once = summarise(rows[::4], name="sft", section=EvalSection(tasks=4))
    assert once.attempts == () and once.row().note == ""


class Made:
    """A synthesizer whose episodes are made already."""

    def __init__(self, *rows: Trajectory) -> None:
        self.rows = rows

    async def synthesize(self, tasks: object, *, done: object, failed: object) -> AsyncIterator[Trajectory]:
        """Those episodes."""
        for row in self.rows:
            yield row


def test_a_straggler_is_left_behind_where_its_group_has_a_reward(tmp_path: Path) -> None:
    """Also one that another process made; another task's rewards do not count."""

    def cut(task: str, index: int) -> Trajectory:
        return samples.trajectory(task=task, index=index, reward=None, termination=Termination.CANCELLED)

    def made(*rows: Trajectory) -> Meter:
        with Store.create_or_open(tmp_path, {"name": "x"}) as store:
            return asyncio.run(synthesize(store, Made(*rows), [], planned=9))

    alone = cut("alone", 0)
    first = made(samples.trajectory(task="a"), cut("a", 1), alone)
    assert (first.stragglers, list(first.unfinished.values())) == (1, [alone])
    assert made(cut("a", 2)).unfinished == {}


@pytest.mark.parametrize(("templates", "clusters"), [(4, 4), (1, 12)])
def test_two_policies_are_compared_over_whole_templates(templates: int, clusters: int) -> None:
    """Where there is one template only, over tasks."""

    def evaluated(name: str, solved: int) -> Evaluation:
        rows = [
            samples.trajectory(task=f"t{n}", template=f"p{n % templates}", reward=float(n < solved))
            for n in range(12)
        ]
        return summarise(rows, name=name, section=EvalSection(tasks=12))

    found = compare(evaluated("before", 3), evaluated("after", 9))
    assert (found.num_pairs, found.num_clusters, found.difference) == (12, clusters, 0.5)

    keys = [Key(0, f"p{n % templates}", f"t{n}") for n in range(12)]
    before, after = (Cell({key: float(n < bar) for n, key in enumerate(keys)}, 1.0) for bar in (3, 9))
    table = _compare(before, after, keys)
    assert (table.num_pairs, table.num_clusters, table.difference) == (12, clusters, 0.5)
