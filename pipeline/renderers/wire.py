"""Turns as the message dicts that chat templates and the package `renderers` take.

A malformed call has no name and arguments to show, so its raw text goes into the text of its message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data.messages import ParseStatus, ToolCall, Turn

_WELL_FORMED = (ParseStatus.OK, ParseStatus.UNKNOWN_TOOL, ParseStatus.BAD_ARGUMENTS)


def wire_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """One dict per turn, OpenAI style but with arguments as dicts."""
    return [_message(turn) for turn in turns]


def is_well_formed(call: ToolCall) -> bool:
    """Whether the strict parser read a name and arguments, whatever the schema check says of them."""
    return call.status in _WELL_FORMED


def _message(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": str(turn.role), "content": turn.text}
    if turn.result is not None:
        return message | {"tool_call_id": turn.result.call_id, "name": turn.result.name}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    malformed = [call.raw for call in turn.tool_calls if not is_well_formed(call)]
    if malformed:
        message["content"] = "\n".join(filter(None, [turn.text.strip(), *malformed]))
    calls = [_call(call) for call in turn.tool_calls if is_well_formed(call)]
    return message | ({"tool_calls": calls} if calls else {})


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.parsed_arguments()}
    return {"type": "function", "id": call.call_id, "function": function}
