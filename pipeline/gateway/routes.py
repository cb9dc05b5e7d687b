"""The gateway's URLs, who may use them, and how errors read in each wire format.

Two kinds of key: the gateway's token opens and closes episodes and may do everything; an episode's API key
asks the model (and calls the environment's tools) within its episode only, so an agent can never set its own
reward. The episode is named by the path (`/episodes/KEY/v1/...`), by the header `x-trajsmith-episode`, or by
the API key itself. `/episodes/KEY/LINE/v1/...` keeps the conversations of several agents apart.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import ValidationError

from data import canonical
from data.messages import user
from data.tasks import Task
from data.trajectories import Reward, RewardComponent
from pipeline.errors import TrajsmithError
from pipeline.gateway import chat, messages, responses
from pipeline.gateway.asks import Ask, RequestError
from pipeline.gateway.fields import Fields
from pipeline.gateway.gateway import Gateway
from pipeline.gateway.http import Request, Response


@dataclass(frozen=True, slots=True)
class Target:
    """An episode, and the conversation in it that the URL names."""

    key: str
    line: str
    rest: tuple[str, ...]


class Routes:
    """Answers requests with what a Gateway says."""

    def __init__(self, gateway: Gateway, *, now: Callable[[], float] = time.time) -> None:
        self.gateway, self._now = gateway, now

    async def handle(self, request: Request) -> Response:
        """One request."""
        anthropic = request.path.endswith("/v1/messages")
        try:
            return await self._route(request)
        except RequestError as error:
            failure = error
        except TrajsmithError as error:
            failure = RequestError(f"{type(error).__name__}: {error}", status=503, code="gateway_error")
        headers = (("retry-after", f"{failure.retry_after:g}"),) if failure.retry_after else ()
        body = messages.error_body(failure) if anthropic else error_body(failure)
        return _json(body, status=failure.status, headers=headers)

    async def _route(self, request: Request) -> Response:
        parts = tuple(part for part in request.path.split("/") if part)
        secret = _secret(request)
        if parts == ("health",):
            return _json({"status": "ok"})
        if parts == ("episodes",):
            self._need_token(secret)
            return await self._episodes(request)
        target = self._target(parts, secret, request)
        match (request.method, *target.rest):
            case ("POST", "close"):
                self._need_token(secret)
                return await self._close(target.key, _body(request))
            case ("POST", "tools", name):
                return await self._tool(target.key, name, _body(request))
            case ("GET", "v1", "models"):
                entry = {
                    "id": self.gateway.engine.name,
                    "object": "model",
                    "created": 0,
                    "owned_by": "trajsmith",
                }
                return _json({"object": "list", "data": [entry]})
            case ("POST", "v1", "chat", "completions"):
                return await self._chat(target, request)
            case ("POST", "v1", "responses"):
                return await self._responses(target, request)
            case ("POST", "v1", "messages"):
                return await self._messages(target, request)
        raise RequestError(
            f"nothing is at {request.method} {request.path[:200]}", status=404, code="not_found"
        )

    def _need_token(self, secret: str) -> None:
        if not hmac.compare_digest(secret.encode(), self.gateway.settings.token.encode()):
            raise RequestError(
                "this needs the gateway's own token as bearer token; an episode's key cannot open, close or "
                "list episodes",
                status=403 if secret else 401,
                code="forbidden" if secret else "unauthorized",
            )

    def _target(self, parts: tuple[str, ...], secret: str, request: Request) -> Target:
        """The episode that the request names and may use."""
        if len(parts) > 1 and parts[0] == "episodes":
            key, rest = parts[1], parts[2:]
        else:
            key, rest = request.headers.get("x-trajsmith-episode", "") or secret.partition(".")[0], parts
        line = ""
        if len(rest) > 1 and rest[1] == "v1":
            line, rest = rest[0], rest[1:]
        allowed = (self.gateway.settings.token, self.gateway.api_key(key))
        if not any(hmac.compare_digest(secret.encode(), one.encode()) for one in allowed):
            raise RequestError(
                "wrong or missing API key; use the api_key that opening the episode returned",
                status=401,
                code="unauthorized",
            )
        return Target(key, line, rest)

    async def _ask(self, target: Target, ask: Ask, request: Request) -> Any:
        named = replace(
            ask, line=target.line, idempotency_key=request.headers.get("idempotency-key", "")[:200]
        )
        return await self.gateway.ask(target.key, named)

    async def _chat(self, target: Target, request: Request) -> Response:
        ask, options = chat.read_chat(_body(request), self.gateway.limits)
        answer = await self._ask(target, ask, request)
        write = chat.Written(self.gateway.engine.name, int(self._now()), options, self.gateway.renderer)
        if options.stream:
            return _events(map(_data, chat.chat_chunks(answer, write)), end=b"data: [DONE]\n\n")
        return _json(chat.chat_body(answer, write))

    async def _responses(self, target: Target, request: Request) -> Response:
        ask, stream = responses.read_responses(_body(request), self.gateway.limits)
        answer = await self._ask(target, ask, request)
        body = responses.response_body(answer, ask, model=self.gateway.engine.name, created=int(self._now()))
        return _events(map(_named, responses.response_events(body))) if stream else _json(body)

    async def _messages(self, target: Target, request: Request) -> Response:
        ask, stream = messages.read_messages_request(_body(request), self.gateway.limits)
        answer = await self._ask(target, ask, request)
        body = messages.message_body(answer, model=self.gateway.engine.name)
        return _events(map(_named, messages.message_events(body))) if stream else _json(body)

    async def _tool(self, key: str, name: str, body: Any) -> Response:
        fields = Fields(body)
        call_id = fields.need("call_id", str)
        arguments = fields.take("arguments", dict, {})
        fields.end()
        result = await self.gateway.call_tool(key, name, arguments, call_id)
        return _json({"call_id": call_id, "status": str(result.status), "content": result.text})

    async def _episodes(self, request: Request) -> Response:
        if request.method == "GET":
            return _json({"open": list(self.gateway.open_keys)})
        if request.method != "POST":
            raise RequestError("use GET or POST", status=405, code="method_not_allowed")
        fields = Fields(_body(request))
        task = self._task(fields)
        key = fields.take("key", str, "")
        index = fields.count("rollout_index", -1, least=-1)
        seed = fields.count("seed", 0, least=0)
        fields.end()
        opened = await self.gateway.open(task, key, rollout_index=None if index < 0 else index, seed=seed)
        session_tools = self.gateway.tools(opened.key)
        return _json(
            {
                "key": opened.key,
                "api_key": opened.api_key,
                "path": f"/episodes/{opened.key}",
                "task_id": task.task_id,
                "messages": [{"role": str(turn.role), "content": turn.text} for turn in task.prompt],
                "tools": [tool.openai() for tool in session_tools],
            }
        )

    def _task(self, fields: Fields) -> Task:
        """The task that a request names: whole, by split and number of the environment, or by a prompt."""
        whole = fields.take("task", dict)
        if whole is not None:
            try:
                return Task.model_validate(whole)
            except ValidationError as error:
                found = error.errors()[0]
                where = ".".join(str(step) for step in ("task", *found["loc"]))
                raise RequestError(f"{where}: {found['msg']}", param=where) from error
        split = fields.take("split", str)
        if split is not None:
            return self.gateway.task_of(split, fields.count("index", 0, least=0))
        return make_task(fields.need("prompt", str), name=fields.take("name", str, "own_agent"))

    async def _close(self, key: str, body: Any) -> Response:
        fields = Fields(body)
        total = fields.take("reward", float)
        components = fields.take("components", dict, {})
        verifier = fields.take("verifier", str, self.gateway.settings.harness)
        cancelled, broken = fields.take("cancelled", str, ""), fields.take("broken", str, "")
        final = fields.take("final", str, "")
        fields.end()
        if self.gateway.closed(key) is None:
            reward = None if total is None else _reward(total, components, verifier)
            await self.gateway.close(key, reward=reward, cancelled=cancelled, broken=broken, final=final)
        closed = self.gateway.closed(key)
        assert closed is not None, "close remembers what it closed"
        return _json(asdict(closed))


def make_task(prompt: str, *, name: str) -> Task:
    """A task that only the harness knows how to do and to judge."""
    return Task(
        environment=name, split="train", template=name, prompt=(user(prompt),), verifier=f"{name}/harness"
    )


def error_body(error: RequestError) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    return {"error": {"message": str(error), "type": kind, "param": error.param or None, "code": error.code}}


def _reward(total: float, components: dict[str, Any], verifier: str) -> Reward:
    numbers = Fields(components, "components")
    parts = tuple(RewardComponent(name=name, value=numbers.take(name, float)) for name in components)
    return Reward(total=total, components=parts, verifier=verifier)


def _secret(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def _body(request: Request) -> Any:
    try:
        return canonical.loads(request.body.decode("utf-8"))
    except (ValueError, TrajsmithError, RecursionError) as error:
        raise RequestError("the body is not JSON", code="not_json") from error


def _json(value: Any, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    return Response(status, json.dumps(value, separators=(",", ":")).encode(), headers=headers)


def _events(events: Iterable[bytes], *, end: bytes = b"") -> Response:
    return Response(content_type="text/event-stream", stream=(*events, end) if end else tuple(events))


def _data(value: Any) -> bytes:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def _named(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + _data(value)
