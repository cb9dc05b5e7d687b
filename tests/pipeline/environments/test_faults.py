"""Injected faults: drawn by seed, no reward where they are infrastructure, seen where the world's."""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data.messages import ToolStatus
from data.trajectories import Termination, Trajectory
from flows.stages.scripted import ScriptedPolicy
from pipeline.engines.base import Sampling
from pipeline.environments.base import Environment
from pipeline.environments.faults import Fault, FaultyEnvironment, drifted, with_faults
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.renderers.load import load_renderer
from pipeline.rollout import Job, RolloutSettings, rollouts
from tests.tiny import make_tiny_tokenizer

INFRASTRUCTURE = {"server_error": 0.1, "timeout": 0.1}


async def played(
    environment: Environment, clean: Environment, tokenizer: Path, *, tasks: int, retries: int, k: int = 1
) -> list[Trajectory]:
    """Episodes of a policy with 30 % mistakes that knows the clean world."""
    renderer = load_renderer(tokenizer)
    engine = ScriptedPolicy(clean, renderer, mistakes=0.3)
    jobs = [Job(task, rollout_index=n) for task in islice(clean.tasks("train"), tasks) for n in range(k)]
    rows = rollouts(
        jobs,
        environment=environment,
        engine=engine,
        renderer=renderer,
        sampling=Sampling(max_tokens=96, stop_token_ids=renderer.stop_token_ids),
        settings=RolloutSettings(max_context_tokens=2048),
        max_in_flight=200,
        infra_retries=retries,
    )
    return [row async for row in rows]


def outcomes(rows: list[Trajectory]) -> dict[tuple[str, int], float]:
    """Reward of every completed episode."""
    return {(row.task_id, row.rollout_index): row.reward.total for row in rows if row.reward is not None}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tiny_tokenizer(tmp_path)


def test_infrastructure_faults_change_no_reward(tokenizer: Path) -> None:
    clean = load_environment("counter")
    faulty = with_faults(clean, INFRASTRUCTURE)
    expected = outcomes(asyncio.run(played(clean, clean, tokenizer, tasks=60, retries=0, k=2)))
    assert 0 < sum(expected.values()) < len(expected) == 120, "the policy must both win and lose"
    once = asyncio.run(played(faulty, clean, tokenizer, tasks=60, retries=0, k=2))
    broken = [row for row in once if row.termination is Termination.INFRA_FAILURE]
    assert len(broken) > 12 and all(row.reward is None for row in broken)
    assert outcomes(once).items() < expected.items()
    again = asyncio.run(
        played(with_faults(clean, INFRASTRUCTURE), clean, tokenizer, tasks=60, retries=12, k=2)
    )
    assert outcomes(again) == expected, "retries reach every episode, with the clean run's reward"


def test_the_same_seed_draws_the_same_faults(tokenizer: Path) -> None:
    clean = load_environment("counter")
    endings = [
        [
            (row.task_id, row.termination)
            for row in asyncio.run(
                played(with_faults(clean, INFRASTRUCTURE, seed=seed), clean, tokenizer, tasks=40, retries=0)
            )
        ]
        for seed in (1, 1, 2)
    ]
    assert sorted(endings[0]) == sorted(endings[1]) != sorted(endings[2])


async def first_call(kind: str, **options: Any) -> tuple[FaultyEnvironment, Any, Any]:
    clean = load_environment("travel_desk")
    environment = FaultyEnvironment(clean, {kind: 1.0}, seed=0, slow_seconds=options.get("slow_seconds", 0.0))
    firsts = ((task, clean.gold(task).next_turn(task.prompt)) for task in clean.tasks("train"))
    task, call = next((task, turn.tool_calls[0]) for task, turn in firsts if turn and turn.tool_calls)
    session = await environment.open(task)
    result = await session.call(call.name, call.parsed_arguments(), call.call_id)
    assert await session.call(call.name, call.parsed_arguments(), call.call_id) is result
    return environment, session, result


@pytest.mark.parametrize("kind", list(Fault))
def test_every_kind_marks_its_result(kind: Fault) -> None:
    async def run() -> None:
        _, session, result = await first_call(kind)
        assert [metric.name for metric in result.metrics] == [f"fault/{kind}"]
        infra = kind in (Fault.TIMEOUT, Fault.SERVER_ERROR)
        assert (result.status is ToolStatus.INFRA_ERROR) is infra
        if infra:
            later = await session.call("flights", {}, "later")
            assert later.status is ToolStatus.INFRA_ERROR
            for refused in (session.snapshot, lambda: session.restore(b"")):
                with pytest.raises(EnvironmentFailure, match="injected"):
                    refused()
        else:
            session.restore(session.snapshot())
            assert await session.call("restored", {}, result.call_id) == result, (
                "stored, so not executed again"
            )
        if kind is Fault.BUSY:
            assert result.status is ToolStatus.TOOL_ERROR and "again" in result.text
        if kind is Fault.EMPTY:
            assert result.text == ""
        await session.close()

    asyncio.run(run())


def test_a_timeout_was_executed_and_a_broken_server_was_not() -> None:
    async def value(kind: str) -> int:
        clean = load_environment("counter", steps=(1,))
        environment = FaultyEnvironment(clean, {kind: 1.0}, seed=0, slow_seconds=0.0)
        session = await environment.open(next(clean.tasks("train")))
        await session.call("add", {"amount": 3}, "a")
        state: dict[str, Any] = session.inner.state  # type: ignore[attr-defined]
        return len(state["calls"])

    assert [asyncio.run(value(kind)) for kind in ("timeout", "server_error", "busy")] == [1, 0, 0]


def test_drift_renames_keys_and_keeps_everything_else() -> None:
    assert drifted('{"flight_id":1,"seatsLeft":{"in_row":[{"a_b":2}]}}') == (
        '{"flightId":1,"seats_left":{"inRow":[{"aB":2}]}}'
    )
    assert drifted("booked B7") == "booked B7"


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"flood": 0.1}, "there is no fault 'flood'; kinds: timeout, server_error"),
        ({"slow": 1.5}, "rate of fault slow must be between 0 and 1, got 1.5"),
        ({"slow": 0.6, "busy": 0.6}, "add up to 1.2; at most 1"),
    ],
)
def test_impossible_rates(rates: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_faults(load_environment("counter"), rates)


def test_true_is_no_rate_of_a_recipe() -> None:
    with pytest.raises(ConfigError, match=r"environment counter\.faults\.rates must be .*a number; got"):
        load_environment("counter", faults={"rates": {"busy": True}})
    with pytest.raises(ConfigError, match=r"environment counter\.cassette\.mode"):
        load_environment("counter", cassette={"path": "x.jsonl", "mode": True})


def test_gold_recovers_nothing_it_was_not_told_but_the_world_stays_whole() -> None:
    """A spoilt answer never changes what the verifier sees: gold that ignores it still scores."""
    clean = load_environment("counter")
    environment = with_faults(clean, {"empty": 0.5, "drift": 0.5})
    for task in islice(clean.tasks("train"), 20):
        assert asyncio.run(play(environment, task, clean.gold(task))).success


def test_two_hundred_sessions_share_nothing(tokenizer: Path) -> None:
    clean = load_environment("travel_desk")
    alone = asyncio.run(played(clean, clean, tokenizer, tasks=1, retries=0))
    rows = asyncio.run(played(clean, clean, tokenizer, tasks=200, retries=0))
    assert len(rows) == 200
    assert outcomes(alone).items() <= outcomes(rows).items()


@pytest.mark.slow
def test_a_thousand_broken_episodes_leave_nothing_behind(tokenizer: Path) -> None:
    clean = load_environment("counter")
    environment = with_faults(clean, INFRASTRUCTURE)

    def held() -> tuple[int, int]:
        """Open files and sockets, and children, of this process."""
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        return len(os.listdir("/proc/self/fd")), len(children)

    before = held()
    rows = asyncio.run(played(environment, clean, tokenizer, tasks=250, retries=0, k=4))
    files, children = held()  # fewer, where something of an earlier test was collected meanwhile
    assert len(rows) == 1000 and files <= before[0] and children <= before[1]
    assert clean.num_open == 0  # type: ignore[attr-defined]


def test_every_environment_takes_faults_as_an_option() -> None:
    environment = load_environment("counter", faults={"rates": {"busy": 0.2}, "seed": 3}).inner
    assert isinstance(environment, FaultyEnvironment)
    assert (environment.rates, environment.seed, environment.name) == ({"busy": 0.2}, 3, "counter")
    assert environment.version != load_environment("counter").version
    with pytest.raises(ConfigError, match=r"option faults: .*'rate'"):
        load_environment("counter", faults={"rate": {"busy": 0.2}})


def test_a_wrapper_passes_on_what_else_the_world_offers() -> None:
    world = with_faults(load_environment("python_math", protocol="inline"), {"busy": 0.5})
    assert world.inline is not None and world.inline.tool == "python"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no_such_thing"):
        world.no_such_thing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("wrappers", [("faults",), ("cassette",), ("faults", "cassette")])
def test_a_wrapped_session_is_finished_when_the_inner_one_is(tmp_path: Path, wrappers: Any) -> None:
    """A rollout of code_repair ends at `finish`, whatever is wrapped around it."""
    known: dict[str, Any] = {"faults": {"rates": {}}, "cassette": {"path": str(tmp_path / "c.jsonl")}}
    world = load_environment("code_repair", **{name: known[name] for name in wrappers})

    async def play_it() -> list[bool]:
        session: Any = await world.open(next(iter(world.tasks("train"))))
        try:
            before = session.finished
            await session.call("finish", {}, "c")
            return [before, session.finished]
        finally:
            await session.close()

    assert asyncio.run(play_it()) == [False, True]
