"""Checkpoints of a training run: whole directories that appear by a rename, and the resume from them.

A checkpoint is `step-000012/` with the trainable weights, the optimiser's and the random state, and
`state.json`. A killed write leaves a hidden directory that the next start removes. A checkpoint of
other data or another configuration is refused with what differs. Not covered: the finished model
(`rl.weights`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from data.errors import ConfigError, StoreError
from data.faults import kill_point
from data.files import sync_file
from data.summaries import damaged, read_object
from rl.disk import model_files, save_tensors
from rl.lm import require_torch

_KEPT = 2
_PREFIX = "step-"
_NAME = re.compile(rf"{_PREFIX}(\d{{6,}})")
_WRITING = ".writing-"


class Checkpoints:
    """The checkpoints in one directory; `identity` names what must be equal to resume."""

    def __init__(self, directory: Path, *, identity: Mapping[str, Any]) -> None:
        self._directory = directory
        self._identity: dict[str, Any] = json.loads(json.dumps(dict(identity)))

    def save(self, step: int, model: Any, optimizer: Any, state: Mapping[str, Any]) -> Path:
        """Write the checkpoint of `step` and drop all but the newest two. StoreError on a full disk."""
        torch = require_torch()
        target = self._directory / f"{_PREFIX}{step:06d}"
        with model_files(target, safe=self.kept):
            self._directory.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=_WRITING, dir=self._directory))
            try:
                save_tensors(trainable(model), aside / "weights.pt")
                kill_point("checkpoint.write.middle")
                rest = {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
                save_tensors(rest, aside / "optimizer.pt")
                content = {"identity": self._identity, "step": step, "state": dict(state)}
                (aside / "state.json").write_text(json.dumps(content), encoding="utf-8")
                for file in aside.iterdir():
                    sync_file(file)
                if target.exists():
                    shutil.rmtree(target)
                kill_point("checkpoint.rename.before")
                os.rename(aside, target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            kill_point("checkpoint.rename.after")
            for old in self._complete()[:-_KEPT]:
                shutil.rmtree(old)
        return target

    @property
    def kept(self) -> str:
        """From where training goes on after an error, as its message says it."""
        complete = self._complete()
        if not complete:
            return "there is no checkpoint yet (see checkpoint_every), so training will start from step 0"
        return f"training will go on from step {_step_of(complete[-1])}"

    def restore(self, model: Any, optimizer: Any) -> tuple[int, dict[str, Any]]:
        """Load the newest checkpoint; (0, {}) without one. ConfigError where it belongs to other work,
        StoreError where it is damaged or something else bears the name of one: then model, optimiser and
        random state are as they were.
        """
        self.clean()
        self._refuse_others_files()
        complete = self._complete()
        if not complete:
            return 0, {}
        torch = require_torch()
        newest = complete[-1]
        again = f"delete {newest} to go on from the one before it"
        identity, state = _read_state(newest, again=again)
        self._refuse_other(newest, identity)
        weights = _loaded(
            newest / "weights.pt",
            needs=trainable(model),
            misfit=lambda found: _weights_misfit(found, model),
            again=again,
        )
        saved = _loaded(
            newest / "optimizer.pt",
            needs=("optimizer", "rng"),
            misfit=lambda found: _optimizer_misfit(found, optimizer),
            again=again,
        )
        with torch.no_grad():
            for name, parameter in trainable(model).items():
                parameter.copy_(weights[name])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        return _step_of(newest), state

    def clean(self) -> None:
        """Remove what a killed write left behind."""
        for left in self._directory.glob(f"{_WRITING}*"):
            shutil.rmtree(left)

    def remove(self) -> None:
        """Delete all checkpoints (the run is finished and its model saved)."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _complete(self) -> list[Path]:
        """The checkpoints, oldest first."""
        named = [path for path in self._directory.glob(f"{_PREFIX}*") if _NAME.fullmatch(path.name)]
        return sorted((path for path in named if (path / "state.json").is_file()), key=_step_of)

    def _refuse_others_files(self) -> None:
        """StoreError where something bears nearly a checkpoint's name: `remove` would delete it, too."""
        for path in sorted(self._directory.glob(f"{_PREFIX}*")):
            if _NAME.fullmatch(path.name) is None:
                raise StoreError(f"{path} is no checkpoint; move it away and run the same command again")

    def _refuse_other(self, path: Path, found: Mapping[str, Any]) -> None:
        names = sorted({*found, *self._identity})
        differing = [
            f"{name}: checkpoint {found.get(name)!r}, now {self._identity.get(name)!r}"
            for name in names
            if found.get(name) != self._identity.get(name)
        ]
        if differing:
            raise ConfigError(
                f"{path} belongs to other work ({'; '.join(differing)}); restore that, or delete "
                f"{self._directory} to start from step 0"
            )


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _read_state(checkpoint: Path, *, again: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The identity and the state in `state.json`. StoreError where it is damaged."""
    path, kinds = checkpoint / "state.json", {"identity": dict, "step": int, "state": dict}
    content = read_object(path, needs=kinds, of="a checkpoint", again=again)
    wrong = [name for name, kind in kinds.items() if not isinstance(content[name], kind)]
    wrong = wrong or (["step"] if content["step"] != _step_of(checkpoint) else [])
    if wrong:
        found = f"its {wrong[0]} is {content[wrong[0]]!r:.100}"
        raise damaged(path, found, of="a checkpoint", again=again)
    return content["identity"], content["state"]


def _loaded(
    path: Path, *, needs: Collection[str], misfit: Callable[[dict[str, Any]], str], again: str
) -> dict[str, Any]:
    """What `torch.save` wrote. StoreError where the file is damaged, or `misfit` says what does not fit."""
    try:
        content: dict[str, Any] = require_torch().load(path, weights_only=True)
        missing = sorted(set(needs) - content.keys())
        wrong = "" if missing else misfit(content)
    except Exception as error:  # whatever a damaged archive makes of the reader
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise StoreError(f"{path} cannot be read: {why}; {again}") from error
    if missing:
        raise StoreError(f"{path} lacks {', '.join(missing[:3])}; {again}")
    if wrong:
        raise StoreError(f"{path} does not fit: {wrong}; {again}")
    return content


def _weights_misfit(found: Mapping[str, Any], model: Any) -> str:
    """Which parameter cannot be copied from `found`; "" where all can."""
    wrong = (name for name, parameter in trainable(model).items() if not _is_like(found[name], parameter))
    return next((f"{name} is no tensor of the model's shape" for name in wrong), "")


def _optimizer_misfit(found: Mapping[str, Any], optimizer: Any) -> str:
    """What of `found` AdamW cannot go on with; "" where all is well. What it raises is a misfit as well.

    AdamW itself loads moments of any shape and steps with them, whatever that makes of the weights.
    """
    torch = require_torch()
    torch.Generator().set_state(found["rng"])
    groups, now = found["optimizer"]["param_groups"], optimizer.state_dict()["param_groups"]
    if [group["params"] for group in groups] != [group["params"] for group in now]:
        return "its groups of parameters are others"
    for group, fresh in zip(groups, now, strict=True):
        for name, value in fresh.items():
            if not isinstance(group[name], type(value)):
                return f"{name} of a group is {group[name]!r:.100}"
    parameters = dict(enumerate(item for group in optimizer.param_groups for item in group["params"]))
    for number, moments in found["optimizer"]["state"].items():
        likes = {
            "step": torch.zeros((), dtype=torch.float32),
            "exp_avg": parameters[number],
            "exp_avg_sq": parameters[number],
        }
        if moments.keys() != likes.keys() or not all(_is_like(moments[name], likes[name]) for name in likes):
            return f"the moments of parameter {number} are not of its shape"
    return ""


def _is_like(value: Any, parameter: Any) -> bool:
    """Whether `value` is a tensor of the parameter's shape and type."""
    return (
        isinstance(value, require_torch().Tensor)
        and value.shape == parameter.shape
        and value.dtype == parameter.dtype
    )


def trainable(model: Any) -> dict[str, Any]:
    """Name to parameter of everything the optimiser changes."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
