"""A run directory: rows appended to a journal, sealed into Parquet, read back as one stream.

    recipe.yaml  journal/  tasks/  trajectories/  failures/  verdicts/  pairs/  curated/  manifests/

Decided here:

- **Each id once, the latest append wins.** A verdict that is given again replaces the earlier one. A new
  attempt of a rollout has an id of its own (`make_trajectory_id`), so both attempts are kept.
- `append` survives the death of the process, `flush` power loss. `seal` may be killed at any point: until
  the next journal exists, the old one has every row and its shards count for nothing.
- One writer (a lock), one thread; any number of readers, which see the journal as it was when they opened.

Not covered: what a stage means (`flows.stages`), publishing (`data.publish`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from data import curated, faults, journal, manifests, recipe, schema, shards
from data.errors import ConfigError, StoreError
from data.files import TEMPORARY, disk_errors, fsync_directory
from data.journal import Journal, Tail
from data.lock import WriterLock
from data.manifests import stage_key
from data.schema import AnyRecord, Kind
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Pair, Verdict

__all__ = ["Kind", "Store", "stage_key"]

SHARD_ROWS = 10_000
SEAL_ROWS = 50_000
SEAL_BYTES = 1 << 29

Index = dict[Kind, dict[str, int]]
"""Per table: id -> offset of its latest row in the journal."""


class Store:
    """An open run directory. Make one with `create_or_open` (to write) or `open` (to read)."""

    def __init__(self, root: Path, lock: WriterLock | None) -> None:
        self.root = root
        self.torn_bytes = 0
        """Bytes of a half-written row that opening cut off the journal."""
        self._lock = lock
        self._journal_folder = root / "journal"
        self._index: Index = {kind: {} for kind in Kind}
        self._log: Journal | None = None
        self._reader: int | None = None
        self._path = Path()

    @classmethod
    def create_or_open(
        cls,
        root: Path,
        recipe_: Mapping[str, Any],
        *,
        volatile: Collection[str] = (),
        growing: Collection[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> Self:
        """Open `root` for writing, making it if need be; clears up what a killed writer left half-made.

        `volatile` names the dotted recipe keys that may differ from the stored recipe, `growing` those whose
        number may be larger, `defaults` the values of keys that an older recipe lacks (see `data.recipe`).
        ConfigError where another key differs, StoreError where another process writes or the journal is
        damaged.
        """
        root = Path(root)
        with disk_errors(root, safe="nothing was changed"):
            try:
                (root / "journal").mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise ConfigError(f"{root} is not a directory; name another run directory") from None
            store = cls(root, WriterLock(root))
        try:
            recipe.settle_recipe(root, recipe_, volatile=volatile, growing=growing, defaults=defaults)
            with disk_errors(root, safe="all rows that it holds are safe"):
                store._recover()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open an existing run for reading; takes no lock and changes nothing."""
        root = Path(root)
        recipe.read_recipe(root)
        store = cls(root, None)
        try:
            store._open_for_reading()
        except BaseException:
            store.close()
            raise
        return store

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Flush, close the journal and let the next writer in. Rows stay in the journal until sealed."""
        log, reader, lock = self._log, self._reader, self._lock
        self._log = self._reader = self._lock = None
        try:
            if log is not None:
                log.close()
            if reader is not None:
                os.close(reader)
        finally:
            if lock is not None:
                lock.release()

    @property
    def recipe(self) -> dict[str, Any]:
        """The resolved recipe of the run."""
        return recipe.read_recipe(self.root)

    def append(self, record: AnyRecord) -> None:
        """Add a record to its table (a trajectory without reward to the failures).

        Returns once the row would survive the death of this process. RecordError where the record breaks
        its own model, StoreError where the disk is full; its message says what is safe. Every SEAL_ROWS rows
        it seals, which takes some seconds.
        """
        log = self._writer()
        kind, key = schema.kind_of(record), schema.record_id(record)
        costly = kind is not Kind.VERDICTS
        self._index[kind][key] = log.append(kind, key, schema.to_json(record), costly=costly)
        if log.size >= SEAL_BYTES or sum(map(len, self._index.values())) >= SEAL_ROWS:
            self.seal()

    def flush(self) -> None:
        """Return once every appended row would survive power loss."""
        self._writer().flush()

    def seal(self, *, shard_rows: int = SHARD_ROWS) -> None:
        """Move the journal's rows into Parquet shards of at most `shard_rows` rows, sorted by id.

        Memory: a few rows. On StoreError (full disk) all rows are still in the journal.
        """
        log = self._writer()
        log.flush()
        if not any(self._index.values()):
            return
        generation = int(log.path.stem)
        self._discard_shards(generation)
        for kind, offsets in self._index.items():
            self._seal_kind(kind, offsets, generation, shard_rows)
        faults.kill_point("journal.truncate.before")
        self._start_journal(generation + 1)
        log.close()
        faults.kill_point("journal.truncate.middle")
        log.path.unlink()
        fsync_directory(self._journal_folder)
        faults.kill_point("journal.truncate.after")

    def tasks(self) -> Iterator[Task]:
        """All tasks, sealed first; each id once."""
        return cast(Iterator[Task], self._stream(Kind.TASKS))

    def trajectories(self) -> Iterator[Trajectory]:
        """All trajectories with a reward."""
        return cast(Iterator[Trajectory], self._stream(Kind.TRAJECTORIES))

    def failures(self) -> Iterator[Trajectory]:
        """All trajectories without a reward."""
        return cast(Iterator[Trajectory], self._stream(Kind.FAILURES))

    def verdicts(self) -> Iterator[Verdict]:
        """All verdicts, the latest per trajectory and filter."""
        return cast(Iterator[Verdict], self._stream(Kind.VERDICTS))

    def pairs(self) -> Iterator[Pair]:
        """All preference pairs."""
        return cast(Iterator[Pair], self._stream(Kind.PAIRS))

    def ids(self, kind: str) -> set[str]:
        """Ids present in a table; reads only id columns."""
        table = schema.parse_kind(kind)
        found = set(self._index[table])
        for path in self._shards(table):
            found.update(shards.read_ids(path, table))
        return found

    def get(self, kind: str, key: str) -> AnyRecord | None:
        """The record with this id, or None."""
        table = schema.parse_kind(kind)
        offset = self._index[table].get(key)
        if offset is not None:
            return schema.from_json(table, journal.read_at(self._descriptor(), offset, self._path).payload)
        for path in reversed(self._shards(table)):
            record = shards.find(path, table, key)
            if record is not None:
                return record
        return None

    def digest(self, kind: str) -> str:
        """Content digest of a table: rows sorted by id, without clocks and run name. 64 hex digits."""
        table = schema.parse_kind(kind)
        rows = sorted(
            (schema.record_id(record), schema.content_digest(record)) for record in self._stream(table)
        )
        total = hashlib.sha256()
        for key, digest in rows:
            total.update(f"{key!a} {digest}\n".encode("ascii"))
        return total.hexdigest()

    def write_curated(self, rows: Iterable[Trajectory], card: Callable[[], str]) -> int:
        """Replace `curated/` by these trajectories and the card, made last; returns the number of rows."""
        self._writer()
        return curated.write_curated(self.root / "curated", rows, card)

    def read_curated(self, path: Path | None = None) -> Iterator[Trajectory]:
        """Stream a curated folder back, this run's own by default."""
        return curated.read_curated(self.root / "curated" if path is None else path)

    def manifest(self, stage: str) -> dict[str, Any] | None:
        """What `finish_stage` wrote for `stage`: stage, key, counts, versions, inputs. None if unfinished."""
        return manifests.read_manifest(self.root / "manifests", stage)

    def finish_stage(
        self,
        stage: str,
        *,
        key: str,
        counts: Mapping[str, int],
        versions: Mapping[str, str],
        inputs: Mapping[str, str],
    ) -> None:
        """Flush, then record atomically that `stage` is done for `key` (see `stage_key`)."""
        self.flush()
        manifests.write_manifest(
            self.root / "manifests", stage, key=key, counts=counts, versions=versions, inputs=inputs
        )

    def forget_stage(self, stage: str) -> None:
        """Take back that `stage` is done, where it was: what it made is gone."""
        self._writer()
        manifests.forget_manifest(self.root / "manifests", stage)

    def _writer(self) -> Journal:
        if self._log is None:
            raise StoreError(f"{self.root} is open for reading or closed; use Store.create_or_open to write")
        return self._log

    def _descriptor(self) -> int:
        descriptor = self._log.descriptor if self._log is not None else self._reader
        if descriptor is None:
            raise StoreError(f"{self.root} is closed")
        return descriptor

    def _shards(self, kind: Kind) -> list[Path]:
        return shards.list_shards(self.root / kind)

    def _stream(self, kind: Kind) -> Iterator[AnyRecord]:
        descriptor, offsets, path = os.dup(self._descriptor()), dict(self._index[kind]), self._path
        try:
            sealed = self._shards(kind)
            newest = shards.repeated_ids(sealed, kind, offsets)
            for shard in sealed:
                for record in shards.read_records(shard, kind):
                    if newest.get(schema.record_id(record), shard) == shard:
                        yield record
            for offset in offsets.values():
                yield schema.from_json(kind, journal.read_at(descriptor, offset, path).payload)
        finally:
            os.close(descriptor)

    def _seal_kind(self, kind: Kind, offsets: dict[str, int], generation: int, shard_rows: int) -> None:
        log, keys = self._writer(), iter(sorted(offsets))
        number = 0
        while chunk := list(islice(keys, shard_rows)):
            rows = (log.read(offsets[key]).payload for key in chunk)
            shards.write_shard(self.root / kind / shards.shard_name(generation, number), kind, rows)
            number += 1

    def _discard_shards(self, generation: int) -> None:
        """Remove what an unfinished seal of this journal left; the journal still has all of its rows."""
        for kind in Kind:
            for path in self._shards(kind):
                if shards.generation_of(path) == generation:
                    path.unlink()

    def _recover(self) -> None:
        logs = self._logs()
        sealed = [shards.generation_of(path) for kind in Kind for path in self._shards(kind)]
        for kind in Kind:
            for leftover in (self.root / kind).glob("*" + TEMPORARY):
                leftover.unlink()
        for old in logs[:-1]:
            old.unlink()
        self._start_journal(int(logs[-1].stem) if logs else max(sealed, default=-1) + 1)
        log = self._writer()
        tail = self._read_index(log.descriptor, log.path)
        if tail.torn:
            log.cut(tail.end)
            self.torn_bytes = tail.torn
        self._discard_shards(int(log.path.stem))

    def _logs(self) -> list[Path]:
        """The journal's files by generation. StoreError where something else bears the name of one."""
        logs = sorted(self._journal_folder.glob("*.log"))
        for path in logs:
            if path.is_dir() or not path.stem.isdecimal():
                raise StoreError(f"{path} is no journal file; move it away and run the same command again")
        return logs

    def _start_journal(self, generation: int) -> None:
        path = self._journal_folder / f"{generation:05d}.log"
        journal.create(path)
        self._log, self._path = Journal(path), path
        self._index = {kind: {} for kind in Kind}

    def _open_for_reading(self) -> None:
        while True:
            logs = self._logs()
            if not logs:
                raise StoreError(
                    f"{self.root} has no journal; run the command that makes it again, which begins one"
                )
            try:
                self._reader = os.open(logs[-1], os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"{logs[-1]} cannot be read: {error.strerror}") from error
            self._path = logs[-1]
            self._read_index(self._reader, self._path)
            return

    def _read_index(self, descriptor: int, path: Path) -> Tail:
        for entry in journal.scan(descriptor, path):
            if isinstance(entry, Tail):
                return entry
            self._index[schema.parse_kind(entry.kind)][entry.key] = entry.offset
        raise AssertionError("scan always ends with a Tail")
