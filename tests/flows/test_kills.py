"""The whole synthesis killed: at every named write point, at random records, and with Ctrl-C."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from pathlib import Path

import pytest

from data import faults
from data.store import Store
from tests.flows import kill_worker
from tests.flows.lab import TABLES, digests, recipe, trajsmith, write_recipe

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.flows.kill_worker"])
RECORDS = 4 + 4 + 6 + 6 * 2
"""Tasks and trajectories of the small recipe, where no infrastructure breaks."""


class Worker:
    """A `trajsmith synth` in a process group of its own."""

    def __init__(self, path: Path, runs: Path, *, kill_at: str = "", hold_at: int = 0) -> None:
        self.reports, other = CONTEXT.Pipe()
        arguments = (path, runs, kill_at, hold_at, other)
        self.process = CONTEXT.Process(target=kill_worker.main, args=arguments)
        self.process.start()
        other.close()
        self.appended: list[int] = []

    def read(self, until: int | None = None) -> None:
        """Take reports until record `until`, or until the process is gone."""
        try:
            while until is None or until not in self.appended:
                self.appended.append(self.reports.recv())
        except EOFError:
            self.process.join()

    def signal_group(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.killpg(self.process.pid, number)


@pytest.fixture(scope="module")
def path(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), recipe(tokenizer))


@pytest.fixture(scope="module")
def undisturbed(path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    runs = tmp_path_factory.mktemp("undisturbed")
    assert trajsmith("synth", path, "--runs", runs).code == 0
    return digests(runs / "small")


def check_next_run(path: Path, runs: Path, undisturbed: dict[str, str], acknowledged: int) -> None:
    """Nothing acknowledged is lost, and the next run ends as an undisturbed one."""
    with Store.open(runs / "small") as store:
        assert sum(len(store.ids(table)) for table in TABLES) >= acknowledged
    again = trajsmith("synth", path, "--runs", runs)
    assert again.code == 0, again.err
    assert digests(runs / "small") == undisturbed
    with Store.open(runs / "small") as store:
        assert sum(1 for table in ("tasks", "trajectories") for _ in store._stream(table)) == RECORDS
    assert not list(runs.rglob("*.tmp"))
    assert trajsmith("synth", path, "--runs", runs).err.count("done before") == 2


@pytest.mark.parametrize(
    ("point", "count"), [(point, 1 + number % 2) for number, point in enumerate(faults.POINTS)]
)
def test_killed_at_every_write_point(
    point: str, count: int, path: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    nth = 11 * count - 3 if "append" in point else count
    worker = Worker(path, tmp_path, kill_at=f"{point}:{nth}")
    worker.read()
    assert worker.process.exitcode == -signal.SIGKILL, "nothing killed the run"
    assert kill_worker.DONE not in worker.appended, "the run was over before the kill"
    check_next_run(path, tmp_path, undisturbed, len(worker.appended))


@pytest.mark.parametrize("seed", range(10))
def test_killed_at_a_random_record(
    seed: int, path: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    wanted = random.Random(seed).randrange(1, RECORDS)
    worker = Worker(path, tmp_path, hold_at=RECORDS)
    worker.read(until=wanted)
    worker.signal_group(signal.SIGKILL)
    worker.read()
    assert worker.process.exitcode == -signal.SIGKILL and kill_worker.DONE not in worker.appended
    check_next_run(path, tmp_path, undisturbed, len(worker.appended))


def test_ctrl_c_ends_with_130_and_the_next_run_goes_on(
    path: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    worker = Worker(path, tmp_path, hold_at=12)
    worker.read(until=12)
    worker.signal_group(signal.SIGINT)
    worker.reports.send("go on")
    worker.read()
    assert worker.process.exitcode == 130
    with Store.open(tmp_path / "small") as store:
        assert 12 <= sum(len(store.ids(table)) for table in TABLES) < RECORDS
    check_next_run(path, tmp_path, undisturbed, 12)
