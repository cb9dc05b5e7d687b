"""The messages view and the token view say what the record says."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings

from data import canonical, formats, messages
from data.errors import RecordError
from data.messages import ParseStatus, Part, PartType, ToolCall, ToolResult, ToolSpec, Turn
from data.trajectories import Origin, Segment, Trajectory
from tests.data import records

SEARCH = ToolSpec(name="search", description="Find", parameters='{"type":"object","properties":{"q":{}}}')


def make_dialogue(text: str = "hi") -> Trajectory:
    """Calls, results, reasoning, an untrained turn, a medium, a changed tool set."""
    call = ToolCall(
        call_id="c1", name="search", arguments=canonical.dumps({"q": text, "n": {}, "none": None})
    )
    image = Part(type=PartType.IMAGE, media_sha256="ab", media_type="image/png")
    turns = (
        messages.system(text),
        Turn(role="user", parts=(*messages.text_parts(text), image)),
        messages.assistant(text, call, reasoning=text, weight=0.0),
        messages.tool(ToolResult(call_id="c1", name="search", parts=messages.text_parts(text))),
        Turn(role="user", parts=messages.text_parts("more"), tools_changed=(SEARCH,)),
        messages.assistant("Done."),
    )
    return records.make_trajectory(1, turns=turns)


def test_messages_have_the_openai_form() -> None:
    row = formats.messages_row(records.make_trajectory(3))
    assistant, tool = row["messages"][2], row["messages"][3]
    function = {"name": "book", "arguments": '{"offer":3}'}
    assert assistant["tool_calls"] == [{"id": "c0", "type": "function", "function": function}]
    assert (assistant["role"], assistant["content"], assistant["tool_call_id"]) == ("assistant", "", None)
    assert (tool["role"], tool["content"], tool["tool_call_id"], tool["name"]) == (
        "tool",
        "booked",
        "c0",
        "book",
    )
    assert [tool["function"]["name"] for tool in json.loads(row["tools"])] == ["book"]
    assert (row["reward"], row["environment"], row["policy"]) == (1.0, "desk@1", "student")


@pytest.mark.parametrize("text", [text for text in records.NASTY if text])
def test_turns_read_back_equal(text: str) -> None:
    trajectory = make_dialogue(text)
    assert formats.turns_from_row(formats.messages_row(trajectory)) == trajectory.turns


@pytest.mark.parametrize("status", ParseStatus)
def test_a_call_without_openai_form_stays_as_its_raw_text(status: ParseStatus) -> None:
    raw = '<tool_call>{"name": oops</tool_call>'
    call = ToolCall(call_id="c", name="search", raw=raw, status=status)
    message = formats.to_message(messages.assistant("Let me see. ", call))
    well_formed = status in (ParseStatus.OK, ParseStatus.UNKNOWN_TOOL, ParseStatus.BAD_ARGUMENTS)
    assert message["content"] == ("Let me see. " if well_formed else "Let me see. " + raw)
    assert (message["tool_calls"] is not None) == well_formed


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(RecordError, match="role 'developer'; allowed are system, user, assistant, tool"):
        formats.from_message({"role": "developer", "content": "x"})


def test_labels_are_the_trained_tokens_only() -> None:
    trajectory = records.make_trajectory(1, tokens=6)
    (row,) = formats.token_rows(trajectory)
    assert row["input_ids"] == [0, 1, 2, 3, 4, 5]
    assert row["labels"] == [-100, -100, -100, 3, 4, 5]
    assert row["loss_weights"] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert row["logprobs"] == list(trajectory.segments[0].logprobs)
    silent = tuple(turn.model_copy(update={"weight": 0.0}) for turn in trajectory.turns)
    (row,) = formats.token_rows(trajectory.model_copy(update={"turns": silent}))
    assert row["labels"] == [-100] * 6


def test_every_segment_is_a_row() -> None:
    first = records.make_trajectory(1).segments[0]
    second = Segment(origin=Origin.RENDERED, token_ids=first.token_ids, spans=first.spans)
    rows = list(formats.token_rows(records.make_trajectory(1, segments=(first, second))))
    assert [(row["segment"], row["origin"], len(row["logprobs"])) for row in rows] == [
        (0, "sampled", 6),
        (1, "rendered", 0),
    ]
    assert [formats.segment_from_row(row) for row in rows] == [first, second]


def test_segments_read_back_equal() -> None:
    base = records.make_trajectory(1)
    turn = (messages.assistant("x"),) * 7

    @settings(max_examples=30, suppress_health_check=list(HealthCheck))
    @given(records.segments())
    def check(segment: Segment) -> None:
        tools = tuple(ToolSpec(name=t.name, description=t.description) for t in segment.tools)
        segment = segment.model_copy(update={"tools": tools})
        trajectory = base.model_copy(update={"segments": (segment,), "turns": turn})
        assert [formats.segment_from_row(row) for row in formats.token_rows(trajectory)] == [segment]

    check()


@given(records.calls)
@settings(max_examples=30)
def test_arguments_are_the_same_text(call: ToolCall) -> None:
    message = formats.to_message(messages.assistant("", call))
    assert message["tool_calls"][0]["function"]["arguments"] == call.arguments
    assert formats.from_message(message).tool_calls[0].arguments == call.arguments
