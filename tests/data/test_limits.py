"""Memory and disk: what a run may use, and what happens when there is no more."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data import schema, shards
from data.errors import StoreError
from data.messages import user
from data.schema import Kind
from data.store import Store
from tests.data import records
from tests.disks import no_file_beyond

REPOSITORY = Path(__file__).parents[2]
ROWS = 10_000
BOUND_MIB = 96
"""Streaming needs about 50; the same rows held in a list take about 210."""

STREAM = """
import json, resource, sys
from pathlib import Path
import pyarrow.parquet
from data.store import Store
from tests.data import records

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

root, rows = Path(sys.argv[1]), int(sys.argv[2])
base = records.make_trajectory(0, tokens=2)
with Store.create_or_open(root, {"seed": 1}) as store:
    for n in range(200):
        store.append(base.model_copy(update={"trajectory_id": f"warm{n}"}))
    store.seal()
    sum(1 for _ in store.trajectories())
    before = peak()
    for n in range(rows):
        store.append(base.model_copy(update={"trajectory_id": f"{n:08d}"}))
        if n % 4000 == 3999:
            store.seal()
    store.seal(shard_rows=3000)
    count = sum(1 for _ in store.trajectories())
print(json.dumps({"growth": peak() - before, "count": count}))
"""


def test_streaming_many_rows_takes_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STREAM, str(tmp_path / "run"), str(ROWS)]
    run = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    result = json.loads(run.stdout)
    assert result["count"] == ROWS + 200
    assert result["growth"] < BOUND_MIB, f"peak grew by {result['growth']:.0f} MiB"


def test_a_reader_does_not_hold_the_whole_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "ROW_GROUP_BYTES", 1 << 17)
    draw = random.Random(0)
    rows = []
    for number in range(1_000):
        row = records.make_trajectory(number, tokens=2)
        said = user(draw.randbytes(4_000).hex())  # text that does not compress away
        rows.append(row.model_copy(update={"turns": (*row.turns, said)}))
    path = tmp_path / "part-00000-00000.parquet"
    shards.write_shard(path, Kind.TRAJECTORIES, map(schema.to_json, rows))
    assert pq.ParquetFile(path).num_row_groups > 10
    base, held = pa.total_allocated_bytes(), []
    for _ in shards.read_records(path, Kind.TRAJECTORIES):
        held.append(pa.total_allocated_bytes() - base)
    assert len(held) == 1_000 and max(held) < 0.7 * path.stat().st_size


def append_until_full(store: Store) -> list[str]:
    acknowledged = []
    with pytest.raises(
        StoreError, match=r"\.log: no space left.*are safe; free space and run the same command again"
    ):
        for number in range(10_000):
            row = records.make_trajectory(number)
            store.append(row)
            acknowledged.append(row.trajectory_id)
    return acknowledged


def test_a_full_disk_loses_no_acknowledged_row(small_disk: Path) -> None:
    root, ballast = small_disk / "run", small_disk / "ballast"
    ballast.write_bytes(bytes(150_000))
    with Store.create_or_open(root, {"seed": 1}) as store:
        acknowledged = append_until_full(store)
        assert acknowledged and store.ids("trajectories") == set(acknowledged)
        ballast.unlink()
        store.append(records.make_verdict(1))
    with Store.create_or_open(root, {"seed": 1}) as store:
        assert store.torn_bytes == 0
        assert {t.trajectory_id for t in store.trajectories()} == set(acknowledged)
        assert len(store.ids("verdicts")) == 1


def test_a_limit_on_file_size_is_reported_like_a_full_disk(tmp_path: Path) -> None:
    with Store.create_or_open(tmp_path / "run", {"seed": 1}) as store:
        with no_file_beyond(20_000):
            acknowledged = append_until_full(store)
        assert store.ids("trajectories") == set(acknowledged)


def test_a_disk_that_fills_while_sealing_keeps_the_journal(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with Store.create_or_open(root, {"seed": 1}) as store:
        for number in range(50):
            store.append(records.make_trajectory(number))
        before = store.digest("trajectories")
        full = pytest.raises(StoreError, match=r"no space left\. all rows are still in the journal")
        with no_file_beyond(4_000), full:
            store.seal()
        assert store.digest("trajectories") == before
        assert not list(root.rglob("*.tmp")) and not list(root.rglob("*.parquet"))
        store.seal()
        assert store.digest("trajectories") == before


def test_a_disk_that_fills_while_curating_keeps_the_old_rows(tmp_path: Path) -> None:
    rows = [records.make_trajectory(number) for number in range(50)]
    with Store.create_or_open(tmp_path / "run", {"seed": 1}) as store:
        store.write_curated(rows[:3], lambda: "# old")
        with no_file_beyond(4_000), pytest.raises(StoreError, match="no space left"):
            store.write_curated(rows, lambda: "# new")
        assert list(store.read_curated()) == rows[:3]
        assert (tmp_path / "run" / "curated" / "README.md").read_text() == "# old"
