"""A run directory: append, seal, read, resume, refuse."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from data import journal, shards
from data.errors import ConfigError, RecordError, StoreError
from data.schema import Kind
from data.store import Store
from data.tasks import Budget
from data.trajectories import EnvironmentRef, Origin, Segment, Span, SpanKind, Trajectory
from tests.data import records

RECIPE = {"seed": 1, "engine": {"url": "http://a", "model": "m"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


def fill(store: Store, count: int = 20) -> None:
    """Tasks, trajectories (every fifth a failure), verdicts, one pair."""
    for n in range(count):
        store.append(records.make_task(n))
        store.append(records.make_trajectory(n, reward=None if n % 5 == 0 else float(n % 2)))
        store.append(records.make_verdict(n, keep=n % 2 == 1))
    turn = (records.messages.user("x"),)
    store.append(records.Pair(pair_id="p", prompt=turn, chosen=turn, rejected=(), parents=("a",)))


def digests(store: Store) -> dict[str, str]:
    return {kind: store.digest(kind) for kind in Kind}


def test_rows_are_the_same_before_and_after_sealing_and_reopening(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store)
        before = digests(store)
        rows = {t.trajectory_id: t for t in store.trajectories()}
        assert len(rows) == 16 and len(list(store.failures())) == 4
        store.seal(shard_rows=7)
        assert digests(store) == before
    names = sorted(path.name for path in (root / "trajectories").iterdir())
    assert names == [shards.shard_name(0, n) for n in range(3)]
    sealed = [t.trajectory_id for t in Store.open(root).trajectories()]
    assert sealed == sorted(rows)
    with Store.open(root) as store:
        assert {t.trajectory_id: t for t in store.trajectories()} == rows
        assert digests(store) == before
        assert len(list(store.tasks())) == 20 and len(list(store.verdicts())) == 20
        assert [pair.pair_id for pair in store.pairs()] == ["p"]


def test_unsealed_rows_survive_closing(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store)
        before = digests(store)
    assert not list(root.glob("*/*.parquet"))
    with Store.create_or_open(root, RECIPE) as store:
        assert digests(store) == before


def test_failures_hold_exactly_the_rows_without_reward(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        store.append(records.make_trajectory(1, reward=0.0))
        store.append(records.make_trajectory(2, reward=None))
        assert [t.reward.total for t in store.trajectories() if t.reward] == [0.0]
        assert [t.task_id for t in store.failures()] == ["task2"]


@pytest.mark.parametrize("seals", ["", "first", "both"])
def test_the_latest_append_of_an_id_wins(root: Path, seals: str) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        store.append(records.make_verdict(1, keep=False))
        store.append(records.make_verdict(2))
        if seals:
            store.seal()
        store.append(records.make_verdict(1, keep=True))
        if seals == "both":
            store.seal()
        found = sorted(store.verdicts(), key=lambda verdict: verdict.trajectory_id)
        key = f"{records.make_trajectory(1).trajectory_id}/outcome"
        assert len(found) == 2 and all(verdict.keep for verdict in found)
        got = store.get("verdicts", key)
        assert isinstance(got, records.Verdict) and got.keep
        assert len(store.ids("verdicts")) == 2


def test_get_and_ids(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store, 10)
        store.seal(shard_rows=3)
        extra = records.make_trajectory(50)
        store.append(extra)
        wanted = records.make_trajectory(7)
        assert store.get("trajectories", wanted.trajectory_id) == wanted
        assert store.get("trajectories", extra.trajectory_id) == extra
        assert store.get("trajectories", "nothing") is None
        assert store.ids("trajectories") == {t.trajectory_id for t in store.trajectories()}
        with pytest.raises(ConfigError, match="no table 'curated'"):
            store.ids("curated")


def test_digest_ignores_order_clocks_and_run_name_only(tmp_path: Path) -> None:
    base = [records.make_trajectory(n) for n in range(4)]
    clocks = {"started_at": 9.0, "seconds": 3.0}

    def late(t: Trajectory) -> Trajectory:
        turns = tuple(turn.model_copy(update=clocks) for turn in t.turns)
        usage = t.usage.model_copy(update={"seconds": 5.0})
        return t.model_copy(update={"turns": turns, "usage": usage, "run_id": "other"})

    def digest(name: str, rows: list[Trajectory]) -> str:
        with Store.create_or_open(tmp_path / name, RECIPE) as store:
            for row in rows:
                store.append(row)
            return store.digest("trajectories")

    same = digest("a", base)
    assert digest("b", [late(t) for t in reversed(base)]) == same
    assert digest("c", [*base[:3], base[3].model_copy(update={"weight": 0.5})]) != same
    assert digest("d", base[:3]) != same


def test_a_reader_keeps_its_view_while_the_writer_seals(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as writer:
        fill(writer)
        before = digests(writer)
        with Store.open(root) as reader:
            stream = reader.trajectories()
            first = next(stream)
            writer.seal()
            writer.append(records.make_trajectory(99))
            assert len({first.trajectory_id, *(t.trajectory_id for t in stream)}) == 16
            assert digests(reader) == before


def test_a_reader_neither_locks_nor_writes(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as writer:
        fill(writer, 2)
        with Store.open(root) as reader, pytest.raises(StoreError, match="open for reading or closed"):
            reader.append(records.make_task(5))
        writer.append(records.make_task(6))


def test_one_writer_and_the_error_names_the_holder(root: Path) -> None:
    taken = pytest.raises(StoreError, match=rf"being written by process {os.getpid()};")
    with Store.create_or_open(root, RECIPE), taken:
        Store.create_or_open(root, RECIPE)
    Store.create_or_open(root, RECIPE).close()


def test_a_lock_that_a_full_disk_refused_is_free(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(StoreError, match="no space left"):
        patched.setattr(os, "pwrite", full)
        Store.create_or_open(root, RECIPE)
    Store.create_or_open(root, RECIPE).close()


def test_the_lock_of_a_dead_writer_is_free(root: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from data.store import Store\n"
        f"store = Store.create_or_open(Path({str(root)!r}), {RECIPE!r}); os._exit(7)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode
        == 7
    )
    Store.create_or_open(root, RECIPE).close()


def test_a_run_that_holds_nothing_takes_another_recipe(root: Path) -> None:
    """Its first command may have been refused for what the recipe said."""
    Store.create_or_open(root, RECIPE).close()
    (root / "server.log").write_text("no model")
    with Store.create_or_open(root, {"seed": 2}) as store:
        assert store.recipe == {"seed": 2}


def test_a_changed_recipe_is_refused_with_the_difference(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        store.append(records.make_trajectory(0))
    changed = {"seed": 2, "engine": {"url": "http://b", "model": "m", "retries": 3}}
    with pytest.raises(ConfigError) as caught:
        Store.create_or_open(root, changed, volatile=["engine.url"])
    text = str(caught.value)
    assert "  seed: 1 -> 2" in text and "  engine.retries: (absent) -> 3" in text and "Choose:" in text
    assert "engine.url" not in text
    assert Store.open(root).recipe == RECIPE
    Store.create_or_open(root, RECIPE).close()


def test_a_volatile_change_is_taken_over(root: Path) -> None:
    Store.create_or_open(root, RECIPE).close()
    changed = {"seed": 1, "engine": {"url": "http://b", "model": "m"}}
    with Store.create_or_open(root, changed, volatile=["engine.url"]) as store:
        assert store.recipe == changed
    with Store.create_or_open(root, {"seed": 1, "engine": {"model": "x"}}, volatile=["engine"]) as store:
        assert store.recipe["engine"] == {"model": "x"}


def test_a_growing_number_may_only_grow(root: Path) -> None:
    growing = ["synth.*.tasks"]

    def recipe(tasks: object) -> dict[str, object]:
        return {"synth": {"demos": {"tasks": tasks, "options": {"tasks": 1}}}}

    with Store.create_or_open(root, recipe(9), growing=growing) as store:
        store.append(records.make_trajectory(0))
    with Store.create_or_open(root, recipe(10), growing=growing) as store:
        assert store.recipe == recipe(10)
    for wrong in (9, "many", None):
        with pytest.raises(ConfigError, match=r"synth\.demos\.tasks: 10 -> "):
            Store.create_or_open(root, recipe(wrong), growing=growing)
    deeper = {"synth": {"demos": {"tasks": 10, "options": {"tasks": 2}}}}
    with pytest.raises(ConfigError, match=r"options\.tasks: 1 -> 2"):
        Store.create_or_open(root, deeper, growing=growing)


def test_a_damaged_shard_is_one_clear_error_whatever_reads_it(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        for n in range(2):
            store.append(records.make_trajectory(n))
            store.seal()
        damaged = sorted((root / "trajectories").iterdir())[0]
        damaged.write_bytes(damaged.read_bytes()[:-20])
        for read in (lambda: list(store.trajectories()), lambda: store.ids("trajectories")):
            with pytest.raises(StoreError, match=f"cannot read .*{damaged.name}.*delete it, and run"):
                read()


def test_a_flipped_byte_of_a_shard_gives_no_other_rows(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        for n in range(3):
            store.append(records.make_trajectory(n))
        store.seal()
        rows, refused = list(store.trajectories()), 0
        [shard] = (root / "trajectories").iterdir()
        whole = shard.read_bytes()
        footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        for place in range(4, footer, footer // 150):
            shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            try:
                assert list(store.trajectories()) == rows, place
            except StoreError:
                refused += 1
    assert refused > 75


def test_paths_that_are_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not a run directory: it has no recipe\.yaml"):
        Store.open(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is not a directory"):
        Store.create_or_open(tmp_path / "file", RECIPE)
    with pytest.raises(ConfigError, match="the recipe holds a value that YAML cannot"):
        Store.create_or_open(tmp_path / "run", {"x": object()})


def test_a_torn_tail_is_cut_and_reported(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store, 4)
        before = digests(store)
    with open(root / "journal" / "00000.log", "ab") as file:
        file.write(journal.encode("tasks", "x", b'{"half":1}')[:-9])
    with Store.open(root) as reader:
        assert digests(reader) == before
    with Store.create_or_open(root, RECIPE) as store:
        assert store.torn_bytes > 0
        assert digests(store) == before


def test_damage_in_the_journal_refuses_to_open(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store, 4)
    log = root / "journal" / "00000.log"
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    for attempt in (lambda: Store.open(root), lambda: Store.create_or_open(root, RECIPE)):
        with pytest.raises(StoreError, match=r"00000\.log is damaged at byte 0"):
            attempt()


def test_a_damaged_shard_is_named(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store, 4)
        store.seal()
        path = next((root / "tasks").glob("*.parquet"))
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(StoreError, match=str(path.name)):
            list(store.tasks())


def test_a_refused_record_leaves_the_store_as_it_was(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store, 4)
        before = digests(store)
        with pytest.raises(RecordError):
            store.append(records.make_trajectory(9).model_copy(update={"weight": float("nan")}))
        with pytest.raises(RecordError, match="cannot store a str"):
            store.append("text")  # type: ignore[arg-type]
        assert digests(store) == before


def test_appends_seal_by_themselves(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.store.SEAL_ROWS", 10)
    with Store.create_or_open(root, RECIPE) as store:
        for n in range(25):
            store.append(records.make_verdict(n))
        assert len(list((root / "verdicts").glob("*.parquet"))) == 2
        assert len(list(store.verdicts())) == 25


def test_a_seal_that_failed_half_way_is_done_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store)
        before = digests(store)
        real, left = shards.write_shard, [3]

        def write_shard(path: Path, kind: Kind, lines: Iterable[bytes]) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise StoreError("no space left")
            return real(path, kind, lines)

        monkeypatch.setattr(shards, "write_shard", write_shard)
        with pytest.raises(StoreError, match="no space left"):
            store.seal(shard_rows=4)
        assert len(list(root.glob("*/*.parquet"))) == 3
        assert digests(store) == before
        left[0] = 1000
        store.seal(shard_rows=50)
        assert len(list(root.glob("*/*.parquet"))) == len(Kind)
        assert digests(store) == before


def test_manifests_are_written_last_and_read_back(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        assert store.manifest("synth") is None
        parts = {"counts": {"rows": 3}, "versions": {"code": "1"}, "inputs": {"tasks": "abc"}}
        store.finish_stage("synth", key="k", **parts)
        assert store.manifest("synth") == {"stage": "synth", "key": "k", **parts}
        with pytest.raises(ConfigError, match="stage name 'a/b'"):
            store.manifest("a/b")
        (root / "manifests" / "synth.json").write_text("{")
        with pytest.raises(StoreError, match=r"synth\.json is no summary of stage synth.*delete it"):
            store.manifest("synth")


def test_another_process_sees_the_rows(root: Path) -> None:
    with Store.create_or_open(root, RECIPE) as store:
        fill(store, 5)
        store.flush()
        code = f"from data.store import Store; print(len(Store.open({str(root)!r}).ids('tasks')))"
        run = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
            text=True,
        )
    assert run.stdout.strip() == "5"


def test_a_number_too_large_for_its_column_is_refused_before_it_is_acknowledged(root: Path) -> None:
    def seeded(seed: int) -> Trajectory:
        return records.make_trajectory(1, environment=EnvironmentRef(name="e", version="1", seed=seed))

    def with_token(token: int) -> Trajectory:
        span = Span(0, 1, SpanKind.PROMPT, 0)
        segment = Segment(origin=Origin.RENDERED, token_ids=(token,), spans=(span,))
        return records.make_trajectory(2, segments=(segment,))

    with Store.create_or_open(root, RECIPE) as store:
        for wrong in (seeded(2**63), seeded(-(2**63) - 1), with_token(2**31)):
            with pytest.raises(RecordError, match=r"Trajectory '[0-9a-f]{24}' cannot be stored"):
                store.append(wrong)
        with pytest.raises(RecordError, match="cannot be stored"):
            store.append(records.make_task(3, budget=Budget(max_tokens=2**70)))
        largest = [seeded(2**63 - 1), with_token(2**31 - 1)]
        for record in largest:
            store.append(record)
        store.seal()
        assert sorted(map(repr, store.trajectories())) == sorted(map(repr, largest))
        assert not store.ids("tasks")


def test_a_path_that_cannot_hold_a_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"File name too long\. nothing was changed"):
        Store.create_or_open(tmp_path / ("x" * 300), RECIPE)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a run directory"):
        Store.open(tmp_path / "file")
    (tmp_path / "recipe.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"recipe\.yaml is not YAML in UTF-8"):
        Store.open(tmp_path)
