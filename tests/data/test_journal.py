"""The journal: what survives, what is cut, what is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from data import journal
from data.errors import StoreError
from data.journal import Entry, Journal, Tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000.log"


def filled(path: Path, count: int = 3) -> list[int]:
    """Append rows, close, and return the offset of each."""
    log = Journal(path)
    offsets = [log.append("verdicts", f"id {n}", b'{"n":%d}' % n) for n in range(count)]
    log.close()
    return offsets


def scan(path: Path) -> tuple[list[Entry], Tail]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        items = list(journal.scan(descriptor, path))
    finally:
        os.close(descriptor)
    tail = items.pop()
    assert isinstance(tail, Tail)
    return [item for item in items if isinstance(item, Entry)], tail


def test_rows_come_back_in_order_with_ids_and_offsets(path: Path) -> None:
    offsets = filled(path)
    entries, tail = scan(path)
    assert [(e.kind, e.key, e.payload, e.offset) for e in entries] == [
        ("verdicts", f"id {n}", b'{"n":%d}' % n, offsets[n]) for n in range(3)
    ]
    assert tail == Tail(end=path.stat().st_size, torn=0)


def test_every_cut_of_the_last_row_is_a_torn_tail(path: Path) -> None:
    last = filled(path)[-1]
    whole = path.read_bytes()
    for size in range(last, len(whole)):
        path.write_bytes(whole[:size])
        entries, tail = scan(path)
        assert len(entries) == 2 and tail == Tail(end=last, torn=size - last)


def test_a_tail_of_zeros_is_torn(path: Path) -> None:
    filled(path)
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(bytes(5000))
    assert scan(path)[1] == Tail(end=size, torn=5000)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_every_flipped_byte_is_refused_with_file_and_offset(path: Path, row: int) -> None:
    offsets = filled(path)
    whole = path.read_bytes()
    end = [*offsets, len(whole)][row + 1]
    for position in range(offsets[row], end):
        damaged = bytearray(whole)
        damaged[position] ^= 0x01
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=rf"{path.name} is damaged at byte {offsets[row]}\b"):
            scan(path)


def test_append_goes_on_after_a_cut(path: Path) -> None:
    last = filled(path)[-1]
    with open(path, "r+b") as file:
        file.truncate(last + 7)
    log = Journal(path)
    log.cut(last)
    log.append("verdicts", "new", b"{}")
    log.close()
    assert [entry.key for entry in scan(path)[0]] == ["id 0", "id 1", "new"]


def test_a_full_disk_leaves_whole_rows_and_says_so(path: Path) -> None:
    room = [100]

    def write(descriptor: int, data: bytes) -> int:
        part = data[: room[0]]
        if not part:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= len(part)
        return os.write(descriptor, part)

    log = Journal(path, write=write)
    log.append("verdicts", "a", b'{"n":1}')
    with pytest.raises(StoreError, match=r"00000\.log: no space left.*rows before it are safe.*free space"):
        log.append("verdicts", "b", b'{"text":"%s"}' % (b"x" * 200))
    assert [entry.key for entry in scan(path)[0]] == ["a"] and scan(path)[1].torn == 0
    room[0] = 10_000
    log.append("verdicts", "c", b"{}")
    log.close()
    assert [entry.key for entry in scan(path)[0]] == ["a", "c"]


def test_short_writes_are_completed(path: Path) -> None:
    log = Journal(path, write=lambda descriptor, data: os.write(descriptor, data[:3]))
    log.append("tasks", "a", b'{"long":"0123456789"}')
    log.close()
    assert scan(path)[0][0].payload == b'{"long":"0123456789"}'


def test_rows_are_synced_in_small_groups_and_on_flush(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    log = Journal(path, sync_rows=4, sync_seconds=1e9)
    counts = []
    for n in range(9):
        log.append("tasks", str(n), b"{}")
        counts.append(len(synced))
    assert counts == [0, 0, 0, 1, 1, 1, 1, 2, 2]
    log.flush()
    log.flush()
    assert len(synced) == 3
    log.close()


def test_rows_that_cost_less_than_a_sync_wait_for_the_clock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    log = Journal(path, sync_rows=4, sync_seconds=1e9)
    for number in range(10):
        log.append("verdicts", f"v{number}", b"{}", costly=False)
    assert synced == []
    for number in range(4):
        log.append("trajectories", f"t{number}", b"{}")
    assert len(synced) == 1
    log.append("verdicts", "last", b"{}", costly=False)
    log.flush()
    assert len(synced) == 2
    log.close()


def test_an_old_unsynced_row_is_synced_by_the_next_append(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("data.journal.time.monotonic", lambda: now[0])
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    log = Journal(path, sync_rows=100, sync_seconds=2.0)
    log.append("tasks", "a", b"{}")
    assert not synced
    now[0] += 2.5
    log.append("tasks", "b", b"{}")
    assert len(synced) == 1
    log.close()
