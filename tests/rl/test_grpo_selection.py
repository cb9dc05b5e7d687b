"""Selection inside training: what is counted, what is trained, and what stays as it was without one."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from data.errors import ConfigError
from data.trajectories import Termination
from pipeline.engines.base import Sampling
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings
from rl.grpo import train_grpo
from rl.grpo_config import GrpoConfig
from rl.grpo_sources import Online, Replay
from rl.lm import Precision
from rl.selection import SelectionSettings
from synthesizers.tree_search.settings import SearchSettings
from tests.rl.builders import STOP
from tests.rl.test_grpo import CONFIG, group
from tests.rl.torch_engine import FirstTokenWorld, TorchEngine
from tests.tiny import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_training_is_on_the_selected_half_and_the_record_tells_of_all(tiny: Path, tmp_path: Path) -> None:
    eight = [
        item.model_copy(update={"trajectory_id": f"{round_}{item.trajectory_id}"})
        for round_ in range(2)
        for item in group()
    ]
    broken = group()[0].model_copy(
        update={"trajectory_id": "x", "reward": None, "termination": Termination.INFRA_FAILURE}
    )
    config = replace(CONFIG, selection=SelectionSettings())
    result = train_grpo(
        Replay([*eight, broken]), model_dir=tiny, out_dir=tmp_path / "o", config=config, stop_token_ids={STOP}
    )
    (entry,) = result.history
    assert entry.selection["selected"] == entry.selection["not_selected"] == 4.0
    assert entry.selection["short_groups"] == 0.0 and entry.trained_tokens == 4 * 5
    assert entry.trajectories == 9 and entry.generated_tokens == 9 * 5  # what was dropped was sampled, too
    assert entry.success_rate == 2 / 8 and entry.without_reward == 1


def test_twice_as_many_rollouts_are_made(tiny: Path) -> None:
    config = replace(CONFIG, selection=SelectionSettings(oversample=3), temperature=1.0)
    renderer, world = load_renderer(tiny), FirstTokenWorld(1)
    source = Online(
        tasks=list(world.tasks("train")),
        environment=world,
        engine=TorchEngine(tiny),
        renderer=renderer,
        sampling=Sampling(max_tokens=2, stop_token_ids=renderer.stop_token_ids),
        settings=RolloutSettings(max_context_tokens=64),
    )
    with asyncio.Runner() as source.runner:
        played = source.collect([source.tasks[0].task_id], batch=0, config=config)
    assert [item.rollout_index for item in played] == list(range(12)), [item.error for item in played]


def test_only_the_most_varied_groups_are_trained_on(tiny: Path, tmp_path: Path) -> None:
    flat = [
        item.model_copy(update={"reward": item.reward.model_copy(update={"total": 1.0})})
        for item in group("flat")
        if item.reward
    ]
    config = replace(CONFIG, groups_per_step=2, group_share=0.5)
    result = train_grpo(
        Replay([*group(), *flat]),
        model_dir=tiny,
        out_dir=tmp_path / "o",
        config=config,
        stop_token_ids={STOP},
    )
    (entry,) = result.history
    assert entry.selection == {"selected": 4.0, "not_selected": 4.0, "left_out_groups": 1.0}
    assert entry.trained_tokens == 4 * 5
    assert entry.zero_variance_share == 0.0 and entry.success_rate == 5 / 8


def test_a_token_budget_ends_runs_of_different_cost_at_the_same_compute(tiny: Path, tmp_path: Path) -> None:
    spent = {}
    for name, more in (("plain", {}), ("roc", {"selection": SelectionSettings()})):
        eight = [item for name in ("g", "h") for item in group(name)]
        joined = [
            item.model_copy(update={"group_id": "g", "rollout_index": number})
            for number, item in enumerate(eight)
        ]
        config = replace(CONFIG, steps=40, token_budget=400, learning_rate=1e-4, **more)
        result = train_grpo(
            Replay(joined if more else group()), model_dir=tiny, out_dir=tmp_path / name, config=config,
            stop_token_ids={STOP},
        )  # fmt: skip
        spent[name] = (result.steps, result.row_tokens + result.generated_tokens)
        assert 400 <= spent[name][1] < 400 + 2 * spent[name][1] / result.steps
    assert 1 < spent["roc"][0] < spent["plain"][0] < 40


def test_recipes_say_it_as_a_mapping_and_old_runs_keep_their_identity() -> None:
    config = GrpoConfig(selection={"kind": "roc", "oversample": 4})  # type: ignore[arg-type]
    assert config.selection == SelectionSettings(oversample=4) and config.num_rollouts == 32
    with pytest.raises(ConfigError, match="selection: unknown keep"):
        GrpoConfig(selection={"keep": 1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="group_share"):
        GrpoConfig(group_share=0.0)
    plain = GrpoConfig(precision=Precision.FLOAT32).identity()
    assert not {"selection", "group_share"} & set(plain) and len(plain) < len(asdict(GrpoConfig()))
    assert config.identity()["selection"]["oversample"] == 4


def test_replay_refuses_choices_that_only_rollouts_to_be_made_allow(tmp_path: Path) -> None:
    for changes, message in (
        ({"search": SearchSettings(candidates=2, width=1)}, "search chooses while rollouts are made"),
        ({"selection": SelectionSettings()}, "no stored group has more than 4 with a reward"),
    ):
        with pytest.raises(ConfigError, match=message):
            train_grpo(
                Replay(group()),
                model_dir=tmp_path / "no_model",
                out_dir=tmp_path / "o",
                config=replace(CONFIG, **changes),  # type: ignore[arg-type]
                stop_token_ids={STOP},
            )
