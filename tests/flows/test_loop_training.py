"""What trains a round: supervised by default, or GRPO on the round's steps against the policy's server."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data.trajectories import Trajectory
from flows.stages.loop.training import PASSES, grpo_config, round_settings, train_round, training_key
from flows.stages.progress import silent
from flows.stages.recipe import Recipe, parse_recipe
from pipeline.engines.base import Sampling
from pipeline.environments.registry import load_environment
from pipeline.renderers.load import load_renderer
from pipeline.rollout_settings import RolloutSettings
from rl.grpo_sources import num_batches
from rl.results import TrainResult
from synthesizers.demonstration import Demonstration
from tests.flows.lab import trajsmith, write_recipe
from tests.flows.test_loop import loop_recipe
from tests.rl.torch_engine import TorchEngine
from tests.tiny import make_tiny_model

GRPO = {
    "settings": {"precision": "float32", "groups_per_step": 2, "group_size": 2, "episode_tokens": 1024},
}


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> None:
    """More of them only wait for each other."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def told(model: Path, **loop: Any) -> Recipe:
    value = loop_recipe(model, **{"train": "grpo", **loop}) | {"grpo": GRPO}
    value["policy"] |= {"engine": "vllm"}
    return parse_recipe(value)


class Served:
    """A policy behind a tiny model in this process."""

    def __init__(self, model: Path) -> None:
        self.engine, self.renderer, self.loaded = TorchEngine(model), load_renderer(model), list[Path]()
        self.sampling = Sampling(max_tokens=4, stop_token_ids=self.renderer.stop_token_ids)
        self.settings = RolloutSettings(max_context_tokens=1024)

    def server_engine(self) -> Served:
        return self

    def twin(self) -> TorchEngine:
        return self.engine

    async def load(self, model_dir: Path) -> str:
        self.loaded.append(model_dir)
        return ""


def demonstrations(served: Served) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        environment = load_environment("counter", steps=[1], digits=3)
        gold = Demonstration(environment=environment, renderer=served.renderer)
        return [row async for row in gold.synthesize(islice(environment.tasks("train"), 2))]

    return asyncio.run(run())


def trained(model: Path, out: Path, *, arm: str, steps: int = 0, **loop: Any) -> tuple[TrainResult, Served]:
    served: Any = Served(model)
    data = demonstrations(served)
    coroutine = train_round(
        told(model, **loop),
        served,
        data,
        dict,
        number=1,
        arm=arm,
        start=model,
        out=out,
        steps=steps,
        say=silent,
    )
    return asyncio.run(coroutine), served


def test_a_round_takes_its_steps_on_sampled_turns_and_leaves_them_to_the_server(
    model: Path, tmp_path: Path
) -> None:
    result, served = trained(model, tmp_path / "o", arm="looptool")
    num_steps = 2 * 2  # two dialogues of a call and closing words
    assert result.steps == PASSES * num_steps // 2
    assert 0 < result.generated_tokens <= result.steps * 2 * 2 * 4
    assert served.loaded == [tmp_path / "o"] and served.engine.weights_version == result.weights_digest
    assert [entry.trajectories for entry in result.history] == [4] * result.steps


def test_static_takes_as_many_steps_and_rejection_sampling_is_supervised(model: Path, tmp_path: Path) -> None:
    result, _ = trained(model, tmp_path / "a", arm="static", steps=3, train_tokens=1)
    assert result.steps == 3 and result.generated_tokens > 0
    result, served = trained(model, tmp_path / "b", arm="rejection_sampling", steps=3)
    assert result.steps == 3 and result.generated_tokens == 0 and not served.engine.pushes


def test_settings_and_budgets(model: Path) -> None:
    recipe = told(model, settings={"group_size": 8}, train_tokens=500)
    assert round_settings(recipe, 1, "looptool")["group_size"] == 8
    for number, arm in ((0, "start"), (1, "rejection_sampling")):
        assert round_settings(recipe, number, arm) == recipe.sft.settings
    settings = round_settings(recipe, 1, "looptool")
    config = grpo_config(recipe, settings, num_groups=5, steps=0)
    assert (config.steps, config.token_budget) == (5, 500)
    twice = grpo_config(recipe, settings | {"num_iterations": 2}, num_groups=5, steps=0)
    assert num_batches(twice) == num_batches(config), (
        "as often over the data, however often each batch trains"
    )
    assert grpo_config(recipe, settings | {"steps": 7}, num_groups=5, steps=0).steps == 7
    config = grpo_config(recipe, settings, num_groups=5, steps=9)
    assert (config.steps, config.token_budget) == (9, 0)
    plain = parse_recipe(loop_recipe(model, settings={"epochs": 2}))
    assert round_settings(plain, 1, "looptool")["epochs"] == 2 and "train" not in training_key(
        plain, 1, "looptool", steps=0
    )
    assert training_key(recipe, 1, "static", steps=2)["train"] == "grpo"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "scripted"}, "loop.train: grpo samples from a model"),
        ({"settings": {"epochs": 2}}, "loop.settings: unknown epochs"),
        ({"settings": {"search": {"width": 1}}}, "nothing to search"),
        ({"train": "ppo"}, "loop.train"),
    ],
)
def test_what_cannot_be_trained_so_is_named_first(
    changes: dict[str, Any], message: str, model: Path, tmp_path: Path
) -> None:
    engine = changes.get("engine", "vllm")
    loop = {name: value for name, value in changes.items() if name != "engine"}
    value = loop_recipe(model, **{"train": "grpo", **loop}) | {"grpo": GRPO}
    value["policy"] |= {"engine": engine}
    done = trajsmith("loop", write_recipe(tmp_path, value), "--runs", tmp_path / "runs", "--dry-run")
    assert done.code == 2 and message in done.err, done.err
    assert not (tmp_path / "runs").exists()
