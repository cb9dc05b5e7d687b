"""A server that speaks NeMo-Gym's resource-server protocol (0.4.0), driven as an environment of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data.messages import ToolStatus
from pipeline.environments.adapters.nemo_gym import NemoGymEnvironment
from pipeline.environments.check import check_environment
from pipeline.environments.play import play
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError
from tests.serving import Received, Reply, ScriptedServer


class Counters:
    """A counter per cookie; `broken` names a path that answers HTTP 500."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.verified: list[Any] = []
        self.broken = ""

    def __call__(self, received: Received) -> Reply:
        headers = {key.lower(): value for key, value in received.headers.items()}
        cookie = headers.get("cookie", "").removeprefix("session=")
        if received.path == self.broken:
            return Reply({"detail": "broken"}, status=500)
        if received.path == "/seed_session":
            cookie = f"s{received.number}"
            self.counters[cookie] = received.body["initial_count"]
            return Reply({}, headers={"Set-Cookie": f"session={cookie}"})
        if received.path == "/increment_counter":
            if not isinstance(received.body.get("count"), int):
                return Reply({"detail": "count must be an integer"}, status=422)
            self.counters[cookie] += received.body["count"]
            return Reply({"success": True})
        if received.path == "/get_counter_value":
            return Reply({"count": self.counters[cookie]})
        self.verified.append(received.body)
        right = self.counters[cookie] == received.body["expected_count"]
        return Reply(received.body | {"reward": float(right), "num_calls": 2})


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "name": name, "description": "", "parameters": schema, "strict": True}


def row(start: int, add: int, **more: Any) -> dict[str, Any]:
    tools = [tool("increment_counter", count={"type": "integer"}), tool("get_counter_value")]
    asked = [{"role": "user", "content": f"Add {add}."}]
    gold = [{"name": "increment_counter", "arguments": {"count": add}}]
    params = {"input": asked, "tools": tools}
    own = {"responses_create_params": params, "initial_count": start, "expected_count": start + add}
    return own | {"gold": gold} | more


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def environment(counters: Counters, tmp_path: Path) -> Iterator[NemoGymEnvironment]:
    rows = tmp_path / "rows.jsonl"
    made = [row(n, n + 12) for n in range(5)] + [row(7, 31, split="heldout")]
    rows.write_text("".join(json.dumps(one) + "\n" for one in made), encoding="utf-8")
    with ScriptedServer(counters) as server:
        yield NemoGymEnvironment(url=server.url, rows=str(rows), private=["expected_count"])


def test_the_contract_holds(environment: NemoGymEnvironment) -> None:
    results = asyncio.run(check_environment(environment))
    assert all(result.passed for result in results), results


def test_the_verifier_reads_the_dialogue_as_a_response(
    environment: NemoGymEnvironment, counters: Counters
) -> None:
    task = next(environment.tasks("train"))
    played = asyncio.run(play(environment, task, environment.gold(task)))
    assert played.success and played.reward is not None
    assert {part.name: part.value for part in played.reward.components} == {"success": 1.0, "num_calls": 2.0}
    sent = counters.verified[-1]
    assert [item["type"] for item in sent["response"]["output"]] == [
        "function_call",
        "function_call_output",
        "message",
    ]
    assert sent["expected_count"] == 12 and "expected_count" not in task.state_value()


def test_a_refusal_is_an_observation_and_a_dead_server_is_none(
    environment: NemoGymEnvironment, counters: Counters
) -> None:
    async def run() -> None:
        task = next(environment.tasks("train"))
        async with await environment.open(task) as session:
            wrong = await session.call("increment_counter", {"count": "two"}, "a")
            assert wrong.status is ToolStatus.TOOL_ERROR and "must be an integer" in wrong.text
            counters.broken = "/verify"
            with pytest.raises(JudgeError, match="HTTP 500"):
                await session.verify(await played(task))
        counters.broken = "/seed_session"
        with pytest.raises(EnvironmentFailure, match="/seed_session answered HTTP 500"):
            await environment.open(task)
        counters.broken = ""
        gone = NemoGymEnvironment.__new__(NemoGymEnvironment)
        vars(gone).update(vars(environment) | {"url": "http://127.0.0.1:9"})
        with pytest.raises(EnvironmentFailure, match="ConnectError"):
            await gone.open(task)

    async def played(task: Any) -> Any:
        counters.broken, kept = "", counters.broken
        trajectory = await play(environment, task, environment.gold(task))
        counters.broken = kept
        return trajectory

    asyncio.run(run())


def test_a_restored_session_is_where_it_was(environment: NemoGymEnvironment) -> None:
    async def run() -> None:
        task = next(environment.tasks("train"))
        async with await environment.open(task) as session:
            await session.call("increment_counter", {"count": 2}, "a")
            copy = session.snapshot()
            await session.call("increment_counter", {"count": 5}, "b")
            session.restore(copy)
            assert (await session.call("get_counter_value", {}, "c")).text == '{"count": 2}'

    asyncio.run(run())


def test_rows_that_are_none(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    for text, message in [
        ("", "holds no rows"),
        ("{}\n", "line 1: 'responses_create_params'"),
        ("[", "line 1"),
    ]:
        rows.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=message):
            NemoGymEnvironment(url="http://127.0.0.1:9", rows=str(rows))
    for url in ("127.0.0.1:9", "http://me:4711@127.0.0.1:9"):
        with pytest.raises(ConfigError, match="URL") as caught:
            NemoGymEnvironment(url=url, rows=str(rows))
        assert "resource server" in str(caught.value) and "4711" not in str(caught.value)
