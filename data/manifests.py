"""What a finished stage leaves behind, written last: its key, counts, versions and inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data import canonical, faults
from data.errors import ConfigError
from data.files import write_atomically
from data.summaries import read_object

_STAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def stage_key(config: Any, input_digests: Mapping[str, str], code_version: str) -> str:
    """Identity of a stage's result: equal keys mean the work need not be done again."""
    return canonical.digest("stage", config, dict(input_digests), code_version)


def read_manifest(folder: Path, stage: str) -> dict[str, Any] | None:
    """The manifest of a finished stage, None where the stage has not finished. StoreError where damaged."""
    path = _path(folder, stage)
    if not path.exists():
        return None
    needs = ("stage", "key", "counts", "versions", "inputs")
    return read_object(path, needs=needs, of=f"stage {stage}", again="delete it to run the stage again")


def write_manifest(
    folder: Path,
    stage: str,
    *,
    key: str,
    counts: Mapping[str, int],
    versions: Mapping[str, str],
    inputs: Mapping[str, str],
) -> None:
    """Record that `stage` is done. Everything it names must be durable before."""
    value = {
        "stage": stage,
        "key": key,
        "counts": dict(counts),
        "versions": dict(versions),
        "inputs": dict(inputs),
    }
    path = _path(folder, stage)
    faults.kill_point("manifest.before")
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
    faults.kill_point("manifest.after")


def forget_manifest(folder: Path, stage: str) -> None:
    """Take back that `stage` is done, where it was."""
    _path(folder, stage).unlink(missing_ok=True)


def _path(folder: Path, stage: str) -> Path:
    if not _STAGE.fullmatch(stage):
        raise ConfigError(f"stage name {stage!r} cannot name a file; use letters, digits, '_', '.' and '-'")
    return folder / f"{stage}.json"
