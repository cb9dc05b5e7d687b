"""Publish a run's curated trajectories as one data set: three views and a card, to a folder or the hub.

The directory is built and checked beside the target first; the target changes only when all of it is
there. On the hub that is one commit, which also removes files of an earlier publication. What a killed
publication left beside the target is removed by the next one.
The hub token is read from HF_TOKEN by the hub's own client and nowhere else.
Not covered: tasks are not published (their private part is what must stay here).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from data import formats, leaks, schema
from data.card import Funnel, Lineage, make_card
from data.errors import ConfigError, StoreError
from data.files import disk_errors, replace_directory, sync_file
from data.media import FOLDER as MEDIA
from data.media import MediaStore
from data.recipe import FILE as RECIPE_FILE
from data.schema import Kind, Row
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory

HUB = "hub:"
_WORKPLACE = ".trajsmith-publish-"
SHARD_ROWS = 10_000
_BATCH_ROWS = 64
_PENDING_TOKENS = 100_000
"""Rows wait in memory until there are this many tokens of them, or _BATCH_ROWS."""

_VIEWS: dict[str, tuple[pa.Schema, Callable[[Trajectory], Iterable[Row]]]] = {
    "records": (schema.arrow_schema(Kind.TRAJECTORIES), lambda t: [schema.decode(schema.to_json(t))]),
    "messages": (formats.MESSAGES_SCHEMA, lambda t: [formats.messages_row(t)]),
    "tokens": (formats.TOKENS_SCHEMA, formats.token_rows),
}


class HubClient(Protocol):
    """The three calls of `huggingface_hub.HfApi` that publishing makes."""

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool, exist_ok: bool) -> Any: ...

    def upload_folder(
        self,
        *,
        repo_id: str,
        folder_path: Path,
        repo_type: str,
        commit_message: str,
        delete_patterns: list[str],
    ) -> Any: ...

    def list_repo_files(self, repo_id: str, *, repo_type: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Publication:
    """What was, or with `dry_run` would be, published."""

    target: str
    counts: dict[str, int]
    """Rows per view."""
    files: dict[str, int]
    """Relative path -> bytes."""
    card: str


def publish(
    source: Store | Path,
    *,
    to: str,
    license_id: str = "other",
    model_label: str = "",
    title: str = "",
    tasks: Iterable[Task] = (),
    funnel: Funnel | None = None,
    private: bool = True,
    dry_run: bool = False,
    client: HubClient | None = None,
) -> Publication:
    """Publish the curated trajectories of a run (its directory, its `curated/`, or an open Store).

    `to` is a folder or "hub:USER/NAME". `tasks` adds tasks that the run itself does not hold; every
    trajectory's task must be known, or its private part could not be checked. `funnel` is what the card tells
    of the filters; by default all stored verdicts, those of earlier curations included. `dry_run` builds and
    checks everything in a temporary folder and leaves the target alone. Raises LeakError, ConfigError,
    StoreError.
    """
    target = _check_target(to)
    if not license_id.strip():
        raise ConfigError(
            f"license {license_id!r} names none; give an SPDX id such as apache-2.0, or leave it at other"
        )
    with ExitStack() as stack:
        store = (
            source if isinstance(source, Store) else stack.enter_context(Store.open(_run_of(Path(source))))
        )
        workplace = stack.enter_context(_workplace(target, dry_run=dry_run))
        folder = workplace / "new"
        title = title or (target.name if isinstance(target, Path) else target.split("/")[-1])
        labels = {"title": title, "license_id": license_id, "model_label": model_label}
        known = {task.task_id: task for stream in (store.tasks(), tasks) for task in stream}
        publication = _build(store, folder, known, to, labels, funnel)
        if dry_run:
            return publication
        if isinstance(target, Path):
            with disk_errors(target, safe="the run is untouched"):
                replace_directory(folder, target, aside=workplace / "old")
        else:
            _push(client or _hub().HfApi(), target, folder, publication, private=private)
    return publication


def _build(
    store: Store, folder: Path, tasks: dict[str, Task], to: str, labels: dict[str, str], funnel: Funnel | None
) -> Publication:
    lineage = Lineage()
    with disk_errors(folder, safe="the run is untouched"):
        folder.mkdir()
        media = _MediaCopy(MediaStore(store.root / MEDIA), folder / MEDIA)
        counts = _write_views(folder, _checked(store.read_curated(), tasks, lineage, media))
        if not any(counts.values()):
            raise ConfigError(
                f"nothing to publish: curation kept none of the {len(store.ids(Kind.TRAJECTORIES))} "
                f"trajectories of {store.root}. Change the filters and run `trajsmith curate RECIPE`, which "
                "prints what each filter dropped"
            )
        counts |= {MEDIA: media.count} if media.count else {}
        failures = len(store.ids(Kind.FAILURES))
        card = make_card(
            **labels,
            lineage=lineage,
            funnel=Funnel.of(store.verdicts()) if funnel is None else funnel,
            num_rollouts=len(store.ids(Kind.TRAJECTORIES)) + failures,
            num_failures=failures,
        )
        leaks.check_text(card, "the card", tasks)
        (folder / "README.md").write_text(card, encoding="utf-8")
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in paths:
            sync_file(path)
        files = {str(path.relative_to(folder)): path.stat().st_size for path in paths}
    return Publication(target=to, counts=counts, files=files, card=card)


def _checked(
    rows: Iterable[Trajectory], tasks: dict[str, Task], lineage: Lineage, media: _MediaCopy
) -> Iterator[Trajectory]:
    for trajectory in rows:
        task = tasks.get(trajectory.task_id)
        if task is None:
            raise ConfigError(
                f"task {trajectory.task_id} of trajectory {trajectory.trajectory_id} is not in the run, so "
                "nothing can prove that its private part stays private; pass the tasks it was made from"
            )
        leaks.check_trajectory(trajectory, task)
        media.add(trajectory, task)
        lineage.add(trajectory)
        yield trajectory


def _write_views(folder: Path, rows: Iterable[Trajectory]) -> dict[str, int]:
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(_ViewWriter(folder / name, layout))
            for name, (layout, _) in _VIEWS.items()
        }
        pending = 0
        for trajectory in rows:
            for name, (_, view) in _VIEWS.items():
                for row in view(trajectory):
                    writers[name].add(row)
            pending += 1 + sum(len(segment.token_ids) for segment in trajectory.segments)
            if pending >= _PENDING_TOKENS:
                pending = 0
                for writer in writers.values():
                    writer.drain()
    return {name: writer.count for name, writer in writers.items()}


class _MediaCopy:
    """The media that published rows name, checked for leaks and copied once each."""

    def __init__(self, source: MediaStore, folder: Path) -> None:
        self.count = 0
        self._source, self._folder = source, folder
        self._checked: set[tuple[str, str]] = set()

    def add(self, trajectory: Trajectory, task: Task) -> None:
        """Check and copy the media of a row. Raises LeakError, ConfigError for a medium that is not here."""
        for sha256 in {part.media_sha256 for turn in trajectory.turns for part in turn.content} - {""}:
            if (sha256, task.task_id) in self._checked:
                continue
            self._checked.add((sha256, task.task_id))
            data = self._source.read(sha256)
            leaks.check_medium(trajectory, task, sha256, data)
            path = self._source.find(sha256)
            assert path is not None, "it was just read"
            target = self._folder / path.name
            if not target.exists():
                self._folder.mkdir(exist_ok=True)
                target.write_bytes(data)
                self.count += 1


class _ViewWriter:
    """Rows into `folder/part-NNNNN.parquet`, a new file every SHARD_ROWS rows; at least one file."""

    def __init__(self, folder: Path, layout: pa.Schema) -> None:
        self.count = 0
        self._folder, self._layout = folder, layout
        self._rows: list[Row] = []
        folder.mkdir()
        self._writer = self._open()

    def __enter__(self) -> _ViewWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.drain()
        self._writer.close()

    def add(self, row: Row) -> None:
        """Add one row; starts a new file when the last is full."""
        if self.count and self.count % SHARD_ROWS == 0:
            self.drain()
            self._writer.close()
            self._writer = self._open()
        self._rows.append(row)
        self.count += 1
        if len(self._rows) == _BATCH_ROWS:
            self.drain()

    def _open(self) -> pq.ParquetWriter:
        path = self._folder / f"part-{self.count // SHARD_ROWS:05d}.parquet"
        return pq.ParquetWriter(path, self._layout, compression="zstd", write_page_checksum=True)

    def drain(self) -> None:
        """Hand the waiting rows to the file."""
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._layout))
            self._rows = []


def _push(client: HubClient, name: str, folder: Path, publication: Publication, *, private: bool) -> None:
    try:
        client.create_repo(name, repo_type="dataset", private=private, exist_ok=True)
        client.upload_folder(
            repo_id=name,
            folder_path=folder,
            repo_type="dataset",
            commit_message=f"Publish {publication.counts['records']} trajectories",
            delete_patterns=["*.parquet", f"{MEDIA}/*"],
        )
        listed = set(client.list_repo_files(name, repo_type="dataset"))
    except OSError as error:
        raise StoreError(
            f"the hub refused {name}: {error}. An upload is one commit, so nothing is half there; "
            "check HF_TOKEN and the name, then publish again"
        ) from error
    missing = sorted(publication.files.keys() - listed)
    if missing:
        raise StoreError(
            f"the hub does not list {', '.join(missing)} of {name} after the upload; publish again"
        )


def _check_target(to: str) -> Path | str:
    if to.startswith(HUB):
        return _check_repo_name(to.removeprefix(HUB))
    try:
        target = Path(to).resolve()
        entries = {path.name for path in target.iterdir()} if target.exists() else set()
    except NotADirectoryError:
        raise ConfigError(f"{to} is a file; name a new or empty folder") from None
    except (OSError, RuntimeError, ValueError) as error:  # too long, unreadable, a circle of links, a NUL
        raise ConfigError(f"{to!r:.120} cannot name a folder: {error!s:.120}; name another one") from error
    if Path.cwd().is_relative_to(target):
        raise ConfigError(f"{target} is the folder you are in, or holds it; name a new or empty folder")
    if entries and not _VIEWS.keys() <= entries <= {"README.md", MEDIA, *_VIEWS}:
        raise ConfigError(f"{to} holds something that is no earlier publication; name a new or empty folder")
    return target


def _check_repo_name(name: str) -> str:
    hub = _hub()
    try:
        hub.utils.validate_repo_id(name)
    except hub.errors.HFValidationError as error:
        raise ConfigError(f"hub name {name!r} is not allowed: {error}") from error
    if name.count("/") != 1:
        raise ConfigError(f"hub name {name!r} must be USER/NAME")
    return name


def _hub() -> Any:
    """The hub's package. ConfigError with the install command where it is not there."""
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.utils
    except ImportError:
        raise ConfigError(
            "publishing to the hub needs huggingface_hub; install it with: pip install 'trajsmith[publish]', "
            "or publish to a folder"
        ) from None
    return huggingface_hub


def _run_of(path: Path) -> Path:
    for candidate in (path, path.parent):
        if (candidate / RECIPE_FILE).exists():
            return candidate
    raise ConfigError(f"{path} is neither a run directory nor the curated/ of one (no {RECIPE_FILE} found)")


@contextmanager
def _workplace(target: Path | str, *, dry_run: bool) -> Iterator[Path]:
    """An empty folder that is gone afterwards: beside a folder target, so that its parts can be renamed."""
    parent = target.parent if isinstance(target, Path) and not dry_run else Path(tempfile.gettempdir())
    with disk_errors(parent, safe="the run is untouched"):
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(parent)
        folder, held = _held_folder(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _held_folder(parent: Path) -> tuple[Path, int]:
    """A new folder and the descriptor by which it is held: until then another publication may remove it."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_WORKPLACE, dir=parent))
        with suppress(FileNotFoundError), ExitStack() as stack:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, held)
            fcntl.flock(held, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(held), os.stat(folder)):
                stack.pop_all()
                return folder, held


def _remove_abandoned(parent: Path) -> None:
    """Remove the workplaces of killed publications: those that no process holds."""
    for folder in parent.glob(f"{_WORKPLACE}*/"):
        with suppress(OSError):  # held, or another user's
            found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(found)
