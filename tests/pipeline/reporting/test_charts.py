import re
import sys
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.reporting.charts import line_chart, rate_bar, rate_text, stacked_bar, ticks
from pipeline.reporting.content import Curve, Series, rate

LARGEST = sys.float_info.max
finite = st.floats(allow_nan=False, allow_infinity=False)


def test_a_rate_bar_fills_its_share_and_shows_the_interval() -> None:
    svg = ElementTree.fromstring(rate_bar(rate(41, 100), width=200))
    fill = next(node for node in svg if node.get("class") == "fill")
    assert float(fill.get("width", "")) == 82.0
    whisker = next(node for node in svg if node.get("class") == "whisker").get("d", "")
    assert re.match(r"M63\.\d 8H101\.\d", whisker)  # 31.9 % and 50.8 % of 200
    assert svg[0].text == "41.0 % (41/100), 95 % interval 31.9 to 50.8 %"


def test_nothing_measured_draws_nothing() -> None:
    assert len(ElementTree.fromstring(rate_bar(rate(0, 0)))) == 0
    assert rate_text(rate(0, 0)) == "not measured"


def test_stacked_parts_fill_the_width() -> None:
    svg = ElementTree.fromstring(stacked_bar([("a", 1, "k0"), ("b", 3, "k1")], width=100))
    assert [(node.get("x"), node.get("width")) for node in svg] == [("0", "25"), ("25", "75")]
    assert svg[1][0].text == "b: 3 of 4"


def test_a_line_chart_maps_points_between_its_ticks_and_thins_long_series() -> None:
    curve = Curve(
        name="loss", x_label="step", series=(Series(name="train", points=((0.0, 0.0), (10.0, 1.0))),)
    )
    path = re.search(r'class="line c0" d="([^"]+)"', line_chart(curve))
    assert path and path[1] == "M54 190L546 12"
    long = Series(name="long", points=tuple((float(i), float(i % 7)) for i in range(10_000)))
    drawn = re.search(
        r'class="line c0" d="([^"]+)"', line_chart(curve.model_copy(update={"series": (long,)}))
    )
    assert drawn and drawn[1].count("L") <= 401
    with pytest.raises(ValueError, match="'loss' has no points"):
        line_chart(curve.model_copy(update={"series": ()}))


def test_hostile_names_stay_text() -> None:
    evil = '</title><script>alert(1)</script>"'
    curve = Curve(name=evil, x_label=evil, series=(Series(name=evil, points=((0.0, 1.0), (1.0, 2.0))),))
    for svg in (line_chart(curve), stacked_bar([(evil, 1, "k0")])):
        assert "<script" not in svg
        ElementTree.fromstring(svg)


@given(finite, finite)
@example(1e9, 999999999.9999999)
@example(0.0, 1e-14)
@example(-1e308, 1e308)
@example(0.0, 5e-324)
@example(1e308, 1.7e308)
@example(-LARGEST, -LARGEST)
@example(-LARGEST, LARGEST)
def test_ticks_enclose_the_range_evenly(first: float, second: float) -> None:
    low, high = sorted((first, second))
    marks = ticks(low, high)
    slack = (marks[-1] / 2 - marks[0] / 2) * 1e-6
    assert marks[0] <= low + slack and marks[-1] >= high - slack and 2 <= len(marks) <= 8
    steps = [after / 2 - before / 2 for before, after in pairwise(marks)]
    assert min(steps) > 0 and max(steps) < LARGEST
    even = [after / 2 - before / 2 for before, after in pairwise(marks) if LARGEST not in (-before, after)]
    assert not even or max(even) == pytest.approx(min(even), rel=1e-3, abs=slack)


@given(finite, finite)
@example(-LARGEST, LARGEST)
@example(0.0, 5e-324)
def test_every_finite_value_has_its_place_in_a_chart(first: float, second: float) -> None:
    points = ((first, second), (second, first))
    drawn = line_chart(Curve(name="c", x_label="x", series=(Series(name="s", points=points),)))
    path = re.search(r'class="line c0" d="M([^"]+)"', drawn)
    assert path
    for x, y in (point.split() for point in path[1].split("L")):
        assert 54 <= float(x) <= 546 and 12 <= float(y) <= 190
