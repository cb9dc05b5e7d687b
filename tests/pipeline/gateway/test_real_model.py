"""The gateway before a real vLLM server: what it records is what was sampled, with its log-probs."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from pipeline.engines.vllm import VllmEngine
from pipeline.gateway.gateway import Gateway
from pipeline.gateway.serve import run_gateway
from pipeline.gateway.settings import GatewaySettings
from pipeline.renderers.load import load_renderer
from pipeline.server import ModelServer
from rl.audit import audit
from rl.models import fetch_smollm2
from tests.pipeline.gateway.conftest import Desk, user

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]


def test_a_dialogue_is_recorded_token_by_token(vllm_server: ModelServer) -> None:
    renderer = load_renderer(fetch_smollm2())
    records: list[Any] = []

    async def run() -> tuple[list[Any], list[float]]:
        engine = VllmEngine([vllm_server.url], model=vllm_server.settings.served_name)
        settings = GatewaySettings(max_context_tokens=1024)
        gateway = Gateway(engine, renderer=renderer, settings=settings, emit=records.append)
        try:
            async with run_gateway(gateway) as url, httpx.AsyncClient(timeout=120) as client:
                desk = Desk(gateway, url, client, engine, records)
                await desk.open()
                asked: list[Any] = [user("Name a colour.")]
                for question in ("And another?", ""):
                    body = {"temperature": 1.0, "max_tokens": 200, "seed": 3}
                    asked.append(await desk.chat(asked, **body))
                    asked += [user(question)] * bool(question)
                await desk.close(reward=1.0)
            (trajectory,) = desk.trajectories
            (segment,) = trajectory.segments
            return asked, await engine.score(list(segment.token_ids))
        finally:
            await engine.close()

    asked, scored = asyncio.run(run())
    trajectory = next(record for record in records if hasattr(record, "segments"))
    (segment,) = trajectory.segments
    said = [turn.text for turn in trajectory.turns if turn.role == "assistant"]
    assert said == [message["content"] for message in asked if message["role"] == "assistant"]
    audit([trajectory], stop_token_ids=renderer.stop_token_ids, allow_cut_off=True).refuse()
    mask = segment.loss_mask(trajectory.turns)
    gaps = [
        abs(recorded - scored[index - 1])
        for index, recorded in enumerate(segment.token_logprobs())
        if mask[index]
    ]
    assert len(gaps) == segment.num_generated > 4
    # The same bfloat16 model in another batch: sampled and scored log-probs differ by rounding only.
    assert sum(gaps) / len(gaps) < 0.05
