"""A disk that fills while a trained model is written: one clear error, nothing half-made, and on it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.errors import StoreError
from rl.checkpoints import Checkpoints
from rl.disk import model_files, save_tensors
from rl.lm import LoraSettings, load_model
from rl.optimizer import make_optimizer
from rl.results import StepMetrics, TrainResult
from rl.sft import train_sft
from rl.weights import copy_sidecars, save_adapter, save_model, save_weights
from tests.disks import no_file_beyond
from tests.rl.builders import STOP
from tests.rl.test_sft import SHORT, three_rows
from tests.tiny import make_tiny_model

SMALL = 20_000
"""Bytes: below the tiny model's weights."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def train(tiny: Path, out: Path, *, checkpoint_every: int, limit_at: int = 0) -> TrainResult:
    """Six steps; the disk takes no more from the end of step `limit_at` on."""
    disk = no_file_beyond(SMALL)

    def fill(metrics: StepMetrics) -> None:
        if metrics.step == limit_at:
            disk.__enter__()

    try:
        return train_sft(
            three_rows(),
            model_dir=tiny,
            out_dir=out,
            config=replace(SHORT, epochs=3, checkpoint_every=checkpoint_every),
            stop_token_ids={STOP},
            on_progress=fill,
        )
    finally:
        if limit_at:
            disk.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("every", "limit_at", "what", "said", "kept"),
    [
        (
            0,
            6,
            r"out",
            r"there is no checkpoint yet \(see checkpoint_every\), so training will start from step 0",
            0,
        ),
        (2, 6, r"out", r"training will go on from step 4", 4),
        (2, 4, r"out\.checkpoints/step-000004", r"training will go on from step 2", 2),
        (2, 2, r"out\.checkpoints/step-000002", r"there is no checkpoint yet .*from step 0", 0),
    ],
)
def test_training_says_what_it_goes_on_from_and_does(
    tiny: Path, tmp_path: Path, every: int, limit_at: int, what: str, said: str, kept: int
) -> None:
    full = rf"cannot write \S*{what}: no space left\. {said}; free space and run the same command again"
    with pytest.raises(StoreError, match=full):
        train(tiny, tmp_path / "out", checkpoint_every=every, limit_at=limit_at)
    steps = [f"step-{step:06d}" for step in (2, 4) if step <= kept]
    assert names(tmp_path) == (["out.checkpoints"] if every else [])
    assert not every or names(tmp_path / "out.checkpoints") == steps
    again = train(tiny, tmp_path / "out", checkpoint_every=every)
    assert again.resumed_from == kept and again.steps == 6


def write_checkpoint(model: Any, tiny: Path, out: Path) -> None:
    optimizer = make_optimizer(model, learning_rate=1e-3, weight_decay=0.0)
    Checkpoints(out, identity={}).save(1, model, optimizer, {})


WRITERS: dict[str, Callable[[Any, Path, Path], object]] = {
    "save_model": save_model,
    "save_weights": lambda model, tiny, out: save_weights(model, out.parent),
    "save_adapter": lambda model, tiny, out: save_adapter(model, out),
    "copy_sidecars": lambda model, tiny, out: copy_sidecars(tiny, out),
    "checkpoint": write_checkpoint,
    "save_tensors": lambda model, tiny, out: save_tensors(model.state_dict(), out),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_of_models_tells_a_full_disk(writer: str, tiny: Path, tmp_path: Path) -> None:
    model = load_model(tiny, lora=LoraSettings(rank=4))
    full = pytest.raises(StoreError, match=r"cannot write .*: no space left\. ")
    with no_file_beyond(1_000), full, model_files(tmp_path / "out", safe="all is well"):
        WRITERS[writer](model, tiny, tmp_path / "out")


@pytest.mark.parametrize("writer", ["save_model", "save_adapter"])
def test_what_was_there_stays_where_the_new_one_does_not_fit(writer: str, tiny: Path, tmp_path: Path) -> None:
    model = load_model(tiny, lora=LoraSettings(rank=4))
    WRITERS[writer](model, tiny, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    full = pytest.raises(StoreError, match="no space left")
    with no_file_beyond(1_000), full, model_files(tmp_path / "out", safe="all is well"):
        WRITERS[writer](model, tiny, tmp_path / "out")
    assert names(tmp_path) == ["out"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_bug_is_no_full_disk(tmp_path: Path) -> None:
    from safetensors import SafetensorError

    with pytest.raises(SafetensorError, match="of ours"), model_files(tmp_path, safe=""):
        raise SafetensorError("a bug of ours")
    with pytest.raises(AttributeError):
        save_tensors(lambda: None, tmp_path / "x")
