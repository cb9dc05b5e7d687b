"""Online training against a real vLLM server: pushed weights, equal digests, no stale prefix cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.engines.base import Sampling
from pipeline.engines.vllm import VllmEngine
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings
from pipeline.server import ModelServer
from rl.grpo import train_grpo
from rl.grpo_config import GrpoConfig, PushKind
from rl.grpo_sources import Online
from rl.lm import LoraSettings
from rl.models import checkpoint_digest, fetch_smollm2
from rl.results import TrainResult
from tests.rl.torch_engine import FirstTokenWorld

pytestmark = [pytest.mark.vllm, pytest.mark.rl, pytest.mark.timeout(1200)]

CONFIG = GrpoConfig(steps=2, groups_per_step=2, group_size=4, learning_rate=2e-5, episode_tokens=256)


@pytest.fixture
def restored(vllm_server: ModelServer) -> Iterator[ModelServer]:
    """The shared server, given its own weights back afterwards."""
    yield vllm_server

    async def restore() -> None:
        engine = VllmEngine([vllm_server.url], model=vllm_server.settings.served_name)
        await engine.reload_weights(fetch_smollm2())
        await engine.close()

    asyncio.run(restore())


def _train(server: ModelServer, out: Path, config: GrpoConfig) -> tuple[TrainResult, str]:
    """The result, and the digest of the weights the server says it holds at the end."""
    renderer = load_renderer(fetch_smollm2())
    world = FirstTokenWorld(2, instruction="Answer in one short word.", question="Is {} even?")
    with asyncio.Runner() as runner:
        source = Online(
            tasks=list(world.tasks("train")),
            environment=world,
            engine=VllmEngine([server.url], model=server.settings.served_name),
            renderer=renderer,
            sampling=Sampling(max_tokens=48, stop_token_ids=renderer.stop_token_ids),
            settings=RolloutSettings(max_context_tokens=256),
            runner=runner,
        )
        try:
            result = train_grpo(
                source,
                model_dir=fetch_smollm2(),
                out_dir=out,
                config=config,
                stop_token_ids=renderer.stop_token_ids,
            )
            served = runner.run(source.engine.served_weights_digest())  # type: ignore[attr-defined]
        finally:
            runner.run(source.engine.close())
    return result, served


def test_the_servers_digest_follows_the_trainer_and_no_old_prefix_answers(
    restored: ModelServer, tmp_path: Path
) -> None:
    result, served = _train(restored, tmp_path / "o", CONFIG)
    digests = [entry.weights_digest for entry in result.history]
    assert served == result.weights_digest == digests[-1]
    assert len({checkpoint_digest(fetch_smollm2()), *digests}) == 3
    # Step 2 samples the same prompts as step 1: a stale cache would be a gap of another size.
    assert all(0.0 < entry.logprob_gap < 0.05 for entry in result.history)


def test_a_pushed_adapter_is_what_answers(restored: ModelServer, tmp_path: Path) -> None:
    config = CONFIG_LORA
    result, served = _train(restored, tmp_path / "o", config)
    assert served == checkpoint_digest(fetch_smollm2())
    assert result.weights_digest == result.history[-1].weights_digest != served
    assert all(0.0 < entry.logprob_gap < 0.05 for entry in result.history)


CONFIG_LORA = GrpoConfig(
    steps=2,
    groups_per_step=2,
    group_size=4,
    learning_rate=1e-3,
    episode_tokens=256,
    lora=LoraSettings(rank=8),
    push=PushKind.ADAPTER,
)
