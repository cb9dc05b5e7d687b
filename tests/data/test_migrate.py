"""Rows of version 0 are read as version 1; rows of a version to come are refused.

`version0.jsonl` holds one row per table as written before turns and trajectories had a weight.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data import migrate, schema
from data.errors import StoreError
from data.schema import Kind
from data.tasks import SCHEMA_VERSION, Task
from data.trajectories import Trajectory

LINES = [json.loads(line) for line in Path(__file__).with_name("version0.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("line", LINES, ids=[line["table"] for line in LINES])
def test_a_row_of_version_0_becomes_a_current_record(line: dict[str, object]) -> None:
    row = line["row"]
    assert isinstance(row, dict) and "schema_version" not in row and '"weight"' not in json.dumps(row)
    record = schema.from_json(Kind(str(line["table"])), json.dumps(row).encode())
    assert record.schema_version == SCHEMA_VERSION
    assert schema.from_json(Kind(str(line["table"])), schema.to_json(record)) == record
    if isinstance(record, Trajectory):
        assert record.weight == 1.0 and {turn.weight for turn in record.turns} == {1.0}
    if isinstance(record, Task):
        assert record.task_id == row["task_id"]


def test_every_table_has_a_fixture_and_every_version_a_migration() -> None:
    assert {line["table"] for line in LINES} == set(Kind)
    assert sorted(migrate.MIGRATIONS) == list(range(SCHEMA_VERSION))


def test_migrations_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "SCHEMA_VERSION", 3)
    steps = {n: (lambda kind, row, n=n: {**row, "seen": [*row["seen"], n]}) for n in range(3)}
    monkeypatch.setattr(migrate, "MIGRATIONS", steps)
    assert migrate.migrate("tasks", {"schema_version": 1, "seen": []}) == {
        "schema_version": 3,
        "seen": [1, 2],
    }
    assert migrate.migrate("tasks", {"seen": []}) == {"schema_version": 3, "seen": [0, 1, 2]}


def test_a_newer_row_is_refused() -> None:
    line = json.dumps({"schema_version": SCHEMA_VERSION + 1, "trajectory_id": "x"}).encode()
    with pytest.raises(
        StoreError, match=rf"schema version {SCHEMA_VERSION + 1}.*reads up to {SCHEMA_VERSION}.*Upgrade"
    ):
        schema.from_json(Kind.VERDICTS, line)
