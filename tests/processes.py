"""Processes that a test starts: one that is killed at a named point, and whether any are left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from pipeline.serve_guard import group_members

PATIENCE = 60.0
"""Seconds; only a failing test waits as long."""


def is_alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def survivors(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that live on; a killed process needs a moment to go."""
    left, end = [*pids], time.monotonic() + PATIENCE
    while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() < end:
        time.sleep(0.01)
    return left


def group_survivors(process_group: int) -> set[int]:
    """The members of a process group that live on."""
    end = time.monotonic() + PATIENCE
    while (left := set(group_members(process_group))) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def assert_killed(point: str, code: str, *arguments: Path) -> None:
    """Run `code` in a Python of its own that ends itself with SIGKILL at `point` (`data.faults`)."""
    environment = os.environ | {"TRAJSMITH_KILL_AT": point, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    assert subprocess.run(command, env=environment, capture_output=True).returncode == -signal.SIGKILL
