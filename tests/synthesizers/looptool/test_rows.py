"""Rows survive a cut write, and come back in the order of their keys."""

from __future__ import annotations

from pathlib import Path

from data.messages import NamedValue
from synthesizers.looptool.rows import RowLog


def row(number: int) -> NamedValue:
    return NamedValue(name=f"row {number}", value=float(number))


def test_rows_come_back_by_key_and_the_latest_counts(tmp_path: Path) -> None:
    path = tmp_path / "there" / "rows.log"
    with RowLog(path, NamedValue) as log:
        for key, number in (("b", 1), ("a#2", 2), ("b", 3)):
            log.append(key, row(number))
        before = log.digest()
    with RowLog(path, NamedValue) as log:
        assert log.keys == {"a#2", "b"}
        assert list(log.rows()) == [row(2), row(3)]
        assert log.digest() == before


def test_the_digest_is_of_the_rows_and_not_of_their_order(tmp_path: Path) -> None:
    digests = []
    for name, order in (("one", (1, 2)), ("two", (2, 1)), ("three", (1, 4))):
        with RowLog(tmp_path / name, NamedValue) as log:
            for number in order:
                log.append(f"k{number}", row(number))
            digests.append(log.digest())
    assert digests[0] == digests[1] != digests[2]


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows.log"
    with RowLog(path, NamedValue) as log:
        log.append("a", row(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    with RowLog(path, NamedValue) as log:
        assert log.keys == {"a"}
        log.append("b", row(2))
        assert list(log.rows()) == [row(1), row(2)]
    assert path.read_bytes().startswith(whole)
