"""Our loop under verl's interface, against a stand-in: verl itself needs a GPU stack."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flows.stages.scripted import ScriptedPolicy
from pipeline.engines.base import Sampling
from pipeline.environments.adapters.as_verl import agent_loop, verl_rows
from pipeline.environments.faults import with_faults
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, EnvironmentFailure, MissingExtraError
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings, rollout
from tests.tiny import make_tiny_tokenizer


class Manager:
    """verl's server manager: keyword arguments, a TokenOutput-like answer; it aborts the first `aborted`."""

    def __init__(self, engine: Any, *, logprobs: bool = True, aborted: int = 0) -> None:
        self.engine, self.logprobs, self.aborted = engine, logprobs, aborted

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        assert request_id and sampling_params["logprobs"]
        stops = tuple(sampling_params["stop_token_ids"])
        sampling = Sampling(
            max_tokens=sampling_params["max_tokens"], stop_token_ids=stops, seed=sum(prompt_ids)
        )
        (made,) = await self.engine.generate(prompt_ids, sampling)
        self.aborted -= 1
        return SimpleNamespace(
            token_ids=list(made.token_ids),
            log_probs=list(made.logprobs) if self.logprobs else None,
            stop_reason="aborted" if self.aborted >= 0 else "completed",
        )


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two names that are imported from verl, as its source defines them."""

    class Base:
        def __init__(self, server_manager: Any) -> None:
            self.server_manager = server_manager

    module = ModuleType("verl.experimental.agent_loop.agent_loop")
    vars(module).update(AgentLoopBase=Base, AgentLoopOutput=lambda **fields: SimpleNamespace(**fields))
    for name in ("verl", "verl.experimental", "verl.experimental.agent_loop"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tiny_tokenizer(tmp_path)


def played(tokenizer: Path, *, faults: dict[str, float] | None = None, **options: Any) -> list[Any]:
    world = load_environment("counter")
    environment = with_faults(world, faults) if faults else world
    loop_class = agent_loop(environment, split="train", model_dir=tokenizer, tasks=12)
    manager = Manager(ScriptedPolicy(world, load_renderer(tokenizer), mistakes=0.4), **options)

    async def run() -> list[Any]:
        rows = verl_rows(environment, split="train", tasks=12, agent_name="trajsmith")
        return [await loop_class(manager).run({"temperature": 1.0, "max_tokens": 96}, **row) for row in rows]

    return asyncio.run(run())


@pytest.mark.usefixtures("stand_in")
def test_tokens_masks_and_rewards_are_those_of_our_own_rollout(tokenizer: Path) -> None:
    world, renderer = load_environment("counter"), load_renderer(tokenizer)
    manager = Manager(ScriptedPolicy(world, renderer, mistakes=0.4))

    class Direct:
        name, weights_version = "direct", ""

        async def generate(self, token_ids: Any, sampling: Sampling, **_: Any) -> Any:
            fixed = replace(sampling, seed=sum(token_ids))
            return await manager.engine.generate(token_ids, fixed)

    outputs = played(tokenizer)
    assert {output.reward_score for output in outputs} == {0.0, 1.0}
    for output, task in zip(outputs, islice(world.tasks("train"), 12), strict=True):
        ours = asyncio.run(
            rollout(
                task,
                environment=world,
                engine=Direct(),
                renderer=renderer,
                sampling=Sampling(max_tokens=96, stop_token_ids=renderer.stop_token_ids),
                settings=RolloutSettings(),
            )
        )
        (segment,) = ours.segments
        assert tuple(output.prompt_ids + output.response_ids) == segment.token_ids
        mask = [0] * len(output.prompt_ids) + output.response_mask
        assert mask == [int(weight) for weight in segment.loss_mask(ours.turns)]
        assert len(output.response_logprobs) == len(output.response_ids)
        assert ours.reward is not None and output.reward_score == ours.reward.total


@pytest.mark.usefixtures("stand_in")
def test_no_row_is_made_of_a_broken_rollout(tokenizer: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="broke 2 times"):
        played(tokenizer, faults={"server_error": 1.0})
    with pytest.raises(EnvironmentFailure, match="calculate_log_probs=True"):
        played(tokenizer, logprobs=False)
    with pytest.raises(EnvironmentFailure, match="aborted the request"):
        played(tokenizer, aborted=99)


@pytest.mark.usefixtures("stand_in")
def test_an_aborted_request_is_no_short_answer(tokenizer: Path) -> None:
    rewards = [output.reward_score for output in played(tokenizer)]
    assert [output.reward_score for output in played(tokenizer, aborted=1)] == rewards


@pytest.mark.usefixtures("stand_in")
def test_a_row_of_another_task_is_refused(tokenizer: Path) -> None:
    loop_class = agent_loop(load_environment("counter"), split="train", model_dir=tokenizer, tasks=2)
    with pytest.raises(ConfigError, match="none of the 2 tasks of split train"):
        asyncio.run(loop_class(None).run({}, task_id="x"))


def test_without_verl_the_error_says_so(tokenizer: Path) -> None:
    with pytest.raises(MissingExtraError, match="verl is not installed"):
        agent_loop(load_environment("counter"), split="train", model_dir=tokenizer)
