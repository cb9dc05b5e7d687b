"""Sealed Parquet shards: written under a temporary name, renamed into place whole, read as a stream.

A shard is `part-GGGGG-NNNNN.parquet`: the generation of the journal it came from, and its number in that
seal. Within one seal rows are sorted by id. Every page has a checksum, which reading verifies. Reading
decodes a few rows at a time, so memory does not depend on the number of rows; it does on the longest one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data import faults, schema
from data.errors import StoreError
from data.files import TEMPORARY, disk_errors, fsync_directory, sync_file
from data.schema import AnyRecord, Kind, Row

BATCH_ROWS = 64
BATCH_BYTES = 2 << 20
"""Rows are decoded together up to either limit, so that long ones do not pile up."""
ROW_GROUP_BYTES = 32 << 20
"""Arrow bytes after which a row group is closed."""

_DAMAGE = (pa.ArrowInvalid, OSError, UnicodeDecodeError)
_NAME = re.compile(r"part-(\d{5,})-(\d{5,})\.parquet")


def shard_name(generation: int, number: int) -> str:
    """File name of a shard."""
    return f"part-{generation:05d}-{number:05d}.parquet"


def list_shards(folder: Path) -> list[Path]:
    """The shards of a table, oldest first."""
    found = [
        (int(match[1]), int(match[2]), path)
        for path in folder.glob("part-*.parquet")
        if (match := _NAME.fullmatch(path.name))
    ]
    return [path for _, _, path in sorted(found)]


def generation_of(path: Path) -> int:
    """The journal generation a shard was sealed from."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise StoreError(f"{path} is not a shard; expected a name like {shard_name(0, 0)}")
    return int(match[1])


def write_shard(path: Path, kind: Kind, lines: Iterable[bytes]) -> int:
    """Write `lines` (see `schema.to_json`) as one shard and return their number. All or nothing."""
    temporary = path.with_name(path.name + TEMPORARY)
    with disk_errors(path, safe="all rows are still in the journal"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            count = write_parquet(temporary, kind, lines)
            sync_file(temporary)
            faults.kill_point("shard.rename.before")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_directory(path.parent)
    faults.kill_point("shard.rename.after")
    return count


def write_parquet(path: Path, kind: Kind, lines: Iterable[bytes]) -> int:
    """Stream rows into a Parquet file; row groups are closed by size."""
    layout = schema.arrow_schema(kind)
    count, pending, pending_bytes = 0, [], 0
    with pq.ParquetWriter(path, layout, compression="zstd", write_page_checksum=True) as writer:
        for batch in _batches(lines):
            table = pa.RecordBatch.from_pylist(batch, schema=layout)
            pending.append(table)
            pending_bytes += table.nbytes
            count += len(batch)
            if pending_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(pending))
                pending, pending_bytes = [], 0
        if pending:
            writer.write_table(pa.Table.from_batches(pending))
    return count


def read_rows(path: Path) -> Iterator[tuple[Row, bool]]:
    """The rows of a Parquet file as (row, may hold escaped text)."""
    seen = 0
    try:
        # Read ahead, the whole file would be in memory by its last row group.
        with pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                escaped, seen = schema.batch_has_escape(batch), seen + batch.num_rows
                step = max(1, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1))
                for start in range(0, batch.num_rows, step):
                    for row in batch.slice(start, step).to_pylist():
                        yield row, escaped
            if seen != file.metadata.num_rows:
                raise pa.ArrowInvalid(f"{seen} of its {file.metadata.num_rows} rows are there")
    except _DAMAGE as error:
        raise _unreadable(path, error) from error


def read_records(path: Path, kind: Kind) -> Iterator[AnyRecord]:
    """The records of a Parquet file."""
    for row, escaped in read_rows(path):
        yield schema.from_row(kind, row, escaped=escaped)


def read_ids(path: Path, kind: Kind) -> list[str]:
    """The ids of a shard in its order; reads only the id columns."""
    return _joined_ids(_id_columns(path, kind), kind)


def _id_columns(path: Path, kind: Kind) -> pa.Table:
    try:
        columns = list(schema.ID_COLUMNS[kind])
        return pq.read_table(path, columns=columns, page_checksum_verification=True)
    except _DAMAGE as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> StoreError:
    """The error for a damaged file of a table. A stage with a manifest would not miss the file's rows."""
    folder = path.parent
    if folder.name in list(Kind):
        done = folder.parent / "manifests"
        both = f"it and {done}" if done.is_dir() else "it"
        again = f"delete {both}, and run the commands that made its rows again: what is left is kept"
    else:
        again = "make its folder anew (`trajsmith curate`)"
    return StoreError(f"cannot read {path}: {error}. Restore the file from a copy, or {again}")


def _joined_ids(table: pa.Table, kind: Kind) -> list[str]:
    values: list[list[Any]] = [table.column(column).to_pylist() for column in schema.ID_COLUMNS[kind]]
    return [schema.unescape("/".join(parts)) for parts in zip(*values, strict=True)]


def repeated_ids(paths: list[Path], kind: Kind, journal_ids: Collection[str]) -> dict[str, Path | None]:
    """Ids that are stored more than once -> the shard of the latest row, None where the journal has it."""
    columns = list(schema.ID_COLUMNS[kind])
    if not paths:
        return {}
    repeated = set(journal_ids)
    if len({generation_of(path) for path in paths}) > 1:
        table = pa.concat_tables([_id_columns(path, kind) for path in paths])
        counts = table.group_by(columns).aggregate([([], "count_all")])
        several = counts.filter(pc.greater(counts["count_all"], pa.scalar(1)))
        repeated.update(_joined_ids(several, kind))
    newest: dict[str, Path | None] = {}
    for path in paths if repeated else ():
        newest.update({key: path for key in read_ids(path, kind) if key in repeated})
    newest.update(dict.fromkeys((key for key in journal_ids if key in newest), None))
    return newest


def find(path: Path, kind: Kind, key: str) -> AnyRecord | None:
    """The record with id `key`, or None; decodes one row."""
    ids = read_ids(path, kind)
    if key not in ids:
        return None
    position = ids.index(key)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                size = file.metadata.row_group(number).num_rows
                if position < size:
                    (row,) = file.read_row_group(number).slice(position, 1).to_pylist()
                    return schema.from_row(kind, row)
                position -= size
    except _DAMAGE as error:
        raise _unreadable(path, error) from error
    raise StoreError(f"{path} changed while it was read")


def _batches(lines: Iterable[bytes]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for line in lines:
        batch.append(schema.decode(line))
        size += len(line)
        if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
