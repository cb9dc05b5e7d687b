"""Tokens per second of a vLLM server through the rollout loop, against the same requests sent bare.

    python -m benchmarks.engine --model-dir DIR                  # starts a server of its own
    python -m benchmarks.engine --model-dir DIR --url URL --served-name NAME

Whole episodes on `travel_desk` are played once through the loop; every request they made (prompt ids,
seed, limits) is then sent again by bare httpx coroutines, as many at a time. A first round warms the
server up, so that neither side finds the prefix cache emptier than the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import httpx

from pipeline.engines.base import Completion, Sampling
from pipeline.engines.vllm import VllmEngine
from pipeline.environments.registry import load_environment
from pipeline.renderers.load import load_renderer
from pipeline.rollout import Job, RolloutSettings, rollouts
from pipeline.server import ModelServer, ServerSettings


class RecordingEngine:
    """An engine around a VllmEngine that keeps the body of every request."""

    def __init__(self, inner: VllmEngine) -> None:
        self.inner = inner
        self.name, self.weights_version = inner.name, inner.weights_version
        self.bodies: list[dict[str, object]] = []

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        self.bodies.append(self.inner._body(token_ids, sampling, n))
        return await self.inner.generate(token_ids, sampling, n=n, affinity=affinity)

    async def score(self, token_ids: list[int]) -> list[float]:
        return await self.inner.score(token_ids)

    async def close(self) -> None:
        await self.inner.close()


async def through_loop(engine: RecordingEngine, options: argparse.Namespace) -> tuple[int, float]:
    """Tokens and seconds of the episodes."""
    environment = load_environment("travel_desk")
    tasks = islice(environment.tasks("dev"), options.tasks)
    stream = rollouts(
        [Job(task, rollout_index=index) for task in tasks for index in range(options.rollouts)],
        environment=environment,
        engine=engine,
        renderer=load_renderer(options.model_dir),
        sampling=Sampling(max_tokens=options.max_tokens),
        settings=RolloutSettings(max_context_tokens=2048),
        max_in_flight=options.in_flight,
    )
    tokens, start = 0, time.perf_counter()
    async for trajectory in stream:
        assert not trajectory.error or trajectory.reward is not None, trajectory.error
        tokens += trajectory.usage.generated_tokens
    return tokens, time.perf_counter() - start


async def bare(url: str, bodies: list[dict[str, object]], in_flight: int) -> tuple[int, float]:
    """Tokens and seconds of the same requests, sent with nothing around them."""
    left, tokens = iter(bodies), 0

    async def send(client: httpx.AsyncClient) -> None:
        nonlocal tokens
        for body in left:
            answer = await client.post(f"{url}/v1/completions", json=body)
            tokens += answer.raise_for_status().json()["usage"]["completion_tokens"]

    start = time.perf_counter()
    limits = httpx.Limits(max_connections=in_flight)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        await asyncio.gather(*(send(client) for _ in range(in_flight)))
    return tokens, time.perf_counter() - start


async def measure(url: str, options: argparse.Namespace) -> dict[str, object]:
    """Rounds in turn, loop and bare; the best of each is compared."""
    engine = VllmEngine([url], model=options.served_name)
    rates: dict[str, list[float]] = {"loop": [], "bare": []}
    try:
        await through_loop(RecordingEngine(engine), options)
        for _ in range(options.rounds):
            recording = RecordingEngine(engine)
            tokens, seconds = await through_loop(recording, options)
            rates["loop"].append(tokens / seconds)
            tokens, seconds = await bare(url, recording.bodies, options.in_flight)
            rates["bare"].append(tokens / seconds)
    finally:
        await engine.close()
    best = {side: max(values) for side, values in rates.items()}
    return {
        "requests": len(recording.bodies),
        "tokens": tokens,
        "in_flight": options.in_flight,
        "loop_tokens_per_s": [round(rate, 1) for rate in rates["loop"]],
        "bare_tokens_per_s": [round(rate, 1) for rate in rates["bare"]],
        "loop_over_bare": round(best["loop"] / best["bare"], 4),
    }


@contextlib.contextmanager
def server(options: argparse.Namespace) -> Iterator[str]:
    """The given server, or one started here and stopped at the end."""
    if options.url:
        yield options.url
        return
    settings = ServerSettings(served_name=options.served_name, max_num_seqs=options.in_flight)
    with ModelServer(options.model_dir, settings=settings) as started:
        yield started.url


def main() -> None:
    """Print one JSON row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model-dir", type=Path, required=True)
    parser.add_argument("--url", default="")
    parser.add_argument("--served-name", default="policy")
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--rollouts", type=int, default=4)
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with server(options) as url:
        print(json.dumps(asyncio.run(measure(url, options))), flush=True)


if __name__ == "__main__":
    main()
