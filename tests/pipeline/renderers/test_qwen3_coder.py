"""Qwen3-Coder calls: golden texts, types from schemas, labels for what is malformed."""

from __future__ import annotations

import pytest

from data import canonical
from data.messages import ParseStatus, ToolSpec
from pipeline.renderers.parsers import qwen3_coder
from pipeline.renderers.parsers.base import Parsed

OK, NOT_A_CALL = ParseStatus.OK, ParseStatus.NOT_A_CALL
TRUNCATED, SALVAGEABLE = ParseStatus.TRUNCATED, ParseStatus.SALVAGEABLE
TOOL = ToolSpec(
    name="find",
    parameters=canonical.dumps(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "n": {"type": "integer"},
                "direct": {"type": "boolean"},
                "tags": {"type": "array"},
                "note": {"type": ["string", "null"]},
            },
        }
    ),
)


def block(*parameters: tuple[str, str], name: str = "find") -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def parse(text: str, *, ended: bool = True, tools: tuple[ToolSpec, ...] = (TOOL,)) -> Parsed:
    return qwen3_coder.parse(text, ended=ended, call_prefix="c", tools=tools)


GOOD = block(("city", "Rome"))
GOLDEN = [
    pytest.param(GOOD, OK, '{"city":"Rome"}', "", id="plain"),
    pytest.param(block(), OK, "{}", "", id="empty arguments"),
    pytest.param(block(("city", "a\n\nb\n")), OK, '{"city":"a\\n\\nb\\n"}', "", id="newlines inside"),
    pytest.param(block(("city", "42")), OK, '{"city":"42"}', "", id="string stays string"),
    pytest.param(block(("n", "42")), OK, '{"n":42}', "", id="integer"),
    pytest.param(block(("n", "many")), OK, '{"n":"many"}', "", id="wrong type is left to the schema check"),
    pytest.param(
        block(("direct", "True")), OK, '{"direct":true}', "", id="Python literal the template writes"
    ),
    pytest.param(block(("tags", '["a", {"b": 1}]')), OK, '{"tags":["a",{"b":1}]}', "", id="array"),
    pytest.param(block(("note", "null")), OK, '{"note":"null"}', "", id="string or null stays text"),
    pytest.param(block(("x", "7")), OK, '{"x":7}', "", id="unknown parameter reads as JSON"),
    pytest.param(block(("x", "7 }")), OK, '{"x":"7 }"}', "", id="unknown parameter reads as text"),
    pytest.param(block(("city", "</tool_call> {")), OK, '{"city":"</tool_call> {"}', "", id="tag in a value"),
    pytest.param(block(("city", "a"), ("city", "b")), NOT_A_CALL, "", "duplicate key: city", id="duplicate"),
    pytest.param("<tool_call>\n{}\n</tool_call>", NOT_A_CALL, "", "no <function=NAME>", id="no function"),
    pytest.param(
        GOOD.removeprefix("<tool_call>\n"), SALVAGEABLE, '{"city":"Rome"}', "without", id="tag lost"
    ),
    pytest.param(
        GOOD.removesuffix("\n</tool_call>"),
        SALVAGEABLE,
        '{"city":"Rome"}',
        "no </tool_call>",
        id="not closed",
    ),
    pytest.param(
        GOOD.replace("</function>\n", ""),
        SALVAGEABLE,
        '{"city":"Rome"}',
        "no </function>",
        id="function not closed",
    ),
    pytest.param(
        GOOD.replace("</parameter>\n", ""), SALVAGEABLE, '{"city":"Rome"}', "", id="parameter not closed"
    ),
]


@pytest.mark.parametrize(("text", "status", "arguments", "error"), GOLDEN)
def test_one_call(text: str, status: ParseStatus, arguments: str, error: str) -> None:
    parsed = parse(text)
    assert [call.status for call in parsed.calls] == [status]
    call = parsed.calls[0]
    assert call.arguments == arguments
    assert error in call.error
    assert bool(call.error) is not call.ok
    assert text.startswith(call.raw) and call.raw
    assert call.ok is False or call.raw == text


@pytest.mark.parametrize("size", range(len("<tool_call>"), GOOD.index("</function>")))
def test_a_cut_call_is_truncated(size: int) -> None:
    parsed = parse("See\n" + GOOD[:size], ended=False)
    assert [call.status for call in parsed.calls] == [TRUNCATED]
    assert parsed.calls[0].raw == GOOD[:size]
    assert parsed.text == "See"


def test_parallel_calls_keep_order() -> None:
    parsed = parse(f"Both.\n{GOOD}\n{block(('n', '2'))}")
    assert [(call.call_id, call.arguments) for call in parsed.calls] == [
        ("c_0", '{"city":"Rome"}'),
        ("c_1", '{"n":2}'),
    ]
    assert parsed.text == "Both."


def test_without_schemas_values_are_json_or_text() -> None:
    parsed = parse(block(("city", "42"), ("n", "two")), tools=())
    assert parsed.calls[0].parsed_arguments() == {"city": 42, "n": "two"}
