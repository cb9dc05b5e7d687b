import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from data.errors import StoreError
from data.messages import ParseStatus
from pipeline.diagnosis import GoldBook, diagnose
from pipeline.reporting.content import (
    ComparisonRow,
    Curve,
    Fact,
    FunnelRow,
    ReasonCount,
    ResultRow,
    Series,
    Table,
    rate,
)
from pipeline.reporting.report import Report, report_html, write_report
from tests.samples import call, trajectory, turns_of_calls

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>\ud800'


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that tags that need closing are closed in order."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(page: bytes) -> Tags:
    tags = Tags()
    tags.feed(page.decode())
    assert tags.open == []
    return tags


def full(text: str = "x") -> Report:
    pool = [
        trajectory("Done.", template=text, tags=(text,)),
        trajectory(
            call("search", status=ParseStatus.NOT_JSON, raw=text), template=text, tags=(text,), reward=0.0
        ),
        trajectory(call("cancel", offer=1), template=text, tags=(text,), reward=0.0),
    ]
    gold = GoldBook()
    gold.put("task", (f"tag:{text}",), turns_of_calls([call(text, offer=1)]))
    return Report(
        title=text,
        subtitle=text,
        facts=(Fact(name=text, value=text),),
        results=(
            ResultRow(name="base", group=text, success=rate(0, 100), valid_calls=rate(1, 90), note=text),
            ResultRow(name="sft", group="unseen", success=rate(41, 100)),
            ResultRow(name=text, group=text, success=rate(7, 10)),
        ),
        comparisons=(
            ComparisonRow(
                name=text,
                group=text,
                difference=0.41,
                low=0.3,
                high=0.5,
                p_value=0.01,
                num_pairs=9,
                num_clusters=5,
            ),
        ),
        curves=(
            Curve(name=text, x_label=text, series=(Series(name=text, points=((0.0, 1.0), (1.0, 0.5))),) * 2),
        ),
        funnel=(
            FunnelRow(name=text, seen=10, kept=4, reasons=(ReasonCount(reason=text, count=6),)),
            FunnelRow(name="none reached", seen=0, kept=0),
        ),
        diagnosis=diagnose(pool, gold=gold),
        diagnosis_of=text,
        diagnosis_page="diagnosis.html",
        tables=(Table(title=text, columns=(text, "n"), rows=((text, "1,000"),), note=text),),
        notes=(text,),
    )


def test_a_full_report_shows_its_numbers_with_intervals() -> None:
    page = parsed(report_html(full("travel")))
    text = re.sub(r"\s+", " ", page.text)
    for wanted in (
        "41.0 %",
        "31.9 to 50.8",
        "+41.0 pts",
        "+30.0 to +50.0",
        "40.0 %",
        "1,000",
        "wrong_tool",
        "parse",
    ):
        assert wanted in text, wanted


def test_rows_of_one_group_stand_together() -> None:
    page = report_html(full("travel")).decode()
    assert page.count('<td class="group" colspan="10">travel</td>') == 1


def test_a_report_without_parts_is_a_page_with_a_title_only() -> None:
    page = parsed(report_html(Report(title="Empty run")))
    assert "Empty run" in page.text and "table" not in page.seen and "section" not in page.seen


def test_hostile_content_is_text_and_nothing_is_fetched_or_run() -> None:
    raw = report_html(full(EVIL))
    page = parsed(raw)
    assert not page.seen & {"script", "img", "iframe", "link", "object"}
    assert '<script>alert("x")</script>' in page.text
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on")} and "src" not in names
    assert not [
        value
        for name, value in page.attributes
        if name == "href" and not value.startswith(("/", "#")) and value != "diagnosis.html"
    ]
    assert b"url(" not in raw and b"@import" not in raw
    assert (
        "content",
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'",
    ) in (page.attributes)


def test_page_and_json_hold_the_same_report(tmp_path: Path) -> None:
    report = full("travel")
    path = write_report(report, tmp_path / "report")
    assert path == tmp_path / "report" / "index.html" and path.read_bytes() == report_html(report)
    assert Report.model_validate_json((tmp_path / "report" / "report.json").read_text()) == report
    assert sorted(file.name for file in path.parent.iterdir()) == ["index.html", "report.json"]


def test_text_that_utf8_cannot_hold_is_still_written(tmp_path: Path) -> None:
    path = write_report(full(EVIL), tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["title"] == EVIL
    assert "&#55296;" in path.read_text()


def test_an_unwritable_place_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file is in the way")
    with pytest.raises(StoreError, match=r"cannot write .*report\.json: .*; free the path"):
        write_report(Report(title="x"), tmp_path / "report")
