"""Fields of results: travel_desk, sql_desk and BFCL texts, tables, and hostile ones."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthesizers.graph.fields import MAX_FIELDS, Shape, fields_of
from synthesizers.graph.shapes import number_of, pattern_of, shape_of


def found(text: str) -> list[tuple[str, object]]:
    return [(field.path, field.value) for field in fields_of(text)]


def test_lines_of_the_travel_desk_give_ids_times_and_prices() -> None:
    flights = fields_of("F773 Sun 07:20 1 stop $310\nF219 Nova 15:10 direct $230")
    assert [(f.path, f.value, f.shape) for f in flights if f.path != "<name>"] == [
        ("F#", "F773", Shape.ID),
        ("<time>", "07:20", Shape.TIME),
        ("stop", 1, Shape.QUANTITY),
        ("<money>", 310, Shape.MONEY),
        ("F#", "F219", Shape.ID),
        ("<time>", "15:10", Shape.TIME),
        ("<money>", 230, Shape.MONEY),
    ]
    assert [f.value for f in flights if f.path == "<name>"] == ["Sun", "Nova"], "November is not Nova"


def test_bookings_and_profile_of_the_travel_desk() -> None:
    assert found("B24 F12 New York to Miami May 14\nB9 H12 Paris 3 nights") == [
        ("B#", "B24"),
        ("F#", "F12"),
        ("<name>", "New York"),
        ("<name>", "Miami"),
        ("<date>", "May 14"),
        ("B#", "B9"),
        ("H#", "H12"),
        ("<name>", "Paris"),
        ("nights", 3),
    ]
    assert found("Sun, 5200 miles") == [("<name>", "Sun"), ("miles", 5200)]
    assert found("booked B24") == [("B#", "B24")]
    assert found("none") == []


def test_results_of_the_sql_desk() -> None:
    assert found("patient(pid, full_name)\nvisit(vid, pid)") == [
        ("entry", "patient"),
        ("entry[]", "pid"),
        ("entry[]", "full_name"),
        ("entry", "visit"),
        ("entry[]", "vid"),
        ("entry[]", "pid"),
    ]
    assert found("full_name\nPia Drew\nSol Kemp") == [
        ("[].full_name", "Pia Drew"),
        ("[].full_name", "Sol Kemp"),
    ]
    assert found("athlete|sum(e.cost)\nMio Vance|3046\nUma Marsh|NULL") == [
        ("[].athlete", "Mio Vance"),
        ("[].sum(e.cost)", 3046),
        ("[].athlete", "Uma Marsh"),
    ]
    assert found("count(*)\n1") == [("[].count(*)", 1)]
    assert found("no rows") == []


def test_json_of_bfcl_is_read_with_paths_and_tokens_inside_sentences() -> None:
    text = '{"result": "\'a b.pdf\' moved to \'temp/final_report.pdf\'", "MA(5)": 220.45, "open": true}'
    fields = fields_of(text)
    assert [(f.path, f.value, f.type) for f in fields[1:]] == [
        ("result.<quoted>", "a b.pdf", "string"),
        ("result.<quoted>", "temp/final_report.pdf", "string"),
        ("MA(5)", 220.45, "number"),
        ("open", True, "boolean"),
    ]
    nested = (
        '{"flights": [{"id": "F1", "price": 2}, {"id": "F2", "price": null}], "by": {"B24": {"x": [[7]]}}}'
    )
    assert found(nested) == [
        ("flights[].id", "F1"),
        ("flights[].price", 2),
        ("flights[].id", "F2"),
        ("by.B#.x[][]", 7),
    ]
    assert found('["ZETA", "NVDA"]') == [("[]", "ZETA"), ("[]", "NVDA")]
    assert found("None") == found("{}") == []


def test_keys_and_values_in_lines() -> None:
    assert found("Name: Bob Ray, Age: 3\nzip: 02139") == [("Name", "Bob Ray"), ("Age", 3), ("zip", "02139")]
    assert found('a=1 b="x y" c=2026-01-02') == [("a", 1), ("b", "x y"), ("c", "2026-01-02")]
    assert found("Flight ID: AB-12") == [("Flight_ID", "AB-12")]
    whole = found("core member: a member who lent over 30 days, that is not lost")
    assert whole[0][0] == "core_member"
    assert ("core_member.days", 30) in whole


def test_prose_gives_only_tokens_with_a_shape() -> None:
    text = "We have sent ticket T-77 to bob@x.org on 2026-05-14, and Anna agreed."
    assert found(text) == [("T-#", "T-77"), ("<email>", "bob@x.org"), ("<date>", "2026-05-14")]


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        ("F12", Shape.ID),
        ("550e8400-e29b-41d4-a716-446655440000", Shape.ID),
        ("2026-05-14T10:00:00Z", Shape.DATE),
        ("14 May 2026", Shape.DATE),
        ("9:30 pm", Shape.TIME),
        ("$1,200.50", Shape.MONEY),
        ("a/b/c.txt", Shape.FILE),
        ("https://x.org/a?b", Shape.URL),
        ("210", Shape.NUMBER),
        (210, Shape.NUMBER),
        (True, Shape.FLAG),
        ("Paris", Shape.WORD),
        ("New York", Shape.TEXT),
    ],
)
def test_shapes(value: object, shape: Shape) -> None:
    assert shape_of(value) is shape


def test_ids_of_one_kind_share_a_pattern_and_prices_are_numbers() -> None:
    assert pattern_of("F12") == pattern_of("F7") == "F#" != pattern_of("H12")
    assert pattern_of("deadbeef01") == pattern_of("0123abcd99") == "hex#"
    assert number_of("$1,200.50") == 1200.5
    assert number_of("7") == 7


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        "a-" * 50_000,
        ("a-_1" * 500 + "\n") * 50,
        ("1" * 2_000 + "\n") * 50,
        "A" + "Aa " * 30_000,
        ("a@a." * 500 + "\n") * 50,
        ("ab: " * 500 + "\n") * 50,
        ("2026-01-01T" * 180 + "\n") * 50,
        "F1 " * 40_000,
        '{"price": 1e999, "n": ' + "9" * 5_000 + "}",
        '{"price": NaN}',
    ],
    ids=range(12),
)
def test_hostile_results_are_read_in_bounds(text: str) -> None:
    fields = fields_of(text)
    assert len(fields) <= MAX_FIELDS
    assert all(not isinstance(field.value, float) or math.isfinite(field.value) for field in fields)


@given(st.text(max_size=300))
def test_any_text_gives_fields_whose_text_stood_in_it(text: str) -> None:
    for field in fields_of(text):
        assert field.path
        assert isinstance(field.value, str | int | float)
        if field.shape is Shape.ID and "#" in field.path.rsplit(".", 1)[-1]:
            assert str(field.value) in text
