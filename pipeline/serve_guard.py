"""A small parent for the model server that ends the server's whole process group with its owner.

Run as `python serve_guard.py FD COMMAND...` in a process group of its own. The owner holds the
other end of the pipe FD; when that closes, or the owner's process is gone, the group gets SIGTERM,
then SIGKILL. Standard library only; the file is run by path. Not covered: the guard itself being
killed with SIGKILL (then the owner's own stop still ends the group).
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

GRACE_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    """Run the command until it or the owner ends; the command's exit status."""
    descriptor, command = int(arguments[0]), arguments[1:]
    owner = os.getppid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = subprocess.Popen(command, preexec_fn=_default_signals)
    while server.poll() is None:
        closed, _, _ = select.select([descriptor], [], [], 0.5)
        if closed or os.getppid() != owner:
            _end_group(server)
    return server.returncode


def _default_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_group(server: subprocess.Popen[bytes]) -> None:
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
