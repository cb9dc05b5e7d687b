"""Supervised training on a tiny model: it memorises, resumes to the same weights, and refuses bad input."""

from __future__ import annotations

import gc
import shutil
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError, StoreError
from data.trajectories import Trajectory
from rl.checkpoints import Checkpoints
from rl.lm import LoraSettings, Precision, load_model, memory_returned, training_device
from rl.models import checkpoint_digest
from rl.optimizer import DivergedError, make_optimizer, step_optimizer
from rl.packing import pack
from rl.results import StepMetrics, TrainResult
from rl.rows import sft_rows
from rl.sft import SftConfig, cut_by_tokens, plan_steps, step_loss, train_sft
from tests.processes import assert_killed
from tests.rl.builders import GENERATED, OBSERVATION, PROMPT, STOP, segment, trajectory, two_turns
from tests.tiny import make_tiny_model

CONFIG = SftConfig(
    epochs=60,
    tokens_per_step=64,
    learning_rate=1e-2,
    precision=Precision.FLOAT32,
    warmup_steps=2,
    tokens_per_pass=128,
)
SHORT = replace(CONFIG, epochs=6, tokens_per_step=20, checkpoint_every=2)


def three_rows() -> list[Trajectory]:
    """Three trajectories that differ after a common prompt; the right answer depends on its last token."""
    return [
        trajectory(two_turns([5, 6, 40 + i], [70 + i, 80 + i, STOP], [90, 91], [60 + i, STOP]), index=i)
        for i in range(3)
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def _train(tiny: Path, out: Path, config: SftConfig, **options: object) -> TrainResult:
    return train_sft(
        options.pop("rows", None) or three_rows(),  # type: ignore[arg-type]
        model_dir=tiny,
        out_dir=out,
        config=config,
        stop_token_ids={STOP},
        **options,  # type: ignore[arg-type]
    )


def test_it_memorises_three_rows_and_saves_a_loadable_model(tiny: Path, tmp_path: Path) -> None:
    seen: list[StepMetrics] = []
    result = _train(tiny, tmp_path / "out", CONFIG, on_progress=seen.append)
    assert result.losses[0] > 4.0 and result.losses[-1] < 0.05
    assert [entry.step for entry in seen] == list(range(1, result.steps + 1))
    assert result.trained_tokens == 15 * 60 and result.row_tokens == 30 * 60
    assert result.computed_tokens < result.row_tokens
    assert result.weights_digest == checkpoint_digest(tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").is_file() and (
        tmp_path / "out" / "chat_template.jinja"
    ).is_file()

    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for i in range(3):
        out = model.generate(torch.tensor([[5, 6, 40 + i]]), max_new_tokens=3, do_sample=False)
        assert out[0, 3:].tolist() == [70 + i, 80 + i, STOP]


def test_a_trajectory_of_weight_zero_trains_nothing(tiny: Path, tmp_path: Path) -> None:
    first = _train(tiny, tmp_path / "a", replace(CONFIG, epochs=1))
    relabelled = [
        trajectory(
            two_turns([5, 6, 40 + i], [70 + i, 80 + i, STOP], [90, 91], [60 + i, STOP]), index=i, weight=w
        )
        for i, w in enumerate([1.0, 1.0, 0.0])
    ]
    second = _train(tiny, tmp_path / "b", replace(CONFIG, epochs=1), rows=relabelled)
    assert second.trained_tokens == 10 and first.trained_tokens == 15


@pytest.fixture(scope="module")
def model(tiny: Path) -> Any:
    return load_model(tiny)


def gradients(model: Any, rows: list[Trajectory], *, share: bool = True) -> dict[str, Any]:
    """Of the loss of one step over `rows`, by parameter."""
    packed = pack(sft_rows(rows), share=share)
    total = sum(row.weight * sum(row.mask) for row in packed.rows)
    model.zero_grad()
    step_loss(model, packed, total_weight=total, precision=Precision.FLOAT32).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    return all(bool((first[name] == second[name]).all()) for name in first)


def open_ended(answer: int, seen: int) -> list[Trajectory]:
    """Three rows that answer from `answer` on and end with two observed tokens, the last of them `seen`."""
    runs = [
        [(PROMPT, 0, [5, 6]), (GENERATED, 1, [answer, 70 + i, STOP]), (OBSERVATION, 2, [90, seen])]
        for i in range(3)
    ]
    return [trajectory(segment(each), index=i) for i, each in enumerate(runs)]


@pytest.mark.parametrize("share", [True, False])
def test_an_observations_label_leaves_every_gradient_bit_equal(model: Any, share: bool) -> None:
    """At the end of a row no trained token sees it: there another token is another label and nothing else."""
    before = gradients(model, open_ended(30, 91), share=share)
    assert same(before, gradients(model, open_ended(30, 77), share=share))
    assert not same(before, gradients(model, open_ended(31, 91), share=share))
    assert any(bool(value.any()) for value in before.values())


def test_the_weight_of_a_turn_that_was_observed_changes_no_gradient(model: Any) -> None:
    told = two_turns([5, 6], [30, STOP], [90, 91], [60, STOP])
    turns = trajectory(told).turns
    heavier = [turn.model_copy(update={"weight": 3.0}) for turn in turns]
    before = gradients(model, [trajectory(told)])
    observed = (heavier[0], turns[1], heavier[2], turns[3])
    assert same(before, gradients(model, [trajectory(told, turns=observed)]))
    written = (turns[0], heavier[1], turns[2], turns[3])
    assert not same(before, gradients(model, [trajectory(told, turns=written)]))


@pytest.mark.parametrize("share", [True, False])
def test_gradients_are_those_of_the_generated_tokens_alone(model: Any, share: bool) -> None:
    """Against a loss written out: labels are -100 on prompts and observations, in the middle of a row too."""
    import torch

    found = gradients(model, three_rows(), share=share)
    model.zero_grad()
    total = 0
    for row in sft_rows(three_rows()):
        logits = model(input_ids=torch.tensor([row.token_ids])).logits[0, :-1]
        labels = [*[-100] * 3, *row.token_ids[3:6], -100, -100, *row.token_ids[8:]]
        total += sum(label != -100 for label in labels)
        torch.nn.functional.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum").backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad / total, rtol=1e-4, atol=1e-6)


def test_sample_weight_multiplies_the_loss(tiny: Path, tmp_path: Path) -> None:
    def loss(weights: tuple[float, float]) -> float:
        rows = [
            trajectory(two_turns([5, 6], [70 + i, STOP], [90], [60, STOP]), index=i, weight=w)
            for i, w in enumerate(weights)
        ]
        return _train(tiny, tmp_path / f"{weights}", replace(CONFIG, epochs=1), rows=rows).losses[0]

    only_first, only_second, mixed = loss((1.0, 0.0)), loss((0.0, 1.0)), loss((1.0, 3.0))
    assert mixed == pytest.approx((only_first + 3 * only_second) / 4, abs=1e-5)
    assert only_first != pytest.approx(only_second, abs=1e-4)


class _Stop(Exception):
    pass


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)])
def test_an_interrupted_run_resumes_to_the_same_weights(
    tiny: Path, tmp_path: Path, lora: LoraSettings | None
) -> None:
    config = replace(SHORT, lora=lora)
    whole = _train(tiny, tmp_path / "whole", config)

    def stop_at_seven(metrics: StepMetrics) -> None:
        if metrics.step == 7:
            raise _Stop

    with pytest.raises(_Stop):
        _train(tiny, tmp_path / "cut", config, on_progress=stop_at_seven)
    resumed = _train(tiny, tmp_path / "cut", config)
    assert resumed.resumed_from == 6 and resumed.steps == whole.steps == 12
    assert resumed.weights_digest == whole.weights_digest and resumed.losses == whole.losses
    assert not (tmp_path / "cut.checkpoints").exists()
    assert (resumed.adapter_dir != "") == (lora is not None)


def test_rows_that_are_too_long_are_told_with_the_first_step(tiny: Path, tmp_path: Path) -> None:
    rows = [*three_rows(), trajectory(two_turns([5], [70] * 40 + [STOP], [90], [60, STOP]), index=3)]
    result = _train(tiny, tmp_path / "o", replace(SHORT, max_length=32, overlong="drop"), rows=rows)
    assert [entry.dropped_overlong for entry in result.history] == [1] + [0] * 11
    assert result.dropped_overlong == 1


def test_a_finished_run_is_returned_and_another_one_refused(tiny: Path, tmp_path: Path) -> None:
    first = _train(tiny, tmp_path / "out", SHORT)
    assert _train(tiny, tmp_path / "out", replace(SHORT, checkpoint_every=0)) == first
    with pytest.raises(ConfigError, match="finished model of other work"):
        _train(tiny, tmp_path / "out", replace(SHORT, epochs=7))


def test_a_checkpoint_of_other_work_is_refused_with_what_differs(tiny: Path, tmp_path: Path) -> None:
    def stop(metrics: StepMetrics) -> None:
        if metrics.step == 3:
            raise _Stop

    with pytest.raises(_Stop):
        _train(tiny, tmp_path / "out", SHORT, on_progress=stop)
    with pytest.raises(ConfigError, match=r"rows: checkpoint"):
        _train(tiny, tmp_path / "out", SHORT, rows=three_rows()[:2])


@pytest.mark.parametrize("file", ["weights.pt", "optimizer.pt", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_serves(
    tiny: Path, tmp_path: Path, undisturbed: TrainResult, file: str, damage: str
) -> None:
    import torch

    def stop(metrics: StepMetrics) -> None:
        if metrics.step == 5:
            raise _Stop

    with pytest.raises(_Stop):
        _train(tiny, tmp_path / "out", SHORT, on_progress=stop)
    newest = tmp_path / "out.checkpoints" / "step-000004"
    if damage == "other":
        torch.save({"nothing": torch.zeros(1)}, newest / file)
    else:
        whole = (newest / file).read_bytes()
        (newest / file).write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"")
    with pytest.raises(StoreError, match=rf"step-000004/{file} .*; delete .*step-000004 to go on from the"):
        _train(tiny, tmp_path / "out", SHORT)
    shutil.rmtree(newest)
    resumed = _train(tiny, tmp_path / "out", SHORT)
    assert resumed.resumed_from == 2 and resumed.weights_digest == undisturbed.weights_digest


def test_adapter_merge_equals_the_adapted_model(tiny: Path, tmp_path: Path) -> None:
    result = _train(
        tiny, tmp_path / "out", replace(CONFIG, epochs=20, lora=LoraSettings(rank=4), learning_rate=1e-2)
    )
    assert result.losses[-1] < result.losses[0] - 0.5

    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
    ids = torch.tensor([[5, 6, 40, 70]])
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), result.adapter_dir)(
        ids
    ).logits
    torch.testing.assert_close(merged, adapted, atol=1e-4, rtol=1e-4)
    assert float((merged - AutoModelForCausalLM.from_pretrained(tiny)(ids).logits).detach().abs().max()) > 0.1


def test_order_follows_the_seed_and_the_rows_not_their_order() -> None:
    rows = sft_rows(
        [trajectory(two_turns([5, 6], [70 + i, STOP], [90], [60, STOP]), index=i) for i in range(9)]
    )
    config = replace(SHORT, tokens_per_step=15)
    assert plan_steps(rows, config) == plan_steps(rows[::-1], config)
    assert plan_steps(rows, config) != plan_steps(rows, replace(config, seed=1))
    few = plan_steps(rows, replace(config, max_steps=4))
    assert len(few) == 4 and few == plan_steps(rows, replace(config, max_steps=4, epochs=10**9))
    assert [len(cut) for cut in cut_by_tokens(rows, 15)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("field", "value"), [("epochs", 0), ("learning_rate", 0.0), ("overlong", "cut"), ("warmup_steps", -1)]
)
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(CONFIG, **{field: value})


def test_a_wrong_mask_stops_training_before_the_model_is_loaded(tmp_path: Path) -> None:
    wrong = [trajectory(two_turns([5, 6], [7], [STOP, 9], [10, STOP]))]
    with pytest.raises(ConfigError, match="mask audit refuses"):
        _train(tmp_path / "missing", tmp_path / "out", CONFIG, rows=wrong)


def test_left_overs_of_a_killed_write_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".writing-x").mkdir(parents=True)
    (tmp_path / ".writing-x" / "weights.pt").write_bytes(b"half")
    assert Checkpoints(tmp_path, identity={}).restore(None, None) == (0, {})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return _train(tiny, tmp_path_factory.mktemp("whole") / "out", SHORT)


_CHILD = """
import sys
from pathlib import Path
from tests.rl.test_sft import SHORT, three_rows, STOP
from rl.sft import train_sft
model, out = map(Path, sys.argv[1:])
train_sft(three_rows(), model_dir=model, out_dir=out, config=SHORT, stop_token_ids={STOP})
"""


@pytest.mark.rl
@pytest.mark.parametrize(
    ("point", "resumed_from"),
    [
        ("checkpoint.write.middle:2", 2),
        ("checkpoint.rename.before:2", 2),
        ("checkpoint.rename.after:2", 4),
        ("model.rename.before", 10),
    ],
)
def test_kill_9_around_a_checkpoint_loses_no_finished_step(
    tiny: Path, tmp_path: Path, undisturbed: TrainResult, point: str, resumed_from: int
) -> None:
    assert_killed(point, _CHILD, tiny, tmp_path / "cut")
    resumed = _train(tiny, tmp_path / "cut", SHORT)
    assert resumed.resumed_from == resumed_from
    assert resumed.weights_digest == undisturbed.weights_digest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_it_trains_where_a_gpu_would_be(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert training_device() == "cuda"
    monkeypatch.setattr("rl.sft.training_device", lambda: "elsewhere")
    with pytest.raises(RuntimeError, match="device string: elsewhere"):
        _train(tiny, tmp_path / "out", CONFIG)


def test_a_gradient_that_is_not_finite_moves_no_weight_and_names_a_step_that_can_be_taken() -> None:
    import torch

    model = torch.nn.Linear(2, 2)
    optimizer = make_optimizer(model, learning_rate=1.0, weight_decay=0.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (model(torch.ones(1, 2)) * float("inf")).sum().backward()
    with pytest.raises(
        DivergedError, match=r"norm is (inf|nan), .* lower learning_rate .* from step 0: a checkpoint"
    ):
        step_optimizer(model, optimizer, learning_rate=1.0, max_grad_norm=1.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_training_made_is_collected_at_once_even_in_cycles() -> None:
    class Model:
        pass

    def train() -> weakref.ref[Model]:
        with memory_returned():
            model = Model()
            model.itself = model  # type: ignore[attr-defined]
            alive = weakref.ref(model)
            del model
            return alive

    gc.disable()
    try:
        assert train()() is None
    finally:
        gc.enable()
