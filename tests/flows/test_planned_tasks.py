"""Tasks that a synthesizer planned, evaluated and trained on: from the store of their own run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError
from data.store import Store
from data.tasks import Task
from data.trajectories import Policy, Trajectory
from flows.stages.recipe import GrpoSection, parse_recipe
from flows.stages.synthesize import planned_tasks
from flows.stages.train import grpo_tasks
from pipeline.engines.base import Sampling
from pipeline.environments.blueprint import VERIFIER, read_blueprint
from pipeline.environments.registry import load_environment
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings
from synthesizers.hints import LABEL
from tests import samples
from tests.flows.lab import recipe, trajsmith, write_recipe
from tests.tiny import make_tiny_model

WORLD = "travel_desk"


def the_recipe(model: Path, **changes: Any) -> dict[str, Any]:
    value = recipe(model, environment={"name": WORLD}, **{"policy.mistakes": 0.0})
    options = {"observed": 8, "irrelevance": 0.0}
    value["synth"] = {"plans": {"synthesizer": "magnet", "tasks": 4, "options": options}}
    value["evaluate"] = {"split": "train", "tasks": 100, "tasks_of": "magnet"}
    value["grpo"] = {"tasks_of": "magnet", "tasks": 2}
    return value | changes


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with planned tasks; its recipe lies beside it, and the model is a tiny one that trains."""
    folder = tmp_path_factory.mktemp("planned")
    path = write_recipe(folder, the_recipe(make_tiny_model(folder / "tiny")))
    done = trajsmith("synth", path, "--runs", folder / "runs")
    assert done.code == 0, done.err
    return folder / "runs" / "small"


def _planned(run: Path) -> list[Task]:
    with Store.open(run) as store:
        return [task for task in store.tasks() if task.synthesizer == "magnet"]


def test_planned_tasks_are_evaluated(run: Path) -> None:
    planned = _planned(run)
    done = trajsmith("eval", run.parents[1] / "recipe.yaml", "--runs", run.parent)
    assert done.code == 0, done.err
    [folder] = (run / "eval").iterdir()
    found = json.loads(next(folder.glob("*.json")).read_text())
    assert folder.name == "scripted-train-magnet-t0" and found["tasks_of"] == "magnet"
    with Store.open(folder) as store:
        rows = list(store.trajectories())
    assert len(planned) >= 3 and {row.task_id for row in rows} == {task.task_id for task in planned}
    assert {row.reward.verifier for row in rows if row.reward} == {VERIFIER}
    assert found["success"]["successes"] == found["success"]["trials"] == len(planned)
    with Store.open(run) as store:
        assert not {row.trajectory_id for row in rows} & store.ids("trajectories")
    report = trajsmith("report", run)
    assert report.code == 0, report.err
    assert "train, planned by magnet" in (run / "report" / "report.json").read_text()


def test_planned_tasks_are_trained_on(run: Path, tmp_path: Path) -> None:
    from rl.grpo import train_grpo
    from rl.grpo_config import GrpoConfig
    from rl.grpo_sources import Online
    from rl.lm import Precision
    from tests.rl.torch_engine import TorchEngine

    tiny, environment, seen = run.parents[1] / "tiny", load_environment(WORLD), list[Trajectory]()
    renderer = load_renderer(tiny)
    with Store.open(run) as store:
        tasks = grpo_tasks(store, GrpoSection(tasks_of="magnet", tasks=2), environment, weights="")
    assert len(tasks) == 2 and all(task.synthesizer == "magnet" and task.split == "train" for task in tasks)
    source = Online(
        tasks=tasks,
        environment=environment,
        engine=TorchEngine(tiny),
        renderer=renderer,
        sampling=Sampling(max_tokens=8, stop_token_ids=renderer.stop_token_ids),
        settings=RolloutSettings(max_context_tokens=4096),
        on_trajectory=seen.append,
    )
    config = GrpoConfig(
        steps=1, groups_per_step=2, group_size=2, precision=Precision.FLOAT32, episode_tokens=4096
    )
    result = train_grpo(
        source, model_dir=tiny, out_dir=tmp_path / "o", config=config, stop_token_ids=renderer.stop_token_ids
    )
    assert result.steps == 1 and {row.task_id for row in seen} == {task.task_id for task in tasks}
    assert all(row.reward and row.reward.verifier == VERIFIER for row in seen)


def test_a_dry_run_counts_the_tasks(run: Path, tmp_path: Path) -> None:
    value = the_recipe(run.parents[1] / "tiny", grpo={"tasks": 2})
    value["policy"] = {"engine": "vllm", "model": value["policy"]["model"]}
    done = trajsmith("train", "grpo", write_recipe(tmp_path, value), "--runs", tmp_path / "runs", "--dry-run")
    assert done.code == 0 and "would train on 2 tasks" in done.out, done.err


def test_what_is_not_there_is_said(run: Path) -> None:
    environment, number = load_environment(WORLD), len(_planned(run))
    held = f"planned tasks there: {number} of magnet from train"
    with Store.open(run) as store:
        for name, split, skip in (
            ("astra_chains", "train", 0),
            ("magnet", "dev", 0),
            ("magnet", "train", 99),
        ):
            with pytest.raises(ConfigError, match=rf"holds no task .*{held}"):
                planned_tasks(store, name, environment=environment, split=split, count=5, skip=skip)
        first = planned_tasks(store, "magnet", environment=environment, split="train", count=1)
        rest = planned_tasks(store, "magnet", environment=environment, split="train", count=99, skip=1)
    assert [len(first), len(rest)] == [1, number - 1] and first[0] not in rest
    assert all(read_blueprint(task).base.split == "train" for task in (*first, *rest))


def test_what_a_synthesizer_rolled_measures_its_tasks_but_not_with_hints(run: Path, tmp_path: Path) -> None:
    environment, planned = load_environment(WORLD), _planned(run)
    first, second = planned[:2]

    def rolled(task: Task, *, success: bool, labels: tuple[str, ...] = ()) -> Trajectory:
        made = samples.trajectory(reward=float(success))
        return made.model_copy(
            update={
                "trajectory_id": f"{task.task_id}/{success}",
                "task_id": task.task_id,
                "synthesizer": "magnet",
                "policy": Policy(name="p", weights="w"),
                "labels": labels,
            }
        )

    with Store.create_or_open(tmp_path / "other", {"name": "x"}) as store:
        for task in planned:
            store.append(task)
        for success in (True, False):
            store.append(rolled(first, success=success))
            store.append(rolled(second, success=success, labels=(LABEL,)))
        section = GrpoSection(tasks_of="magnet")
        assert grpo_tasks(store, section, environment, weights="w") == [first]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluate": {"tasks_of": "magnet"}}, "evaluate.split is 'heldout', from which a run plans nothing"),
        ({"grpo": {"tasks_of": "magnet", "split": "heldout"}}, "grpo.split is 'heldout'"),
    ],
)
def test_held_out_tasks_are_planned_from_by_nobody(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_recipe(the_recipe(tmp_path, **changes))


def test_a_recipe_without_planned_tasks_keeps_its_evaluation_split_for_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"synth\.plans\.split is 'train', which evaluations read"):
        parse_recipe(the_recipe(tmp_path, evaluate={"split": "train"}))
