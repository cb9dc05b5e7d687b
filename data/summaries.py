"""The small JSON files that a verb leaves in a run: read back whole, or refused by name.

Decides what a damaged one is (no JSON, no object, a field missing or of another type) and says what to do
about it. Not covered: rows (`data.journal`), and what a summary means.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from data.errors import StoreError

Summary = TypeVar("Summary", bound=BaseModel)


def read_summary(kind: type[Summary], path: Path, *, of: str, again: str) -> Summary:
    """The record in `path`. StoreError where it is none: names the file, what it should be a summary `of`,
    and how to make it `again`.
    """
    try:
        return kind.model_validate_json(_bytes(path, of=of, again=again))
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise damaged(path, f"{place + ': ' if place else ''}{found['msg']}", of=of, again=again) from error


def read_object(path: Path, *, needs: Collection[str] = (), of: str, again: str) -> dict[str, Any]:
    """The JSON object in `path` with at least the keys `needs`. StoreError as `read_summary`."""
    value = read_value(path, of=of, again=again)
    if not isinstance(value, dict):
        raise damaged(path, f"it holds {type(value).__name__}, not an object", of=of, again=again)
    if missing := sorted(set(needs) - value.keys()):
        raise damaged(path, f"it lacks {', '.join(missing)}", of=of, again=again)
    return value


def read_value(path: Path, *, of: str, again: str) -> Any:
    """The JSON value in `path`. StoreError as `read_summary`."""
    try:
        return json.loads(_bytes(path, of=of, again=again))
    except ValueError as error:
        raise damaged(path, f"it is not JSON ({error})", of=of, again=again) from error


def _bytes(path: Path, *, of: str, again: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(path, error.strerror or str(error), of=of, again=again) from error


def damaged(path: Path, why: str, *, of: str, again: str) -> StoreError:
    """The error for a file that is not what it should be."""
    return StoreError(f"{path} is no summary of {of}: {why}; {again}")
