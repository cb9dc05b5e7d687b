"""`trajsmith synth` in a process of its own that reports every appended record, to be killed at work."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import flows.stages.verbs  # noqa: F401  what the command imports late is loaded once, in the fork server
import synthesizers.demonstration
import synthesizers.rejection_sampling  # noqa: F401
from data import faults
from data.schema import AnyRecord
from data.store import Store
from tests.flows.lab import trajsmith

DONE = -1


def main(recipe: Path, runs: Path, kill_at: str, hold_at: int, reports: Connection) -> None:
    """Report each appended record, wait for a word at number `hold_at`, report DONE; ends as the verb."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ[faults.VARIABLE] = kill_at
    append, count = Store.append, 0

    def reporting(store: Store, record: AnyRecord) -> None:
        nonlocal count
        append(store, record)
        count += 1
        reports.send(count)
        if count == hold_at:
            reports.recv()

    Store.append = reporting  # type: ignore[assignment, method-assign]
    done = trajsmith("synth", recipe, "--runs", runs)
    reports.send(DONE)
    raise SystemExit(done.code)
