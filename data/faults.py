"""Named kill points: a way to test that a run survives `kill -9` exactly where it hurts.

Set TRAJSMITH_KILL_AT="journal.fsync.before" (or "name:3" for the third time) and the process sends
itself SIGKILL when it gets there. Without the variable a kill point costs one dictionary look-up.
The names are in `POINTS`, in the order in which a run meets them; other layers may add their own with
the same call. Not covered: power loss (nothing here drops what the operating system has cached).
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import NoReturn

VARIABLE = "TRAJSMITH_KILL_AT"

POINTS = (
    "journal.append.before",
    "journal.append.middle",  # half a row is on disk
    "journal.fsync.before",
    "journal.fsync.after",
    "shard.rename.before",
    "shard.rename.after",
    "journal.truncate.before",  # all shards are in place, the journal is still there
    "journal.truncate.middle",  # old and new journal exist
    "journal.truncate.after",
    "manifest.before",
    "manifest.after",
)

_hits: Counter[str] = Counter()


def due(name: str) -> bool:
    """Count one arrival at `name`; True where this is the arrival to die at."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return False
    target, _, count = wanted.partition(":")
    if target != name:
        return False
    _hits[name] += 1
    return _hits[name] == int(count or 1)


def kill() -> NoReturn:
    """End this process at once, with no clean-up of any kind."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable: SIGKILL cannot be handled")


def kill_point(name: str) -> None:
    """Die here if the environment asks for it."""
    if due(name):
        kill()
