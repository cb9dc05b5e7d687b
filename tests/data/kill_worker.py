"""The work that the kill tests kill: a run that adds what is missing, seals now and then, and finishes.

It runs in a process of its own, forked from a server that has everything imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from data import faults
from data.store import Store
from tests.data import records

COUNT = 24
RECIPE = {"seed": 7}
STAGE = "synth"
DONE = -1
"""Reported last, by a worker that nothing killed."""


def main(root: Path, kill_at: str, reports: Connection) -> None:
    """Entry point of the process: report the number of each appended record, then DONE.

    Without a kill point it stops at the last record until it is killed from outside.
    """
    os.environ[faults.VARIABLE] = kill_at

    def report(number: int) -> None:
        reports.send(number)
        if not kill_at and number == COUNT - 1:
            reports.recv()

    work(root, report)
    reports.send(DONE)


def work(root: Path, report: Callable[[int], None] = lambda number: None) -> int:
    """Do the missing part of the run; returns the bytes of a torn tail that opening cut."""
    with Store.create_or_open(root, RECIPE) as store:
        if store.manifest(STAGE) is not None:
            return store.torn_bytes
        have = store.ids("trajectories") | store.ids("failures")
        judged = store.ids("verdicts")
        for number in range(COUNT):
            row = records.make_trajectory(number, reward=None if number % 6 == 0 else 1.0)
            verdict = records.make_verdict(number)
            if row.trajectory_id not in have:
                store.append(row)
                report(number)
            if f"{verdict.trajectory_id}/{verdict.filter}" not in judged:
                store.append(verdict)
            if number % 10 == 9:
                store.seal(shard_rows=4)
        counts = {"rows": len(store.ids("trajectories")) + len(store.ids("failures"))}
        store.finish_stage(STAGE, key="k", counts=counts, versions={}, inputs={})
        store.seal(shard_rows=4)
        return store.torn_bytes
