"""A checkpoint that can be loaded and still is none: one error, and nothing has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from data.errors import StoreError
from rl.checkpoints import Checkpoints
from rl.optimizer import make_optimizer, step_optimizer


def make() -> tuple[Any, Any]:
    """A model and its optimiser, one step in."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    optimizer = make_optimizer(model, learning_rate=1e-2, weight_decay=0.1)
    model(torch.ones(1, 3)).sum().backward()
    step_optimizer(model, optimizer, learning_rate=1e-2, max_grad_norm=1.0)
    return model, optimizer


def everything(model: Any, optimizer: Any) -> list[Any]:
    """What a restore may change."""
    state = optimizer.state_dict()
    moments = [value.tolist() for kept in state["state"].values() for value in kept.values()]
    weights = [parameter.tolist() for parameter in model.parameters()]
    return [weights, moments, state["param_groups"], torch.get_rng_state().tolist()]


Change = Callable[[dict[str, Any]], object]
MISFITS: dict[str, tuple[str, Change]] = {
    "another shape": ("weights.pt", lambda found: found.update({"1.weight": torch.zeros(5, 2)})),
    "a shape that would be spread": ("weights.pt", lambda found: found.update({"1.weight": torch.zeros(1)})),
    "text for a tensor": ("weights.pt", lambda found: found.update({"1.weight": "x"})),
    "integers": ("weights.pt", lambda found: found.update({"1.bias": torch.zeros(1, dtype=torch.long)})),
    "one group": ("optimizer.pt", lambda found: found["optimizer"]["param_groups"].pop()),
    "other parameters": (
        "optimizer.pt",
        lambda found: found["optimizer"]["param_groups"][0].update(params=[0, 7]),
    ),
    "a rate in words": ("optimizer.pt", lambda found: found["optimizer"]["param_groups"][0].update(lr="x")),
    "no rate": ("optimizer.pt", lambda found: found["optimizer"]["param_groups"][0].pop("lr")),
    "moments of another shape": (
        "optimizer.pt",
        lambda found: found["optimizer"]["state"][0].update(exp_avg=torch.zeros(1)),
    ),
    "moments in words": ("optimizer.pt", lambda found: found["optimizer"]["state"][0].update(exp_avg="x")),
    "a moment less": ("optimizer.pt", lambda found: found["optimizer"]["state"][0].pop("exp_avg_sq")),
    "moments of no parameter": (
        "optimizer.pt",
        lambda found: found["optimizer"]["state"].update({9: found["optimizer"]["state"][0]}),
    ),
    "no optimizer": ("optimizer.pt", lambda found: found.update(optimizer=3)),
    "text for a random state": ("optimizer.pt", lambda found: found.update(rng="x")),
    "a short random state": ("optimizer.pt", lambda found: found.update(rng=found["rng"][:9])),
    "a step in words": ("state.json", lambda found: found.update(step="x")),
    "another step": ("state.json", lambda found: found.update(step=7)),
    "an identity in words": ("state.json", lambda found: found.update(identity="x")),
    "a state that is a list": ("state.json", lambda found: found.update(state=[])),
}


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    """Two checkpoints of one piece of work."""
    found = Checkpoints(tmp_path, identity={"stage": "test"})
    for step in (1, 2):
        found.save(step, *make(), {"at": step})
    return found


@pytest.mark.parametrize("name", MISFITS)
def test_a_checkpoint_that_does_not_fit_is_named_and_changes_nothing(
    checkpoints: Checkpoints, tmp_path: Path, name: str
) -> None:
    file, change = MISFITS[name]
    path = tmp_path / "step-000002" / file
    content = json.loads(path.read_text()) if file == "state.json" else torch.load(path)
    change(content)
    if file == "state.json":
        path.write_text(json.dumps(content))
    else:
        torch.save(content, path)
    model, optimizer = make()
    step_optimizer(model, optimizer, learning_rate=1e-3, max_grad_norm=1.0)
    torch.manual_seed(5)
    before = everything(model, optimizer)
    again = f"delete {tmp_path / 'step-000002'} to go on from the one before it"
    with pytest.raises(StoreError, match=rf"{path} .*; {again}"):
        checkpoints.restore(model, optimizer)
    assert everything(model, optimizer) == before


def test_what_was_saved_is_restored_whole(checkpoints: Checkpoints) -> None:
    model, optimizer = make()
    saved = everything(model, optimizer)
    checkpoints.save(3, model, optimizer, {"at": 3})
    model(torch.ones(1, 3)).sum().backward()
    step_optimizer(model, optimizer, learning_rate=1e-3, max_grad_norm=1.0)
    torch.manual_seed(5)
    assert everything(model, optimizer) != saved
    assert checkpoints.restore(model, optimizer) == (3, {"at": 3})
    assert everything(model, optimizer) == saved


@pytest.mark.parametrize("name", ["step-abc", "step-000002.old", "step-"])
def test_what_bears_nearly_the_name_of_a_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "state.json").write_text("{}")
    assert checkpoints.kept == "training will go on from step 2"
    with pytest.raises(StoreError, match=rf"{name} is no checkpoint; move it away and run the same command"):
        checkpoints.restore(*make())
    checkpoints.save(3, *make(), {})
    assert (tmp_path / name).is_dir() and (tmp_path / "step-000003").is_dir()
