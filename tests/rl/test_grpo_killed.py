"""SIGKILL under GRPO, around checkpoints and the finished model: the next run ends in the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rl.grpo import train_grpo
from rl.grpo_sources import Replay
from rl.results import TrainResult
from tests.processes import assert_killed
from tests.rl.builders import STOP
from tests.rl.test_grpo import CONFIG, group
from tests.tiny import make_tiny_model

pytestmark = pytest.mark.rl
_CHILD = """
import sys
from pathlib import Path
from tests.rl.test_grpo_killed import train
train(*map(Path, sys.argv[1:]))
"""


def train(tiny: Path, out: Path) -> TrainResult:
    """Five steps on stored groups, a checkpoint after every second one."""
    config = replace(CONFIG, steps=5, groups_per_step=2, checkpoint_every=2)
    source = Replay([item for name in "abc" for item in group(name)])
    return train_grpo(source, model_dir=tiny, out_dir=out, config=config, stop_token_ids={STOP})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    return train(tiny, tmp_path_factory.mktemp("whole") / "out")


@pytest.mark.parametrize(
    ("point", "resumed_from"),
    [
        ("checkpoint.write.middle:1", 0),
        ("checkpoint.write.middle:2", 2),
        ("checkpoint.rename.before:2", 2),
        ("checkpoint.rename.after:2", 4),
        ("model.rename.before", 4),
    ],
)
def test_a_killed_trainer_goes_on_to_the_same_weights(
    tiny: Path, tmp_path: Path, undisturbed: TrainResult, point: str, resumed_from: int
) -> None:
    assert_killed(point, _CHILD, tiny, tmp_path / "cut")
    resumed = train(tiny, tmp_path / "cut")
    assert resumed.resumed_from == resumed_from and resumed.losses == undisturbed.losses
    assert resumed.weights_digest == undisturbed.weights_digest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
