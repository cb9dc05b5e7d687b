"""Records that no table of a run holds (probes, repairs): one journal line each, as they come.

A killed synthesis or arrow of a loop goes on with the rows that are there. Rows are read back sorted by key,
so that the order in which they came changes nothing. Not covered: what the records mean (`probing`,
`records`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from data import journal
from data.files import disk_errors
from data.journal import Journal, Tail
from data.messages import Record

_KIND = "row"
Row = TypeVar("Row", bound=Record)


class RowLog(Generic[Row]):
    """Rows of one record type in one file; a context manager. The latest row of a key counts."""

    def __init__(self, path: Path, kind: type[Row]) -> None:
        """Opens for appending, makes the file where there is none, cuts a torn tail. StoreError where the
        disk does not take it."""
        with disk_errors(path, safe="nothing was changed"):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._kind, self._log = kind, Journal(path)
        self._offsets: dict[str, int] = {}
        for entry in journal.scan(self._log.descriptor, path):
            if isinstance(entry, Tail):
                if entry.torn:
                    self._log.cut(entry.end)
            else:
                self._offsets[entry.key] = entry.offset

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the rows there are."""
        return frozenset(self._offsets)

    def append(self, key: str, row: Row) -> None:
        """Add a row; it survives the death of the process."""
        self._offsets[key] = self._log.append(_KIND, key, row.model_dump_json().encode())

    def rows(self) -> Iterator[Row]:
        """All rows, sorted by key."""
        for key in sorted(self._offsets):
            yield self._kind.model_validate_json(self._log.read(self._offsets[key]).payload)

    def digest(self) -> str:
        """Digest of keys and content, 64 hex digits."""
        total = hashlib.sha256()
        for key in sorted(self._offsets):
            total.update(self._log.read(self._offsets[key]).payload + b"\n")
        return total.hexdigest()
