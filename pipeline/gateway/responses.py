"""OpenAI Responses: requests to asks, answers to bodies and events, where the mapping is exact.

The harness sends the whole input each time: nothing is kept under `previous_response_id` or `conversation`.
Items between two results, user or system messages are one assistant turn: reasoning, message, calls. Only
function tools exist. Streaming sends a reply once it is sampled whole, as in `chat`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from data import canonical
from data.messages import Role, ToolSpec, Turn, assistant, system, text_parts, user
from pipeline.gateway.asks import Ask, RequestError
from pipeline.gateway.chat import UNCONSTRAINED
from pipeline.gateway.episode import Answer
from pipeline.gateway.fields import (
    Fields,
    Limits,
    read_call,
    read_sampling,
    read_text,
    read_tool,
    result_turn,
)

_TEXT = ("input_text", "output_text", "text")
_WHOLE = "send the whole input; nothing is kept between requests"


def read_responses(body: Any, limits: Limits) -> tuple[Ask, bool]:
    """A request, and whether it is to be streamed. Raises RequestError."""
    fields = Fields(body)
    fields.take("model", str)
    instructions = fields.take("instructions", str, "")
    turns = read_input(fields.need("input", (str, list)))
    if instructions:
        turns = (system(instructions), *turns)
    tools = _tools(fields.take("tools", list, []))
    sampling = read_sampling(fields, limits, max_tokens=fields.limit("max_output_tokens"))
    stream = fields.take("stream", bool, False)
    for name in ("previous_response_id", "conversation", "prompt"):
        fields.only(name, [], _WHOLE)
    fields.only("store", [False], "replies are kept in the episode's record only; send store=false")
    fields.only("tool_choice", ["auto", *([] if tools else ["none"])], UNCONSTRAINED)
    fields.only("parallel_tool_calls", [True, *([] if tools else [False])], UNCONSTRAINED)
    fields.only("text", [{"format": {"type": "text"}}], UNCONSTRAINED)
    fields.only("reasoning", [], "how much the model thinks is its own choice")
    fields.only("truncation", ["disabled"], "the harness decides what is shown")
    fields.only("top_logprobs", [0], "only the sampled tokens have log-probs")
    fields.only("background", [False], "replies come with the request")
    fields.only("include", [], "there is nothing more to include")
    fields.only("service_tier", ["auto", "default"], "there is one tier")
    fields.only("stream_options", [{"include_obfuscation": False}], "chunks are as they are")
    fields.ignore("user", "metadata", "prompt_cache_key", "safety_identifier")
    fields.end()
    return Ask(turns=turns, tools=tools, sampling=replace(sampling, stop=())), stream


def read_input(value: str | list[Any]) -> tuple[Turn, ...]:
    """Input items as turns."""
    if isinstance(value, str):
        return (user(value),)
    turns: list[Turn] = []
    for index, item in enumerate(value):
        fields = Fields(item, f"input.{index}")
        turn = _item(fields, turns)
        fields.ignore("id", "status", "phase")
        fields.end()
        if turn.role is Role.ASSISTANT and turns and turns[-1].role is Role.ASSISTANT:
            turns[-1] = _joined(turns[-1], turn)
        else:
            turns.append(turn)
    return tuple(turns)


def _item(fields: Fields, before: list[Turn]) -> Turn:
    kind = fields.take("type", str, "message")
    if kind == "function_call":
        call_id, name = fields.need("call_id", str), fields.need("name", str)
        return assistant("", read_call(call_id, name, fields.take("arguments", str, "{}")))
    if kind == "function_call_output":
        text = read_text(fields.need("output", (str, list)), _TEXT, fields.path("output"))
        return result_turn(fields.need("call_id", str), text, before, fields.path("call_id"))
    if kind == "reasoning":
        fields.only("summary", [], "only whole reasoning can be shown")
        fields.only("encrypted_content", [], "it cannot be shown to the model")
        content = fields.take("content", list, [])
        return assistant("", reasoning=read_text(content, ("reasoning_text",), fields.path("content")))
    if kind != "message":
        raise RequestError(
            f"{fields.path('type')}: {kind!r} items cannot be shown to the model", param=fields.path("type")
        )
    role = fields.need("role", str)
    text = read_text(fields.take("content", (str, list)), _TEXT, fields.path("content"))
    makers = {"user": user, "system": system, "developer": system, "assistant": assistant}
    if role not in makers:
        raise RequestError(f"{fields.path('role')}: no role {role!r} here", param=fields.path("role"))
    return makers[role](text)


def _joined(first: Turn, second: Turn) -> Turn:
    """Two items of one assistant turn."""
    return first.model_copy(
        update={
            "parts": text_parts("\n".join(filter(None, [first.text, second.text]))),
            "reasoning": "\n".join(filter(None, [first.reasoning, second.reasoning])),
            "tool_calls": (*first.tool_calls, *second.tool_calls),
        }
    )


def _tools(tools: list[Any]) -> tuple[ToolSpec, ...]:
    specs = []
    for index, entry in enumerate(tools):
        fields = Fields(entry, f"tools.{index}")
        fields.only("type", ["function"], "only function tools can be shown to the model")
        specs.append(read_tool(fields, "parameters"))
    return tuple(specs)


def response_body(answer: Answer, ask: Ask, *, model: str, created: int) -> dict[str, Any]:
    """The whole answer as one `response` object."""
    one = answer.choices[0]
    cut_off = one.reply.finish == "length"
    generated = answer.generated_tokens
    return {
        "id": f"resp-{answer.mark}",
        "object": "response",
        "created_at": created,
        "status": "incomplete" if cut_off else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut_off else None,
        "instructions": None,
        "max_output_tokens": ask.sampling.max_tokens,
        "model": model,
        "output": list(_output(answer)),
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": ask.sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [_shown(tool) for tool in ask.tools],
        "top_p": ask.sampling.top_p,
        "truncation": "disabled",
        "usage": {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + generated,
        },
        "metadata": {},
    }


def _shown(tool: ToolSpec) -> dict[str, Any]:
    parameters = canonical.loads(tool.parameters)
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": parameters,
        "strict": False,
    }


def _output(answer: Answer) -> Iterator[dict[str, Any]]:
    reply, mark = answer.choices[0].reply, answer.mark
    status = "incomplete" if reply.finish == "length" else "completed"
    if reply.reasoning:
        content = [{"type": "reasoning_text", "text": reply.reasoning}]
        yield {"id": f"rs-{mark}", "type": "reasoning", "summary": [], "content": content}
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        yield {
            "id": f"msg-{mark}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [part],
        }
    for index, call in enumerate(reply.calls):
        yield {
            "id": f"fc-{mark}-{index}",
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }


def response_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same answer as events, numbered."""
    for number, event in enumerate(_events(body)):
        yield event | {"sequence_number": number}


def _events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    opening = body | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": opening}
    yield {"type": "response.in_progress", "response": opening}
    for index, item in enumerate(body["output"]):
        empty = {"content": [], "status": "in_progress"} if item["type"] == "message" else {}
        if item["type"] == "function_call":
            empty = {"arguments": "", "status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": item | empty}
        at = {"item_id": item["id"], "output_index": index}
        if item["type"] == "message":
            yield from _text_events(item["content"][0], at)
        if item["type"] == "function_call":
            kind = "response.function_call_arguments"
            yield {"type": f"{kind}.delta", **at, "delta": item["arguments"]}
            yield {"type": f"{kind}.done", **at, "name": item["name"], "arguments": item["arguments"]}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{body['status']}", "response": body}


def _text_events(part: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    at = at | {"content_index": 0}
    yield {"type": "response.content_part.added", **at, "part": part | {"text": ""}}
    yield {"type": "response.output_text.delta", **at, "delta": part["text"], "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}
