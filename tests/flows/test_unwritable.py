"""What stages keep beside their rows: a path that cannot be written is one clear error, nothing half-made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from data.errors import StoreError
from data.messages import NamedValue
from flows.stages.loop.driver import _point
from pipeline.reporting.report import Report, write_report
from pipeline.rewards.rubric_book import Rubric, RubricBook
from synthesizers.looptool.rows import RowLog
from tests.disks import no_file_beyond

WRITERS: dict[str, Callable[[Path], object]] = {
    "the report": lambda folder: write_report(Report(title="x"), folder / "models"),
    "rubrics": lambda folder: RubricBook([Rubric(1.0, "a")]).save(folder / "models" / "task.json"),
    "rows": lambda folder: RowLog(folder / "models" / "rows.log", NamedValue),
    "the loop's model": lambda folder: _point(folder, folder / "rounds" / "1" / "model"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_path_that_cannot_be_written(writer: str, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file is in the way")
    with pytest.raises(StoreError, match=r"cannot write .*models.*; free the path and run the same command"):
        WRITERS[writer](tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("writer", ["the report", "rubrics"])
def test_a_full_disk_leaves_no_half_file(writer: str, tmp_path: Path) -> None:
    with no_file_beyond(10), pytest.raises(StoreError, match=r"cannot write .*: no space left\. "):
        WRITERS[writer](tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["models"]
