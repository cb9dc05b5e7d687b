"""What is published: three views that load back equal, a card, and nothing private."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from data import canonical, formats, leaks, messages, schema, shards
from data.card import VIEWS
from data.curated import read_curated
from data.errors import ConfigError, StoreError
from data.leaks import LeakError
from data.media import MediaStore
from data.messages import ToolCall, ToolResult
from data.publish import publish
from data.schema import Kind
from data.store import Store
from data.trajectories import Trajectory
from tests.data import records

RECIPE = {"seed": 1}
ANSWER = "the 07:45 to Oslo with a window seat"
PRIVATE = canonical.dumps({"gold": [{"name": "book", "arguments": {"offer": 3}}], "answer": ANSWER})


def make_run(root: Path, rows: list[Trajectory] | None = None, count: int = 6) -> Path:
    """A run with tasks that have private parts, verdicts and curated rows."""
    tasks = [records.make_task(n, private=PRIVATE) for n in range(count)]
    made = rows or [records.make_trajectory(n, task_id=task.task_id) for n, task in enumerate(tasks)]
    with Store.create_or_open(root, RECIPE) as store:
        for task in tasks:
            store.append(task)
        for n, row in enumerate(made):
            store.append(row)
            store.append(records.make_verdict(n, name="schema_valid"))
            if n:
                store.append(
                    records.make_verdict(n, keep=n != 1, name="duplicate", reason="copy" if n == 1 else "ok")
                )
        store.append(records.make_trajectory(90, reward=None))
        store.write_curated(made, lambda: "# curated")
    return root


def load(folder: Path, view: str, cache: Path) -> list[dict[str, Any]]:
    import datasets

    return list(datasets.load_dataset(str(folder), view, split="train", cache_dir=str(cache)))


def test_curated_loads_with_datasets_and_reads_back(tmp_path: Path) -> None:
    import datasets

    nasty = records.make_trajectory(1, error="\ud800 \ufdd0", turns=(messages.user("\x00<tool_call>"),))
    rows = [records.make_trajectory(0), nasty, records.make_trajectory(2, segments=())]
    with Store.create_or_open(tmp_path / "run", RECIPE) as store:
        assert store.write_curated(iter(rows), lambda: "# the card") == 3
        assert list(store.read_curated()) == rows
    folder = tmp_path / "run" / "curated"
    assert {path.suffix for path in folder.iterdir()} == {".parquet", ".md"}
    loaded = datasets.load_dataset(
        "parquet", data_dir=str(folder), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert [schema.from_row(Kind.TRAJECTORIES, row) for row in loaded] == rows


def test_an_empty_curation_still_loads(tmp_path: Path) -> None:
    with Store.create_or_open(tmp_path / "run", RECIPE) as store:
        assert store.write_curated([], lambda: "# none") == 0
        assert list(store.read_curated()) == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_nothing_curated_is_nothing_to_publish(tmp_path: Path, dry_run: bool) -> None:
    root = make_run(tmp_path / "run")
    with Store.create_or_open(root, RECIPE) as store:
        store.write_curated([], lambda: "# none")
    with pytest.raises(ConfigError, match=r"kept none of the 6 trajectories .*`trajsmith curate RECIPE`"):
        publish(root, to=str(tmp_path / "out"), dry_run=dry_run)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("license_id", ["", " \n"])
def test_an_empty_license_is_none(tmp_path: Path, license_id: str) -> None:
    root = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="names none; give an SPDX id such as"):
        publish(root, to=str(tmp_path / "out"), license_id=license_id)
    assert not (tmp_path / "out").exists()


def test_curated_is_replaced_whole(tmp_path: Path) -> None:
    with Store.create_or_open(tmp_path / "run", RECIPE) as store:
        store.write_curated([records.make_trajectory(n) for n in range(5)], lambda: "# one")
        store.write_curated([records.make_trajectory(9)], lambda: "# two")
        assert [t.task_id for t in store.read_curated()] == ["task9"]
        assert (tmp_path / "run/curated/README.md").read_text() == "# two"
    with pytest.raises(ConfigError, match="no curated trajectories; run `trajsmith curate RECIPE` first"):
        read_curated(tmp_path / "nowhere")


def test_a_curation_that_failed_leaves_the_old_one_and_nothing_half_made(tmp_path: Path) -> None:
    def rows() -> Iterator[Trajectory]:
        yield records.make_trajectory(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    with Store.create_or_open(tmp_path / "run", RECIPE) as store:
        store.write_curated([records.make_trajectory(9)], lambda: "# one")
        with pytest.raises(StoreError, match="no space left"):
            store.write_curated(rows(), lambda: "# two")
        assert [t.task_id for t in store.read_curated()] == ["task9"]
        assert not list((tmp_path / "run").glob("curated.*"))


def test_curated_shards_are_on_disk_before_the_folder_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", noting)
    with Store.create_or_open(tmp_path / "run", RECIPE) as store:
        store.write_curated([records.make_trajectory(1)], lambda: "# one")
    assert {path.stat().st_ino for path in (tmp_path / "run/curated").iterdir()} <= synced


def test_published_views_load_back_equal(tmp_path: Path) -> None:
    run, target = make_run(tmp_path / "run"), tmp_path / "out"
    publication = publish(
        run, to=str(target), license_id="apache-2.0", model_label="M, dequantised from Q4_1"
    )
    rows = list(read_curated(run / "curated"))
    assert publication.counts == {"records": 6, "messages": 6, "tokens": 6}
    assert publication.files == {
        str(p.relative_to(target)): p.stat().st_size for p in target.rglob("*") if p.is_file()
    }
    cache = tmp_path / "cache"
    assert [schema.from_row(Kind.TRAJECTORIES, row) for row in load(target, "records", cache)] == rows
    for row, loaded in zip(rows, load(target, "messages", cache), strict=True):
        assert loaded == formats.messages_row(row)
    tokens = load(target, "tokens", cache)
    assert [formats.segment_from_row(row) for row in tokens] == [row.segments[0] for row in rows]
    assert tokens == [row for trajectory in rows for row in formats.token_rows(trajectory)]


def test_the_card_states_funnel_lineage_model_and_licence(tmp_path: Path) -> None:
    card = publish(
        make_run(tmp_path / "run"),
        to=str(tmp_path / "out"),
        license_id="mit",
        model_label="M, dequantised from Q4_1",
    ).card
    assert (tmp_path / "out" / "README.md").read_text() == card
    front = yaml.safe_load(card.split("---")[1])
    assert front["license"] == "mit"
    assert {c["config_name"]: c["data_files"] for c in front["configs"]} == {
        view: f"{view}/*.parquet" for view in ("messages", "records", "tokens")
    }
    assert "Model: M, dequantised from Q4_1. Licence: mit." in card
    assert "| rollouts | 7 | 6 | no reward 1 |" in card
    assert "| schema_valid | 6 | 6 |  |" in card
    assert "| duplicate | 5 | 4 | copy 1 |" in card
    assert "| published |  | 6 |  |" in card
    assert "- policy: student (weights w0) (6)" in card and "- environment: desk, version 1 (6)" in card
    assert card.index("| schema_valid") < card.index("| duplicate")


def test_no_published_byte_holds_a_private_value(tmp_path: Path) -> None:
    publish(make_run(tmp_path / "run"), to=str(tmp_path / "out"))
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    text = "\n".join(
        json.dumps([row for row, _ in shards.read_rows(path)])
        if path.suffix == ".parquet"
        else path.read_text()
        for path in files
    )
    assert "Book trip 3." in text and ANSWER not in text and json.dumps(PRIVATE)[1:-1] not in text


def with_turns(*extra: messages.Turn, system: str = "Be brief.") -> Trajectory:
    task = records.make_task(0, private=PRIVATE)
    turns = (messages.system(system), task.prompt[1], *extra)
    return records.make_trajectory(0, task_id=task.task_id, turns=turns, segments=())


def result(text: str) -> messages.Turn:
    return messages.tool(ToolResult(call_id="c", name="book", parts=messages.text_parts(text)))


LEAKS = {
    "in the prompt": with_turns(messages.assistant("x"), system=f"The answer is {ANSWER}."),
    "in a tool result": with_turns(messages.assistant("x"), result(f"log: {ANSWER}")),
    "the whole private text": with_turns(messages.assistant("x"), messages.user(PRIVATE)),
    "whole, said by the agent": with_turns(messages.assistant(PRIVATE)),
    "in a label": with_turns(messages.assistant("x")).model_copy(update={"labels": (f"gold={ANSWER}",)}),
    "in the error": with_turns(messages.assistant("x")).model_copy(update={"error": f"expected {ANSWER}"}),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leaking_row_stops_the_publication(name: str, tmp_path: Path) -> None:
    run, target = make_run(tmp_path / "run", [LEAKS[name]]), tmp_path / "out"
    with pytest.raises(LeakError, match=rf"trajectory {LEAKS[name].trajectory_id} of task .* private value"):
        publish(run, to=str(target))
    assert not target.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize(
    "turns",
    [
        (messages.assistant(f"I booked {ANSWER}."), result(f"booked {ANSWER}")),
        (
            messages.assistant("", ToolCall(call_id="c", arguments=canonical.dumps({"x": ANSWER}))),
            result(ANSWER),
        ),
        (messages.assistant("Which?"), messages.user(ANSWER), result(ANSWER)),
    ],
    ids=["the agent said it", "the agent wrote it as an argument", "a later user turn said it"],
)
def test_what_the_agent_found_out_is_no_leak(turns: tuple[messages.Turn, ...]) -> None:
    leaks.check_trajectory(with_turns(*turns), records.make_task(0, private=PRIVATE))


def test_a_value_that_the_task_shows_is_no_secret() -> None:
    task = records.make_task(
        0, private=canonical.dumps({"city": "Book trip 0."}), state='{"code":"ABCDEFGHIJ"}'
    )
    assert leaks.private_strings(task) == []
    hidden = records.make_task(
        0, private=canonical.dumps({"city": "Trondheim", "n": 12345678901, "s": "short"})
    )
    assert leaks.private_strings(hidden) == ["Trondheim"]


def test_a_leaking_card_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LeakError, match="the card holds a private value of task"):
        publish(make_run(tmp_path / "run"), to=str(tmp_path / "out"), model_label=f"knows {ANSWER}")


def test_a_trajectory_of_an_unknown_task_cannot_be_checked(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [records.make_trajectory(0, task_id="elsewhere")])
    with pytest.raises(ConfigError, match=r"task elsewhere of trajectory .* is not in the run"):
        publish(run, to=str(tmp_path / "out"))


def test_dry_run_builds_everything_and_leaves_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    publication = publish(run / "curated", to=str(tmp_path / "out"), dry_run=True)
    assert publication.counts["tokens"] == 6 and "README.md" in publication.files
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_targets_that_are_refused_before_any_work(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="holds something that is no earlier publication"):
        publish(run, to=str(run))
    for name in ("no-user", "a/b/c", "user/na me"):
        with pytest.raises(ConfigError, match="hub name"):
            publish(run, to=f"hub:{name}")
    with pytest.raises(ConfigError, match="neither a run directory nor the curated/ of one"):
        publish(tmp_path / "nowhere", to=str(tmp_path / "out"))


def test_publishing_again_replaces_the_earlier_publication(tmp_path: Path) -> None:
    publish(make_run(tmp_path / "a"), to=str(tmp_path / "out"))
    publish(make_run(tmp_path / "b", count=2), to=str(tmp_path / "out"))
    assert len(load(tmp_path / "out", "records", tmp_path / "cache")) == 2


def test_a_folder_of_the_users_is_never_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a neighbour called *.old, nor the target of a link, nor a README, nor where the user stands."""
    run, out = make_run(tmp_path / "run"), tmp_path / "out"
    (tmp_path / "out.old").mkdir()
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").write_text("mine")
    for place in (out, out, tmp_path / "link"):
        publish(run, to=str(place))
    assert (tmp_path / "out.old").is_dir() and (tmp_path / "link").is_symlink()
    assert {path.name for path in (tmp_path / "real").iterdir()} == {"README.md", *VIEWS}
    monkeypatch.chdir(tmp_path / "mine")
    for to, said in (
        (tmp_path / "mine", "is the folder you are in"),
        ("", "is the folder you are in"),
        (tmp_path, "is the folder you are in, or holds it"),
        ("x" * 300, "cannot name a folder: .*File name too long"),
        ("a\0b", "cannot name a folder: embedded null byte"),
    ):
        with pytest.raises(ConfigError, match=said):
            publish(run, to=str(to))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no earlier publication"):
        publish(run, to="mine")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out", "out.old", "real", "link", "mine"}


def test_what_a_killed_publication_left_is_removed_and_one_at_work_is_not(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in (".trajsmith-publish-killed", ".trajsmith-publish-working", ".publish-mine"):
        (tmp_path / name / "new").mkdir(parents=True)
    working = os.open(tmp_path / ".trajsmith-publish-working", os.O_RDONLY)
    fcntl.flock(working, fcntl.LOCK_EX)
    publish(run, to=str(tmp_path / "out"))
    os.close(working)
    kept = {".trajsmith-publish-working", ".publish-mine", "run", "out"}
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_workplace_that_another_publication_removed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may do so as long as the folder is not held."""
    run = make_run(tmp_path / "run")
    removed: list[Path] = []
    hold = fcntl.flock

    def hold_late(held: int, how: int) -> None:
        folder = Path(os.readlink(f"/proc/self/fd/{held}"))
        if folder.name.startswith(".trajsmith-publish-") and len(removed) < 2:
            removed.append(folder)
            shutil.rmtree(folder)
        hold(held, how)

    monkeypatch.setattr("data.publish.fcntl.flock", hold_late)
    publish(run, to=str(tmp_path / "out"))
    assert len(removed) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out"}


class FakeHub:
    """Keeps what is uploaded; `forgets` is left out of the listing, `error` is raised by the upload."""

    def __init__(self, forgets: str = "", error: OSError | None = None) -> None:
        self.calls: list[str] = []
        self.files: dict[str, bytes] = {"records/old.parquet": b"", "LICENSE": b""}
        self.private: bool | None = None
        self._forgets, self._error = forgets, error

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> None:
        self.calls.append(f"create {repo_type} {repo_id} {exist_ok}")
        self.private = private

    def upload_folder(
        self,
        *,
        repo_id: str,
        folder_path: Path,
        repo_type: str,
        commit_message: str,
        delete_patterns: list[str],
    ) -> None:
        self.calls.append(f"commit {repo_type} {repo_id}: {commit_message}")
        if self._error:
            raise self._error
        assert delete_patterns == ["*.parquet", "media/*"]
        self.files = {name: data for name, data in self.files.items() if not name.endswith(".parquet")}
        for path in Path(folder_path).rglob("*"):
            if path.is_file():
                self.files[str(path.relative_to(folder_path))] = path.read_bytes()

    def list_repo_files(self, repo_id: str, *, repo_type: str) -> list[str]:
        return [name for name in self.files if name != self._forgets]


def test_the_hub_gets_one_commit(tmp_path: Path) -> None:
    hub = FakeHub()
    publication = publish(make_run(tmp_path / "run"), to="hub:someone/trips", client=hub)
    assert hub.calls == [
        "create dataset someone/trips True",
        "commit dataset someone/trips: Publish 6 trajectories",
    ]
    assert hub.private is True
    assert hub.files.keys() == publication.files.keys() | {"LICENSE"}
    for name, data in hub.files.items():
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert len(load(tmp_path / "copy", "messages", tmp_path / "cache")) == 6


@pytest.mark.parametrize("options", [{}, {"dry_run": True}, {"client": FakeHub()}])
def test_without_the_hubs_package_the_next_step_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    run = make_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"needs huggingface_hub; .*pip install 'trajsmith\[publish\]'"):
        publish(run, to="hub:someone/trips", **options)
    assert publish(run, to=str(tmp_path / "folder")).counts["records"]


def test_a_dry_run_never_calls_the_hub(tmp_path: Path) -> None:
    hub = FakeHub()
    publish(make_run(tmp_path / "run"), to="hub:someone/trips", client=hub, dry_run=True)
    assert hub.calls == []


def test_a_hub_that_lost_a_file_or_refuses_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(StoreError, match=r"does not list tokens/part-00000\.parquet of someone/trips"):
        publish(run, to="hub:someone/trips", client=FakeHub(forgets="tokens/part-00000.parquet"))
    with pytest.raises(StoreError, match=r"the hub refused someone/trips: .*403.*check HF_TOKEN"):
        publish(run, to="hub:someone/trips", client=FakeHub(error=OSError("403")))


def test_the_real_client_has_the_calls_that_are_made() -> None:
    import inspect

    from huggingface_hub import HfApi

    for name in ("create_repo", "upload_folder", "list_repo_files"):
        wanted = inspect.signature(getattr(FakeHub, name)).parameters
        assert wanted.keys() <= inspect.signature(getattr(HfApi, name)).parameters.keys()


def with_medium(root: Path, data: bytes) -> Path:
    """A run whose rows name one medium, twice."""
    part = MediaStore(root / "media").put(data, "image/png")
    picture = messages.tool(ToolResult(call_id="c", name="book", parts=(part,)))
    return make_run(root, [with_turns(messages.assistant("x"), picture, picture)])


def test_media_are_published_with_their_rows(tmp_path: Path) -> None:
    run, out = with_medium(tmp_path / "run", b"pixels"), tmp_path / "out"
    publication = publish(run, to=str(out))
    assert publication.counts["media"] == 1
    [name] = [name for name in publication.files if name.startswith("media/")]
    assert (out / name).read_bytes() == b"pixels"
    assert publish(run, to=str(out)).counts == publication.counts
    assert len(load(out, "messages", tmp_path / "cache")) == 1


def test_a_medium_that_leaks_or_is_lost_stops_the_publication(tmp_path: Path) -> None:
    run = with_medium(tmp_path / "leaky", f"caption: {ANSWER}".encode())
    with pytest.raises(LeakError, match="medium"):
        publish(run, to=str(tmp_path / "out"))
    run = with_medium(tmp_path / "lost", b"pixels")
    next((run / "media").iterdir()).unlink()
    with pytest.raises(ConfigError, match="keep the folder with its run"):
        publish(run, to=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
