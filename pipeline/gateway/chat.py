"""OpenAI chat completions: requests to asks, answers to bodies and chunks.

Streaming sends a reply once it is sampled whole, so that a call is parsed before any of it is shown and an
engine error is still an HTTP error. What has no exact counterpart in the engine is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from data.messages import ToolSpec, Turn, assistant, system, user
from pipeline.gateway.asks import Ask, RequestError
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
from pipeline.gateway.tree import Exchange
from pipeline.renderers.base import Renderer

UNCONSTRAINED = "replies are sampled freely, nothing constrains them"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """How the reply is to be written down."""

    stream: bool
    include_usage: bool
    logprobs: bool


@dataclass(frozen=True, slots=True)
class Written:
    """What an answer says besides the reply."""

    model: str
    created: int
    """Unix seconds."""
    options: ChatOptions
    renderer: Renderer


def read_chat(body: Any, limits: Limits) -> tuple[Ask, ChatOptions]:
    """A request. Raises RequestError naming the field that is wrong or cannot be honoured."""
    fields = Fields(body)
    fields.take("model", str)
    turns = read_messages(fields.need("messages", list))
    tools = read_tools(fields.take("tools", list, []))
    newer, older = fields.limit("max_completion_tokens"), fields.limit("max_tokens")
    sampling = read_sampling(fields, limits, max_tokens=newer or older)
    sampling = replace(sampling, stop=read_stops(fields.take("stop", (str, list)), "stop"))
    n = fields.count("n", 1, most=limits.max_choices)
    stream_options = Fields(fields.take("stream_options", dict, {}), "stream_options")
    options = ChatOptions(
        stream=fields.take("stream", bool, False),
        include_usage=stream_options.take("include_usage", bool, False),
        logprobs=fields.take("logprobs", bool, False),
    )
    fields.only("tool_choice", ["auto", *([] if tools else ["none"])], UNCONSTRAINED)
    fields.only("parallel_tool_calls", [True, *([] if tools else [False])], UNCONSTRAINED)
    fields.only("response_format", [{"type": "text"}], UNCONSTRAINED)
    for name in ("frequency_penalty", "presence_penalty", "top_logprobs"):
        fields.only(name, [0], "the engine samples from the model's own distribution")
    fields.only("logit_bias", [], "the engine samples from the model's own distribution")
    fields.only("modalities", [["text"]], "replies are text")
    fields.only("store", [False], "replies are kept in the episode's record only")
    fields.only("service_tier", ["auto", "default"], "there is one tier")
    fields.ignore("user", "metadata", "prompt_cache_key", "safety_identifier")
    fields.end()
    return Ask(turns=turns, tools=tools, sampling=sampling, n=n), options


def read_messages(messages: list[Any]) -> tuple[Turn, ...]:
    """Messages as turns, in order."""
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        fields = Fields(message, f"messages.{index}")
        turns.append(_message(fields, turns))
        fields.end()
    return tuple(turns)


def _message(fields: Fields, before: list[Turn]) -> Turn:
    role = fields.need("role", str)
    text = read_text(fields.take("content", (str, list)), ("text",), fields.path("content"))
    if role in ("system", "developer"):
        return system(text)
    if role == "user":
        return user(text)
    if role == "tool":
        fields.ignore("name")
        return result_turn(fields.need("tool_call_id", str), text, before, fields.path("tool_call_id"))
    if role != "assistant":
        raise RequestError(f"{fields.path('role')}: no role {role!r} here", param=fields.path("role"))
    for name in ("refusal", "audio", "function_call", "annotations"):
        fields.only(name, [], "it cannot be shown to the model")
    reasoning = fields.take("reasoning_content", str) or fields.take("reasoning", str, "")
    fields.ignore("reasoning")
    calls = fields.take("tool_calls", list, [])
    where = fields.path("tool_calls")
    return assistant(
        text, *(_call(Fields(call, f"{where}.{i}")) for i, call in enumerate(calls)), reasoning=reasoning
    )


def _call(fields: Fields) -> Any:
    fields.only("type", ["function"], "only function calls are known")
    fields.ignore("index")
    function = Fields(fields.need("function", dict), fields.path("function"))
    call = read_call(
        fields.need("id", str), function.need("name", str), function.take("arguments", (str, dict), "{}")
    )
    function.end()
    fields.end()
    return call


def read_tools(tools: list[Any]) -> tuple[ToolSpec, ...]:
    """Function tools, in prompt order."""
    specs = []
    for index, entry in enumerate(tools):
        fields = Fields(entry, f"tools.{index}")
        fields.only("type", ["function"], "only function tools can be shown to the model")
        specs.append(read_tool(Fields(fields.need("function", dict), fields.path("function")), "parameters"))
        fields.end()
    return tuple(specs)


def chat_body(answer: Answer, write: Written) -> dict[str, Any]:
    """The whole answer as one `chat.completion`."""
    choices = [
        {
            "index": index,
            "message": _reply(one),
            "finish_reason": one.reply.finish,
            "logprobs": _logprobs(one, write.renderer) if write.options.logprobs else None,
        }
        for index, one in enumerate(answer.choices)
    ]
    head = {
        "id": f"chatcmpl-{answer.mark}",
        "object": "chat.completion",
        "created": write.created,
        "model": write.model,
    }
    return head | {"choices": choices, "usage": usage(answer)}


def chat_chunks(answer: Answer, write: Written) -> Iterator[dict[str, Any]]:
    """The answer as `chat.completion.chunk` objects; `[DONE]` is the caller's."""
    head = {
        "id": f"chatcmpl-{answer.mark}",
        "object": "chat.completion.chunk",
        "created": write.created,
        "model": write.model,
    }
    extra = {"usage": None} if write.options.include_usage else {}
    for index, one in enumerate(answer.choices):
        for delta, finish in _deltas(one):
            choice: dict[str, Any] = {
                "index": index,
                "delta": delta,
                "finish_reason": finish,
                "logprobs": None,
            }
            if finish and write.options.logprobs:
                choice["logprobs"] = _logprobs(one, write.renderer)
            yield head | {"choices": [choice]} | extra
    if write.options.include_usage:
        yield head | {"choices": [], "usage": usage(answer)}


def usage(answer: Answer) -> dict[str, Any]:
    """Tokens of one answer."""
    generated = answer.generated_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": answer.prompt_tokens + generated,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def _reply(one: Exchange) -> dict[str, Any]:
    reply = one.reply
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    elif not reply.text:
        message["content"] = ""
    return message


def _deltas(one: Exchange) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Deltas of one reply with the finish reason on the last."""
    reply = one.reply
    yield {"role": "assistant", "content": ""}, None
    if reply.reasoning:
        yield {"reasoning_content": reply.reasoning}, None
    if reply.text:
        yield {"content": reply.text}, None
    for index, call in enumerate(reply.calls):
        opening = {"name": call.name, "arguments": ""}
        yield (
            {"tool_calls": [{"index": index, "id": call.call_id, "type": "function", "function": opening}]},
            None,
        )
        yield {"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]}, None
    yield {}, reply.finish


def _logprobs(one: Exchange, renderer: Renderer) -> dict[str, Any]:
    """One entry per sampled token, markup and stop token included."""
    content = []
    for token_id, logprob in zip(one.completion.token_ids, one.completion.logprobs, strict=True):
        token = renderer.decode([token_id])
        content.append(
            {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8")), "top_logprobs": []}
        )
    return {"content": content, "refusal": None}
