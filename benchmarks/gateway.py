"""What the gateway costs: time per request over a direct engine call, and throughput of parallel episodes.

    python -m benchmarks.gateway               # both, about a minute
    python -m benchmarks.gateway --episodes 64 # fewer episodes in the second part

The engine answers at once and the client (raw sockets, keep-alive) runs in a process of its own, so the time
is the gateway's: HTTP, JSON, matching, rendering, parsing, recording. An episode is 6 requests: five calls of
one tool and a final text; the dialogue grows as a harness's does. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.gateway.gateway import Gateway
from pipeline.gateway.serve import run_gateway
from pipeline.renderers.chatml import ChatMLRenderer
from tests.tiny import make_tiny_tokenizer

CALLS = 5
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look up",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
START = [
    {"role": "system", "content": "Use the tool, then answer."},
    {"role": "user", "content": "Find five values."},
]


class InstantEngine:
    """Answers at once: a call while fewer than CALLS results are shown, then a text."""

    name, weights_version = "instant", "0"

    def __init__(self, renderer: ChatMLRenderer) -> None:
        call = '<tool_call>\n{"name":"look","arguments":{"key":"a value"}}\n</tool_call>'
        stop = renderer.stop_token_ids[0]
        self._call = (*renderer.encode(call), stop)
        self._text = (*renderer.encode("All five are found."), stop)
        self._stop = stop

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        """See `Engine.generate`. Each shown turn ends in one stop token: system, user, then two a round."""
        shown = token_ids.count(self._stop)
        ids = self._call if shown < 2 + 2 * CALLS else self._text
        return [Completion(ids, (-0.5,) * len(ids), FinishReason.STOP, "0")] * n

    async def score(self, token_ids: list[int]) -> list[float]:
        """Not used."""
        return [0.0] * (len(token_ids) - 1)

    async def close(self) -> None:
        """Nothing to release."""


async def post(reader: Any, writer: Any, path: str, token: str, body: Any) -> Any:
    """One request on an open connection."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    answer = await reader.readuntil(b"\r\n\r\n")
    size = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    said = json.loads(await reader.readexactly(size))
    assert answer.startswith(b"HTTP/1.1 200"), said
    return said


async def episode(port: int, token: str, key: str) -> list[float]:
    """One episode; seconds of each of its requests for a reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    opened = await post(reader, writer, "/episodes", token, {"prompt": "Find five values.", "key": key})
    messages, seconds = list(START), []
    for _ in range(CALLS + 1):
        body = {"model": "m", "messages": messages, "tools": [TOOL]}
        started = time.perf_counter()
        path = f"{opened['path']}/v1/chat/completions"
        answer = await post(reader, writer, path, opened["api_key"], body)
        seconds.append(time.perf_counter() - started)
        reply = answer["choices"][0]["message"]
        messages.append(reply)
        for call in reply.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "a value of some length"})
    assert "tool_calls" not in reply
    await post(reader, writer, f"{opened['path']}/close", token, {"reward": 1.0})
    writer.close()
    return seconds


async def load(port: int, token: str, count: int, parallel: int, name: str) -> tuple[list[float], float]:
    """`count` episodes, `parallel` at a time; seconds per request, and of the whole."""
    keys = iter(range(count))
    found: list[float] = []

    async def work() -> None:
        for number in keys:
            found.extend(await episode(port, token, f"{name}{number}"))

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(parallel)))
    return found, time.perf_counter() - started


def client(pipe: Connection, port: int, token: str, episodes: int) -> None:
    """The other process: one episode at a time, then all at once."""

    async def both() -> Any:
        await load(port, token, 20, 1, "warm")
        alone = await load(port, token, 100, 1, "alone")
        return alone, await load(port, token, 2 * episodes, episodes, "crowd")

    pipe.send(asyncio.run(both()))


async def direct(engine: InstantEngine, renderer: ChatMLRenderer, rounds: int = 2000) -> float:
    """Median seconds of a bare engine call."""
    prompt = renderer.encode("system user " * 100)
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        await engine.generate(prompt, Sampling())
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


async def measure(episodes: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as scratch:
        renderer = ChatMLRenderer.load(make_tiny_tokenizer(Path(scratch)))
    engine = InstantEngine(renderer)
    recorded: list[Any] = []
    gateway = Gateway(engine, renderer=renderer, emit=lambda record: recorded.append(type(record).__name__))
    bare = await direct(engine, renderer)
    async with run_gateway(gateway) as url:
        ours, theirs = multiprocessing.Pipe()
        port = int(url.rpartition(":")[2])
        other = multiprocessing.get_context("spawn").Process(
            target=client, args=(theirs, port, gateway.settings.token, episodes)
        )
        cpu = time.process_time()
        other.start()
        (alone, _), (crowd, wall) = await asyncio.to_thread(ours.recv)
        cpu = time.process_time() - cpu
        other.join()
    requests = (120 + 2 * episodes) * (CALLS + 1)
    return {
        "load_average": os.getloadavg()[0],
        "direct_call_ms": _ms(bare),
        "alone": _spread(alone) | {"overhead_ms": _ms(statistics.median(alone) - bare)},
        "parallel": _spread(crowd)
        | {
            "episodes_at_a_time": episodes,
            "requests_per_s": round(len(crowd) / wall),
            "seconds": round(wall, 1),
        },
        "own_cpu_ms_per_request": _ms(cpu / requests),
        "trajectories": recorded.count("Trajectory"),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"median_ms": _ms(statistics.median(ordered)), "p99_ms": _ms(ordered[int(0.99 * len(ordered))])}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=256, help="episodes at a time in the second part")
    print(json.dumps(asyncio.run(measure(parser.parse_args().episodes)), indent=1))
