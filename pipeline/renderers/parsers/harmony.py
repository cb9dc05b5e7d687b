"""GPT-OSS (harmony) messages: channels for reasoning and answer, calls as messages `to=functions.NAME`.

The text starts right after `<|start|>assistant`. `analysis` is reasoning, a commentary message to a
recipient is a call, everything else is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from data.messages import ParseStatus, ToolCall, ToolSpec
from pipeline.renderers.parsers.base import CUT, Call, Parsed, bad_call, make_call, read_json

VERSION = "harmony/1"
_START, _MESSAGE, _CHANNEL = "<|start|>", "<|message|>", "<|channel|>"
_TERMINATOR = re.compile(r"<\|(?:end|call|return)\|>")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")


class _Message(NamedTuple):
    raw: str
    header: str
    body: str
    has_body: bool
    terminator: str


def parse(text: str, *, ended: bool, call_prefix: str, tools: Sequence[ToolSpec] = ()) -> Parsed:
    """See `Parser`; a stop token that was `<|call|>` or `<|return|>` is already removed."""
    reasoning: list[str] = []
    visible: list[str] = []
    calls: list[ToolCall] = []
    messages = list(_messages(text))
    for index, message in enumerate(messages):
        complete = bool(message.terminator) or ended or index + 1 < len(messages)
        recipient = _RECIPIENT.search(message.header)
        if recipient:
            name = recipient.group(1).removeprefix("functions.")
            calls.append(_call(f"{call_prefix}_{len(calls)}", message, name, complete))
        elif _channel(message.header) == "analysis":
            reasoning.append(message.body.strip())
        else:
            visible.append(message.body.strip() if message.has_body else message.raw.strip())
    return Parsed("\n".join(filter(None, visible)), "\n".join(filter(None, reasoning)), tuple(calls))


def _messages(text: str) -> Iterator[_Message]:
    for piece in text.split(_START):
        if not piece.strip():
            continue
        header, separator, rest = piece.partition(_MESSAGE)
        end = _TERMINATOR.search(rest)
        body = rest[: end.start()] if end else rest
        yield _Message(piece, header, body, bool(separator), end.group(0) if end else "")


def _channel(header: str) -> str:
    found = _CHANNEL_NAME.search(header)
    return found.group(1) if found else ""


def _call(call_id: str, message: _Message, name: str, complete: bool) -> ToolCall:
    if not complete:
        return bad_call(call_id, message.raw, ParseStatus.TRUNCATED, CUT)
    if not message.has_body:
        return bad_call(call_id, message.raw, ParseStatus.NOT_A_CALL, f"no {_MESSAGE} after the recipient")
    body = message.body.strip()
    try:
        value, end = read_json(body)
    except ValueError as error:
        loose = Call(name, {}) if not body else None
        return bad_call(call_id, message.raw, ParseStatus.NOT_JSON, str(error), loose)
    if not isinstance(value, dict):
        return bad_call(call_id, message.raw, ParseStatus.NOT_A_CALL, "arguments are not an object")
    call, problem = Call(name, value), _problem(message, body[end:])
    if problem:
        return bad_call(call_id, message.raw, ParseStatus.NOT_JSON, problem, call)
    return make_call(call_id, message.raw, call)


def _problem(message: _Message, trailing: str) -> str:
    if trailing:
        return "text after the arguments"
    if message.terminator not in ("", "<|call|>"):
        return f"a call ends with <|call|>, not {message.terminator}"
    return "" if _channel(message.header) == "commentary" else f"a call belongs in {_CHANNEL}commentary"
