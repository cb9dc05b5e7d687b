"""Probes and repairs kept in a run as they come, so that a killed synthesis decodes nothing twice.

One JSON line each, appended. A line that a kill cut off is not there. Not covered: two writers at a time (the
run's store has one).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from synthesizers.looptool.probing import Probe
from synthesizers.looptool.records import Repair

Row = TypeVar("Row", Probe, Repair)


class Kept(Generic[Row]):
    """Rows by step id. Without a path they are kept in memory only."""

    def __init__(self, kind: type[Row], path: Path | None) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        for line in path.read_bytes().splitlines() if path is not None and path.is_file() else ():
            try:
                row = kind.model_validate_json(line)
            except ValidationError:
                continue
            self.rows[row.step_id] = row

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows[row.step_id] = row
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            torn = file.read() not in (b"", b"\n")
            file.write(b"\n" * torn + row.model_dump_json().encode() + b"\n")

    def in_order(self) -> list[Row]:
        """All rows by trajectory and turn."""
        return sorted(self.rows.values(), key=lambda row: (row.trajectory_id, row.turn))
