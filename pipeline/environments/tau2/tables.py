"""A database shared by all sessions whose rows are copied when a session first touches them.

The benchmark's databases are megabytes, and an episode touches a dozen rows, so a session starts with
pointers to the shared rows and copies a row on its first access by key. Scans (`values`, `items`) give shared
rows: the tools of the pinned release scan only to read, and a test holds them to it. The digest of a state
covers the rows that differ from the shared ones: it is equal for two states exactly where the benchmark's own
hash of the whole database is. Not covered: tools that change a row found by a scan.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

from data import canonical

_REMOVED = "removed"


class Table(dict[str, Any]):
    """One table, key to row. `shared` must never be changed by anybody."""

    def __init__(self, shared: dict[str, Any]) -> None:
        super().__init__(shared)
        self.shared = shared
        self._own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if key in self._own:
            return value
        self[key] = mine = copy.deepcopy(value)
        return mine

    def __setitem__(self, key: str, value: Any) -> None:
        self._own.add(key)
        super().__setitem__(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        """The session's own row."""
        return self[key] if key in self else default  # noqa: SIM401 this is `get`

    def changes(self) -> dict[str, Any]:
        """The rows taken so far, and `removed` for the keys that are gone."""
        own = {key: dict.__getitem__(self, key) for key in self._own if key in self}
        return own | {key: _REMOVED for key in self.shared if key not in self}

    def apply(self, changes: dict[str, Any]) -> None:
        """Make the table what it was when `changes` was taken."""
        super().clear()
        super().update(self.shared)
        self._own.clear()
        for key, value in changes.items():
            if isinstance(value, str):
                del self[key]
            else:
                self[key] = value

    def differing(self) -> dict[str, str]:
        """Digest of each row that differs from the shared one, and `removed`."""
        found = {}
        for key, value in self.changes().items():
            digest = value if isinstance(value, str) else _digest(value)
            if key not in self.shared or digest != _shared_digest(self, key):
                found[key] = digest
        return found


def _digest(row: Any) -> str:
    return canonical.digest(row.model_dump(mode="json"), length=32)


def _shared_digest(table: Table, key: str) -> str:
    return _digest_of(_Row(table.shared[key]))


class _Row:
    """A shared row, hashable by identity so that its digest is taken once."""

    def __init__(self, row: Any) -> None:
        self.row = row

    def __hash__(self) -> int:
        return id(self.row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Row) and self.row is other.row


@functools.lru_cache(maxsize=65536)
def _digest_of(row: _Row) -> str:
    return _digest(row.row)
