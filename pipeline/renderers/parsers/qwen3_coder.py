"""Qwen3-Coder calls: `<tool_call>` `<function=NAME>` `<parameter=KEY>` value ... as tags, without types.

A value is text between its tags, one newline at each end removed; its type comes from the tool's schema
where that is shown, else it is JSON where it reads as JSON and text where it does not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from data import canonical
from data.messages import ParseStatus, ToolCall, ToolSpec
from pipeline.renderers.parsers.base import (
    CUT,
    Call,
    Parsed,
    bad_call,
    make_call,
    read_json,
    take_reasoning,
)

VERSION = "qwen3_coder/1"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>\s*")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\s]+)>(.*?)</parameter>\s*", re.DOTALL)
_LOOSE_PARAMETER = re.compile(
    r"<parameter=([^<>\s]+)>(.*?)(?=</parameter>|<parameter=|</function>|</tool_call>|\Z)", re.DOTALL
)
_LITERALS = {"True": True, "False": False, "None": None}


def parse(text: str, *, ended: bool, call_prefix: str, tools: Sequence[ToolSpec] = ()) -> Parsed:
    """See `Parser`."""
    reasoning, rest = take_reasoning(text)
    outside: list[str] = []
    calls: list[ToolCall] = []
    position = 0
    while (start := _next_start(rest, position)) >= 0:
        outside.append(rest[position:start])
        call, position = _block(rest, start, ended, f"{call_prefix}_{len(calls)}", tools)
        calls.append(call)
    outside.append(rest[position:])
    return Parsed("".join(outside).strip(), reasoning, tuple(calls))


def _next_start(text: str, position: int) -> int:
    """The next block: a tool_call tag, or a function tag where that is missing."""
    starts = [text.find(OPEN, position), text.find("<function=", position)]
    return min((start for start in starts if start >= 0), default=-1)


def _block(
    text: str, start: int, ended: bool, call_id: str, tools: Sequence[ToolSpec]
) -> tuple[ToolCall, int]:
    tagged = text.startswith(OPEN, start)
    body = start + len(OPEN) if tagged else start
    try:
        name, values, position = _strict(text, body)
        if not tagged:
            raise ValueError(f"call without {OPEN}")
        if not text.startswith(CLOSE, position):
            raise ValueError(f"no {CLOSE} after </function>")
    except ValueError as error:
        end = _block_end(text, body)
        raw = text[start:end]
        if end == len(text) and not ended and not raw.endswith((CLOSE, "</function>")):
            return bad_call(call_id, raw, ParseStatus.TRUNCATED, CUT), end
        return bad_call(call_id, raw, ParseStatus.NOT_A_CALL, str(error), _salvage(raw, tools)), end
    end = position + len(CLOSE)
    return make_call(call_id, text[start:end], Call(name, _typed(name, values, tools))), end


def _strict(text: str, position: int) -> tuple[str, dict[str, str], int]:
    function = _FUNCTION.match(text, position)
    if function is None:
        raise ValueError("no <function=NAME>")
    values: dict[str, str] = {}
    position = function.end()
    while parameter := _PARAMETER.match(text, position):
        key, value = parameter.groups()
        if key in values:
            raise ValueError(f"duplicate key: {key}")
        if "<parameter=" in value or "</function>" in value:
            raise ValueError(f"no </parameter> after {key}")
        values[key] = value
        position = parameter.end()
    if not text.startswith("</function>", position):
        raise ValueError("no </function>")
    position += len("</function>")
    while position < len(text) and text[position].isspace():
        position += 1
    return function.group(1), values, position


def _block_end(text: str, body: int) -> int:
    close = text.find(CLOSE, body)
    following = text.find(OPEN, body)
    if close >= 0 and (following < 0 or close < following):
        return close + len(CLOSE)
    if following >= 0:
        return following
    function = text.rfind("</function>", body)
    return function + len("</function>") if function >= 0 else len(text)


def _salvage(raw: str, tools: Sequence[ToolSpec]) -> Call | None:
    function = re.search(r"<function=([^<>\s]+)>", raw)
    pairs = _LOOSE_PARAMETER.findall(raw)
    if function is None or len({key for key, _ in pairs}) < len(pairs):
        return None
    return Call(function.group(1), _typed(function.group(1), dict(pairs), tools))


def _typed(name: str, values: dict[str, str], tools: Sequence[ToolSpec]) -> dict[str, Any]:
    spec = next((tool for tool in tools if tool.name == name), None)
    properties = canonical.loads(spec.parameters).get("properties", {}) if spec else {}
    return {key: _value(text, properties.get(key)) for key, text in values.items()}


def _value(text: str, schema: Any) -> Any:
    text = text.removeprefix("\n").removesuffix("\n")
    wanted = schema.get("type") if isinstance(schema, dict) else None
    types = wanted if isinstance(wanted, list) else [wanted]
    if "string" in types:
        return text
    stripped = text.strip()
    if wanted in ("boolean", "null") and stripped in _LITERALS:
        return _LITERALS[stripped]
    try:
        value, end = read_json(stripped)
    except ValueError:
        return text
    return value if end == len(stripped) else text
