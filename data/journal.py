"""The append-only log of a run: one checksummed line per row, durable before it is acknowledged.

A line is `LENGTH CRC KIND ID JSON\\n`: eight hex digits each of the byte length and the CRC-32 of
"KIND ID JSON"; the id is percent-encoded, so that opening a run needs no JSON decoding. The file is
named by its generation (`00003.log`); when its rows are sealed into shards a file of the next generation
replaces it, so that a reader that has the old file open loses nothing.

What is guaranteed: an appended row survives the death of the process, a row appended before `flush`
returned survives power loss. A write that was cut short leaves a tail without a newline (or of zeros):
`open` cuts it and says how many bytes it was. Any other damage is refused with file and offset,
because the rows after it were acknowledged.
Not covered: repairing bit rot; who may write (the store holds the lock).
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from data import faults
from data.errors import StoreError
from data.files import disk_errors, fsync_directory

_PREFIX = 18
_HEADER = re.compile(rb"[0-9a-f]{8} [0-9a-f]{8} ")
_CHUNK = 1 << 20

Write = Callable[[int, bytes], int]


class Entry(NamedTuple):
    """One valid line."""

    kind: str
    key: str
    """The row's id."""
    payload: bytes
    """The row's JSON."""
    offset: int
    """Byte position of the line in the file."""
    end: int
    """Byte position after the line."""


class Tail(NamedTuple):
    """Where the valid lines end, and how many torn bytes follow."""

    end: int
    torn: int


class Journal:
    """Appends to one generation. `write` is `os.write` or a stand-in that fails on purpose."""

    def __init__(
        self, path: Path, *, sync_rows: int = 16, sync_seconds: float = 2.0, write: Write = os.write
    ) -> None:
        self.path = path
        self._sync_rows, self._sync_seconds = sync_rows, sync_seconds
        self._write = write
        with disk_errors(path, safe="all rows so far are safe"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self._descriptor).st_size
        self._unsynced = self._unsynced_costly = 0
        self._synced_at = time.monotonic()

    def append(self, kind: str, key: str, payload: bytes, *, costly: bool = True) -> int:
        """Append one row and return its offset; the line is with the operating system on return.

        Syncs every `sync_rows` costly rows, or when `sync_seconds` have passed since the last sync; a row is
        not `costly` where making it again costs less than a sync. StoreError where the disk is full; the file
        then ends with the last whole row, as before.
        """
        faults.kill_point("journal.append.before")
        line = encode(kind, key, payload)
        if faults.due("journal.append.middle"):
            os.write(self._descriptor, line[: len(line) // 2])
            faults.kill()
        offset = self.size
        self._append_whole(line)
        self._unsynced += 1
        self._unsynced_costly += costly
        if (
            self._unsynced_costly >= self._sync_rows
            or time.monotonic() - self._synced_at >= self._sync_seconds
        ):
            self.flush()
        return offset

    def flush(self) -> None:
        """Return once every appended row is on disk."""
        if self._unsynced:
            faults.kill_point("journal.fsync.before")
            with disk_errors(
                self.path, safe="rows since the last flush may be lost, all earlier ones are safe"
            ):
                os.fsync(self._descriptor)
            faults.kill_point("journal.fsync.after")
        self._unsynced, self._unsynced_costly, self._synced_at = 0, 0, time.monotonic()

    @property
    def descriptor(self) -> int:
        """The open file, for reading."""
        return self._descriptor

    def read(self, offset: int) -> Entry:
        """The row at an offset that `append` or `scan` gave."""
        return read_at(self._descriptor, offset, self.path)

    def cut(self, end: int) -> None:
        """Drop a torn tail: keep the first `end` bytes."""
        os.ftruncate(self._descriptor, end)
        os.fsync(self._descriptor)
        self.size = end

    def close(self) -> None:
        """Flush and close; closed even where the flush fails."""
        try:
            self.flush()
        finally:
            os.close(self._descriptor)

    def _append_whole(self, line: bytes) -> None:
        safe = f"the {self.size} bytes of rows before it are safe"
        with disk_errors(self.path, safe=safe):
            view = line
            try:
                while view:
                    view = view[self._write(self._descriptor, view) :]
            except OSError:
                os.ftruncate(self._descriptor, self.size)
                raise
        self.size += len(line)


def encode(kind: str, key: str, payload: bytes) -> bytes:
    """The line of one row."""
    body = f"{kind} {quote(key, errors='surrogatepass')} ".encode("ascii") + payload
    return b"%08x %08x " % (len(body), zlib.crc32(body)) + body + b"\n"


def read_at(descriptor: int, offset: int, path: Path) -> Entry:
    """The row at `offset` of an open journal; StoreError where its checksum is wrong."""
    entry = _entry(descriptor, offset, os.fstat(descriptor).st_size)
    if entry is None:
        raise _damaged(path, offset)
    return entry


def scan(descriptor: int, path: Path) -> Iterator[Entry | Tail]:
    """Every valid line from the start, then one Tail. Memory: one row.

    StoreError naming file and offset where a line is damaged in a way that a cut write does not explain.
    """
    offset, size = 0, os.fstat(descriptor).st_size
    while offset < size:
        entry = _entry(descriptor, offset, size)
        if entry is None:
            if not _is_torn(descriptor, offset, size):
                raise _damaged(path, offset)
            break
        yield entry
        offset = entry.end
    yield Tail(end=offset, torn=size - offset)


def create(path: Path) -> None:
    """An empty journal, durable."""
    with disk_errors(path, safe="all rows so far are safe"):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        fsync_directory(path.parent)


def _announced(descriptor: int, offset: int) -> tuple[int, int] | None:
    """(end of the line, checksum) as its prefix says; None where that is no whole prefix."""
    prefix = os.pread(descriptor, _PREFIX, offset)
    if not _HEADER.fullmatch(prefix):
        return None
    return offset + _PREFIX + int(prefix[:8], 16) + 1, int(prefix[9:17], 16)


def _entry(descriptor: int, offset: int, size: int) -> Entry | None:
    announced = _announced(descriptor, offset)
    if announced is None or announced[0] > size:
        return None
    end, checksum = announced
    body = os.pread(descriptor, end - offset - _PREFIX, offset + _PREFIX)
    if not body.endswith(b"\n") or zlib.crc32(body[:-1]) != checksum:
        return None
    kind, key, payload = body[:-1].split(b" ", 2)
    name = unquote(key.decode("ascii"), errors="surrogatepass")
    return Entry(kind.decode("ascii"), name, payload, offset, end)


def _is_torn(descriptor: int, offset: int, size: int) -> bool:
    """Whether [offset, size) is what a cut write leaves: shorter than announced, or nothing but zeros."""
    announced = _announced(descriptor, offset)
    short = size - offset < _PREFIX or (announced is not None and announced[0] > size)
    newline, zeros = False, True
    while offset < size and (zeros or (short and not newline)):
        chunk = os.pread(descriptor, min(_CHUNK, size - offset), offset)
        newline = newline or b"\n" in chunk
        zeros = zeros and not chunk.strip(b"\0")
        offset += len(chunk)
    return zeros or (short and not newline)


def _damaged(path: Path, offset: int) -> StoreError:
    return StoreError(
        f"{path} is damaged at byte {offset}: the row there fails its checksum. Restore the file "
        f"from a copy, or give up that row and all after it with: truncate -s {offset} {path}"
    )
