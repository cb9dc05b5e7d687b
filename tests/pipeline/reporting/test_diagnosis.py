"""The diagnosis page: offline, hostile text is text, and every example is one click away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from data.errors import StoreError
from data.trajectories import Trajectory
from pipeline.diagnosis import Diagnosis, GoldBook, diagnose
from pipeline.reporting.content import ReasonCount
from pipeline.reporting.diagnosis import write_diagnosis
from pipeline.reporting.findings import confusion_map, effect_bar, histogram
from pipeline.reporting.report import Report, write_report
from tests.samples import call, trajectory, turns_of_calls

EVIL = '</title><script>alert("x")</script>'


def pool(tag: str = "weak") -> list[Trajectory]:
    rows = []
    for number in range(120):
        weak = number % 4 == 0
        steps = [call("search", city="Rome"), call("cancel" if weak else "book", offer=1), "Done."]
        rows.append(
            trajectory(
                *steps,
                task=f"task{number}",
                template=f"t{number % 12}",
                tags=(tag,) if weak else ("plain",),
                reward=0.0 if weak else 1.0,
            )
        )
    return rows


def found(rows: list[Trajectory]) -> Diagnosis:
    gold = GoldBook()
    for row in rows:
        calls = turns_of_calls([call("search", city="Rome"), call("book", offer=1)])
        gold.put(row.task_id, tuple(f"tag:{tag}" for tag in row.tags), calls)
    return diagnose(rows, gold=gold)


def written(tmp_path: Path, rows: list[Trajectory]) -> tuple[str, Diagnosis]:
    known = {row.trajectory_id: row for row in rows}
    diagnosis = found(rows)
    page = write_diagnosis(diagnosis, tmp_path, title="run", load=known.get, decode=None)
    return page.read_text(), diagnosis


def test_examples_are_one_click_away(tmp_path: Path) -> None:
    page, diagnosis = written(tmp_path, pool())
    assert [row.name for row in diagnosis.weaknesses.weak] == ["tag:weak"]
    links = re.findall(r'href="(trajectories/[^"]+)"', page)
    assert links and set(links) == {f"trajectories/{key}.html" for key in diagnosis.shown_ids}
    shown = (tmp_path / links[0]).read_text()
    assert 'class="span generated"' in shown and 'href="../diagnosis.html"' in shown
    for words in (
        "tag:weak",
        "wrong_tool",
        "Tool confusion",
        "First failing step",
        "error_variants",
        "call_graded",
    ):
        assert words in page, words


def test_hostile_names_are_text_and_stay_in_the_folder(tmp_path: Path) -> None:
    rows = [row.model_copy(update={"trajectory_id": f"../{EVIL}{n}"}) for n, row in enumerate(pool(EVIL))]
    page, diagnosis = written(tmp_path / "report", rows)
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    files = sorted(path.name for path in (tmp_path / "report" / "trajectories").iterdir())
    assert len(files) == len(diagnosis.shown_ids)
    assert all(re.fullmatch(r"[0-9a-f]{24}\.html", name) for name in files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report"]


def test_a_trajectory_that_is_gone_is_named_without_a_link(tmp_path: Path) -> None:
    page = write_diagnosis(
        found(pool()), tmp_path, title="run", load=lambda key: None, decode=None
    ).read_text()
    assert "href" not in page


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file")
    with pytest.raises(StoreError, match="free the path"):
        write_diagnosis(found(pool()), tmp_path / "report", title="run", load=lambda key: None, decode=None)


def test_the_report_shows_weaknesses_and_leads_to_the_page(tmp_path: Path) -> None:
    report = Report(title="run", diagnosis=found(pool()), diagnosis_page="diagnosis.html")
    page = write_report(report, tmp_path).read_text()
    assert 'href="diagnosis.html"' in page and "tag:weak" in page and "Weak capabilities" in page


def test_drawings_place_what_they_show() -> None:
    assert 'cx="75.0"' in effect_bar(0.0, -0.5, 0.5) and 'class="fill"' in effect_bar(0.0, -0.5, 0.5)
    assert 'class="below"' in effect_bar(-0.5, -0.6, -0.4) and 'cx="38.5"' in effect_bar(-0.5, -0.6, -0.4)
    bars = histogram([ReasonCount(reason="1", count=4), ReasonCount(reason="end", count=1)])
    assert bars.count("<rect") == 2 and ">end<" in bars and "step 1: 4" in bars
    rows = found(pool()).tool_confusion
    assert confusion_map(rows).count('class="cell"') == len(rows) == 1
    many = [type(rows[0])(gold=f"tool{n}", called="x", count=n + 1) for n in range(30)]
    drawn = confusion_map(many)
    assert drawn.count('class="cell"') == 14 and "(others)" in drawn
