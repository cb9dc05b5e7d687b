"""A small parent for the model server that ends the server's whole process group with its owner.

Run as `python serve_guard.py FD GRACE COMMAND...` in a process group of its own. The owner holds the
other end of the pipe FD; when that closes, the owner's process is gone or the server ends, all the
group gets SIGTERM, after GRACE seconds SIGKILL, and is reaped. Standard library only; the file is run
by path. Not covered: the guard itself being killed with SIGKILL (the owner's own stop still ends the
group).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Run the command until it or the owner ends; the command's exit status."""
    descriptor, grace, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    owner = os.getppid()
    # The server's workers become our children when it dies, so that none stays behind as a zombie.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = subprocess.Popen(command, preexec_fn=_default_signals)
    while server.poll() is None:
        closed, _, _ = select.select([descriptor], [], [], 0.25)
        if closed or os.getppid() != owner:
            break
    _end_group(server, grace)
    return server.wait()


def group_members(process_group: int) -> Iterator[int]:
    """Ids of the running (not zombie) processes of a process group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                status = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                state, _, group = status.rpartition(")")[2].split()[:3]
                if int(group) == process_group and state != "Z":
                    yield int(entry.name)


def _default_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_group(server: subprocess.Popen[bytes], grace: float) -> None:
    deadline = time.monotonic() + grace
    with contextlib.suppress(ProcessLookupError):
        os.killpg(0, signal.SIGTERM)
    while (others := set(group_members(os.getpgrp())) - {os.getpid()}) and time.monotonic() < deadline:
        _reap(server)
        time.sleep(0.05)
    for process in others:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    server.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _reap(server: subprocess.Popen[bytes]) -> None:
    """Collect ended children; the server first, because only its own handle may collect it."""
    if server.poll() is not None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
