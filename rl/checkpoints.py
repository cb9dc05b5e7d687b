"""Checkpoints of a training run: whole directories that appear by a rename, and the resume from them.

A checkpoint is `step-000012/` with the trainable weights, the optimiser's and the random state, and
`state.json`. A killed write leaves a hidden directory that the next start removes. A checkpoint of
other data or another configuration is refused with what differs. Not covered: the finished model
(`rl.weights`).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from data.errors import ConfigError, StoreError
from data.faults import kill_point
from data.files import sync_file
from data.summaries import read_object
from rl.disk import model_files, save_tensors
from rl.lm import require_torch

_KEPT = 2
_PREFIX = "step-"
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
        return f"training will go on from step {int(complete[-1].name.removeprefix(_PREFIX))}"

    def restore(self, model: Any, optimizer: Any) -> tuple[int, dict[str, Any]]:
        """Load the newest checkpoint; (0, {}) without one. ConfigError where it belongs to other work,
        StoreError where it is damaged: then nothing has changed.
        """
        self.clean()
        complete = self._complete()
        if not complete:
            return 0, {}
        torch = require_torch()
        newest = complete[-1]
        again = f"delete {newest} to go on from the one before it"
        content = read_object(
            newest / "state.json", needs=("identity", "step", "state"), of="a checkpoint", again=again
        )
        self._refuse_other(newest, content["identity"])
        weights = _loaded(newest / "weights.pt", needs=trainable(model), again=again)
        saved = _loaded(newest / "optimizer.pt", needs=("optimizer", "rng"), again=again)
        with torch.no_grad():
            for name, parameter in trainable(model).items():
                parameter.copy_(weights[name])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        return int(content["step"]), content["state"]

    def clean(self) -> None:
        """Remove what a killed write left behind."""
        for left in self._directory.glob(f"{_WRITING}*"):
            shutil.rmtree(left)

    def remove(self) -> None:
        """Delete all checkpoints (the run is finished and its model saved)."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _complete(self) -> list[Path]:
        return sorted(path for path in self._directory.glob(f"{_PREFIX}*") if (path / "state.json").is_file())

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


def _loaded(path: Path, *, needs: Collection[str], again: str) -> dict[str, Any]:
    """What `torch.save` wrote. StoreError where the file is damaged."""
    try:
        content: dict[str, Any] = require_torch().load(path, weights_only=True)
        missing = sorted(set(needs) - content.keys())
    except Exception as error:  # whatever a damaged archive makes of the reader
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise StoreError(f"{path} cannot be read: {why}; {again}") from error
    if missing:
        raise StoreError(f"{path} lacks {', '.join(missing[:3])}; {again}")
    return content


def trainable(model: Any) -> dict[str, Any]:
    """Name to parameter of everything the optimiser changes."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
