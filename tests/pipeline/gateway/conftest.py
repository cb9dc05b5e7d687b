"""A gateway over a scripted engine, served for one test, and what a harness does with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.gateway.gateway import Gateway
from pipeline.gateway.serve import run_gateway
from pipeline.gateway.settings import GatewaySettings
from pipeline.renderers.chatml import ChatMLRenderer
from tests.pipeline.rollout_world import Speaker, call_text
from tests.tiny import make_tiny_tokenizer

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look up",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
LOOK_A = call_text("look", key="a")


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    """Ours, over the tiny tokenizer."""
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("gateway_tokenizer")))


@dataclass
class Desk:
    """A served gateway, a client of it, and everything it recorded."""

    gateway: Gateway
    url: str
    client: httpx.AsyncClient
    engine: Any
    records: list[Task | Trajectory]
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def trajectories(self) -> list[Trajectory]:
        return [record for record in self.records if isinstance(record, Trajectory)]

    async def post(self, path: str, body: Any, *, token: str = "", **headers: str) -> httpx.Response:
        head = {"authorization": f"Bearer {token or self.gateway.settings.token}"} | headers
        return await self.client.post(self.url + path, json=body, headers=head)

    async def open(self, key: str = "ep", **body: Any) -> dict[str, Any]:
        opened = await self.post("/episodes", {"prompt": "Find it.", "key": key} | body)
        assert opened.status_code == 200, opened.text
        self.keys[key] = opened.json()["api_key"]
        return opened.json()

    async def raw(
        self, messages: Sequence[Any], *, key: str = "ep", line: str = "", headers: Any = None, **body: Any
    ) -> httpx.Response:
        path = f"/episodes/{key}{'/' + line if line else ''}/v1/chat/completions"
        body = {"model": "m", "messages": list(messages), "tools": [LOOK]} | body
        return await self.post(path, body, token=self.keys[key], **(headers or {}))

    async def chat(self, messages: Sequence[Any], **options: Any) -> dict[str, Any]:
        """The reply as a message."""
        answer = await self.raw(messages, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]

    async def close(self, key: str = "ep", **verdict: Any) -> dict[str, Any]:
        closed = await self.post(f"/episodes/{key}/close", verdict or {"reward": 1.0})
        assert closed.status_code == 200, closed.text
        return closed.json()


@pytest.fixture
def serve(renderer: ChatMLRenderer) -> Callable[..., Any]:
    """`async with serve(script)` yields a Desk; `script` is that of a Speaker, or an engine."""

    @asynccontextmanager
    async def served(script: Any, *, clock: Any = None, environment: Any = None, **settings: Any) -> Any:
        engine = script if hasattr(script, "generate") else Speaker(renderer, script)
        records: list[Any] = []
        options = {"clock": clock} if clock else {}
        gateway = Gateway(
            engine,
            renderer=renderer,
            settings=GatewaySettings(**settings),
            emit=records.append,
            environment=environment,
            **options,
        )
        async with run_gateway(gateway) as url, httpx.AsyncClient(timeout=30) as client:
            yield Desk(gateway, url, client, engine, records)

    return served


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(message: dict[str, Any], text: str, *, index: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][index]["id"], "content": text}


def sampled(trajectory: Trajectory, segment: int = 0) -> list[tuple[int, ...]]:
    """The generated runs of a segment."""
    one = trajectory.segments[segment]
    return [one.token_ids[span.start : span.end] for span in one.spans if span.kind == "generated"]
