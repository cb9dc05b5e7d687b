"""The policy-gradient loss against numbers worked out by hand, and what must not move a gradient."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from data import canonical
from data.errors import ConfigError
from data.messages import assistant, user
from data.trajectories import Origin, Segment, Termination, Trajectory
from pipeline.engines.base import Sampling
from rl.advantages import AdvantageKind, SingletonRule
from rl.grpo import train_grpo
from rl.grpo_config import Correction, GrpoConfig, LossType, PushKind
from rl.grpo_sources import Replay, cycle_groups
from rl.grpo_trainer import RowTrainer, StepSums, pass_inputs
from rl.lm import LoraSettings, Precision, load_model
from rl.packing import pack
from rl.results import StepMetrics, TrainResult
from rl.rows import Row, grpo_rows
from tests.rl.builders import GENERATED, OBSERVATION, PROMPT, STOP, segment, trajectory, two_turns
from tests.tiny import make_tiny_model

CONFIG = GrpoConfig(
    steps=1,
    groups_per_step=1,
    group_size=4,
    learning_rate=1e-3,
    precision=Precision.FLOAT32,
    episode_tokens=64,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return load_model(tiny).train()


def stored(*segments: Segment, sampling: dict[str, Any] | None = None, **options: Any) -> Trajectory:
    """A sampled trajectory as the rollout loop stores it."""
    source = trajectory(*segments, **options)
    text = canonical.dumps(sampling or {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0})
    policy = source.policy.model_copy(update={"logprobs_of": "processed", "sampling": text})
    return source.model_copy(update={"policy": policy})


def group(name: str = "g", logprobs: Sequence[float] | None = None, **options: Any) -> list[Trajectory]:
    """Four sampled trajectories of one prompt; the first succeeds."""
    return [
        stored(
            two_turns(
                [5, 6, 7, 8],
                [70 + i, STOP],
                [90, 91],
                [60 + i, 9, STOP],
                origin=Origin.SAMPLED,
                logprobs=logprobs or [-5.0, -6.0, -5.5, -6.5, -6.0],
            ),
            group=name,
            index=i,
            reward=float(i == 0),
            **options,
        )
        for i in range(4)
    ]


def plain_logprobs(model: Any, row: Row) -> list[float]:
    """Log-prob of every token of `row` but the first, one row at a time through the whole model."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([row.token_ids])).logits[0]
    return torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(row.token_ids)[1:, None])[:, 0].tolist()


def hand_loss(model: Any, rows: Sequence[Row], *, low: float = 0.2, high: float = 0.28) -> float:
    """Clipped token-mean surrogate with the stored log-probs as the old policy."""
    total, count = 0.0, 0
    for row in rows:
        for position, value in enumerate(plain_logprobs(model, row), start=1):
            if row.mask[position]:
                ratio = math.exp(value - row.logprobs[position])
                clipped = min(max(ratio, 1 - low), 1 + high)
                total += min(ratio * row.advantage, clipped * row.advantage)
                count += 1
    return -total / count


def rows_of(trajectories: Sequence[Trajectory]) -> list[Row]:
    values = dict(zip([item.trajectory_id for item in trajectories], [1.5, -0.5, -0.5, -0.5], strict=True))
    return grpo_rows(trajectories, values)


def trainer(config: GrpoConfig = CONFIG, *, replay: bool) -> Any:
    """A trainer with nothing but what the loss reads."""
    bare = RowTrainer.__new__(RowTrainer)
    plain: dict[str, Any] = {
        "settings": config,
        "sampler_is_old": replay,
        "sums": StepSums(),
        "_ready": None,
        "args": SimpleNamespace(delta=None, steps_per_generation=1, use_bias_correction_kl=True),
        "accelerator": SimpleNamespace(
            num_processes=1, reduce=lambda value, reduction: value, gather=lambda value: value
        ),
        "model": SimpleNamespace(training=True),
        "_metrics": {"train": defaultdict(list)},
        "loss_type": config.loss_type.value,
        "epsilon_low": config.epsilon,
        "epsilon_high": config.epsilon_high,
        "max_completion_length": config.episode_tokens,
        "current_gradient_accumulation_steps": 1,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "use_vllm": False,
        "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False,
    }
    for name, value in plain.items():
        object.__setattr__(bare, name, value)
    return bare


def gradients(model: Any, chunk: dict[str, Any], *, replay: bool) -> dict[str, torch.Tensor]:
    model.zero_grad()
    trainer(replay=replay)._compute_loss(model, chunk).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def chunk_of(rows: Sequence[Row]) -> dict[str, Any]:
    return pass_inputs(pack(rows), num_trained=sum(row.num_trained for row in rows), device="cpu")


def _train(source: Replay, tiny: Path, out: Path, config: GrpoConfig, **options: Any) -> TrainResult:
    return train_grpo(source, model_dir=tiny, out_dir=out, config=config, stop_token_ids={STOP}, **options)


def test_replay_uses_the_stored_log_probs_as_the_old_policy(model: Any, tiny: Path, tmp_path: Path) -> None:
    near = [value + 0.1 for value in plain_logprobs(model, rows_of(group())[0])]
    picked = [near[index - 1] for index in (4, 5, 8, 9, 10)]
    losses = []
    for name, shift in (("a", 0.0), ("b", 0.05)):
        trajectories = group(logprobs=[value + shift for value in picked])
        result = _train(Replay(trajectories), tiny, tmp_path / name, CONFIG)
        assert result.losses[0] == pytest.approx(hand_loss(model, rows_of(trajectories)), abs=2e-5)
        losses.append(result.losses[0])
    assert abs(losses[0] - losses[1]) > 1e-3


def test_online_the_ratio_is_one_and_the_correction_weighs_the_advantage(model: Any) -> None:
    rows = rows_of(group())
    expected, count = 0.0, 0
    for row in rows:
        for position, value in enumerate(plain_logprobs(model, row), start=1):
            if row.mask[position]:
                expected += row.advantage * min(math.exp(value - row.logprobs[position]), 2.0)
                count += 1
    loss = trainer(replay=False)._compute_loss(model, chunk_of(rows))
    assert loss.item() == pytest.approx(-expected / count, abs=1e-5)


@pytest.mark.parametrize(
    ("correction", "weights", "changed"),
    [
        (Correction.TIS, [0.1, 0.6, 1.0, 2.0, 2.0], [0, 0, 0, 0, 1]),
        (Correction.MIS, [0.0, 0.6, 1.0, 1.9, 0.0], [1, 0, 0, 0, 1]),
        (Correction.NONE, [1.0] * 5, [0] * 5),
    ],
)
def test_correction_weights(correction: Correction, weights: list[float], changed: list[int]) -> None:
    ratios = torch.tensor([0.1, 0.6, 1.0, 1.9 if correction is Correction.MIS else 2.0, 3.0])
    config = replace(CONFIG, correction=correction)
    mask = torch.ones(5, dtype=torch.bool)
    found, touched = trainer(config, replay=False)._correction(ratios.log(), mask)
    torch.testing.assert_close(found, torch.tensor(weights))
    assert touched.int().tolist() == changed


def test_a_long_episode_is_not_zeroed_by_a_small_mismatch() -> None:
    log_weights = torch.full((1, 4000), 0.001)
    mask = torch.ones(1, 4000, dtype=torch.bool)
    weights, changed = trainer(replay=False)._correction(log_weights, mask)
    assert weights.max().item() == pytest.approx(1.001, abs=1e-5) and not changed.any()
    assert log_weights.sum().exp().item() == pytest.approx(54.6, abs=0.1)


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize("name", ["sampling_per_token_logps", "advantages"])
def test_what_stands_beside_observation_tokens_leaves_every_gradient_bit_equal(
    model: Any, replay: bool, name: str
) -> None:
    clean, planted = chunk_of(rows_of(group())), chunk_of(rows_of(group()))
    outside = planted["tool_mask"] == 0
    assert outside.any()
    planted[name][outside] = float("nan")
    before, after = gradients(model, clean, replay=replay), gradients(model, planted, replay=replay)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert any(value.abs().max() > 0 for value in before.values())


@pytest.mark.parametrize("replay", [True, False])
def test_an_observations_label_leaves_every_gradient_bit_equal(model: Any, replay: bool) -> None:
    """At the end of a row no trained token sees it: there another token is another label and nothing else."""

    def found(last: int, answer: int = 70) -> dict[str, torch.Tensor]:
        segments = [
            segment(
                [(PROMPT, 0, [5, 6]), (GENERATED, 1, [answer + i, STOP]), (OBSERVATION, 2, [90, last])],
                origin=Origin.SAMPLED,
                logprobs=[-5.0, -6.0],
            )
            for i in range(4)
        ]
        rows = rows_of([stored(each, index=i, reward=float(i == 0)) for i, each in enumerate(segments)])
        return gradients(model, chunk_of(rows), replay=replay)

    before, after, trained = found(91), found(77), found(91, answer=60)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert not all(torch.equal(before[key], trained[key]) for key in before)
    assert any(value.abs().max() > 0 for value in before.values())


def test_what_was_left_out_is_reported_with_every_batch(tiny: Path, tmp_path: Path) -> None:
    long = two_turns([5], [70] * 60 + [STOP], [90], [60, STOP], origin=Origin.SAMPLED)
    first = [*group("first"), stored(long, group="first", index=4, reward=0.0)]
    alone = group("alone")[:1]
    failed = [stored(row.segments[0], group="alone", index=1 + i, reward=None) for i, row in enumerate(alone)]
    config = replace(CONFIG, steps=4, groups_per_step=2, num_iterations=2, episode_tokens=32, overlong="drop")
    result = _train(Replay([*first, *alone, *failed]), tiny, tmp_path / "o", config)
    assert [entry.dropped_singletons for entry in result.history] == [1, 0, 1, 0]
    assert [entry.dropped_overlong for entry in result.history] == [1, 0, 1, 0]
    assert (result.dropped_singletons, result.dropped_overlong) == (2, 2)
    kept = json.loads((tmp_path / "o" / "training.json").read_text())["result"]
    assert (kept["dropped_singletons"], kept["dropped_overlong"]) == (2, 2)


def test_a_wrong_mask_stops_training(tiny: Path, tmp_path: Path) -> None:
    swallowed = segment([(PROMPT, 0, [5]), (GENERATED, 1, [7, STOP, 8, 9, STOP])], origin=Origin.SAMPLED)
    wrong = [stored(swallowed, index=i, reward=float(i == 0)) for i in range(4)]
    with pytest.raises(
        ConfigError,
        match=r"(?s)mask audit refuses to train.*correct the renderer or whatever else made its spans",
    ):
        _train(Replay(wrong), tiny, tmp_path / "o", CONFIG)


@pytest.mark.parametrize("name", ["sampling_per_token_logps", "advantages"])
def test_trained_tokens_do_move_gradients(model: Any, name: str) -> None:
    rows = rows_of(group(logprobs=[-6.1, -6.0, -6.2, -6.1, -6.0]))
    clean, planted = chunk_of(rows), chunk_of(rows)
    planted[name][planted["tool_mask"] == 1] += 0.05
    before, after = gradients(model, clean, replay=True), gradients(model, planted, replay=True)
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_turn_and_sample_weights_scale_the_advantage() -> None:
    turns = (user("q"), assistant("a", weight=0.5), user("r"), assistant("b"))
    (row,) = rows_of(group())[:1]
    source = stored(
        two_turns([5], [7, STOP], [8], [9, STOP], origin=Origin.SAMPLED), turns=turns, weight=2.0, reward=1.0
    )
    (row,) = grpo_rows([source], {source.trajectory_id: 3.0})
    assert chunk_of([row])["advantages"].tolist() == [[3.0, 3.0, 0.0, 6.0, 6.0]]


@pytest.mark.parametrize("loss_type", [LossType.DAPO, LossType.DR_GRPO, LossType.GRPO])
def test_passes_of_any_size_give_the_same_step(tiny: Path, tmp_path: Path, loss_type: LossType) -> None:
    config = replace(CONFIG, loss_type=loss_type, steps=2, groups_per_step=2)
    found = [
        _train(
            Replay([*group("a"), *group("b")]),
            tiny,
            tmp_path / f"{budget}-{share}",
            replace(config, tokens_per_pass=budget, share_prefixes=share),
        )
        for budget, share in [(4096, True), (4096, False), (1, False)]
    ]
    for other in found[1:]:
        assert other.losses == pytest.approx(found[0].losses, abs=1e-6)
        assert other.history[1].grad_norm == pytest.approx(found[0].history[1].grad_norm, rel=1e-4)
    assert found[0].computed_tokens < found[2].computed_tokens == found[2].row_tokens


def test_metrics_of_a_step(model: Any, tiny: Path, tmp_path: Path) -> None:
    failed = stored(
        segment([(PROMPT, 0, [5, 6]), (GENERATED, 1, [7])], origin=Origin.SAMPLED),
        group="g",
        index=9,
        reward=None,
        termination=Termination.INFRA_FAILURE,
    )
    trajectories = [*group(), failed]
    seen: list[StepMetrics] = []
    _train(Replay(trajectories), tiny, tmp_path / "o", CONFIG, on_progress=seen.append)
    (metrics,) = seen
    rows = rows_of(group())
    pairs = [
        (value, row.logprobs[position])
        for row in rows
        for position, value in enumerate(plain_logprobs(model, row), start=1)
        if row.mask[position]
    ]
    assert metrics.kl_to_sampler == pytest.approx(sum(s - p for p, s in pairs) / len(pairs), abs=1e-4)
    assert metrics.logprob_gap == pytest.approx(sum(abs(s - p) for p, s in pairs) / len(pairs), abs=1e-4)
    assert (metrics.trajectories, metrics.without_reward, metrics.reward_mean) == (5, 1, 0.25)
    assert metrics.trained_tokens == 20 and metrics.grad_norm > 0


def test_equal_groups_train_nothing_and_are_reported(tiny: Path, tmp_path: Path) -> None:
    equal = [item.model_copy(update={"reward": group()[0].reward}) for item in group()]
    result = _train(Replay(equal), tiny, tmp_path / "o", CONFIG)
    assert result.history[0].zero_variance_share == 1.0 and result.trained_tokens == 0
    from rl.models import checkpoint_digest

    assert result.weights_digest == checkpoint_digest(tiny)


class _Stop(Exception):
    pass


@pytest.mark.rl
def test_an_interrupted_run_resumes_to_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=5, groups_per_step=2, checkpoint_every=2)
    source = Replay([item for name in "abc" for item in group(name)])
    whole = _train(source, tiny, tmp_path / "whole", config)

    def stop_at_five(metrics: StepMetrics) -> None:
        if metrics.step == 5:
            raise _Stop

    with pytest.raises(_Stop):
        _train(source, tiny, tmp_path / "cut", config, on_progress=stop_at_five)
    resumed = _train(source, tiny, tmp_path / "cut", config)
    assert resumed.resumed_from == 4 and resumed.losses == whole.losses
    assert resumed.weights_digest == whole.weights_digest


def test_several_updates_per_batch_keep_the_first_policy_as_denominator(tiny: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=2, num_iterations=2, learning_rate=1e-2)
    result = _train(Replay(group()), tiny, tmp_path / "o", config)
    assert result.steps == 2 and result.losses[0] != result.losses[1]
    assert [entry.trajectories for entry in result.history] == [4, 0]


def test_replay_raises_the_probability_of_the_good_episode(tiny: Path, tmp_path: Path) -> None:
    rows = rows_of(group())
    before = sum(plain_logprobs(load_model(tiny), rows[0]))
    current = [
        stored(
            item.segments[0].model_copy(
                update={
                    "logprobs": tuple(
                        value
                        for value, weight in zip(
                            plain_logprobs(load_model(tiny), row), row.mask[1:], strict=True
                        )
                        if weight
                    )
                }
            ),
            group="g",
            index=item.rollout_index,
            reward=item.reward.total if item.reward else None,
        )
        for item, row in zip(group(), rows, strict=True)
    ]
    result = _train(Replay(current), tiny, tmp_path / "o", replace(CONFIG, steps=3))
    assert result.history[0].logprob_gap < 1e-5 and result.history[0].clip_share == 0.0
    assert sum(plain_logprobs(load_model(Path(result.model_dir)), rows[0])) > before


def _refused(source: Replay, tmp_path: Path, message: str, config: GrpoConfig = CONFIG) -> None:
    with pytest.raises(ConfigError, match=message):
        _train(source, tmp_path / "no_model", tmp_path / "o", config)


def test_replay_refuses_what_has_no_behaviour_policy(tmp_path: Path) -> None:
    rendered = [trajectory(two_turns([5], [7, STOP], [8], [9, STOP]), index=i) for i in range(2)]
    _refused(Replay(rendered), tmp_path, "is rendered, and GRPO trains on sampled segments only")
    _refused(Replay([]), tmp_path, "got no trajectories")
    bare = two_turns([5], [7, STOP], [8], [9, STOP], origin=Origin.SAMPLED)
    _refused(Replay([trajectory(bare)]), tmp_path, "only 'processed' ones")
    no_logprobs = stored(bare).model_copy(update={"segments": (bare.model_copy(update={"logprobs": ()}),)})
    _refused(Replay([no_logprobs]), tmp_path, "has 0 log-probs for 4 generated tokens")


def test_truncated_and_other_temperatures_are_refused(tmp_path: Path) -> None:
    bare = two_turns([5], [7, STOP], [8], [9, STOP], origin=Origin.SAMPLED)
    truncated = stored(bare, sampling={"temperature": 1.0, "top_p": 0.9})
    _refused(Replay([truncated]), tmp_path, r"truncated sampling \(top_p=0.9")
    _refused(Replay([stored(bare, sampling={"temperature": 0.7})]), tmp_path, "rollouts at temperature 0.7")
    _refused(Replay([stored(bare, sampling={"top_p": 1.0})]), tmp_path, "does not say at which temperature")
    replace(CONFIG, allow_truncated_sampling=True).check_sampling(Sampling(top_p=0.9))


def test_a_stored_group_of_one_is_refused_unless_asked_for(tiny: Path, tmp_path: Path) -> None:
    lone = Replay(group()[:1])
    with pytest.raises(ConfigError, match="has 1 trajectory"):
        _train(lone, tiny, tmp_path / "a", CONFIG)
    config = replace(CONFIG, singletons=SingletonRule.REINFORCE, advantage=AdvantageKind.DR_GRPO)
    assert _train(lone, tiny, tmp_path / "b", config).trained_tokens == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, "nothing to centre over"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"loss_type": "ppo"}, "loss_type must be one of dapo, dr_grpo, grpo, cispo, got 'ppo'"),
        ({"lora": {"rank": 4, "layers": 2}}, "lora: unknown layers; there are alpha, rank"),
        ({"loss_type": LossType.CISPO}, "cap of the ratio"),
        ({"push": PushKind.ADAPTER}, "needs lora settings"),
        ({"allow_truncated_sampling": True, "correction": Correction.NONE}, "needs a correction"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **changes)


def test_settings_may_be_text_as_in_a_recipe() -> None:
    written = GrpoConfig(precision="float32", correction="mis", lora={"rank": 4})  # type: ignore[arg-type]
    assert written.precision is Precision.FLOAT32 and written.correction is Correction.MIS
    assert written.lora == LoraSettings(rank=4)


def test_every_group_is_taken_once_before_any_is_taken_again() -> None:
    config = replace(CONFIG, steps=6, groups_per_step=2)
    plan = cycle_groups(list("abcdef"), config)
    assert sorted(plan[0] + plan[1] + plan[2]) == sorted(plan[3] + plan[4] + plan[5]) == list("abcdef")
    assert plan == cycle_groups(list("fedcba"), config)
    assert plan != cycle_groups(list("abcdef"), replace(config, seed=1))
