"""Training on a chosen reward: what is trained, what is stored, and what a failed judge does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import Origin, RewardBy, Termination, Trajectory
from pipeline.errors import BudgetExceededError, JudgeError
from pipeline.renderers.load import load_renderer
from pipeline.rewards import build_reward
from pipeline.rewards.base import Score, chosen_total
from rl.grpo import train_grpo
from rl.grpo_config import GrpoConfig
from rl.grpo_rewards import ChosenReward
from rl.grpo_sources import Replay, Source
from rl.lm import Precision
from rl.results import TrainResult
from tests.rl.builders import GENERATED, PROMPT, STOP, segment, trajectory
from tests.rl.test_grpo_online import CONFIG, _online, tiny
from tests.rl.torch_engine import FirstTokenWorld, TorchEngine

__all__ = ["tiny"]

LENGTH = {"name": "tests.rl.test_grpo_rewards:Last"}


class Last:
    """Rewards a late rollout, judges no group whose task is in `broken`."""

    name, per_group = "last", False

    def __init__(self, *, by: RewardBy = RewardBy.PROGRAM, failing: Sequence[int] = ()) -> None:
        self.by, self.failing, self.closed = by, failing, 0

    async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
        """The rollout index - 3: never above what an exhausted budget scores."""
        return [
            Score(None, error="JudgeError: silent")
            if item.rollout_index in self.failing
            else Score(item.rollout_index - 3.0, success=item.success)
            for item in group
        ]

    async def close(self) -> None:
        """Count."""
        self.closed += 1


def _chosen(reward: Any, tasks: Sequence[Task], row: dict[str, Any] = LENGTH) -> ChosenReward:
    return ChosenReward(reward=reward, row=row, tasks={task.task_id: task for task in tasks})


def _train(source: Source, tiny: Path, out: Path, config: GrpoConfig = CONFIG) -> TrainResult:
    stops = load_renderer(tiny).stop_token_ids
    return train_grpo(source, model_dir=tiny, out_dir=out, config=config, stop_token_ids=stops)


@pytest.mark.parametrize("by", [RewardBy.PROGRAM, RewardBy.MODEL])
def test_online_the_chosen_reward_is_trained_and_both_are_stored(
    by: RewardBy, tiny: Path, tmp_path: Path
) -> None:
    seen: list[Trajectory] = []
    source, reward = _online(tiny, TorchEngine(tiny), seen), Last(by=by, failing=[3])
    source.chosen = _chosen(reward, source.tasks)
    first, *_ = _train(source, tiny, tmp_path / "o").history
    assert first.reward_mean == -2.0 and first.zero_variance_share == 0.0
    assert (first.trajectories, first.without_reward, first.judge_failures) == (8, 2, 2)
    assert first.success_rate == sum(bool(item.success) for item in seen[:8]) / 8
    assert reward.closed == 1
    for item in seen:
        expected = None if item.rollout_index == 3 else item.rollout_index - 3.0
        assert chosen_total(item, "last") == expected
        assert item.reward is not None and item.reward.total in (0.0, 1.0)
        assert item.labels == (("reward_failed:last",) if item.rollout_index == 3 else ())
    stored = json.loads((tmp_path / "o" / "training.json").read_text())["result"]["history"][0]
    assert stored["success_rate"] == first.success_rate and stored["judge_failures"] == 2


def test_most_judgements_failing_stops_the_run_and_keeps_the_rollouts(tiny: Path, tmp_path: Path) -> None:
    seen: list[Trajectory] = []
    source = _online(tiny, TorchEngine(tiny), seen)
    source.chosen = _chosen(Last(by=RewardBy.MODEL, failing=[0, 1, 2]), source.tasks)
    with pytest.raises(JudgeError, match=r"6 of 8 judgements of reward last failed; .*JudgeError: silent"):
        _train(source, tiny, tmp_path / "o")
    assert len(seen) == 8 and all(item.reward is not None for item in seen)


def test_a_checkpoint_belongs_to_its_reward(tiny: Path) -> None:
    source = _online(tiny, TorchEngine(tiny), [])
    plain = source.identity()
    row = {"name": "tool_cost", "weight": 0.1}
    source.chosen = _chosen(build_reward(row), source.tasks, row)
    first = source.identity()
    source.chosen = _chosen(build_reward(row | {"weight": 0.2}), source.tasks, row | {"weight": 0.2})
    assert len({plain, first, source.identity()}) == 3


def _stored(task: Task, index: int, *, reward: float | None) -> Trajectory:
    made = segment([(PROMPT, 0, [5, 6, 7]), (GENERATED, 1, [8 + index, STOP])], origin=Origin.SAMPLED)
    ending = Termination.FINISHED if reward is not None else Termination.INFRA_FAILURE
    item = trajectory(made, group="g", index=index, reward=reward, termination=ending)
    policy = item.policy.model_copy(update={"logprobs_of": "processed", "sampling": '{"temperature": 1.0}'})
    return item.model_copy(update={"task_id": task.task_id, "policy": policy})


def test_replay_is_scored_anew_and_infrastructure_stays_out(tiny: Path) -> None:
    (task, *_) = FirstTokenWorld().tasks("train")
    stored = [_stored(task, index, reward=[1.0, 0.0, None, 0.0][index]) for index in range(4)]
    source = Replay(stored, chosen=_chosen(Last(), [task]))
    assert source.identity() != Replay(stored).identity()
    with asyncio.Runner() as runner:
        source.runner = runner
        found = source.collect(["g"], batch=0, config=CONFIG)
    assert [source.chosen.value(item) for item in found] == [-3.0, -2.0, None, 0.0]  # type: ignore[union-attr]
    assert found[2].reward is None and found[2].labels == ()
    with asyncio.Runner() as runner:
        lost = Replay(stored, chosen=_chosen(Last(), []))
        lost.runner = runner
        with pytest.raises(ConfigError, match="which is not among the given 0"):
            lost.collect(["g"], batch=0, config=CONFIG)


def test_replay_trains_on_the_chosen_reward(tiny: Path, tmp_path: Path) -> None:
    (task, *_) = FirstTokenWorld().tasks("train")
    stored = [_stored(task, index, reward=1.0) for index in range(4)]
    config = GrpoConfig(steps=1, groups_per_step=1, learning_rate=1e-3, precision=Precision.FLOAT32)
    source = Replay(stored, chosen=_chosen(Last(), [task]))
    result = train_grpo(source, model_dir=tiny, out_dir=tmp_path / "o", config=config, stop_token_ids={STOP})
    (step,) = result.history
    assert step.zero_variance_share == 0.0 and step.reward_mean == -1.5 and step.success_rate == 1.0
    assert step.grad_norm > 0


def test_the_mean_of_each_part_is_logged() -> None:
    row = {"name": "tool_cost", "weight": 0.1}
    (task, *_) = FirstTokenWorld().tasks("train")
    chosen = _chosen(build_reward(row), [task], row)
    group = [_stored(task, 0, reward=1.0), _stored(task, 1, reward=0.0), _stored(task, 2, reward=None)]
    scored = asyncio.run(chosen.rescored(group))
    assert chosen.parts(scored) == {"early_finish": 0.5, "success": 0.5, "tool_cost": 0.0}


def test_a_used_up_budget_stops_the_run_and_keeps_the_rollouts(tiny: Path, tmp_path: Path) -> None:
    class Spent(Last):
        async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
            raise BudgetExceededError("the chat budget of 5 calls is used up")

    seen: list[Trajectory] = []
    source, reward = _online(tiny, TorchEngine(tiny), seen), Spent(by=RewardBy.MODEL)
    source.chosen = _chosen(reward, source.tasks)
    with pytest.raises(BudgetExceededError, match="of 5 calls"):
        _train(source, tiny, tmp_path / "o")
    assert len(seen) == 8 and all(item.reward is not None for item in seen) and reward.closed == 1
