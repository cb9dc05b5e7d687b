"""The work that the kill tests kill: a run that adds what is missing, seals now and then, and finishes.

`python -m tests.data.kill_worker ROOT` prints one line per appended record and "done" at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from data.store import Store
from tests.data import records

COUNT = 24
RECIPE = {"seed": 7}
STAGE = "synth"


def work(root: Path) -> int:
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
                print("appended", number, flush=True)
            if f"{verdict.trajectory_id}/{verdict.filter}" not in judged:
                store.append(verdict)
            if number % 10 == 9:
                store.seal(shard_rows=4)
        counts = {"rows": len(store.ids("trajectories")) + len(store.ids("failures"))}
        store.finish_stage(STAGE, key="k", counts=counts, versions={}, inputs={})
        store.seal(shard_rows=4)
        return store.torn_bytes


if __name__ == "__main__":
    work(Path(sys.argv[1]))
    print("done", flush=True)
