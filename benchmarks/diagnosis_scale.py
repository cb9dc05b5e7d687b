"""How long the diagnosis of a large run takes, and how much memory.

    python -m benchmarks.diagnosis_scale [--rows 20000] [--tasks 1000]

A run directory is made of gold episodes of travel_desk without tokens, every row under an id of its own, a
quarter of them cut short; then the stage is run on it as `trajsmith diagnose` does. Not covered: reading long
token streams, which costs what reading them costs everywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from flows.stages.diagnose import diagnose_run
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment

ENVIRONMENT = "travel_desk"


def rows(played: Sequence[Trajectory], count: int) -> Iterator[Trajectory]:
    """`count` rows: every fourth failed, its last turns missing."""
    for number, row in enumerate(islice(cycle(played), count)):
        changes = {"trajectory_id": f"{number:024x}", "rollout_index": number // len(played)}
        if number % 4 == 0 and row.reward is not None:
            cut = {"turns": row.turns[:-2], "reward": row.reward.model_copy(update={"total": 0.0})}
            yield row.model_copy(update={**changes, **cut})
        else:
            yield row.model_copy(update=changes)


async def build(root: Path, *, count: int, num_tasks: int) -> None:
    """The run directory."""
    environment = load_environment(ENVIRONMENT)
    tasks: list[Task] = list(islice(environment.tasks("train"), num_tasks))
    played = [await play(environment, task, environment.gold(task)) for task in tasks]
    with Store.create_or_open(root, {"environment": {"name": ENVIRONMENT, "options": {}}}) as store:
        for task in tasks:
            store.append(task)
        for row in rows(played, count):
            store.append(row)
        store.seal()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print seconds and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--tasks", type=int, default=1_000)
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        root = Path(folder) / "run"
        asyncio.run(build(root, count=given.rows, num_tasks=given.tasks))
        before = resource.getrusage(resource.RUSAGE_SELF)
        started = time.perf_counter()
        with Store.open(root) as store:
            found = asyncio.run(diagnose_run(store))
        seconds = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
    if found is None:
        raise SystemExit("the run holds no trajectories")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{given.rows:,} trajectories of {found.diagnosis.weaknesses.num_tasks:,} tasks: "
        f"{seconds:.1f} s, {cpu:.1f} s of CPU, {1e6 * cpu / given.rows:.0f} µs a row, "
        f"peak {after.ru_maxrss / 1024:.0f} MiB (before: {before.ru_maxrss / 1024:.0f})"
    )


if __name__ == "__main__":
    main()
