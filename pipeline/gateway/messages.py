"""Anthropic messages: requests to asks, answers to bodies and events, where the mapping is exact.

A user message's tool results come before its text. Reasoning is handed out as a thinking block without a
signature. That a result is an error is recorded; the model is shown its text alone. Streaming sends a reply
once it is sampled whole, as in `chat`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from data import canonical
from data.messages import ToolStatus, Turn, assistant, system, user
from pipeline.gateway.asks import Ask, RequestError
from pipeline.gateway.chat import UNCONSTRAINED
from pipeline.gateway.episode import Answer
from pipeline.gateway.fields import (
    Fields,
    Limits,
    read_call,
    read_sampling,
    read_stops,
    read_text,
    read_tool,
    result_turn,
)

_KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def read_messages_request(body: Any, limits: Limits) -> tuple[Ask, bool]:
    """A request, and whether it is to be streamed. Raises RequestError."""
    fields = Fields(body)
    fields.take("model", str)
    head = read_text(fields.take("system", (str, list)), ("text",), "system")
    turns: list[Turn] = [system(head)] if head else []
    for index, message in enumerate(fields.need("messages", list)):
        _read_message(Fields(message, f"messages.{index}"), turns)
    tools = []
    for index, entry in enumerate(fields.take("tools", list, [])):
        tool = Fields(entry, f"tools.{index}")
        tool.only("type", ["custom"], "only tools of the harness can be shown to the model")
        tools.append(read_tool(tool, "input_schema"))
    sampling = read_sampling(fields, limits, max_tokens=fields.limit("max_tokens"))
    sampling = replace(sampling, stop=read_stops(fields.take("stop_sequences", list), "stop_sequences"))
    stream = fields.take("stream", bool, False)
    automatic = [{"type": "auto"}, {"type": "auto", "disable_parallel_tool_use": False}]
    fields.only("tool_choice", [*automatic, *([] if tools else [{"type": "none"}])], UNCONSTRAINED)
    fields.only("thinking", [{"type": "disabled"}], "how much the model thinks is its own choice")
    fields.only("service_tier", ["auto", "standard_only"], "there is one tier")
    fields.ignore("metadata")
    fields.end()
    return Ask(turns=tuple(turns), tools=tuple(tools), sampling=sampling), stream


def _read_message(fields: Fields, turns: list[Turn]) -> None:
    """Add the turns of one message."""
    role = fields.need("role", str)
    content = fields.need("content", (str, list))
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    where = fields.path("content")
    fields.end()
    if role not in ("user", "assistant"):
        raise RequestError(f"{fields.path('role')}: no role {role!r} here", param=fields.path("role"))
    text: list[str] = []
    reasoning: list[str] = []
    calls = []
    for index, entry in enumerate(blocks):
        block = Fields(entry, f"{where}.{index}")
        kind = block.need("type", str)
        block.ignore("cache_control", "citations")
        if kind == "text":
            text.append(block.take("text", str, ""))
        elif kind == "tool_result" and role == "user" and not text:
            turns.append(_result(block, turns))
        elif kind == "tool_use" and role == "assistant":
            block.ignore("caller")
            calls.append(
                read_call(block.need("id", str), block.need("name", str), block.take("input", dict, {}))
            )
        elif kind == "thinking" and role == "assistant":
            reasoning.append(block.take("thinking", str, ""))
            block.ignore("signature")
        else:
            raise RequestError(
                f"{block.path('type')}: a {kind!r} block cannot be shown to the model here",
                param=block.path("type"),
            )
        block.end()
    if role == "assistant":
        turns.append(assistant("".join(text), *calls, reasoning="\n".join(reasoning)))
    elif text:
        turns.append(user("".join(text)))


def _result(block: Fields, turns: list[Turn]) -> Turn:
    text = read_text(block.take("content", (str, list)), ("text",), block.path("content"))
    turn = result_turn(block.need("tool_use_id", str), text, turns, block.path("tool_use_id"))
    if not block.take("is_error", bool, False) or turn.result is None:
        return turn
    return turn.model_copy(
        update={"result": turn.result.model_copy(update={"status": ToolStatus.TOOL_ERROR})}
    )


def message_body(answer: Answer, *, model: str) -> dict[str, Any]:
    """The whole answer as one message."""
    reply = answer.choices[0].reply
    content: list[dict[str, Any]] = []
    if reply.reasoning:
        content.append({"type": "thinking", "thinking": reply.reasoning, "signature": ""})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    content += [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.parsed_arguments()}
        for call in reply.calls
    ]
    stopped = bool(reply.stop) and not reply.calls
    return {
        "id": f"msg-{answer.mark}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": "stop_sequence" if stopped else _STOP_REASONS[reply.finish],
        "stop_sequence": reply.stop if stopped else None,
        "usage": {
            "input_tokens": answer.prompt_tokens - answer.cached_tokens,
            "cache_read_input_tokens": answer.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": answer.generated_tokens,
        },
    }


def message_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same answer as events."""
    opening = body | {"content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": opening | {"usage": body["usage"] | {"output_tokens": 0}}}
    for index, block in enumerate(body["content"]):
        empty, delta = _delta(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": body["usage"]["output_tokens"]}}
    yield {"type": "message_stop"}


def _delta(block: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A block as it opens, and what fills it."""
    if block["type"] == "text":
        return block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
    if block["type"] == "thinking":
        return block | {"thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
    delta = {"type": "input_json_delta", "partial_json": canonical.dumps(block["input"])}
    return block | {"input": {}}, delta


def error_body(error: RequestError) -> dict[str, Any]:
    """An error as Anthropic's clients read it."""
    kind = _KINDS.get(error.status, "overloaded_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}
