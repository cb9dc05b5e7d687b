"""A memory as a file: one JSON document, there whole or not at all.

A file is refused where it was learned in another environment, or on a split that evaluations may read: the
split stands in the file, and every entry says its own. Not covered: making it (`synthesizers.hindsight`).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from data.files import write_atomically
from pipeline.environments.base import Environment
from pipeline.environments.splits import training_split
from pipeline.errors import ConfigError
from pipeline.memory.entries import Kind, Memory

FOLDER = "memory"
"""Of a run."""


def memory_path(folder: Path, kind: Kind) -> Path:
    """The file of a kind of memory in a run's folder `memory`."""
    return folder / f"{kind}.json"


def save_memory(folder: Path, memory: Memory) -> Path:
    """Write the memory in place of what was there."""
    path = memory_path(folder, memory.kind)
    write_atomically(path, memory.model_dump_json(indent=1) + "\n")
    return path


def load_memory(path: Path, kind: Kind, environment: Environment) -> Memory:
    """The memory in `path`: a file, or a folder with one file a kind. ConfigError where none may be shown."""
    file = memory_path(path, kind) if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"memory {file} does not exist; make it with the synthesizer hindsight, option memory: [{kind}]"
        )
    try:
        memory = Memory.model_validate_json(file.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise ConfigError(f"memory {file} cannot be used: {error}") from error
    if memory.kind is not kind:
        raise ConfigError(f"memory {file} is of kind {memory.kind}, not {kind}")
    if memory.environment != environment.name:
        raise ConfigError(
            f"memory {file} was learned in {memory.environment}, and the environment is {environment.name}"
        )
    if memory.split != training_split(environment):
        raise ConfigError(
            f"memory {file} was learned on split {memory.split!r}; allowed: {training_split(environment)!r}, "
            f"because others are read by evaluations"
        )
    return memory
