"""Online training end to end: our rollout loop, a model served in this process, weights pushed each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError, StoreError
from data.trajectories import Termination, Trajectory
from pipeline.engines.base import Completion, Sampling
from pipeline.errors import EngineError
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings
from rl.grpo import train_grpo
from rl.grpo_config import GrpoConfig, PushKind
from rl.grpo_sources import Online, refuse_unrewarded
from rl.lm import LoraSettings, Precision
from rl.models import checkpoint_digest
from rl.results import TrainResult
from rl.sft import SftConfig, train_sft
from tests.disks import no_file_beyond
from tests.rl.builders import GENERATED, PROMPT, segment, trajectory
from tests.rl.torch_engine import FirstTokenWorld, TorchEngine
from tests.tiny import make_tiny_model

CONFIG = GrpoConfig(
    steps=2,
    groups_per_step=2,
    group_size=4,
    learning_rate=1e-3,
    precision=Precision.FLOAT32,
    episode_tokens=128,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model taught to answer with one of eight tokens, four of them even, and to stop."""
    start = make_tiny_model(tmp_path_factory.mktemp("tiny"))
    renderer = load_renderer(start)
    (stop,) = renderer.stop_token_ids
    rows = [
        trajectory(
            segment([(PROMPT, 0, renderer.render(task.prompt).token_ids), (GENERATED, 1, [100 + i, stop])]),
            group=task.task_id,
            index=i,
        )
        for task in FirstTokenWorld().tasks("train")
        for i in range(8)
    ]
    config = SftConfig(epochs=25, tokens_per_step=4096, learning_rate=1e-2, precision=Precision.FLOAT32)
    out = start.with_name("taught")
    train_sft(rows, model_dir=start, out_dir=out, config=config, stop_token_ids={stop})
    return out


def _online(tiny: Path, engine: TorchEngine, seen: list[Trajectory], **sampling: float) -> Online:
    renderer = load_renderer(tiny)
    world = FirstTokenWorld()
    return Online(
        tasks=list(world.tasks("train")),
        environment=world,
        engine=engine,
        renderer=renderer,
        sampling=Sampling(max_tokens=3, stop_token_ids=renderer.stop_token_ids, **sampling),  # type: ignore[arg-type]
        settings=RolloutSettings(max_context_tokens=128),
        on_trajectory=seen.append,
    )


def _train(source: Online, tiny: Path, out: Path, config: GrpoConfig) -> TrainResult:
    stops = source.renderer.stop_token_ids
    return train_grpo(source, model_dir=tiny, out_dir=out, config=config, stop_token_ids=stops)


def test_the_server_holds_the_trainers_weights_after_every_step(tiny: Path, tmp_path: Path) -> None:
    engine, seen = TorchEngine(tiny), list[Trajectory]()
    result = _train(_online(tiny, engine, seen), tiny, tmp_path / "o", CONFIG)
    assert engine.pushes == 4 and engine.weights_version == result.weights_digest
    assert result.weights_digest == checkpoint_digest(tmp_path / "o") == result.history[-1].weights_digest
    sampled_by = [trajectory.policy.weights for trajectory in seen]
    assert sampled_by == [checkpoint_digest(tiny)] * 8 + [result.history[0].weights_digest] * 8
    assert all(entry.logprob_gap < 1e-5 for entry in result.history)
    assert not (tmp_path / "o.serving").exists()


def test_an_adapter_is_pushed_and_sampled_from(tiny: Path, tmp_path: Path) -> None:
    engine, seen = TorchEngine(tiny), list[Trajectory]()
    config = replace(CONFIG, lora=LoraSettings(rank=4), push=PushKind.ADAPTER, learning_rate=1e-2)
    result = _train(_online(tiny, engine, seen), tiny, tmp_path / "o", config)
    assert engine.pushes == 3 and engine.weights_version == result.weights_digest
    assert result.weights_digest != checkpoint_digest(tiny)
    assert all(entry.logprob_gap < 1e-5 for entry in result.history)


@pytest.mark.parametrize(
    ("every", "said"), [(1, "training will go on from step 1"), (0, "there is no checkpoint yet")]
)
def test_a_disk_that_fills_before_a_push_says_what_training_goes_on_from(
    tiny: Path, tmp_path: Path, every: int, said: str
) -> None:
    disk = no_file_beyond(20_000)

    class Filling(TorchEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> list[Completion]:
            if self.pushes == 2 and not filled:
                disk.__enter__()
                filled.append(True)
            return await super().generate(*args, **kwargs)

    filled: list[bool] = []
    engine, config = Filling(tiny), replace(CONFIG, checkpoint_every=every)
    try:
        with pytest.raises(StoreError, match=rf"cannot write \S*o\.serving: no space left\. {said}"):
            _train(_online(tiny, engine, []), tiny, tmp_path / "o", config)
    finally:
        disk.__exit__(None, None, None)
    assert [path.name for path in tmp_path.iterdir()] == (["o.checkpoints"] if every else [])
    engine.pushes = 0
    again = _train(_online(tiny, engine, []), tiny, tmp_path / "o", config)
    assert again.resumed_from == every and again.steps == 2


def test_a_server_with_other_weights_stops_the_run(tiny: Path, tmp_path: Path) -> None:
    class Stale(TorchEngine):
        async def reload_weights(self, directory: Path) -> str:
            await super().reload_weights(directory)
            return "0" * 32

    with pytest.raises(EngineError, match="the model server holds weights 0000"):
        _train(_online(tiny, Stale(tiny), []), tiny, tmp_path / "o", CONFIG)


def test_a_dead_server_is_an_error_not_a_reward(tiny: Path, tmp_path: Path) -> None:
    class Dead(TorchEngine):
        async def generate(self, *args: object, **options: object) -> list:  # type: ignore[override]
            raise EngineError("connection refused")

    seen: list[Trajectory] = []
    with pytest.raises(
        EngineError, match=r"none of 8 rollouts of batch 0 got a reward: .*connection refused"
    ):
        _train(_online(tiny, Dead(tiny), seen), tiny, tmp_path / "o", CONFIG)
    assert {trajectory.reward for trajectory in seen} == {None} and len(seen) == 16, "each was tried again"


@pytest.mark.parametrize(
    ("broken", "again", "stops"), [(3, 0, False), (4, 0, True), (8, 8, False), (8, 4, True), (8, 5, False)]
)
def test_a_run_stops_where_infrastructure_breaks_too_many_rollouts(
    broken: int, again: int, stops: bool
) -> None:
    """Of 16, in groups of 4; `again` of the broken ones a second attempt made up for. A run in which 60 % of
    all calls died unnoticed is ToolRL's known case."""

    def played(place: int, *, reward: float | None, attempt: int = 0) -> Trajectory:
        made = trajectory(
            segment([(PROMPT, 0, [5]), (GENERATED, 1, [7])]),
            reward=reward,
            group=str(place % 4),
            index=place // 4,
        )
        ending = Termination.FINISHED if reward is not None else Termination.INFRA_FAILURE
        changes = {
            "attempt": attempt,
            "termination": ending,
            "error": "sandbox gone" if reward is None else "",
        }
        return made.model_copy(update=changes)

    rows = [played(place, reward=None if place < broken else 1.0) for place in range(16)]
    rows += [played(place, reward=0.0, attempt=1) for place in range(again)]
    if not stops:
        refuse_unrewarded(rows, 0)
        return
    with pytest.raises(EngineError, match=r"4 of 16 rollouts of batch 0 .* more than 20%.*sandbox gone"):
        refuse_unrewarded(rows, 0)
    cut = [
        row.model_copy(update={"termination": Termination.CANCELLED}) for row in rows if row.reward is None
    ]
    refuse_unrewarded([*cut, *(row for row in rows if row.reward is not None)], 0)


def test_rollouts_that_cannot_be_trained_on_are_refused_before_any_is_made(
    tiny: Path, tmp_path: Path
) -> None:
    for sampling, message in (
        ({"top_p": 0.5}, "truncated sampling"),
        ({"temperature": 0.0}, "temperature 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            _train(_online(tiny, TorchEngine(tiny), [], **sampling), tiny, tmp_path / "o", CONFIG)
    with pytest.raises(ConfigError, match="max_context_tokens=128, above episode_tokens=64"):
        _train(_online(tiny, TorchEngine(tiny), []), tiny, tmp_path / "o", replace(CONFIG, episode_tokens=64))


@pytest.mark.rl
@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "search": {
                "kind": "best_of_n",
                "candidates": 4,
                "width": 2,
                "pick": "soft",
                "scores": {"outcome": 1.0},
            }
        },
    ],
    ids=["plain", "search"],
)
def test_rewarded_behaviour_becomes_more_likely(tiny: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    config = replace(CONFIG, steps=10, groups_per_step=4, group_size=8, learning_rate=3e-3, **more)
    result = _train(_online(tiny, TorchEngine(tiny), []), tiny, tmp_path / "o", config)
    rewards = [entry.reward_mean for entry in result.history]
    if "search" in more:  # what is found is better than what the policy does, so only its rise counts
        assert rewards[0] < 0.9 and sum(rewards[-3:]) / 3 > 0.97, rewards
    else:
        assert rewards[0] < 0.75 and sum(rewards[-3:]) / 3 > 0.9, rewards
