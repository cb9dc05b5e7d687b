"""The environment `verifiers` over its worker's protocol, with a stand-in of the worker."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from data.messages import ToolStatus
from pipeline.environments.adapters.verifiers_taskset import VerifiersEnvironment
from pipeline.environments.check import check_environment
from pipeline.environments.play import make_trajectory, play, play_turns
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError, MissingExtraError
from tests.processes import survivors


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    """An interpreter that runs the stand-in whatever script it is given."""
    script = Path(__file__).with_name("verifiers_stand_in.py")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={repository} exec {sys.executable} -P {script} "$3"\n')
    python.chmod(0o755)
    monkeypatch.setenv("TRAJSMITH_VERIFIERS_PYTHON", str(python))


def counters(**options: object) -> VerifiersEnvironment:
    environment = load_environment("verifiers", taskset="counters", public=["start"], **options).inner
    assert isinstance(environment, VerifiersEnvironment)
    return environment


def test_the_contract_holds() -> None:
    results = asyncio.run(check_environment(counters()))
    assert all(result.passed for result in results), results


def test_rewards_metrics_and_private_fields() -> None:
    environment = counters()
    task = list(environment.tasks("train"))[1]
    assert task.state_value()["data"] == {"idx": 1, "prompt": "Raise the counter by 14.", "start": 1}
    assert task.private_value()["data"] == {"goal": 15}
    played = asyncio.run(play(environment, task, environment.gold(task)))
    assert played.reward is not None and played.reward.total == 1.0
    named = {part.name: part.value for part in played.reward.components}
    assert named == {"success": 1.0, "reward/right": 1.0, "metric/added": 1.0}


def test_a_broken_tool_and_a_dead_process_are_infrastructure() -> None:
    async def run() -> None:
        environment = counters()
        task = next(environment.tasks("train"))
        async with await environment.open(task) as session:
            wrong = await session.call("add", {"by": "one"}, "a")
            assert (wrong.status, wrong.text) == (ToolStatus.TOOL_ERROR, "by is an integer")
            broken = await session.call("add", {"by": 99}, "b")
            assert broken.status is ToolStatus.INFRA_ERROR and "the counter jams" in broken.text
            with pytest.raises(EnvironmentFailure, match="the counter jams"):
                await session.verify(make_trajectory(environment, task, list(task.prompt), seed=0))
        state = task.state.replace("Raise the counter by 7.", "dies")
        deadly = task.model_copy(update={"state": state})
        with pytest.raises(EnvironmentFailure, match="does not answer"):
            await environment.open(deadly)
        async with await environment.open(task) as session:
            turns = await play_turns(session, task, environment.gold(task))
            environment.process.close()
            assert (await session.call("add", {"by": 1}, "c")).text == "8", "an open episode lives on"
        with pytest.raises(EnvironmentFailure, match="does not answer"):
            await environment.open(task)
        with pytest.raises(JudgeError, match="not open"):
            await session.verify(make_trajectory(environment, task, turns, seed=0))

    asyncio.run(run())


def test_a_tool_that_hangs_is_ended_with_its_process() -> None:
    async def run() -> int:
        environment = counters(limits={"timeout_seconds": 0.2})
        async with await environment.open(next(environment.tasks("train"))) as session:
            hung = await session.call("add", {"by": 88}, "a")
            assert hung.status is ToolStatus.INFRA_ERROR and "did not answer in 0.2 s" in hung.text
            process = session._process
            assert process is not None
            return process._pid

    assert survivors([asyncio.run(run())]) == []


def test_splits_and_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = counters(
        splits={"train": {}, "dev": {"config": {"rows": 4}}, "odd": {"config": {"short": 1}}}
    )
    assert [len(list(environment.tasks(split))) for split in ("train", "dev")] == [3, 4]
    with pytest.raises(ConfigError, match="LookupError: no more rows"):
        list(environment.tasks("odd"))
    with pytest.raises(ConfigError, match="its ground truth is wrong"):
        environment.gold(list(environment.tasks("dev"))[3])
    with pytest.raises(ConfigError, match="it may have idx"):
        counters(splits={"train": {"rows": "0:3"}})
    with pytest.raises(ConfigError, match=r"public names \['goals'\]"):
        next(load_environment("verifiers", taskset="counters", public=["goals"]).tasks("train"))
    with pytest.raises(ConfigError, match="no taskset gsm9k"):
        load_environment("verifiers", taskset="gsm9k")
    monkeypatch.setenv("TRAJSMITH_VERIFIERS_PYTHON", "/nowhere/python")
    with pytest.raises(MissingExtraError, match="make verifiers-setup"):
        counters()
