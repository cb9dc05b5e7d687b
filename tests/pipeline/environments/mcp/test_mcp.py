"""MCP servers as environments: results in every form, state per session, deaths, leaks, pools, checks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.media import MediaStore
from data.messages import PartType, ToolResult, ToolStatus
from data.tasks import Task
from data.trajectories import Blame, Termination
from pipeline.engines.base import Sampling
from pipeline.environments.check import check_environment
from pipeline.environments.mcp.environment import McpEnvironment
from pipeline.environments.play import make_trajectory, play
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import Deadlines, RolloutSettings, rollout
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.mcp.bench_server import PNG
from tests.pipeline.environments.mcp.conftest import BUILD, SERVER, Make
from tests.pipeline.rollout_world import Speaker, call_text
from tests.processes import survivors
from tests.serving import Received, Reply, ScriptedServer
from tests.tiny import make_tiny_tokenizer

OK, ERROR, INFRA = ToolStatus.OK, ToolStatus.TOOL_ERROR, ToolStatus.INFRA_ERROR
Call = tuple[str, dict[str, Any]]


def first_task(environment: McpEnvironment, index: int = 0) -> Task:
    return next(islice(environment.tasks("train"), index, None))


async def ask(environment: McpEnvironment, *calls: Call, index: int = 0) -> list[ToolResult]:
    async with await environment.open(first_task(environment, index)) as session:
        return [await session.call(name, given, f"c{n}") for n, (name, given) in enumerate(calls)]


def test_results_of_every_form(run: Run, make: Make) -> None:
    environment = make("memory")
    calls: list[Call] = [
        ("add", {"amount": 3}),
        ("add", {"amount": 2, "unit": "ten"}),
        ("picture", {}),
        ("link", {}),
        ("structured", {}),
        ("refuse", {"reason": "no"}),
        ("add", {"amount": 99}),
        ("nothing", {}),
        ("total", {}),
    ]
    results = run(ask(environment, *calls))
    assert [result.status for result in results] == [OK, OK, OK, OK, OK, ERROR, ERROR, ERROR, OK]
    assert [result.text for result in results[:2]] == ["3", "23"]
    word, picture = results[2].parts
    assert (word.text, picture.type, picture.media_type) == ("look", PartType.IMAGE, "image/png")
    assert environment.media is not None and environment.media.read(picture.media_sha256) == PNG
    assert results[3].text == "[resource log: file:///log.txt text/plain]"
    assert results[4].text == '{"b":1,"a":null}'
    assert "less than or equal to 9" in results[6].text
    assert canonical.loads(results[8].text) == {"total": 23}


def test_schemas_pass_through_without_noise(make: Make) -> None:
    environment = make("memory", hidden=["total"], reset_tool="reset")
    specs = {spec.name: canonical.loads(spec.parameters) for spec in environment._specs.values()}
    assert specs["add"]["properties"] == {
        "amount": {"type": "integer", "minimum": 1, "maximum": 9, "description": "How much."},
        "unit": {"type": "string", "enum": ["one", "ten"], "default": "one"},
        "note": {"type": "string"},
    }
    assert specs["add"]["required"] == ["amount"]
    assert not {"total", "reset"} & specs.keys()


def test_too_large_media_are_an_observation(run: Run, make: Make, tmp_path: Path) -> None:
    environment = make("memory")
    environment.media = MediaStore(tmp_path / "small", max_bytes=100)
    [result] = run(ask(environment, ("picture", {"size": 9})))
    assert result.status is ERROR
    assert "image of 162 bytes (image/png) is above the limit of 100 bytes" in result.text


def test_each_session_has_a_server_of_its_own(run: Run, make: Make) -> None:
    async def both() -> list[str]:
        environment = make("memory")
        async with (
            await environment.open(first_task(environment)) as one,
            await environment.open(first_task(environment, 1)) as two,
        ):
            results = await asyncio.gather(
                one.call("add", {"amount": 1}, "a"), two.call("add", {"amount": 2}, "a")
            )
        assert environment.num_open == 0
        return [result.text for result in results]

    assert run(both()) == ["1", "7"]


def test_sessions_over_http_are_apart_and_a_killed_server_is_no_reward(
    run: Run, make: Make, http_server: tuple[str, subprocess.Popen[bytes]]
) -> None:
    url, process = http_server
    environment = make(url)

    async def episode() -> None:
        task = first_task(environment)
        async with await environment.open(task) as one, await environment.open(task) as two:
            assert (await one.call("add", {"amount": 3}, "a")).text == "3"
            assert (await two.call("add", {"amount": 4}, "a")).text == "4"
            process.kill()
            process.wait()
            result = await one.call("add", {"amount": 1}, "b")
            assert result.status is INFRA
            assert (await one.call("add", {"amount": 1}, "c")).status is INFRA
            with pytest.raises(EnvironmentFailure, match="unusable"):
                await one.verify(make_trajectory(environment, task, [], seed=0))

    run(episode())


def test_a_server_that_dies_poisons_its_session_alone_and_leaves_nothing(run: Run, make: Make) -> None:
    environment = make("stdio")

    async def episode() -> tuple[list[int], list[ToolResult]]:
        task = first_task(environment)
        async with await environment.open(task) as session, await environment.open(task) as other:
            pids = [int((await session.call(name, {}, name)).text) for name in ("process_id", "spawn")]
            os.kill(pids[0], signal.SIGKILL)
            results = [await session.call("total", {}, "1"), await session.call("total", {}, "2")]
            with pytest.raises(EnvironmentFailure):
                session.snapshot()
            assert (await other.call("add", {"amount": 1}, "1")).text == "1"
        return pids, results

    pids, results = run(episode())
    assert [result.status for result in results] == [INFRA, INFRA]
    assert "session unusable" in results[1].text
    assert survivors(pids) == []


def test_nothing_of_a_session_survives_it(run: Run, make: Make, tmp_path: Path) -> None:
    environment = make("stdio", log=str(tmp_path / "server.log"))
    results = run(ask(environment, ("process_id", {}), ("spawn", {}), ("total", {})))
    assert survivors([int(results[0].text), int(results[1].text)]) == []
    assert "secret of standard error" in (tmp_path / "server.log").read_text()
    assert "secret of standard error" not in canonical.dumps([result.model_dump() for result in results])


def test_cancelled_episodes_leave_nothing(run: Run, make: Make) -> None:
    environment = make("stdio")
    pids: list[int] = []

    async def episode() -> None:
        async with await environment.open(first_task(environment)) as session:
            pids.append(int((await session.call("process_id", {}, "p")).text))
            await session.call("hang", {}, "h")

    async def cut() -> None:
        task = asyncio.create_task(episode())
        while not pids:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cut())
    assert pids and survivors(pids) == []
    assert environment.num_open == 0


def test_a_missed_deadline_is_the_infrastructures(run: Run, make: Make) -> None:
    environment = make("memory", limits={"timeout_seconds": 0.2})
    results = run(ask(environment, ("hang", {}), ("total", {})))
    assert [result.status for result in results] == [INFRA, INFRA]
    assert results[0].text == "hang took longer than 0.2 s"


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize(("second", "reward"), [("add", 1.0), ("die", None)])
def test_rollouts_on_a_process(
    run: Run, make: Make, renderer: ChatMLRenderer, second: str, reward: float | None
) -> None:
    environment = make("stdio", hidden=["total"])
    script = [call_text("add", amount=3), "DONE"] if second == "add" else [call_text("die"), "DONE"]
    trajectory = run(
        rollout(
            first_task(environment),
            environment=environment,
            engine=Speaker(renderer, script),
            renderer=renderer,
            sampling=Sampling(max_tokens=200),
            settings=RolloutSettings(deadlines=Deadlines(open=100, tool=100, verify=100)),
        )
    )
    assert (trajectory.reward.total if trajectory.reward else None) == reward
    assert environment.num_open == 0
    if reward is None:
        assert (trajectory.termination, trajectory.blame) == (Termination.INFRA_FAILURE, Blame.TOOL)


def test_used_connections_are_used_again_only_after_a_reset(run: Run, make: Make) -> None:
    async def servers(environment: McpEnvironment, *calls: Call) -> bool:
        """Whether the second of two sessions got the first one's server; both begin at 0."""
        found = []
        for _ in range(2):
            results = await ask(environment, ("total", {}), ("server_id", {}), *calls)
            assert results[-1].status is OK and canonical.loads(results[0].text) == {"total": 0}
            found.append(results[1].text)
        return found[0] == found[1]

    async def unused(environment: McpEnvironment) -> int:
        await ask(environment)
        await ask(environment)
        return environment.pool().num_started

    declared = make("memory", reset_tool="reset")
    assert not run(servers(make("memory"), ("add", {"amount": 1})))
    assert run(servers(declared, ("add", {"amount": 1})))
    assert not run(servers(declared, ("add", {"amount": 9}), ("add", {"amount": 4})))  # its reset fails
    assert run(unused(make("memory"))) == 1


def test_an_idle_server_that_died_is_not_leased(run: Run, make: Make) -> None:
    environment = make("stdio", reset_tool="reset")

    async def episodes() -> list[ToolResult]:
        [first] = await ask(environment, ("process_id", {}))
        os.kill(int(first.text), signal.SIGKILL)
        return [first, *await ask(environment, ("process_id", {}))]

    first, second = run(episodes())
    assert second.status is OK and first.text != second.text
    assert survivors([int(first.text), int(second.text)]) == []


def test_the_pool_bounds_connections_and_prunes_idle_ones(run: Run, make: Make) -> None:
    environment = make("memory", pool_size=2, idle_seconds=0.0)

    async def many() -> None:
        task = first_task(environment)
        first, second = await environment.open(task), await environment.open(task)
        third = asyncio.create_task(environment.open(task))
        await asyncio.sleep(0.05)
        assert not third.done()
        await first.close()
        await (await third).close()
        await second.close()
        pool = environment.pool()
        assert pool.num_started == 2
        pool.prune()
        assert pool._idle == []

    run(many())
    assert environment.num_open == 0


def test_snapshots_are_replayed_on_a_clean_server(run: Run, make: Make) -> None:
    environment = make("memory")

    async def episode() -> None:
        task = first_task(environment, 1)
        async with await environment.open(task) as session, await environment.open(task) as other:
            await session.call("add", {"amount": 1}, "a")
            kept = session.snapshot()
            await session.call("add", {"amount": 2}, "b")
            for target in (session, other):
                target.restore(kept)
                assert target.snapshot() == kept
                assert (await target.call("add", {"amount": 3}, "b")).text == "9"
                assert (await target.call("add", {"amount": 3}, "a")).text == "6"

    run(episode())


def test_a_call_that_is_answered_differently_on_replay_is_no_state(run: Run, make: Make) -> None:
    environment = make("memory")

    async def episode() -> ToolResult:
        async with await environment.open(first_task(environment)) as session:
            await session.call("server_id", {}, "a")
            kept = session.snapshot()
            await session.call("total", {}, "b")
            session.restore(kept)
            return await session.call("total", {}, "c")

    result = run(episode())
    assert result.status is INFRA
    assert "server_id answered the same call differently" in result.text


def test_checks_ask_the_server(run: Run, make: Make) -> None:
    environment = make("memory")
    for split in environment.splits:
        for task in environment.tasks(split):
            assert run(play(environment, task, environment.gold(task))).success is True


def test_a_check_that_cannot_look_is_no_verdict(run: Run, make: Make) -> None:
    environment = make("stdio")

    async def episode() -> None:
        task = first_task(environment)
        async with await environment.open(task) as session:
            os.kill(int((await session.call("process_id", {}, "p")).text), signal.SIGKILL)
            with pytest.raises(JudgeError, match="MCP server"):
                await session.verify(make_trajectory(environment, task, [], seed=0))

    run(episode())


def test_the_environment_check_is_green(run: Run, make: Make) -> None:
    environment = make("memory", hidden=["process_id", "hang", "die", "spawn"], reads=["total"])
    results = run(check_environment(environment))
    assert [result for result in results if not result.passed] == []
    assert environment.num_open == 0


def test_variables_go_by_name_and_stand_nowhere(
    run: Run, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BENCH_KEY", "value-of-the-key")
    monkeypatch.setenv("OTHER_KEY", "not handed over")
    environment = make("stdio", env=["BENCH_KEY"])
    calls: list[Call] = [("variable", {"name": name}) for name in ("BENCH_KEY", "OTHER_KEY")]
    assert [result.text for result in run(ask(environment, *calls))] == ["value-of-the-key", "not set"]
    assert "value-of-the-key" not in canonical.dumps(environment.server.identity())
    monkeypatch.delenv("BENCH_KEY")
    with pytest.raises(ConfigError, match="environment variable BENCH_KEY is not set"):
        make("stdio", env=["BENCH_KEY"])


class Echo:
    """An MCP server over HTTP that repeats the header it was sent; `refuses` names the method it refuses."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses

    def __call__(self, received: Received) -> Reply:
        echoed = received.headers.get("X-Bench-Key", "")
        method = (received.body or {}).get("method", "")
        if method == "" or method.startswith("notifications/"):
            return Reply(raw=b"", status=202 if method else 405)
        if method == self.refuses:
            error = {"code": -32000, "message": f"no access with {echoed}"}
            return Reply({"jsonrpc": "2.0", "id": received.body["id"], "error": error})
        tool = {"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "echo", "version": "1"},
            },
            "tools/list": {"tools": [tool]},
            "tools/call": {"content": [{"type": "text", "text": f"asked with {echoed}"}]},
        }
        return Reply({"jsonrpc": "2.0", "id": received.body["id"], "result": results[method]})


def test_a_server_that_repeats_its_header_is_told_without_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_KEY", "Bearer bench-secret/4711")
    tasks = tmp_path / "tasks.yaml"
    tasks.write_text("- {prompt: Add., gold: [{name: add}]}\n")

    def made(url: str) -> McpEnvironment:
        return McpEnvironment(tasks=str(tasks), url=f"{url}/mcp", headers={"X-Bench-Key": "BENCH_KEY"})

    with ScriptedServer(echo := Echo()) as server:
        environment = made(server.url)
        [shown] = run(ask(environment, ("add", {})))
        assert (shown.status, shown.text) == (OK, "asked with Bearer ***")
        echo.refuses = "tools/call"
        [refused] = run(ask(environment, ("add", {})))
    assert refused.status is INFRA and "no access with Bearer *** (-32000)" in refused.text
    with (
        ScriptedServer(Echo("initialize")) as server,
        pytest.raises(ConfigError, match=r"no access with Bearer \*\*\*"),
    ):
        made(server.url)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of server, command and url"),
        ({"server": BUILD, "url": "http://127.0.0.1:1/mcp"}, "exactly one of server, command and url"),
        ({"command": f"python {SERVER}"}, "command is a list of words"),
        ({"command": ["/no/such/server"]}, "MCP server server does not answer"),
        ({"command": ["true"]}, "MCP server true does not answer"),
        ({"url": "http://127.0.0.1:1/mcp?key=secret"}, "MCP server http://127.0.0.1:1/mcp does not answer"),
        ({"server": BUILD.replace("build", "SHARED")}, "is one server for all sessions"),
        ({"server": BUILD.replace("build", "absent")}, "has no 'absent'"),
        ({"server": BUILD, "hidden": ["absent"]}, r"hidden names \['absent'\]"),
        ({"server": BUILD, "comand": []}, "unexpected keyword argument 'comand'"),
    ],
)
def test_wrong_options_are_one_clear_error(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    (tmp_path / "tasks.yaml").write_text("- prompt: Add.\n  gold: [{name: add, arguments: {amount: 1}}]\n")
    with pytest.raises(ConfigError, match=text) as caught:
        McpEnvironment(tasks=str(tmp_path / "tasks.yaml"), **options)
    assert "key=secret" not in str(caught.value)


def test_a_task_file_is_checked_against_the_server(tmp_path: Path) -> None:
    path = tmp_path / "tasks.yaml"
    for check, text in {
        "{state: {tool: absent, equals: 1}}": "no tool 'absent'",
        "{state: {tool: total}}": "say either equals or contains",
        "{verifier: no.such:thing}": "there is no module 'no'",
    }.items():
        path.write_text(
            f"- prompt: Add.\n  gold: [{{name: add, arguments: {{amount: 1}}}}]\n  checks: [{check}]\n"
        )
        with pytest.raises(ConfigError, match=text):
            McpEnvironment(server=BUILD, tasks=str(path))
