"""Files that are there whole or not at all, and one clear error for a disk that cannot take them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from data.errors import StoreError

TEMPORARY: Final = ".tmp"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TODO = dict.fromkeys(_FULL, "free space") | dict.fromkeys((errno.EEXIST, errno.ENOTDIR), "free the path")


@contextmanager
def disk_errors(path: Path, *, safe: str) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what is `safe` and what to do next."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        what = "no space left" if error.errno in _FULL else (error.strerror or str(error))
        todo = _TODO.get(error.errno or 0, "make the path readable and writable")
        raise StoreError(
            f"cannot write {path}: {what}. {safe}; {todo} and run the same command again"
        ) from error


def user_path(written: str | Path) -> Path:
    """A path as a person writes it: ~ is their home; a ~ of nobody stays as it is, and leads nowhere."""
    return Path(os.path.expanduser(written))


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """The lines of a JSONL text that are not blank, from 1 on: rows may hold any line end but a line feed."""
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def sync_file(path: Path) -> None:
    """Return once what was written to `path` is on disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def fsync_directory(path: Path) -> None:
    """Make renames and deletions inside `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, text: str) -> None:
    """Write `path` so that a reader or a crash sees the old content or the new, never a part."""
    temporary = path.with_name(path.name + TEMPORARY)
    with disk_errors(path, safe="its old content is untouched"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_directory(path.parent)


def replace_directory(fresh: Path, folder: Path, *, aside: Path) -> None:
    """Put the complete directory `fresh` in the place of `folder`, whose old content goes last.

    `aside` is a path of the caller's on the same disk, where the old content waits; what is there is lost.
    """
    shutil.rmtree(aside, ignore_errors=True)
    if folder.exists():
        folder.rename(aside)
    fresh.rename(folder)
    fsync_directory(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)
