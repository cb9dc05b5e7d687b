"""Hermes calls: `<tool_call>` + one JSON object with `name` and `arguments` + `</tool_call>`.

The JSON is read before the closing tag is looked for, so tags and braces inside strings do no harm.
One tag pair holds one call; anything else is labelled, with the raw text kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from data.messages import ParseStatus, ToolCall, ToolSpec
from pipeline.renderers.parsers.base import (
    CUT,
    Call,
    Parsed,
    as_call,
    bad_call,
    make_call,
    read_json,
    salvage,
    take_reasoning,
)

VERSION = "hermes/1"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FENCE = re.compile(r"```(?:json|tool_call)?\s*\n(.*?)(?:```|\Z)", re.DOTALL)


@dataclass(slots=True)
class _Scan:
    text: str
    ended: bool
    prefix: str
    outside: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def next_id(self) -> str:
        return f"{self.prefix}_{len(self.calls)}"


def parse(text: str, *, ended: bool, call_prefix: str, tools: Sequence[ToolSpec] = ()) -> Parsed:
    """See `Parser`; `tools` is not needed, JSON carries its types."""
    reasoning, rest = take_reasoning(text)
    scan = _Scan(rest, ended, call_prefix)
    position = 0
    while (start := scan.text.find(OPEN, position)) >= 0:
        scan.outside.append(scan.text[position:start])
        position = _block(scan, start)
    _tail(scan, scan.text[position:])
    return Parsed("".join(scan.outside).strip(), reasoning, tuple(scan.calls))


def _block(scan: _Scan, start: int) -> int:
    """Read the call that opens at `start`; returns where it ends."""
    text, body = scan.text, _skip_space(scan.text, start + len(OPEN))
    try:
        value, value_end = read_json(text, body)
    except ValueError as error:
        end = _block_end(text, body)
        scan.calls.append(_malformed(scan, start, end, str(error)))
        return end
    close = _skip_space(text, value_end)
    if text.startswith(CLOSE, close):
        end = close + len(CLOSE)
        scan.calls.append(_judged(scan.next_id(), text[start:end], value))
        return end
    end = _block_end(text, value_end)
    closed = text[start:end].endswith(CLOSE)
    problem = f"text after the JSON object; one object per {OPEN}" if closed else f"no {CLOSE}"
    scan.calls.append(_malformed(scan, start, end, problem))
    return end


def _judged(call_id: str, raw: str, value: object) -> ToolCall:
    try:
        return make_call(call_id, raw, as_call(value))
    except ValueError as error:
        body = raw.removeprefix(OPEN).removesuffix(CLOSE)
        return bad_call(call_id, raw, ParseStatus.NOT_A_CALL, str(error), salvage(body))


def _malformed(scan: _Scan, start: int, end: int, problem: str) -> ToolCall:
    raw, call_id = scan.text[start:end], scan.next_id()
    if not raw.endswith(CLOSE) and end == len(scan.text) and not scan.ended:
        return bad_call(call_id, raw, ParseStatus.TRUNCATED, CUT)
    body = raw.removeprefix(OPEN).removesuffix(CLOSE)
    return bad_call(call_id, raw, ParseStatus.NOT_JSON, problem, salvage(body))


def _block_end(text: str, position: int) -> int:
    """End of a malformed block: its closing tag, or just before the next opening one, or the text's end."""
    close, following = text.find(CLOSE, position), text.find(OPEN, position)
    if close >= 0 and (following < 0 or close < following):
        return close + len(CLOSE)
    return following if following >= 0 else len(text)


def _tail(scan: _Scan, tail: str) -> None:
    """Text after the last block: an opening tag that was cut off, or a call without tags."""
    cut = next((size for size in range(len(OPEN) - 1, 5, -1) if tail.endswith(OPEN[:size])), 0)
    if cut and not scan.ended:
        scan.outside.append(tail[:-cut])
        scan.calls.append(bad_call(scan.next_id(), tail[-cut:], ParseStatus.TRUNCATED, CUT))
        return
    untagged = None if scan.calls else _untagged(tail)
    if untagged is None:
        scan.outside.append(tail)
        return
    raw, call = untagged
    scan.outside.append(tail.replace(raw, "", 1))
    scan.calls.append(bad_call(scan.next_id(), raw, ParseStatus.NOT_JSON, f"call without {OPEN} tags", call))


def _untagged(text: str) -> tuple[str, Call] | None:
    """A call written as bare JSON or in a code fence: the raw text and the call."""
    bare = text.strip()
    fence = _FENCE.search(text)
    for raw in (bare, fence.group(0) if fence else ""):
        call = salvage(raw.removesuffix(CLOSE)) if raw else None
        if call is not None:
            return raw, call
    return None


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position
