"""SIGKILL at every named point and at random ones: the next run ends as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import random
import signal
from pathlib import Path

import pytest

from data import faults, journal, shards
from data.schema import Kind
from data.store import Store
from tests.data import kill_worker

TABLES = ("trajectories", "failures", "verdicts")
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.data.kill_worker"])


class Worker:
    """The run in a process of its own, and what it has reported."""

    def __init__(self, root: Path, kill_at: str = "") -> None:
        self._reports, other = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=kill_worker.main, args=(root, kill_at, other))
        self.process.start()
        other.close()
        self.acknowledged: list[int] = []

    def read(self, count: int = 10_000) -> None:
        """Take `count` reports, or all there are until the process is gone."""
        try:
            for _ in range(count):
                self.acknowledged.append(self._reports.recv())
        except EOFError:
            self.process.join()

    def assert_killed_at_work(self) -> None:
        assert self.process.exitcode == -signal.SIGKILL, "nothing killed the run"
        assert kill_worker.DONE not in self.acknowledged, "the run was over before the kill"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("undisturbed") / "run"
    kill_worker.work(root)
    return state(root)


def state(root: Path) -> dict[str, str]:
    with Store.open(root) as store:
        manifest = store.manifest(kill_worker.STAGE)
        assert manifest is not None and manifest["counts"] == {"rows": kill_worker.COUNT}
        return {table: store.digest(table) for table in TABLES}


def stored_rows(root: Path) -> int:
    """Rows on disk, an id counted as often as it is stored."""
    sealed = [
        shards.read_ids(path, Kind(table)) for table in TABLES for path in shards.list_shards(root / table)
    ]
    (log,) = (root / "journal").iterdir()
    with open(log, "rb") as file:
        return sum(map(len, sealed)) + len(list(journal.scan(file.fileno(), log))) - 1


def check_after(root: Path, undisturbed: dict[str, str], acknowledged: list[int]) -> int:
    """Nothing acknowledged is lost; the rerun completes the run. Returns the torn bytes it cut."""
    with Store.open(root) as store:
        found = {int(t.group_id.removeprefix("group")) for t in (*store.trajectories(), *store.failures())}
    assert set(acknowledged) <= found
    torn = kill_worker.work(root)
    assert state(root) == undisturbed
    assert stored_rows(root) == 2 * kill_worker.COUNT
    assert not list(root.rglob("*.tmp"))
    return torn


@pytest.mark.parametrize(
    ("point", "count"),
    [(point, 13 if "append" in point else 1) for point in faults.POINTS]
    + [(point, 26) for point in faults.POINTS if "append" in point]
    + [(point, 2) for point in faults.POINTS if not point.startswith(("journal.append", "manifest"))],
)
def test_killed_at_a_named_point(point: str, count: int, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    root = tmp_path / "run"
    worker = Worker(root, f"{point}:{count}")
    worker.read()
    worker.assert_killed_at_work()
    torn = check_after(root, undisturbed, worker.acknowledged)
    assert (torn > 0) == (point == "journal.append.middle")


@pytest.mark.parametrize("seed", range(10))
def test_killed_at_a_random_time(seed: int, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    root, wanted = tmp_path / "run", random.Random(seed).randrange(1, kill_worker.COUNT - 1)
    worker = Worker(root)
    worker.read(wanted)
    worker.process.kill()
    worker.read()
    worker.assert_killed_at_work()
    check_after(root, undisturbed, worker.acknowledged)


def test_a_kill_point_counts_and_is_silent_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    faults.kill_point("anything")
    monkeypatch.setenv(faults.VARIABLE, "test.point:3")
    assert [
        faults.due(name) for name in ("test.point", "other", "test.point", "test.point", "test.point")
    ] == [
        False,
        False,
        False,
        True,
        False,
    ]
