"""`curated/`: Parquet files and the card, nothing else, so that `datasets.load_dataset` reads the folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import cast

from data import schema, shards
from data.errors import ConfigError
from data.files import TEMPORARY, disk_errors, replace_directory, sync_file, write_atomically
from data.schema import Kind
from data.trajectories import Trajectory

SHARD_ROWS = 10_000
CARD = "README.md"


def write_curated(folder: Path, rows: Iterable[Trajectory], card: Callable[[], str]) -> int:
    """Replace `folder` by shards of `rows`, in their order, and the card; returns the number of rows.

    The old folder stays in place until the new one is complete; of one that failed nothing is left. Rows are
    streamed, and `card` is called after the last one, so that it can tell what happened to them.
    """
    fresh = folder.with_name(folder.name + TEMPORARY)
    with disk_errors(folder, safe="the run's trajectories and verdicts are safe"):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        try:
            count = _write_shards(fresh, iter(rows))
            write_atomically(fresh / CARD, card())
            replace_directory(fresh, folder, aside=folder.with_name(folder.name + ".old"))
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return count


def read_curated(folder: Path) -> Iterator[Trajectory]:
    """The trajectories of a curated folder, in order."""
    paths = sorted(Path(folder).glob("*.parquet"))
    if not paths:
        raise ConfigError(
            f"{folder} holds no curated trajectories; run `trajsmith curate RECIPE` first, or name a folder "
            "with *.parquet"
        )
    return (
        cast(Trajectory, record) for path in paths for record in shards.read_records(path, Kind.TRAJECTORIES)
    )


def _write_shards(folder: Path, rows: Iterator[Trajectory]) -> int:
    count = 0
    for number in range(1 << 30):
        first = next(rows, None)
        if first is None and number:
            break
        head = [first] if first is not None else []
        lines = (schema.to_json(row) for row in chain(head, islice(rows, SHARD_ROWS - 1)))
        path = folder / f"part-{number:05d}.parquet"
        count += shards.write_parquet(path, Kind.TRAJECTORIES, lines)
        sync_file(path)
    return count
