"""verifiers itself: a taskset of it as our environment, and our environments under vf-eval."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data.messages import Role, ToolStatus
from pipeline.environments.adapters.verifiers_process import verifiers_python
from pipeline.environments.adapters.verifiers_taskset import VerifiersEnvironment
from pipeline.environments.check import check_environment
from pipeline.environments.play import make_trajectory, play
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError, JudgeError, MissingExtraError
from tests.pipeline.environments.adapters import flaky_counter
from tests.serving import Received, Reply, ScriptedServer

pytestmark = pytest.mark.timeout(400)
HERE = "tests.pipeline.environments.adapters"


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """verifiers is no part of `make setup`: 0.75 GB, and minutes to install."""
    try:
        verifiers_python()
    except MissingExtraError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def lamps() -> Iterator[VerifiersEnvironment]:
    made = taskset("LampTaskset")
    yield made
    made.process.close()


def taskset(name: str, **options: Any) -> VerifiersEnvironment:
    made = load_environment(
        "verifiers", taskset=f"{HERE}.verifiers_world:{name}", public=["lit"], **options
    ).inner
    assert isinstance(made, VerifiersEnvironment)
    return made


@pytest.mark.slow
def test_the_contract_holds_for_a_taskset(lamps: VerifiersEnvironment) -> None:
    results = asyncio.run(check_environment(lamps))
    assert all(result.passed for result in results), results


def test_tools_state_rewards_and_metrics_are_those_of_verifiers(lamps: VerifiersEnvironment) -> None:
    async def run() -> None:
        task = list(lamps.tasks("train"))[1]
        assert [turn.role for turn in task.prompt] == [Role.SYSTEM, Role.USER]
        assert task.private_value()["data"] == {"target": "red"}
        played = await play(lamps, task, lamps.gold(task))
        assert [turn.result.text for turn in played.turns if turn.result is not None] == [
            "lit: none; calls: 1",
            "lit: red; calls: 2",
        ]
        assert played.reward is not None and played.reward.total == 1.0
        named = {part.name: part.value for part in played.reward.components}
        assert named == {"success": 1.0, "reward/lit": 1.0, "reward/said": 1.0, "metric/calls": 2.0}
        async with await lamps.open(task) as session:
            assert [spec.name for spec in session.tools] == ["lamps_switch"]
            wrong = await session.call("lamps_switch", {"lamp": "pink"}, "a")
            assert wrong.status is ToolStatus.TOOL_ERROR and "there is no pink lamp" in wrong.text
            untyped = await session.call("lamps_switch", {}, "b")
            assert untyped.status is ToolStatus.TOOL_ERROR
            broken = await session.call("lamps_switch", {"lamp": "all"}, "c")
            assert broken.status is ToolStatus.INFRA_ERROR and "no current" in broken.text

    asyncio.run(run())


def test_a_failed_reward_is_a_failed_judge() -> None:
    async def run() -> None:
        broken = taskset("LampTaskset", splits={"train": {"config": {"name_of_all": "broken"}, "idx": "1:3"}})
        tasks = list(broken.tasks("train"))
        assert [task.state_value()["data"]["idx"] for task in tasks] == [1, 2]
        async with await broken.open(tasks[0]) as session:
            with pytest.raises(JudgeError, match="no disk"):
                await session.verify(make_trajectory(broken, tasks[0], list(tasks[0].prompt), seed=0))
        broken.process.close()

    asyncio.run(run())


@pytest.mark.slow
def test_what_is_not_covered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"enough\(\) is an @intercept or @stop hook; its tasks need a container"
    ):
        taskset("BoxedTaskset")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with pytest.raises(
        ConfigError, match=r"'exported-desk': .* does not cover it: over\(\) is an @intercept"
    ):
        load_environment("verifiers", taskset="exported-desk")
    with pytest.raises(ConfigError, match="a simulated user opens the conversation"):
        list(taskset("TalkativeTaskset").tasks("train"))
    with pytest.raises(ConfigError, match="ModuleNotFoundError: taskset 'no-such'"):
        load_environment("verifiers", taskset="no-such")


def chat(received: Received) -> Reply:
    """A model that adds what it is asked to, but plays 28 wrongly: a stream of one chat completion."""
    messages = received.body["messages"]
    asked = next(message["content"] for message in messages if message["role"] == "user")
    start, amounts = next(case for case in flaky_counter.CASES if f"shows {case[0]}." in asked)
    script = [json.dumps({"amount": amount}) for amount in amounts]
    script = ['{"amount": ', *script[::-1]] if start == 28 else script
    said = sum(message["role"] == "assistant" for message in messages)
    delta: dict[str, Any] = {"role": "assistant", "content": "Done."}
    if said < len(script):
        function = {"name": "add", "arguments": script[said]}
        call = {"index": 0, "id": f"c{said}", "type": "function", "function": function}
        delta = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "tool_calls" if said < len(script) else "stop"
    head = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "scripted"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks = [
        head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        head | {"choices": [], "usage": usage},
    ]
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return Reply(raw=stream.encode(), headers={"content-type": "text/event-stream"})


@pytest.mark.slow
def test_our_environment_under_vf_eval(repository: Path, tmp_path: Path) -> None:
    """Gold scores 1, a wrong script 0, a broken tool has an error and no reward."""
    settings = {
        "env.taskset.environment": f"{HERE}.flaky_counter:load",
        "env.taskset.split": "dev",
        "env.agent.runtime.type": "subprocess",
        "model": "scripted",
        "output-dir": str(tmp_path),
        "run.name": "run",
    }
    with ScriptedServer(chat) as server:
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        flags += ["--no-push", "--no-rich", "--client.base-url", f"{server.url}/v1"]
        script = str(Path(__file__).with_name("verifiers_eval.py"))
        ran = subprocess.run(
            [str(verifiers_python()), "-P", script, "exported-desk", *flags],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(repository)},
            capture_output=True,
            text=True,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = (tmp_path / "run" / "traces.jsonl").read_text().splitlines()
    traces = {trace["task"]["data"]["idx"]: trace for line in lines for trace in json.loads(line)["traces"]}
    assert [traces[index]["rewards"]["verified"] for index in range(2)] == [
        {"score": 1.0, "weight": 1.0},
        {"score": 0.0, "weight": 1.0},
    ], traces[0]["errors"]
    assert traces[0]["metrics"] == {"success": 1.0, "value": 1.0, "calls": 1.0}
    assert traces[1]["metrics"] == {"success": 0.0, "value": 1.0, "calls": 0.0}
    assert traces[2]["rewards"] == {"verified": None} and not traces[2]["ok"]
    assert "the counter jams" in traces[2]["errors"][-1]["message"]
    assert "amounts" not in json.dumps(traces[0]["task"]), "private parts do not leave"
