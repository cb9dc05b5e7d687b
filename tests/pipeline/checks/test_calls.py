"""The schema check of calls: the exact problem text a model would read."""

from __future__ import annotations

from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import ParseStatus, ToolCall, ToolSpec
from pipeline.checks.calls import argument_problems, check_call

FLAT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "price": {"type": "number"},
        "direct": {"type": "boolean"},
        "seat": {"type": "string", "enum": ["aisle", "window"]},
        "any": {},
    },
    "required": ["city"],
}
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "guests": {"type": "array", "items": {"$ref": "#/$defs/guest"}, "minItems": 1},
        "note": {"type": ["string", "null"]},
    },
    "required": ["guests"],
    "$defs": {
        "guest": {
            "type": "object",
            "properties": {"age": {"type": "integer"}},
            "required": ["age"],
            "additionalProperties": False,
        }
    },
}
TOOLS = (ToolSpec(name="book", parameters=canonical.dumps(FLAT)), ToolSpec(name="now"))


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"city": "Rome"}, []),
        ({"city": "Rome", "nights": 2, "price": 1, "direct": False, "seat": "aisle", "any": [None]}, []),
        ({}, ["missing argument: city"]),
        ({"city": None}, ["wrong type: city must be string, got null"]),
        ({"city": "Rome", "nights": True}, ["wrong type: nights must be integer, got true"]),
        ({"city": "Rome", "nights": 2.0}, ["wrong type: nights must be integer, got 2.0"]),
        ({"city": "Rome", "nights": "2"}, ['wrong type: nights must be integer, got "2"']),
        ({"city": "Rome", "nights": 0}, ["wrong value: nights must be at least 1, got 0"]),
        (
            {"city": "Rome", "nights": 10**400},
            ["wrong value: nights must be at most 30, got " + "1" + "0" * 56 + "..."],
        ),
        ({"city": "Rome", "price": True}, ["wrong type: price must be number, got true"]),
        ({"city": "Rome", "direct": 1}, ["wrong type: direct must be boolean, got 1"]),
        (
            {"city": "Rome", "seat": "roof"},
            ['wrong value: seat must be one of "aisle", "window"; got "roof"'],
        ),
        (
            {"town": "Rome"},
            [
                "missing argument: city",
                "unknown argument: town; arguments: city, nights, price, direct, seat, any",
            ],
        ),
    ],
)
def test_flat_schema(arguments: dict[str, Any], problems: list[str]) -> None:
    assert argument_problems(arguments, FLAT) == problems


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"guests": [{"age": 3}], "note": None}, []),
        ({}, ["missing argument: guests"]),
        ({"guests": []}, ["wrong value: guests: [] should be non-empty"]),
        ({"guests": [{"age": True}]}, ["wrong value: guests.0.age: True is not of type 'integer'"]),
        ({"guests": [{"age": 3.0}]}, ["wrong value: guests.0.age: 3.0 is not of type 'integer'"]),
        ({"guests": [{}]}, ["wrong value: guests.0: 'age' is a required property"]),
        ({"guests": [{"age": 1}], "x": 1}, ["unknown argument: x; arguments: guests, note"]),
        ({"guests": [{"age": 1}], "note": 5}, ["wrong value: note: 5 is not of type 'string', 'null'"]),
    ],
)
def test_nested_schema(arguments: dict[str, Any], problems: list[str]) -> None:
    assert argument_problems(arguments, NESTED) == problems


@pytest.mark.parametrize("name", sorted(FLAT["properties"]))
@pytest.mark.parametrize("value", [None, True, 0, 1, 2.5, "aisle", "x", [], {}])
def test_the_fast_path_agrees_with_the_full_validator(name: str, value: Any) -> None:
    """`allOf` sends the same schema through jsonschema; both must accept or refuse alike."""
    arguments = {"city": "Rome", name: value}
    assert bool(argument_problems(arguments, FLAT)) == bool(
        argument_problems(arguments, FLAT | {"allOf": [{}]})
    )


def test_a_schema_may_open_itself_to_more_arguments() -> None:
    more = {"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}
    assert argument_problems({"a": 1}, more) == []
    assert argument_problems({"a": "x"}, more) == ["wrong value: a: 'x' is not of type 'integer'"]
    assert argument_problems({"a": 1}, more | {"additionalProperties": False}) == [
        "unknown argument: a; arguments: none"
    ]


def test_a_broken_schema_is_a_configuration_error_and_nothing_is_fetched() -> None:
    with pytest.raises(ConfigError, match="is no JSON Schema"):
        argument_problems({"a": 1}, {"properties": {"a": {"type": "text"}}})
    remote = {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}
    with pytest.raises(ConfigError, match=r"refers to http://127\.0\.0\.1:9/schema\.json"):
        argument_problems({"a": 1}, remote)


def call(name: str, arguments: str = "{}", status: ParseStatus = ParseStatus.OK) -> ToolCall:
    return ToolCall(call_id="c", name=name, arguments=arguments, status=status, raw="raw")


def test_check_call_sets_status_and_error_and_keeps_the_rest() -> None:
    good = call("book", '{"city":"Rome"}')
    assert check_call(good, TOOLS) is good
    unknown = check_call(call("fly"), TOOLS)
    assert (unknown.status, unknown.error) == (ParseStatus.UNKNOWN_TOOL, "no tool 'fly'; tools: book, now")
    bad = check_call(call("book"), TOOLS)
    assert (bad.status, bad.error, bad.raw) == (ParseStatus.BAD_ARGUMENTS, "missing argument: city", "raw")
    extra = check_call(call("now", '{"zone":"UTC"}'), TOOLS)
    assert extra.error == "unknown argument: zone; arguments: none"


def test_a_call_that_did_not_parse_is_left_alone() -> None:
    cut = call("", "", ParseStatus.TRUNCATED)
    assert check_call(cut, TOOLS) is cut
