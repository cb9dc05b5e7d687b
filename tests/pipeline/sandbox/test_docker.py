"""The real Docker SDK before a server that answers as the Engine API does, and says what it was asked for."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigError, EnvironmentFailure, MissingExtraError
from pipeline.sandbox import attached, docker
from pipeline.sandbox.attached import Frames
from pipeline.sandbox.base import Limits, Outcome, Program, Sandbox
from pipeline.sandbox.docker import DockerSandbox
from pipeline.sandbox.exchange import Kept
from pipeline.sandbox.load import load_sandbox
from tests.pipeline.sandbox.conftest import run
from tests.pipeline.sandbox.fake_engine import Engine
from tests.pipeline.sandbox.fake_engine import engine as serve

LONG = Limits(seconds=50)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with serve(tmp_path) as server:
        yield server


@pytest.fixture
def sandbox(engine: Engine) -> Iterator[Sandbox]:
    found = load_sandbox("docker", url=engine.url)
    yield found
    asyncio.run(found.close())


def test_what_it_runs_is_walled_in(engine: Engine, sandbox: Sandbox) -> None:
    code = "open('out', 'w').write(input())\nprint(open('a').read())"
    done = run(sandbox, Program(code, files={"a": b"A"}, stdin="in", collect=("out", "none")), LONG)
    assert (done.outcome, done.stdout, done.files) == (Outcome.OK, "A\n", {"out": b"in"}), done
    (container,) = engine.created
    writable = "rw,exec,nosuid,nodev,mode=1777,size=32m"
    assert container["HostConfig"] == {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": 36,
        "NanoCpus": 1_000_000_000,
        "Memory": 256 << 20,
        "MemorySwap": 256 << 20,
        "IpcMode": "none",
        "Init": True,
        "AutoRemove": True,
        "Tmpfs": {"/box": writable, "/tmp": writable},
    }
    assert (container["User"], container["Image"]) == ("65534:65534", "python:3.11-slim")
    assert container["Entrypoint"] == ["sleep"] and not container.get("WorkingDir")
    for command in engine.execs.values():
        assert command["WorkingDir"] == "/box" and not command["Privileged"] and not command["User"]
    assert engine.calls[-1] == "DELETE /containers/ID"
    assert not [call for call in engine.calls if "images" in call]


def test_nothing_of_the_clients_configuration_goes_in(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = {"proxies": {"default": {"httpProxy": "http://user:secret@proxy"}}}
    (tmp_path / "config.json").write_text(json.dumps(secret))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    sandbox = load_sandbox("docker")
    assert engine.url in sandbox.describe() and "99.0" in sandbox.describe()
    assert run(sandbox, Program("print(1)"), LONG).ok
    assert "secret" not in json.dumps([engine.created, engine.execs])
    asyncio.run(sandbox.close())


def test_outcomes(engine: Engine, sandbox: Sandbox) -> None:
    assert run(sandbox, Program("import sys; sys.exit(3)"), LONG).exit_code == 3
    late = run(sandbox, Program("import time; time.sleep(99)"), Limits(seconds=1))
    assert (late.outcome, late.exit_code) == (Outcome.TIMEOUT, None)
    wrong = run(sandbox, Program("print(input())", stdin="1", expected="2"), LONG)
    assert wrong.outcome is Outcome.WRONG_OUTPUT
    assert run(sandbox, Program("int main(", "c"), LONG).outcome is Outcome.COMPILE_ERROR
    assert run(sandbox, Program("int main(void){return 0;}", "c"), LONG).ok
    assert "POST /containers/ID/update" in engine.calls
    killed = Program("import os\nos.kill(os.getpid(), 9)")
    assert run(sandbox, killed, LONG).outcome is Outcome.RUNTIME_ERROR
    engine.oom_kills = 1
    assert run(sandbox, killed, LONG).outcome is Outcome.OUT_OF_MEMORY
    engine.oom_kills, engine.oom_killed = 0, True
    assert run(sandbox, Program("1 / 0"), LONG).outcome is Outcome.OUT_OF_MEMORY
    assert engine.calls.count("DELETE /containers/ID") == len(engine.created) == 8


def test_output_and_input_of_any_size(sandbox: Sandbox) -> None:
    flood = run(sandbox, Program("while True: print('x' * 9999)"), Limits(seconds=50, output_bytes=100))
    assert (flood.outcome, flood.detail, len(flood.stdout)) == (Outcome.RUNTIME_ERROR, "output flood", 100)
    unread = Program("import sys\nprint('x' * 300_000)\nprint('e', file=sys.stderr)", stdin="y" * 3_000_000)
    done = run(sandbox, unread, LONG)
    assert (done.outcome, len(done.stdout), done.stderr, done.truncated) == (Outcome.OK, 65_536, "e\n", True)
    echoed = run(sandbox, Program("print(len(input()))", stdin="y" * 3_000_000), LONG)
    assert echoed.stdout == "3000000\n"


def test_what_a_program_leaves_behind_does_not_hold_the_run(engine: Engine, sandbox: Sandbox) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '600'])\nprint('done')"
    done = run(sandbox, Program(code), Limits(seconds=100))
    assert (done.outcome, done.stdout) == (Outcome.OK, "done\n") and done.seconds < 50


def test_a_program_that_closes_its_output_is_waited_for(sandbox: Sandbox) -> None:
    code = "import os, sys, time\nos.close(1); os.close(2)\ntime.sleep(float(input()))\nos._exit(3)"
    assert run(sandbox, Program(code, stdin="2"), LONG).exit_code == 3
    assert run(sandbox, Program(code, stdin="600"), Limits(seconds=1)).outcome is Outcome.TIMEOUT


def test_output_that_is_still_in_the_daemon_when_the_program_has_ended_is_waited_for(
    engine: Engine, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.holds_output = True
    monkeypatch.setattr(attached, "_LAST_QUIET", 60.0)
    assert run(sandbox, Program("print(42)", expected="42"), LONG).ok


def test_a_daemon_that_does_not_notice_the_end_is_an_environment_failure(
    engine: Engine, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.hides_ends, exit_code = True, DockerSandbox._exit_code

    def at_the_deadline(self: DockerSandbox, container: Any, exec_id: str, _: float) -> int | None:
        return exit_code(self, container, exec_id, 0.0)

    monkeypatch.setattr(docker, "_TOLD_SECONDS", 0.2)
    monkeypatch.setattr(DockerSandbox, "_exit_code", at_the_deadline)
    with pytest.raises(EnvironmentFailure, match="no exit code"):
        run(sandbox, Program("print(42)"), LONG)


def test_links_do_not_come_back(sandbox: Sandbox) -> None:
    code = "import os\nos.symlink('/etc/passwd', 'a')\nopen('b', 'w').write('x')"
    assert run(sandbox, Program(code, collect=("a", "b")), LONG).files == {"b": b"x"}


def test_what_is_missing_is_said(engine: Engine, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no docker daemon at unix:///no/such.sock: there is none"):
        load_sandbox("docker", url="unix:///no/such.sock")
    with pytest.raises(ConfigError, match=r"'ssh://host'; allowed: unix://PATH, or tcp://HOST:PORT"):
        load_sandbox("docker", url="ssh://host")
    engine.refuses = "version"
    with pytest.raises(ConfigError, match=r"no docker daemon answers .*the daemon is unwell"):
        load_sandbox("docker", url=engine.url)
    engine.refuses, engine.image_missing = "", True
    with pytest.raises(ConfigError, match=r"image python:3.11-slim .* docker pull python:3.11-slim"):
        run(sandbox, Program(""))
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'trajsmith\[docker\]'"):
        load_sandbox("docker", url=engine.url)


@pytest.mark.parametrize("call", ["containers/create", "ID/start", "ID/exec", "DELETE"])
def test_a_daemon_that_breaks_is_an_environment_failure(engine: Engine, sandbox: Sandbox, call: str) -> None:
    engine.refuses = call
    with pytest.raises(EnvironmentFailure, match="the daemon is unwell"):
        run(sandbox, Program(""), LONG)


def test_a_lost_daemon_says_nothing_about_the_program(engine: Engine, sandbox: Sandbox) -> None:
    engine.drops, engine.refuses = True, "GET /exec"
    with pytest.raises(EnvironmentFailure, match="the daemon is unwell"):
        run(sandbox, Program(""), LONG)
    assert engine.calls[-1] == "DELETE /containers/ID"


def test_frames_come_in_pieces() -> None:
    data = b"\1\0\0\0\0\0\0\3abc\2\0\0\0\0\0\0\1e\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\1d"
    for size in (1, 2, 7, 100):
        out, err = Kept(10), Kept(10)
        frames = Frames(out, err)
        for at in range(0, len(data), size):
            frames.take(data[at : at + size])
        assert (out.text, err.text) == ("abcd", "e")
    for bad in (b"HTTP/1.1 ", b"\3\0\0\0\0\0\0\1x", b"\1\0\1\0\0\0\0\1x"):
        with pytest.raises(EnvironmentFailure, match="no output frame"):
            Frames(Kept(1), Kept(1)).take(bad)
