"""The client of /run_code against our own server over the real sandbox, and against one that misbehaves."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import pipeline.sandbox.remote
from pipeline.environments.play import play
from pipeline.environments.python_math.generator import PythonMath
from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.sandbox.base import Execution, Limits, Outcome, Program, Sandbox
from pipeline.sandbox.load import load_sandbox
from pipeline.sandbox.remote import RemoteSandbox
from pipeline.sandbox.server import RunCodeServer, ServerSettings
from tests.pipeline.sandbox.conftest import run

LONG = Limits(seconds=50)
FINISHED = {"status": "Finished", "return_code": 0, "stdout": "1\n", "stderr": "", "execution_time": 0.1}
SUCCESS = {"status": "Success", "compile_result": None, "run_result": FINISHED, "files": {}}


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def remote(bubblewrap: Sandbox) -> Iterator[Sandbox]:
    with serving(RunCodeServer(("127.0.0.1", 0), bubblewrap)) as url:
        sandbox = load_sandbox("remote", url=url)
        yield sandbox
        asyncio.run(sandbox.close())


@pytest.mark.parametrize(
    ("program", "limits", "outcome"),
    [
        (Program("print(input())", stdin="hé", expected="hé"), LONG, Outcome.OK),
        (Program("print(1)", expected="2"), LONG, Outcome.WRONG_OUTPUT),
        (Program("1 / 0"), LONG, Outcome.RUNTIME_ERROR),
        (Program("import os\nos.kill(os.getpid(), 11)"), LONG, Outcome.RUNTIME_ERROR),
        (Program("while True:\n    pass"), Limits(seconds=0.3), Outcome.TIMEOUT),
        (Program("b = bytearray(1 << 30)"), Limits(seconds=50, memory_mib=64), Outcome.OUT_OF_MEMORY),
        (Program("int main(void) { return x; }", "c"), LONG, Outcome.COMPILE_ERROR),
        (Program("console.log(1)", "javascript", expected="1"), LONG, Outcome.OK),
    ],
)
def test_the_outcome_survives_the_wire(
    program: Program, limits: Limits, outcome: Outcome, remote: Sandbox, bubblewrap: Sandbox
) -> None:
    there, here = run(remote, program, limits), run(bubblewrap, program, limits)
    assert there.outcome is here.outcome is outcome
    assert (there.stdout, there.exit_code) == (here.stdout, here.exit_code)


def test_a_world_runs_its_code_remotely(bubblewrap: Sandbox) -> None:
    async def play_one(url: str) -> bool:
        world = PythonMath(sandbox={"name": "remote", "url": url})
        task = next(world.tasks("train"))
        try:
            return bool((await play(world, task, world.gold(task))).success)
        finally:
            await world.runner.close()

    with serving(RunCodeServer(("127.0.0.1", 0), bubblewrap)) as url:
        assert asyncio.run(play_one(url))


def test_a_key_is_sent_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_KEY", "fleet-4711")
    server = answers(lambda _, payload: (401, payload["headers"]))
    with serving(server) as url:
        sandbox = load_sandbox("remote", url=url, api_key_env="FLEET_KEY")
        with pytest.raises(ConfigError, match=r"HTTP 401: .*Bearer \*\*\*") as caught:
            run(sandbox, Program("1"))
        asyncio.run(sandbox.close())
    assert "4711" not in f"{caught.value} {sandbox.describe()}"
    reasons: list[tuple[int, Any]] = [
        (403, b"x" * 290 + b"fleet-4711"),
        (200, {"status": "SandboxError", "message": "x" * 290 + "fleet-4711"}),
        (200, SUCCESS | {"run_result": FINISHED | {"return_code": "fleet-4711"}}),
        (200, SUCCESS | {"run_result": FINISHED | {"return_code": "x" * 190 + "fleet-4711"}}),  # cut by int()
    ]
    for reason in reasons:
        with pytest.raises((ConfigError, EnvironmentFailure), match=r"\*") as told:
            ask(answers(lambda *_, reason=reason: reason), Program("1"), tries=1, api_key_env="FLEET_KEY")
        assert "fleet" not in str(told.value)
    with pytest.raises(ConfigError, match="api_key_env: the environment variable ABSENT is not set"):
        load_sandbox("remote", url="http://127.0.0.1:1", api_key_env="ABSENT")


def test_what_a_program_prints_is_its_own_even_where_it_is_the_key(
    bubblewrap: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_KEY", "1444")
    program = Program("print(1444)\nopen('a', 'w').write('1444')", expected="1444", collect=("a",))
    [done] = ask(RunCodeServer(("127.0.0.1", 0), bubblewrap), program, api_key_env="FLEET_KEY")
    assert (done.outcome, done.stdout, done.files) == (Outcome.OK, "1444\n", {"a": b"1444"})


def test_files_go_there_and_come_back(remote: Sandbox) -> None:
    program = Program(
        "open('b', 'wb').write(open('a', 'rb').read()[::-1])", files={"a": b"\x00\xff"}, collect=("b", "c")
    )
    assert run(remote, program, LONG).files == {"b": b"\xff\x00"}


def test_arguments_have_no_place_in_the_protocol(remote: Sandbox) -> None:
    with pytest.raises(ConfigError, match="takes none"):
        run(remote, Program("", args=("x",)))


def answers(reply: Callable[[int, dict[str, Any]], tuple[int, Any]]) -> ThreadingHTTPServer:
    """A server that answers with what `reply(number of the request, payload)` says; `headers` is added."""
    count = iter(range(10_000))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            payload["headers"] = dict(self.headers)
            status, body = reply(next(count), payload)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def ask(server: ThreadingHTTPServer, *programs: Program, **options: Any) -> list[Execution]:
    async def gather(sandbox: Sandbox) -> list[Execution]:
        try:
            return list(await asyncio.gather(*(sandbox.run(program) for program in programs)))
        finally:
            await sandbox.close()

    with serving(server) as url:
        return asyncio.run(gather(RemoteSandbox(url=url, pause=0.001, **options)))


def test_504_is_asked_again_and_limits_are_sent() -> None:
    seen: list[dict[str, Any]] = []

    def reply(number: int, payload: dict[str, Any]) -> tuple[int, Any]:
        seen.append(payload)
        return (504, {}) if number < 3 else (200, SUCCESS)

    [done] = ask(answers(reply), Program("print(1)", "js"))
    assert done.ok and len(seen) == 4 and seen[0] == seen[3]
    assert (seen[0]["memory_limit_MB"], seen[0]["run_timeout"], seen[0]["language"]) == (256, 5.0, "nodejs")


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (504, {}, EnvironmentFailure, "failed in 3 tries; the last one: HTTP 504"),
        (500, {}, EnvironmentFailure, "HTTP 500"),
        (200, {"status": "SandboxError", "message": "no workers"}, EnvironmentFailure, "no workers"),
        (200, {"status": "Success", "run_result": None}, EnvironmentFailure, "what /run_code never does"),
        (200, {"status": "Success", "run_result": {"status": "Finished"}}, EnvironmentFailure, "return_code"),
        (200, {"compile_result": {"status": "Error"}, "run_result": None}, EnvironmentFailure, "compiler"),
        (200, b"[" * 100_000, EnvironmentFailure, "no JSON"),
        (422, {"detail": "bad language"}, ConfigError, "HTTP 422.*bad language"),
    ],
)
def test_what_is_the_servers_fault_is_never_an_outcome(
    status: int, body: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ask(answers(lambda *_: (status, body)), Program(""), tries=3)


def test_an_answer_that_is_no_json_is_the_servers_fault() -> None:
    with pytest.raises(EnvironmentFailure, match="no JSON object"):
        ask(answers(lambda *_: (200, b"<html>")), Program(""), tries=1)


def test_nobody_there_is_an_environment_failure() -> None:
    sandbox = RemoteSandbox(url="http://127.0.0.1:9", tries=2, pause=0.001)
    with pytest.raises(EnvironmentFailure, match="failed in 2 tries; the last one: ConnectError"):
        run(sandbox, Program(""))
    asyncio.run(sandbox.close())


def test_no_more_requests_are_out_than_allowed() -> None:
    lock, now, most = threading.Lock(), [0], [0]
    full = threading.Event()

    def reply(*_: Any) -> tuple[int, Any]:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == 3:
                full.set()
        full.wait(30)
        with lock:
            now[0] -= 1
        return 200, SUCCESS

    assert all(done.ok for done in ask(answers(reply), *[Program("")] * 12, concurrency=3))
    assert most == [3]


def test_the_server_says_504_when_every_slot_is_taken(bubblewrap: Sandbox) -> None:
    settings = ServerSettings(parallel=1, queue_seconds=0.01)
    server = RunCodeServer(("127.0.0.1", 0), bubblewrap, settings)
    with serving(server) as url, server.slots:
        assert (
            httpx.post(f"{url}/run_code", json={"code": "", "language": "python"}, timeout=60).status_code
            == 504
        )


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/run_code", b"{", 422),
        ("/run_code", b'{"code": "", "language": "cobol"}', 422),
        ("/run_code", b'{"language": "python"}', 422),
        ("/run_code", b'{"code": "", "language": "python", "files": {"../x": ""}}', 422),
        ("/run_code", b"[]", 422),
        ("/run_code", b"[" * 100_000, 422),
        ("/run_code", b'{"code": "", "language": "python", "memory_limit_MB": 1e999}', 422),
        ("/run_code", b'{"code": "", "language": "python", "run_timeout": NaN}', 422),
        ("/run_code", b'{"code": "", "language": "python", "run_timeout": -1}', 422),
        ("/run_code", b'{"code": 1, "language": ["python"], "files": []}', 422),
        ("/run_code", b"", 413),
        ("/other", b"{}", 404),
    ],
)
def test_the_server_refuses_what_it_cannot_run(
    path: str, body: bytes, status: int, bubblewrap: Sandbox
) -> None:
    with serving(RunCodeServer(("127.0.0.1", 0), bubblewrap)) as url:
        assert httpx.post(f"{url}{path}", content=body, timeout=60).status_code == status


@pytest.mark.parametrize("length", ["abc", "-1", "1_0", "9" * 5000])
def test_a_length_that_is_none_is_answered(length: str, bubblewrap: Sandbox) -> None:
    with serving(RunCodeServer(("127.0.0.1", 0), bubblewrap)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"))
        connection.putrequest("POST", "/run_code")
        connection.putheader("Content-Length", length)
        connection.endheaders()
        assert connection.getresponse().status == 413
        connection.close()


def test_an_answer_that_trickles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece comes soon; when some have come, an hour has passed."""
    pieces: list[float] = []
    now = time.monotonic
    clock = SimpleNamespace(monotonic=lambda: now() + (3600 if len(pieces) >= 20 else 0), sleep=time.sleep)
    monkeypatch.setattr(pipeline.sandbox.remote, "time", clock)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while len(pieces) < 1000:
                    self.wfile.write(b" ")
                    pieces.append(now())
                    time.sleep(0.01)
            except OSError:
                pass

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        sandbox = RemoteSandbox(url=url, tries=1, queue_seconds=100.0)
        with pytest.raises(EnvironmentFailure, match="ReadTimeout"):
            run(sandbox, Program(""), Limits(seconds=0.1))
        assert len(pieces) >= 20
        asyncio.run(sandbox.close())


def test_a_password_in_the_address_is_refused_and_not_told() -> None:
    with pytest.raises(
        ConfigError, match=r"remote sandbox at 127\.0\.0\.1 may hold no user, password"
    ) as caught:
        RemoteSandbox(url="http://me:tops3cret@127.0.0.1:9", tries=1)
    assert "api_key_env" in str(caught.value) and "tops3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "ftp://x"}, "remote sandbox URL 'ftp://x' is not"),
        ({"url": "http://x", "concurrency": 0}, "=0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RemoteSandbox(**options)
