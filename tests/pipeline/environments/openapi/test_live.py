"""Live sessions against a real server: worlds, failures, credentials that never show."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from data import canonical
from data.messages import ToolResult, ToolStatus, assistant
from data.trajectories import Trajectory
from pipeline.environments.cassette import with_cassette
from pipeline.environments.check import check_environment
from pipeline.environments.gold import PlannedGold, call
from pipeline.environments.openapi.client import ApiClient, credential
from pipeline.environments.openapi.environment import OpenApiEnvironment, load
from pipeline.environments.openapi.lease import Lease
from pipeline.environments.openapi.process import LocalServer
from pipeline.environments.openapi.request import ApiRequest
from pipeline.environments.play import play
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.openapi.api_server import DOCUMENT, ItemServer, serving

SECRET = "s3cret/Key+with=signs"
TASKS = """
- prompt: Add a blue lamp.
  gold: [{name: createItem, arguments: {name: lamp, tag: blue}}]
  checks:
    - {get: "/items?tag=blue", equals: [{id: 1, name: lamp, tag: blue}]}
- prompt: Add a chair and a table, then remove the chair.
  split: heldout
  gold:
    - {name: createItem, arguments: {name: chair}}
    - {name: createItem, arguments: {name: table}}
    - {name: deleteItem, arguments: {id: {$result: 0/id}}}
  checks:
    - {get: /items/1, status: 404}
    - {get: /items, at: "0", contains: {name: table}}
"""


@pytest.fixture
def server() -> Iterator[ItemServer]:
    with serving() as running:
        yield running


@pytest.fixture
def make(tmp_path: Path, server: ItemServer) -> Any:
    def made(*, tasks: str = TASKS, **options: Any) -> OpenApiEnvironment:
        (tmp_path / "api.json").write_text(json.dumps(DOCUMENT))
        (tmp_path / "tasks.yaml").write_text(tasks)
        defaults = {"url": server.url, "session_header": "X-Session", "policy": {"backoff": 0.0}}
        return load(document=tmp_path / "api.json", tasks=tmp_path / "tasks.yaml", **{**defaults, **options})

    return made


async def ask(environment: OpenApiEnvironment, name: str, /, **arguments: Any) -> ToolResult:
    """One call in a session of its own."""
    session = await environment.open(next(environment.tasks("train")))
    try:
        return await session.call(name, arguments, "c1")
    finally:
        await session.close()


def test_the_environment_check_is_green(run: Run, make: Any) -> None:
    environment = make(operations=["listItems", "createItem", "getItem", "deleteItem"])
    results = run(check_environment(environment))
    assert [result for result in results if not result.passed] == []
    assert environment.num_open == 0


def test_reset_makes_a_shared_server_fresh_and_one_session_runs_at_a_time(
    run: Run, make: Any, server: ItemServer
) -> None:
    environment = make(session_header="", reset="reset")
    assert "reset" not in [spec.name for spec in environment_tools(run, environment)]

    async def both() -> list[Trajectory]:
        tasks = [*environment.tasks("train"), *environment.tasks("heldout")]
        return await asyncio.gather(*(play(environment, task, environment.gold(task)) for task in tasks))

    assert [played.success for played in run(both())] == [True, True]
    assert [path for _, path, _, _ in server.received].count("/v1/reset") == 2


def environment_tools(run: Run, environment: OpenApiEnvironment) -> Any:
    async def tools() -> Any:
        async with await environment.open(next(environment.tasks("train"))) as session:
            return session.tools

    return run(tools())


SETUP = """
- prompt: Remove the lamp.
  state: {setup: [{name: createItem, arguments: {name: lamp}}]}
  gold: [{name: deleteItem, arguments: {id: 1}}]
  checks: [{get: /items, equals: []}, {calls: [{name: deleteItem, arguments: {id: 1}}]}]
"""


def test_a_task_prepares_its_world_with_operations_the_agent_lacks(run: Run, make: Any) -> None:
    environment = make(tasks=SETUP, operations=["listItems", "deleteItem"], hidden=["createItem"])
    assert [spec.name for spec in environment_tools(run, environment)] == ["listItems", "deleteItem"]
    task = next(environment.tasks("train"))
    assert run(play(environment, task, environment.gold(task))).success
    refused = run(ask(environment, "createItem", name="a"))
    assert refused.text == "no tool createItem; tools: listItems, deleteItem"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("{items: []}", "state takes {setup: .* only"),
        ("{setup: [{name: nope}]}", "is no {name, arguments} of an operation"),
        ("{setup: [{name: createItem}]}", "setup createItem: missing argument: name"),
    ],
)
def test_a_wrong_setup_is_told(make: Any, state: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"task 'a': .*{said}"):
        make(tasks=f"- prompt: a\n  state: {state}\n  gold: [{{name: listItems}}]\n")


def test_a_setup_that_fails_is_an_infrastructure_failure(run: Run, make: Any, server: ItemServer) -> None:
    server.script.append((409, {}, "no room"))
    result = run(ask(make(tasks=SETUP), "listItems"))
    assert result.status is ToolStatus.INFRA_ERROR
    assert result.text == "preparing the world, createItem said 409 no room"


def captured(url: str, scheme: dict[str, Any], request: ApiRequest) -> httpx.Request:
    """The request as it goes out with the credential of `scheme`."""
    sent: list[httpx.Request] = []

    def answer(asked: httpx.Request) -> httpx.Response:
        sent.append(asked)
        return httpx.Response(200)

    async def run() -> None:
        known = {"s": credential(scheme, "ITEMS_KEY", name="s")}
        client = ApiClient(url, credentials=known, transport=httpx.MockTransport(answer))
        await client.send(request, schemes=("s",))
        await client.close()

    asyncio.run(run())
    return sent[0]


def test_credentials_go_where_their_scheme_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITEMS_KEY", "a b&c")
    asked = ApiRequest("GET", "/a", "q=1%2F2", {"cookie": "x=1"})
    by_query = captured("http://h", {"type": "apiKey", "in": "query", "name": "k"}, asked)
    assert by_query.url.raw_path == b"/a?q=1%2F2&k=a%20b%26c"
    by_cookie = captured("http://h", {"type": "apiKey", "in": "cookie", "name": "k"}, asked)
    assert by_cookie.headers["cookie"] == "x=1; k=a%20b%26c"
    bearer = captured("https://h/v1", {"type": "http", "scheme": "Bearer"}, asked)
    assert (bearer.headers["authorization"], bearer.url.path) == ("Bearer a b&c", "/v1/a")
    assert captured("http://h", {"type": "oauth2"}, asked).headers["authorization"] == "Bearer a b&c"
    with pytest.raises(ConfigError, match="http digest is not supported"):
        credential({"type": "http", "scheme": "digest"}, "ITEMS_KEY", name="s")
    assert "a b" not in repr(credential({"type": "oauth2"}, "ITEMS_KEY", name="s"))


def test_a_lease_that_does_not_end_is_an_infrastructure_failure(run: Run) -> None:
    async def twice() -> None:
        lease = Lease(wait_seconds=0.05)
        await lease.take()
        await lease.take()

    with pytest.raises(EnvironmentFailure, match="one session runs at a time"):
        run(twice())


def test_the_servers_words_reach_the_agent_and_bad_arguments_never_the_server(
    run: Run, make: Any, server: ItemServer
) -> None:
    result = run(ask(make(), "getItem", id=7))
    assert (result.status, result.text) == (ToolStatus.TOOL_ERROR, "HTTP 404: no item 7")
    before = len(server.received)
    for arguments in ({"id": "7"}, {"id": 7, "extra": 1}, {}):
        assert run(ask(make(), "getItem", **arguments)).status is ToolStatus.TOOL_ERROR
    assert run(ask(make(), "createItem", name="a", id=3)).text == "unknown argument: id; arguments: name, tag"
    assert run(ask(make(), "nope")).status is ToolStatus.TOOL_ERROR
    assert len(server.received) == before


def test_answers_are_compact_and_trimmed_to_what_is_kept(run: Run, make: Any) -> None:
    assert run(ask(make(), "createItem", name="a")).text == '{"id":1,"tag":"red","name":"a"}'
    kept = make(keep={"createItem": ["name", "id"]})
    assert run(ask(kept, "createItem", name="a")).text == '{"name":"a","id":1}'
    short = run(ask(make(limits={"max_tool_response_length": 12}), "createItem", name="a"))
    assert (short.text, short.truncated) == ('{"id":1,"...', True)
    assert kept.version != make().version


@pytest.mark.parametrize(
    ("script", "name", "arguments", "status", "asked"),
    [
        ([503, 429], "listItems", {}, ToolStatus.OK, 3),
        (["cut", 500], "listItems", {}, ToolStatus.OK, 3),
        ([502, 502, 502], "listItems", {}, ToolStatus.INFRA_ERROR, 3),
        ([500], "createItem", {"name": "a"}, ToolStatus.INFRA_ERROR, 1),
        (["cut"], "createItem", {"name": "a"}, ToolStatus.INFRA_ERROR, 1),
        ([429], "createItem", {"name": "a"}, ToolStatus.OK, 2),
        ([401], "listItems", {}, ToolStatus.INFRA_ERROR, 1),
        ([403], "listItems", {}, ToolStatus.TOOL_ERROR, 1),
        ([(200, {"content-type": "image/png"}, "PNG")], "listItems", {}, ToolStatus.OK, 1),
        ([(302, {"location": "http://[::"}, "")] * 3, "listItems", {}, ToolStatus.INFRA_ERROR, 3),
        ([(302, {"location": "/v1/moved"}, "")] * 7, "listItems", {}, ToolStatus.INFRA_ERROR, 6),
    ],
)
def test_what_is_nobodys_fault_is_tried_again_and_never_a_tool_error(
    run: Run,
    make: Any,
    server: ItemServer,
    script: list[Any],
    name: str,
    arguments: dict[str, Any],
    status: ToolStatus,
    asked: int,
) -> None:
    """A POST is repeated only where the server said that it did not act."""
    server.script.extend(script)
    result = run(ask(make(), name, **arguments))
    assert (result.status, len(server.received)) == (status, asked)
    if name == "createItem" and status is ToolStatus.OK:
        assert json.loads(result.text)["id"] == 1


def test_a_dead_server_and_a_timeout_are_infrastructure_errors(run: Run, make: Any) -> None:
    def late(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("too late", request=request)

    dead = run(ask(make(url="http://127.0.0.1:9/v1"), "listItems"))
    slow = run(ask(make(transport=httpx.MockTransport(late)), "listItems"))
    assert [dead.status, slow.status] == [ToolStatus.INFRA_ERROR] * 2
    assert "ConnectError" in dead.text and "failed in 3 tries: ReadTimeout" in slow.text


def test_only_the_given_server_is_called(run: Run, make: Any, server: ItemServer) -> None:
    assert run(ask(make(), "moved")).text == "[]"
    away = run(ask(make(), "away"))
    assert away.status is ToolStatus.INFRA_ERROR
    assert "redirects to http://127.0.0.2; only the given server is called" in away.text
    assert all(headers["host"] in server.url for _, _, headers, _ in server.received)
    for url in ("ftp://a", "http://user:pw@a/v1", "http://a/?key=1", ""):
        with pytest.raises(ConfigError, match="URL"):
            make(url=url)


def test_a_credential_is_on_the_wire_and_nowhere_else(
    run: Run,
    make: Any,
    server: ItemServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("ITEMS_KEY", SECRET)
    monkeypatch.setenv("ITEMS_LOGIN", f"anna:{SECRET}")
    caplog.set_level(logging.DEBUG)
    environment = make(
        auth={"key": "ITEMS_KEY", "query": "ITEMS_KEY", "basic": "ITEMS_LOGIN"},
        tasks="- prompt: Echo.\n  gold: [{name: echo}, {name: away}]\n",
        session_header="",
    )
    taped = with_cassette(environment, tmp_path / "tape.jsonl")
    server.script.append((500, {}, f"bad key {SECRET}"))

    async def episode() -> tuple[Trajectory, list[str]]:
        task = next(environment.tasks("train"))
        failing = await environment.open(task)
        snapshots = [canonical.dumps((await failing.call("listItems", {}, "c0")).model_dump())]
        escaped = SECRET.replace("/", "\\/")
        server.script.extend([(418, {}, f"no {SECRET}"), (200, {}, f'{{"your key": "{escaped}"}}')])
        server.script.extend([(500, {}, f"bad {SECRET}"), "cut", "cut"])
        for name in ("listItems",) * 3:
            session = await environment.open(task)
            snapshots.append((await session.call(name, {}, "c1")).model_dump_json())
            snapshots.append(repr(session.__dict__))
            await session.close()
        await failing.close()
        session = await taped.open(task)
        result = await session.call("echo", {}, "c1")
        snapshots += [result.model_dump_json(), session.snapshot().decode("latin-1")]
        await session.close()
        return await play(environment, task, PlannedGold(plan())), snapshots

    def plan() -> Any:
        yield call("echo")
        yield assistant("Done.")

    played, texts = run(episode())
    sent = [headers for _, path, headers, _ in server.received if path.startswith("/v1/echo")]
    query = next(path for _, path, _, _ in server.received if path.startswith("/v1/echo"))
    assert "api_key=s3cret%2FKey%2Bwith%3Dsigns" in query
    basic = base64.b64encode(f"anna:{SECRET}".encode()).decode()
    assert sent[0]["authorization"] == f"Basic {basic}"
    assert any(headers.get("x-api-key") == SECRET for _, _, headers, _ in server.received)
    everything = "\n".join(
        [
            *texts,
            played.model_dump_json(),
            caplog.text,
            repr(environment.__dict__),
            environment.version,
            (tmp_path / "tape.jsonl").read_text(),
        ]
    )
    assert "***" in everything and "/v1/echo" in caplog.text
    for form in (SECRET, "s3cret", "s3cret%2FKey%2Bwith%3Dsigns", basic):
        assert form not in everything, everything[max(0, everything.index(form) - 200) :][:400]


def test_a_wrong_auth_option_is_told_without_the_secret(
    run: Run, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    with pytest.raises(ConfigError, match=r"schemes \['nope'\]; there are bearer, basic, key"):
        make(auth={"nope": "ABSENT"})
    environment = make(auth={"key": "ABSENT"})
    with pytest.raises(ConfigError, match="environment variable ABSENT is not set"):
        run(ask(environment, "listItems"))
    monkeypatch.setenv("ABSENT", f"{SECRET}\nX-Admin: 1")
    with pytest.raises(ConfigError, match="printable ASCII") as caught:
        run(ask(environment, "listItems"))
    assert "s3cret" not in str(caught.value)


def test_a_restored_session_replays_its_calls_and_notices_another_world(
    run: Run, make: Any, server: ItemServer
) -> None:
    environment = make()

    async def episode() -> tuple[ToolResult, ToolResult]:
        task = next(environment.tasks("train"))
        async with await environment.open(task) as session:
            await session.call("createItem", {"name": "a"}, "c1")
            kept = session.snapshot()
            await session.call("createItem", {"name": "b"}, "c2")
            session.restore(kept)
            again = await session.call("listItems", {}, "c3")
        other = await environment.open(task)
        other.restore(kept)
        server.script.append((201, {"content-type": "application/json"}, '{"id": 9}'))
        broken = await other.call("listItems", {}, "c3")
        await other.close()
        return again, broken

    again, broken = run(episode())
    assert [item["name"] for item in json.loads(again.text)] == ["a"]
    assert (
        broken.status is ToolStatus.INFRA_ERROR
        and "createItem answered the same call differently" in broken.text
    )

    async def shared() -> None:
        free = make(session_header="", tasks="- prompt: a\n  gold: [{name: listItems}]\n")
        async with await free.open(next(free.tasks("train"))) as session:
            await session.call("listItems", {}, "c1")
            session.restore(session.snapshot())

    with pytest.raises(EnvironmentFailure, match="cannot be restored; give the environment start, reset"):
        run(shared())


def test_a_shared_world_is_live_and_takes_no_check_that_a_cassette_blinds(run: Run, make: Any) -> None:
    tasks = "- prompt: a\n  gold: [{name: listItems}]\n"

    async def live(environment: OpenApiEnvironment) -> tuple[str, ...]:
        async with await environment.open(next(environment.tasks("train"))) as session:
            return session.live_tools

    assert "listItems" in run(live(make(session_header="", tasks=tasks)))
    assert run(live(make(tasks=tasks))) == ()
    with pytest.raises(ConfigError, match="it has a `get` check, and the API is shared and live"):
        make(session_header="")


def test_a_shared_live_api_is_taped_and_checked_green(
    run: Run, make: Any, server: ItemServer, tmp_path: Path
) -> None:
    server.worlds[""] = {
        1: {"id": 1, "name": "lamp", "tag": "red"},
        2: {"id": 2, "name": "desk", "tag": "blue"},
    }
    environment = make(
        session_header="",
        operations=["listItems", "getItem"],
        tasks="""
- prompt: What is the blue item called?
  gold: [{name: listItems, arguments: {tag: blue}}, {say: It is a desk.}]
  checks: [{answer: {matches: "^It is a desk"}}, {calls: [{name: listItems, arguments: {tag: blue}}]}]
- prompt: What is item 1 called?
  split: heldout
  gold: [{name: getItem, arguments: {id: 1}}, {say: It is a lamp.}]
  checks: [{answer: {matches: "^It is a lamp"}}, {calls: [{name: getItem, arguments: {id: 1}}]}]
""",
    )
    results = run(check_environment(environment))
    assert [result for result in results if not result.passed] == []
    taped = with_cassette(environment, tmp_path / "tape.jsonl", mode="auto")
    task = next(taped.tasks("train"))
    assert run(play(taped, task, taped.gold(task))).success
    asked = len(server.received)
    server.worlds[""] = {}
    assert run(play(taped, task, taped.gold(task))).success
    assert len(server.received) == asked


def test_a_check_that_cannot_be_asked_is_no_reward(run: Run, make: Any, server: ItemServer) -> None:
    environment = make()
    task = next(environment.tasks("train"))

    async def judged() -> Any:
        session = await environment.open(task)
        played = await play(environment, task, environment.gold(task))
        server.script.extend([500] * 3)
        try:
            return await session.verify(played)
        finally:
            await session.close()

    with pytest.raises(JudgeError, match="check 0 of task"):
        run(judged())


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("{get: items, status: 200}", "is no path below the base URL"),
        ("{get: //evil.example/a, status: 200}", "is no path below the base URL"),
        ("{get: /items}", "say what must hold"),
        ("{get: /items, equals: 1, contains: 2}", "keys are get"),
        ("{get: /items, status: ok}", "status is a number"),
    ],
)
def test_a_wrong_get_check_is_told(make: Any, check: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(tasks=f"- prompt: a\n  gold: [{{name: listItems}}]\n  checks: [{check}]\n")


def test_a_server_that_does_not_start_is_told_with_its_words(run: Run) -> None:
    async def start(*command: str) -> None:
        server = LocalServer(command, start_seconds=20)
        await server.start(seed=3)

    with pytest.raises(EnvironmentFailure, match=r"did not serve port \d+: no licence for seed 3"):
        run(start(sys.executable, "-S", "-c", "raise SystemExit('no licence for seed {seed}')", "{port}"))
    with pytest.raises(ConfigError, match="cannot be run"):
        run(start("/no/such/program", "{port}"))


def test_a_start_command_without_a_port_is_refused_before_any_session(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"has no \{port\}"):
        make(url="", start=[sys.executable, "server.py"])


def test_what_a_failed_server_said_is_told_without_the_credential(
    run: Run, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ITEMS_KEY", SECRET)
    crash = "import os; raise SystemExit('no access with ' + os.environ['ITEMS_KEY'])"
    environment = make(url="", start=[sys.executable, "-S", "-c", crash, "{port}"], auth={"key": "ITEMS_KEY"})

    async def said() -> str:
        async with await environment.open(next(environment.tasks("train"))) as session:
            return (await session.call("listItems", {}, "c1")).text

    text = run(said())
    assert "no access with ***" in text and SECRET not in text
