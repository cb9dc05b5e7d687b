"""Hermes calls: golden texts for every ParseStatus, and the cases that broke other parsers."""

from __future__ import annotations

import json

import pytest

from data.messages import ParseStatus
from pipeline.renderers.parsers import hermes
from pipeline.renderers.parsers.base import Parsed

OK, NOT_JSON, NOT_A_CALL = ParseStatus.OK, ParseStatus.NOT_JSON, ParseStatus.NOT_A_CALL
TRUNCATED, SALVAGEABLE = ParseStatus.TRUNCATED, ParseStatus.SALVAGEABLE
GOOD = '{"name":"find","arguments":{"city":"Rome"}}'


def tag(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


def parse(text: str, *, ended: bool = True) -> Parsed:
    return hermes.parse(text, ended=ended, call_prefix="c")


GOLDEN = [
    pytest.param(tag(GOOD), OK, "find", '{"city":"Rome"}', "", id="plain"),
    pytest.param(tag('{"name": "now", "arguments": {}}'), OK, "now", "{}", "", id="empty arguments"),
    pytest.param(f"<tool_call>{GOOD}</tool_call>", OK, "find", '{"city":"Rome"}', "", id="no newlines"),
    pytest.param(
        tag('{"name":"say","arguments":{"t":"}}{ \\"}\\" </tool_call> <tool_call>"}}'),
        OK,
        "say",
        '{"t":"}}{ \\"}\\" </tool_call> <tool_call>"}',
        "",
        id="braces and tags inside a string",
    ),
    pytest.param(
        tag(f"{GOOD}\n{GOOD}"), SALVAGEABLE, "find", '{"city":"Rome"}', "one object per", id="two objects"
    ),
    pytest.param(tag(GOOD + "}"), SALVAGEABLE, "find", '{"city":"Rome"}', "text after", id="brace too many"),
    pytest.param(tag(GOOD[:-1]), SALVAGEABLE, "find", '{"city":"Rome"}', "", id="lost closing brace"),
    pytest.param(
        tag(f"```json\n{GOOD}\n```"), SALVAGEABLE, "find", '{"city":"Rome"}', "", id="fence in the tag"
    ),
    pytest.param(
        tag("{'name': 'find', 'arguments': {'ok': True}}"),
        SALVAGEABLE,
        "find",
        '{"ok":true}',
        "",
        id="Python",
    ),
    pytest.param(
        tag('{"name":"find","arguments":"{\\"city\\":\\"Rome\\"}"}'),
        SALVAGEABLE,
        "find",
        '{"city":"Rome"}',
        "a string, not an object",
        id="arguments as text",
    ),
    pytest.param(
        tag('{"name":"f","parameters":{"a":1}}'), SALVAGEABLE, "f", '{"a":1}', '"arguments"', id="parameters"
    ),
    pytest.param(
        f"<tool_call>\n{GOOD}", SALVAGEABLE, "find", '{"city":"Rome"}', "no </tool_call>", id="tag not closed"
    ),
    pytest.param(GOOD, SALVAGEABLE, "find", '{"city":"Rome"}', "without <tool_call>", id="bare"),
    pytest.param(f"```json\n{GOOD}\n```", SALVAGEABLE, "find", '{"city":"Rome"}', "without", id="fence"),
    pytest.param(
        f"{GOOD}\n</tool_call>", SALVAGEABLE, "find", '{"city":"Rome"}', "without", id="opening tag lost"
    ),
    pytest.param(
        tag('{"name":"f","arguments":{"a":1,"a":2}}'), NOT_JSON, "", "", "duplicate key: a", id="duplicate"
    ),
    pytest.param(tag('{"name":"f","arguments":{"a":NaN}}'), NOT_JSON, "", "", "NaN is not JSON", id="NaN"),
    pytest.param(
        tag('{"name":"f","arguments":{"a":-Infinity}}'), NOT_JSON, "", "", "Infinity", id="infinity"
    ),
    pytest.param(
        tag('{"name":"f","arguments":{"a":' + "9" * 5000 + "}}"), NOT_JSON, "", "", "", id="integer too long"
    ),
    pytest.param(
        tag('{"name":"f","arguments":{"a":1e999}}'), NOT_JSON, "", "", "cannot be written", id="overflow"
    ),
    pytest.param(
        tag("{'name': 'f', 'arguments': {'a': '\\d'}}"),
        SALVAGEABLE,
        "f",
        '{"a":"\\\\d"}',
        "",
        id="odd escape",
    ),
    pytest.param(tag("find Rome"), NOT_JSON, "", "", "character 0", id="prose"),
    pytest.param(tag(""), NOT_JSON, "", "", "character", id="empty block"),
    pytest.param(tag("[" * 100_000), NOT_JSON, "", "", "too deep", id="too deep"),
    pytest.param(tag("null"), NOT_A_CALL, "", "", "not null", id="null"),
    pytest.param(tag("[1]"), NOT_A_CALL, "", "", "not a list", id="list"),
    pytest.param(tag('{"name":"f"}'), NOT_A_CALL, "", "", 'no "arguments"', id="no arguments"),
    pytest.param(tag('{"arguments":{}}'), NOT_A_CALL, "", "", 'no "name"', id="no name"),
    pytest.param(
        tag('{"name":7,"arguments":{}}'), NOT_A_CALL, "", "", 'no "name" string', id="name no string"
    ),
    pytest.param(
        tag('{"name":"f","arguments":[]}'), NOT_A_CALL, "", "", "a list, not an object", id="list arguments"
    ),
]


@pytest.mark.parametrize(("text", "status", "name", "arguments", "error"), GOLDEN)
def test_one_call(text: str, status: ParseStatus, name: str, arguments: str, error: str) -> None:
    parsed = parse(text)
    assert [call.status for call in parsed.calls] == [status]
    call = parsed.calls[0]
    assert (call.call_id, call.name, call.arguments) == ("c_0", name, arguments)
    assert error in call.error
    assert bool(call.error) is not call.ok
    assert call.raw == text
    assert parsed.text == ""


@pytest.mark.parametrize("size", range(len("<tool_call>"), len(tag(GOOD))))
def test_a_cut_call_is_truncated_wherever_it_is_cut(size: int) -> None:
    text = "Let me see.\n" + tag(GOOD)[:size]
    parsed = parse(text, ended=False)
    assert [call.status for call in parsed.calls] == [TRUNCATED]
    assert parsed.calls[0].raw == tag(GOOD)[:size]
    assert parsed.text == "Let me see."


def test_a_cut_opening_tag_counts_only_where_generation_was_cut() -> None:
    assert [call.raw for call in parse("Hm <tool_ca", ended=False).calls] == ["<tool_ca"]
    assert parse("Hm <tool_ca").calls == ()


def test_parallel_calls_keep_order_ids_and_text_around() -> None:
    parsed = parse(f"First\n{tag(GOOD)}\nthen\n{tag('{')}\n{tag(GOOD)}\nlast")
    assert [(call.call_id, call.status) for call in parsed.calls] == [
        ("c_0", OK),
        ("c_1", NOT_JSON),
        ("c_2", OK),
    ]
    assert parsed.text.split() == ["First", "then", "last"]


def test_an_unclosed_call_does_not_swallow_the_next() -> None:
    parsed = parse(f"<tool_call>\n{GOOD}\n{tag(GOOD)}")
    assert [call.status for call in parsed.calls] == [SALVAGEABLE, OK]
    assert parsed.calls[0].raw == f"<tool_call>\n{GOOD}\n"


def test_reasoning_is_taken_apart_and_drafts_in_it_are_no_calls() -> None:
    parsed = parse(f"<think>\nmaybe {tag(GOOD)}\n</think>\nDone.")
    assert (parsed.reasoning, parsed.text, parsed.calls) == (f"maybe {tag(GOOD)}", "Done.", ())
    assert parse("<think>never ends").reasoning == "never ends"


@pytest.mark.parametrize(
    "text",
    ["", "Booked.", 'See {"a": 1}', '{"name": "Rome"}', "{city} costs {price}", "a < b </tool", '{"a": {"b"'],
)
def test_prose_is_no_call(text: str) -> None:
    parsed = parse(text)
    assert (parsed.text, parsed.calls) == (text, ())


def test_unicode_and_large_integers_survive() -> None:
    body = json.dumps({"name": "f", "arguments": {"é": "日本\n", "n": 2**70, "s": "\ud800"}})
    call = parse(tag(body)).calls[0]
    assert call.ok
    assert call.parsed_arguments() == {"é": "日本\n", "n": 2**70, "s": "\ud800"}
