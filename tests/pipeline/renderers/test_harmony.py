"""GPT-OSS messages: channels, calls, and labels for what is malformed."""

from __future__ import annotations

import pytest

from data.messages import ParseStatus
from pipeline.renderers.parsers import harmony
from pipeline.renderers.parsers.base import Parsed

OK, NOT_JSON, NOT_A_CALL = ParseStatus.OK, ParseStatus.NOT_JSON, ParseStatus.NOT_A_CALL
TRUNCATED, SALVAGEABLE = ParseStatus.TRUNCATED, ParseStatus.SALVAGEABLE
HEAD = "<|channel|>commentary to=functions.find <|constrain|>json<|message|>"
GOOD = HEAD + '{"city":"Rome"}'
THOUGHT = "<|channel|>analysis<|message|>Need flights.<|end|><|start|>assistant"


def parse(text: str, *, ended: bool = True) -> Parsed:
    return harmony.parse(text, ended=ended, call_prefix="c")


GOLDEN = [
    pytest.param(GOOD, OK, '{"city":"Rome"}', "", id="stop token removed"),
    pytest.param(GOOD + "<|call|>", OK, '{"city":"Rome"}', "", id="stop token present"),
    pytest.param(
        ' to=functions.find<|channel|>commentary json<|message|>{"city":"Rome"}',
        OK,
        '{"city":"Rome"}',
        "",
        id="in the role",
    ),
    pytest.param(HEAD + "{}", OK, "{}", "", id="empty arguments"),
    pytest.param(HEAD + '{"t":"}<tool_call>{"}', OK, '{"t":"}<tool_call>{"}', "", id="braces in a string"),
    pytest.param(HEAD, SALVAGEABLE, "{}", "", id="no arguments written"),
    pytest.param(GOOD + "}", SALVAGEABLE, '{"city":"Rome"}', "text after", id="brace too many"),
    pytest.param(GOOD + "<|end|>", SALVAGEABLE, '{"city":"Rome"}', "<|call|>", id="wrong end"),
    pytest.param(
        GOOD.replace("commentary", "analysis"),
        SALVAGEABLE,
        '{"city":"Rome"}',
        "commentary",
        id="wrong channel",
    ),
    pytest.param(HEAD + '{"a":1,"a":2}', NOT_JSON, "", "duplicate key: a", id="duplicate"),
    pytest.param(HEAD + '{"a":NaN}', NOT_JSON, "", "NaN", id="NaN"),
    pytest.param(HEAD + "Rome", NOT_JSON, "", "character 0", id="prose"),
    pytest.param(HEAD + "[1]", NOT_A_CALL, "", "not an object", id="list"),
    pytest.param(
        "<|channel|>commentary to=functions.find", NOT_A_CALL, "", "no <|message|>", id="header only"
    ),
]


@pytest.mark.parametrize(("text", "status", "arguments", "error"), GOLDEN)
def test_one_call(text: str, status: ParseStatus, arguments: str, error: str) -> None:
    parsed = parse(THOUGHT + text)
    assert [(call.call_id, call.status, call.arguments) for call in parsed.calls] == [
        ("c_0", status, arguments)
    ]
    assert parsed.calls[0].name == ("find" if arguments else "")
    assert error in parsed.calls[0].error
    assert parsed.calls[0].raw == "assistant" + text
    assert parsed.reasoning == "Need flights."


@pytest.mark.parametrize("size", range(len("<|channel|>commentary to=functions.f"), len(GOOD) + 1))
def test_a_cut_call_is_truncated(size: int) -> None:
    assert [call.status for call in parse(GOOD[:size], ended=False).calls] == [TRUNCATED]


def test_parallel_calls_and_a_preamble() -> None:
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    parsed = parse(f"{preamble}{GOOD}<|call|><|start|>assistant{HEAD}{{}}<|call|>")
    assert [call.arguments for call in parsed.calls] == ['{"city":"Rome"}', "{}"]
    assert parsed.text == "I look."


def test_a_final_answer_is_text() -> None:
    parsed = parse(THOUGHT + "<|channel|>final<|message|>Booked.")
    assert (parsed.text, parsed.calls, parsed.reasoning) == ("Booked.", (), "Need flights.")
