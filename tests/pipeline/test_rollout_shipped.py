"""The loop with the parts that ship: scripted engine, ChatML renderer, the counter world."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from itertools import islice

import pytest

from data.messages import ToolCall, Turn, assistant
from data.tasks import Budget, Task
from data.trajectories import Blame, Termination, Trajectory
from pipeline.engines.base import Sampling
from pipeline.engines.scripted import Fault, ScriptedEngine, continue_turns
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import Deadlines, Job, RolloutSettings, rollouts
from synthesizers.demonstration import Demonstration
from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def adder(renderer: ChatMLRenderer, *, care: float) -> ScriptedEngine:
    """A policy that adds what the user asked for, rightly with probability `care` per call."""

    def act(prompt: Sequence[int], rng: random.Random) -> Turn:
        text = renderer.decode(prompt)
        wanted = [int(n) for n in re.findall(r"by (\d)", text)]
        made = text.count("<tool_response>")
        if made >= len(wanted):
            return assistant("Done.")
        amount = wanted[made] if rng.random() < care else 9 - wanted[made] % 9
        return assistant("", ToolCall(call_id="", name="add", arguments=f'{{"amount":{amount}}}'))

    return ScriptedEngine(continue_turns(act, renderer))


def roomy(task: Task) -> Task:
    """The task with a token budget for the tiny tokenizer, which spells most words out."""
    return Task.model_validate(task.model_dump() | {"task_id": "", "budget": Budget(max_tokens=2000)})


def play(
    renderer: ChatMLRenderer, engine: ScriptedEngine, *, flights: int, retries: int = 0
) -> list[Trajectory]:
    environment = load_environment("counter")
    tasks = [roomy(task) for task in islice(environment.tasks("train"), 6)]

    async def run() -> list[Trajectory]:
        stream = rollouts(
            [Job(task, rollout_index=index) for task in tasks for index in range(4)],
            environment=environment,
            engine=engine,
            renderer=renderer,
            sampling=Sampling(max_tokens=64),
            settings=RolloutSettings(deadlines=Deadlines(engine=0.5)),
            max_in_flight=flights,
            infra_retries=retries,
        )
        return [trajectory async for trajectory in stream]

    return asyncio.run(run())


def test_right_policy_solves_and_careless_one_does_not_always(renderer: ChatMLRenderer) -> None:
    assert all(t.success for t in play(renderer, adder(renderer, care=1.0), flights=8))
    assert {t.success for t in play(renderer, adder(renderer, care=0.6), flights=8)} == {True, False}


def test_digest_is_the_same_twice_and_under_any_concurrency(renderer: ChatMLRenderer) -> None:
    runs = [play(renderer, adder(renderer, care=0.6), flights=flights) for flights in (1, 1, 7, 24)]
    digests = [sorted(t.content_digest() for t in run) for run in runs]
    assert digests[0] == digests[1] == digests[2] == digests[3]
    assert len(set(digests[0])) == 24


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.GARBAGE, Fault.HANG, Fault.FEW_LOGPROBS])
def test_one_fault_costs_one_attempt(renderer: ChatMLRenderer, fault: Fault) -> None:
    engine = adder(renderer, care=1.0)
    engine._faults = {3: fault}
    played = play(renderer, engine, flights=1, retries=1)
    lost = [t for t in played if t.reward is None]
    assert [(t.termination, t.blame) for t in lost] == [(Termination.INFRA_FAILURE, Blame.INFRASTRUCTURE)]
    assert len(played) == 25 and sum(bool(t.success) for t in played) == 24


def test_a_server_that_dies_leaves_no_zero(renderer: ChatMLRenderer) -> None:
    engine = adder(renderer, care=1.0)
    engine._faults = {10: Fault.DIE}
    played = play(renderer, engine, flights=4)
    assert {t.reward.total if t.reward else None for t in played} == {1.0, None}


@pytest.mark.parametrize("world", ["counter", "travel_desk"])
def test_gold_of_the_shipped_worlds_scores(renderer: ChatMLRenderer, world: str) -> None:
    environment = load_environment(world)

    async def run() -> list[Trajectory]:
        demonstration = Demonstration(environment=environment, renderer=renderer)
        tasks = islice(environment.tasks("train"), 60)
        return [trajectory async for trajectory in demonstration.synthesize(tasks)]

    assert [t.success for t in asyncio.run(run())] == [True] * 60
