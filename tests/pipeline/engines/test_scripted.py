"""The scripted engine: determinism, faults, latency."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.engines.scripted import Fault, ScriptedEngine
from pipeline.errors import EngineError, EngineProtocolError


def count_up(prompt: Sequence[int], rng: random.Random) -> list[int]:
    return [prompt[-1] + 1, rng.randrange(100), 0]


def generate(engine: ScriptedEngine, *prompts: list[int], **kwargs: object) -> list[list[Completion]]:
    async def run() -> list[list[Completion]]:
        return list(
            await asyncio.gather(*(engine.generate(prompt, Sampling(seed=1), **kwargs) for prompt in prompts))
        )

    return asyncio.run(run())


def test_a_completion_depends_on_prompt_seed_and_sample_alone() -> None:
    [together, other] = generate(ScriptedEngine(count_up), [1, 2], [3], n=3)
    [alone] = generate(ScriptedEngine(count_up), [1, 2], n=3)
    assert together == alone
    assert len({one.token_ids for one in together}) > 1
    assert other[0].token_ids[0] == 4 and together[0].finish_reason is FinishReason.STOP


def test_greedy_samples_are_equal_and_long_ones_are_cut() -> None:
    engine = ScriptedEngine(count_up)
    greedy = asyncio.run(engine.generate([5], Sampling(temperature=0.0, max_tokens=2), n=2))
    assert greedy[0] == greedy[1]
    assert len(greedy[0].token_ids) == 2 and greedy[0].finish_reason is FinishReason.LENGTH


def test_score_agrees_with_generate() -> None:
    engine = ScriptedEngine(count_up)
    [[completion]] = generate(engine, [1, 2])
    scores = asyncio.run(engine.score([1, 2, *completion.token_ids]))
    assert tuple(scores[1:]) == completion.logprobs
    assert all(-2 < value < 0 for value in scores)


def test_faults_strike_the_planned_calls() -> None:
    faults = {1: Fault.ERROR, 2: Fault.GARBAGE, 3: Fault.FEW_LOGPROBS, 4: Fault.DIE}
    engine = ScriptedEngine(count_up, faults=faults)

    async def run() -> None:
        assert await engine.generate([1], Sampling())
        with pytest.raises(EngineError, match="call 1"):
            await engine.generate([1], Sampling())
        with pytest.raises(EngineProtocolError):
            await engine.generate([1], Sampling())
        [short] = await engine.generate([1], Sampling())
        assert len(short.logprobs) == len(short.token_ids) - 1
        for _ in range(2):
            with pytest.raises(EngineError):
                await engine.generate([1], Sampling())

    asyncio.run(run())


def test_a_hanging_call_ends_only_by_deadline() -> None:
    engine = ScriptedEngine(count_up, faults={0: Fault.HANG})

    async def run() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate([1], Sampling()), 0.01)

    asyncio.run(run())


def test_latency_goes_through_the_injected_sleep() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    engine = ScriptedEngine(count_up, latency=lambda tokens: tokens / 10, sleep=sleep)
    generate(engine, [1])
    assert slept == [0.3]
