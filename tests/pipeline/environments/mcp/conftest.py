"""The bench server in its three forms, and proof that it leaves no process behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data.media import MediaStore
from pipeline.environments.mcp.environment import McpEnvironment
from tests.pipeline.environments.conftest import run as run

HERE = Path(__file__).parent
SERVER = str(HERE / "bench_server.py")
BUILD = "tests.pipeline.environments.mcp.bench_server:build"
TASKS = """
- prompt: Raise the total by 3.
  gold: [{name: add, arguments: {amount: 3}}, {say: DONE}]
  checks: [{state: {tool: total, equals: {total: 3}}}, {answer: {equals: DONE}}]
- prompt: It stands at 5. Raise it to 9.
  state: {setup: [{name: add, arguments: {amount: 5}}]}
  gold: [{name: add, arguments: {amount: 4}}, {say: DONE}]
  checks: [{state: {tool: total, contains: {total: 9}}}, {answer: {equals: DONE}}]
- prompt: Raise the total by 7 and say so.
  split: heldout
  gold: [{name: add, arguments: {amount: 7}}, {say: DONE}]
  checks: [{verifier: "tests.pipeline.environments.mcp.conftest:is_seven"}, {answer: {equals: DONE}}]
"""
Make = Callable[..., McpEnvironment]


async def is_seven(session: Any, trajectory: Any) -> float:
    """A verifier of the user's own."""
    value = await session.read("total")
    return float(value == {"total": 7})


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """An environment on the bench server: `make("stdio")`, `make("memory")`, `make(url)`."""
    (tmp_path / "tasks.yaml").write_text(TASKS)

    def made(kind: str, **options: Any) -> McpEnvironment:
        forms: dict[str, dict[str, Any]] = {
            "memory": {"server": BUILD},
            "stdio": {"command": [sys.executable, SERVER, "stdio"]},
        }
        where = forms.get(kind, {"url": kind})
        options = {"start_seconds": 110} | options  # a busy machine starts processes slowly
        environment = McpEnvironment(tasks=str(tmp_path / "tasks.yaml"), **where, **options)
        environment.media = MediaStore(tmp_path / "media")
        return environment

    return made


@pytest.fixture
def http_server() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """URL and process of a bench server."""
    command = [sys.executable, SERVER, "http"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            # It listens before it prints, so that who connects now is served as soon as it has started.
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp", process
        finally:
            process.kill()
