"""The engine against a real vLLM server: tokens, log-probs, weights, and nothing left behind.

Needs `.venv-serve` and the embedded model; about a minute on two cores.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.engines.vllm import VllmEngine
from pipeline.errors import ConfigError
from pipeline.http import RequestRefusedError
from pipeline.serve_guard import group_members
from pipeline.server import ModelServer
from rl.models import checkpoint_digest, fetch_smollm2

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
T = TypeVar("T")

IM_START, IM_END = 1, 2
PROMPT = [IM_START, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, IM_END, 198, IM_START, 520, 9531, 198]
"""A user's question about a capital and the opening of the assistant's turn, in SmolLM2's tokens."""


def on(server: ModelServer, work: Callable[[VllmEngine], Awaitable[T]]) -> T:
    async def run() -> T:
        engine = VllmEngine([server.url], model=server.settings.served_name)
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def greedy(tokens: int = 16) -> Sampling:
    return Sampling(temperature=0.0, max_tokens=tokens, stop_token_ids=(IM_END,))


def test_check_accepts_our_server_and_names_a_wrong_model(vllm_server: ModelServer) -> None:
    assert on(vllm_server, lambda engine: engine.check()) == 1024

    async def wrong(engine: VllmEngine) -> int:
        engine.model = "other"
        return await engine.check()

    with pytest.raises(ConfigError, match="policy"):
        on(vllm_server, wrong)


def test_samples_are_seeded_and_stop_tokens_are_kept(vllm_server: ModelServer) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=48, seed=5, stop_token_ids=(IM_END,))

    async def work(engine: VllmEngine) -> list[list[Completion]]:
        return [await engine.generate(PROMPT, sampling, n=6) for _ in range(2)]

    first, second = on(vllm_server, work)
    assert [one.token_ids for one in first] == [one.token_ids for one in second]
    assert len({one.token_ids for one in first}) > 1
    for completion in first:
        assert (completion.token_ids[-1] == IM_END) == (completion.finish_reason is FinishReason.STOP)
        assert IM_END not in completion.token_ids[:-1]
        assert len(completion.token_ids) <= 48


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_score_agrees_with_the_logprobs_of_what_was_sampled(
    temperature: float, vllm_server: ModelServer
) -> None:
    """Greedy ones, too: they are the model's own at temperature 1."""

    async def work(engine: VllmEngine) -> tuple[Completion, list[float]]:
        [sampled] = await engine.generate(PROMPT, Sampling(temperature=temperature, max_tokens=32, seed=1))
        return sampled, await engine.score([*PROMPT, *sampled.token_ids])

    sampled, scores = on(vllm_server, work)
    assert len(scores) == len(PROMPT) + len(sampled.token_ids) - 1
    differences = [abs(a - b) for a, b in zip(scores[len(PROMPT) - 1 :], sampled.logprobs, strict=True)]
    assert sum(differences) / len(differences) < 0.03
    assert max(differences) < 0.3
    assert min(sampled.logprobs) < -0.1


def test_logprobs_are_of_the_tempered_distribution(vllm_server: ModelServer) -> None:
    async def work(engine: VllmEngine) -> tuple[Completion, Completion]:
        cold = Sampling(temperature=0.2, max_tokens=1, seed=2)
        [cooled] = await engine.generate(PROMPT, cold)
        [plain] = await engine.generate([*PROMPT], Sampling(temperature=1.0, max_tokens=1, seed=2))
        return cooled, plain

    cooled, plain = on(vllm_server, work)
    if cooled.token_ids == plain.token_ids:
        assert cooled.logprobs[0] > plain.logprobs[0]
    assert cooled.logprobs[0] > -0.7


def test_seeded_requests_of_long_prompts_together_do_not_end_the_server(vllm_server: ModelServer) -> None:
    """Together they exceed one prefill step; prefilled in chunks, seeded requests end the CPU build."""

    async def work(engine: VllmEngine) -> list[list[Completion]]:
        prompts = [[IM_START, 1000 + number, *range(2000, 2400)] for number in range(16)]
        sampling = Sampling(max_tokens=2, seed=1)
        return await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))

    assert all(len(completions) == 1 for completions in on(vllm_server, work))


def test_a_prompt_beyond_the_context_is_refused_with_the_servers_words(vllm_server: ModelServer) -> None:
    with pytest.raises(RequestRefusedError, match="1024"):
        on(vllm_server, lambda engine: engine.generate([IM_START] * 1100, greedy()))


def perturbed(source: Path, target: Path) -> Path:
    """The same model with its last layers scaled: other answers, same shapes."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target)
    weights = load_file(source / "model.safetensors")
    for name in weights:
        if ".layers.2" in name and name.endswith("o_proj.weight"):
            weights[name] = weights[name] * 0.2
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_pushed_weights_answer_under_a_cached_prefix_and_their_digest_is_ours(
    vllm_server: ModelServer, tmp_path: Path
) -> None:
    original = fetch_smollm2()
    changed = perturbed(original, tmp_path / "changed")

    async def work(engine: VllmEngine) -> None:
        assert await engine.served_weights_digest() == checkpoint_digest(original)
        [before] = await engine.generate(PROMPT, greedy())
        try:
            assert await engine.reload_weights(changed) == checkpoint_digest(changed)
            assert engine.weights_version == checkpoint_digest(changed) != checkpoint_digest(original)
            [after] = await engine.generate(PROMPT, greedy())
            assert after.weights_version == engine.weights_version
            scores = await engine.score([*PROMPT, *after.token_ids])
        finally:
            assert await engine.reload_weights(original) == checkpoint_digest(original)
        [again] = await engine.generate(PROMPT, greedy())
        assert after.logprobs != before.logprobs
        assert again.token_ids == before.token_ids
        # The uncached score of the new weights is what the cached prompt must have given, too.
        assert scores[len(PROMPT) - 1] == pytest.approx(after.logprobs[0], abs=0.3)

    on(vllm_server, work)


def adapter(directory: Path, *, scale: float) -> Path:
    """A LoRA adapter of rank 4 on the value projections; `scale` 0 changes nothing."""
    import torch
    from safetensors.torch import save_file

    weights = {}
    for layer in range(30):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.v_proj"
        weights[f"{prefix}.lora_A.weight"] = torch.full((4, 576), 0.05)
        weights[f"{prefix}.lora_B.weight"] = torch.full((192, 4), scale)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 4, "target_modules": ["v_proj"],
        "bias": "none", "base_model_name_or_path": "policy",
    }  # fmt: skip
    directory.mkdir()
    save_file(weights, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def test_a_pushed_adapter_answers_and_is_replaced_in_place(vllm_server: ModelServer, tmp_path: Path) -> None:
    directories = [adapter(tmp_path / f"adapter-{scale}", scale=scale) for scale in (0.0, 0.05)]

    async def work(engine: VllmEngine) -> list[Completion]:
        answers = await engine.generate(PROMPT, greedy())
        for number, directory in enumerate(directories):
            await engine.load_adapter(directory, name="step", version=f"a{number}")
            answers += await engine.generate(PROMPT, greedy())
        return answers

    base, zero, changed = on(vllm_server, work)
    assert zero.token_ids == base.token_ids and zero.weights_version == "a0"
    assert changed.logprobs != base.logprobs and changed.weights_version == "a1"


def test_the_workers_belong_to_the_servers_process_group(vllm_server: ModelServer) -> None:
    """So ending the group ends them; the fixture asserts that nothing is left after stop."""
    names = [Path(f"/proc/{one}/cmdline").read_text() for one in group_members(vllm_server.process_group)]
    assert any("VLLM::EngineCore" in name for name in names)
    assert sum("VLLM::Worker" in name for name in names) == 1
