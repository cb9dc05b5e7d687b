"""Older rows, brought up to the current schema version one step at a time.

A migration takes the row of version n (plain JSON values, as stored) and returns the row of version
n + 1; it must not need anything but the row. Adding one: raise `SCHEMA_VERSION`, add the function to
`MIGRATIONS`, keep a fixture of the old version in `tests/data/`. Rows of a newer version are refused.
Ids are identity and are never changed by a migration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from data.errors import StoreError
from data.tasks import SCHEMA_VERSION

Row = dict[str, Any]

_TURN_LISTS = ("turns", "prompt", "chosen", "rejected")


def migrate(kind: str, row: Row) -> Row:
    """`row` at the current version; a row without `schema_version` is version 0.

    StoreError where the row is newer than this program.
    """
    version = int(row.get("schema_version", 0))
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"a row of {kind} has schema version {version}; this trajsmith reads up to {SCHEMA_VERSION}. "
            "Upgrade trajsmith to read this run"
        )
    while version < SCHEMA_VERSION:
        row = {**MIGRATIONS[version](kind, row), "schema_version": version + 1}
        version += 1
    return row


def _add_weights(kind: str, row: Row) -> Row:
    """0 -> 1: turns and trajectories got a training weight; all had counted fully before."""
    row = dict(row)
    for name in _TURN_LISTS:
        if name in row:
            row[name] = [{"weight": 1.0, **turn} for turn in row[name]]
    if kind in ("trajectories", "failures"):
        row.setdefault("weight", 1.0)
    return row


MIGRATIONS: dict[int, Callable[[str, Row], Row]] = {0: _add_weights}
