"""A chat over any OpenAI-compatible `/v1/chat/completions` endpoint.

The key is read from a named environment variable when the chat is made and is never logged, stored or part
of a cache key, nor told where a failing server repeats it (`pipeline.http`). Tool calls the server parsed are
taken as its claim: arguments are checked to be a JSON object. Where the server refuses `response_format`, the
schema is only told in the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from data import canonical
from data.messages import ParseStatus, Role, ToolCall, ToolSpec, Turn, text_parts
from pipeline.chat.core import CachedChat, ChatBudget
from pipeline.checks.credentials import read_variable
from pipeline.errors import EngineProtocolError
from pipeline.http import HttpPolicy, HttpPool, RequestRefusedError


class OpenAIChat(CachedChat):
    """`params` go into each request as they are (temperature, max_tokens, seed, ...)."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        name: str = "",
        api_key_env: str = "",
        params: dict[str, Any] | None = None,
        cache: Path | None = None,
        budget: ChatBudget | None = None,
        max_asks: int = 3,
        policy: HttpPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url` with or without `/v1` at its end. ConfigError where `api_key_env` names an unset variable."""
        super().__init__(name=name or model, cache=cache, budget=budget, max_asks=max_asks)
        url = url.rstrip("/").removesuffix("/v1")
        self.model, self.url, self.params = model, url, dict(params or {})
        headers = (
            {"authorization": f"Bearer {read_variable(api_key_env, where='api_key_env')}"}
            if api_key_env
            else {}
        )
        self.pool = HttpPool([url], policy=policy, headers=headers, transport=transport)
        self._constrains = True

    def __repr__(self) -> str:
        return f"OpenAIChat(url={self.url!r}, model={self.model!r}, key=<hidden>)"

    def identity(self) -> dict[str, Any]:
        """Model and parameters."""
        return {"model": self.model, "params": self.params}

    async def close(self) -> None:
        """Release connections."""
        await self.pool.close()

    async def _ask(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec], schema: dict[str, Any] | None
    ) -> tuple[Turn, int]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [_message(turn) for turn in turns],
            **self.params,
        }
        if tools:
            body["tools"] = [tool.openai() for tool in tools]
        if schema is None or not self._constrains:
            return await self._send(body)
        form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}
        try:
            return await self._send(body | {"response_format": form})
        except RequestRefusedError:
            answer = await self._send(body)
            self._constrains = False
            return answer

    async def _send(self, body: dict[str, Any]) -> tuple[Turn, int]:
        return await self.pool.request("/v1/chat/completions", body, validate=read_reply)


def read_reply(answer: Any) -> tuple[Turn, int]:
    """The assistant turn in a server's answer and its total tokens. EngineProtocolError where malformed."""
    try:
        message = answer["choices"][0]["message"]
        usage = answer.get("usage") or {}
        calls = tuple(_call(call, index) for index, call in enumerate(message.get("tool_calls") or ()))
        turn = Turn(
            role=Role.ASSISTANT,
            parts=text_parts(message.get("content") or ""),
            reasoning=message.get("reasoning") or message.get("reasoning_content") or "",
            tool_calls=calls,
        )
        return turn, int(usage.get("total_tokens", 0))
    except (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError) as error:
        raise EngineProtocolError(f"malformed chat answer ({error!r}): {answer!r:.300}") from error


def _call(call: dict[str, Any], index: int) -> ToolCall:
    function = call["function"]
    raw = function.get("arguments") or "{}"
    common = {"call_id": call.get("id") or f"call_{index}", "name": function["name"], "raw": raw}
    try:
        value = canonical.loads(raw)
    except (ValueError, RecursionError) as error:  # the latter where it is nested too deep
        return ToolCall(**common, arguments="", status=ParseStatus.NOT_JSON, error=str(error))
    if not isinstance(value, dict):
        wrong = f"arguments are {type(value).__name__}, not an object"
        return ToolCall(**common, arguments="", status=ParseStatus.NOT_A_CALL, error=wrong)
    return ToolCall(**common, arguments=canonical.dumps(value))


def _message(turn: Turn) -> dict[str, Any]:
    if turn.result is not None:
        return {"role": "tool", "tool_call_id": turn.result.call_id, "content": turn.text}
    message: dict[str, Any] = {"role": str(turn.role), "content": turn.text}
    if turn.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments or call.raw},
            }
            for call in turn.tool_calls
        ]
    return message
