"""A small file tree in memory per session: list, read, write, move, delete, search.

State: {"files": {path: text}, "read": paths read}. A path is a key of a dictionary and never reaches the
disk, so there is nothing to traverse to; `..`, empty parts and a file used as a folder are refused like any
wrong argument. Folders exist while a file is in them. Not covered: permissions, times, binary files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from data import canonical
from data.trajectories import Trajectory
from pipeline.checks.answers import bare, last_words
from pipeline.environments.toolkit import ToolSession
from pipeline.environments.tools import ToolError, tool

MAX_PATH_LENGTH = 100
MAX_TEXT_LENGTH = 20_000
MAX_FILES = 200
MAX_FOUND = 20
RENAMED = {
    "list": "ls",
    "read": "show",
    "write": "save",
    "move": "rename",
    "delete": "remove",
    "search": "grep",
}
"""Names shown in the split `heldout_unseen`."""
_ANSWER = re.compile(r"^[\s>*_`]*(ANSWER|REFUSE)\b[\s:*_`]*(.*)$", re.MULTILINE)


class FilesSession(ToolSession):
    """One agent's tree."""

    @tool
    def list(self, folder: str = "") -> str:
        """Names in a folder."""
        inside = f"{clean_path(folder)}/" if folder.strip("/. ") else ""
        rests = [path.removeprefix(inside) for path in self._files if path.startswith(inside)]
        if not rests:
            raise ToolError(f"no folder {folder[:MAX_PATH_LENGTH]}")
        names = {rest.split("/")[0] + ("/" if "/" in rest else "") for rest in rests}
        return "\n".join(sorted(names))

    @tool
    def read(self, path: str) -> str:
        """Text of a file."""
        found = self._existing(path)
        if found not in self.state["read"]:
            self.state["read"].append(found)
        return self._files[found] or "(empty)"

    @tool
    def write(self, path: str, text: str) -> str:
        """Write a file; replaces what it held."""
        target = clean_path(path)
        if len(text) > MAX_TEXT_LENGTH:
            raise ToolError(f"the text is longer than {MAX_TEXT_LENGTH} characters")
        self._refuse_conflict(target)
        if target not in self._files and len(self._files) >= MAX_FILES:
            raise ToolError(f"there are {MAX_FILES} files already")
        self._files[target] = text
        return f"wrote {target}"

    @tool
    def move(self, path: str, to: str) -> str:
        """Move or rename a file."""
        source, target = self._existing(path), clean_path(to)
        if target in self._files:
            raise ToolError(f"{target} exists already")
        self._refuse_conflict(target)
        self._files[target] = self._files.pop(source)
        return f"moved to {target}"

    @tool
    def delete(self, path: str) -> str:
        """Delete a file."""
        target = self._existing(path)
        del self._files[target]
        return f"deleted {target}"

    @tool
    def search(self, text: str) -> str:
        """Find files whose name or text holds a text."""
        wanted = text.lower()
        if not wanted.strip():
            raise ToolError("say what to search for")
        found = [
            path
            for path in sorted(self._files)
            if wanted in path.lower() or wanted in self._files[path].lower()
        ]
        return "\n".join(found[:MAX_FOUND]) or "nothing found"

    def end_state(self) -> dict[str, str]:
        """The tree; what was read changes nothing."""
        return self._files

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """`success` = `state` (exactly the expected files) and `answer` (the typed one, where asked)."""
        private = self.task.private_value()
        state = same_files(self._files, private["files"])
        answer, must_read = True, canonical.loads(private["must_read"])
        if private["answer"]:
            answer = same_answer(read_text(last_words(trajectory.turns)), read_text(private["answer"]))
            answer = answer and (not must_read or must_read in self.state["read"])
        return {"success": float(state and answer), "state": float(state), "answer": float(answer)}

    @property
    def _files(self) -> dict[str, str]:
        files: dict[str, str] = self.state["files"]
        return files

    def _existing(self, path: str) -> str:
        found = clean_path(path)
        if found not in self._files:
            folder = any(other.startswith(f"{found}/") for other in self._files)
            raise ToolError(f"{found} is a folder" if folder else f"no file {found}")
        return found

    def _refuse_conflict(self, target: str) -> None:
        if any(other.startswith(f"{target}/") for other in self._files):
            raise ToolError(f"{target} is a folder")
        parts = target.split("/")
        for length in range(1, len(parts)):
            if "/".join(parts[:length]) in self._files:
                raise ToolError(f"{'/'.join(parts[:length])} is a file, no folder")


class Answer(NamedTuple):
    """A typed final answer: ANSWER or REFUSE, and its value in lower case."""

    kind: str
    value: str


def read_text(text: str) -> Answer | None:
    """`ANSWER notes/a.txt`, `**REFUSE** keep`; the last one of several, None for any other text."""
    found = _ANSWER.findall(text)
    return Answer(found[-1][0], bare(found[-1][1]).lower().removeprefix("./").lstrip("/")) if found else None


def same_answer(given: Answer | None, gold: Answer | None) -> bool:
    """Whether both say the same; a file may be called by its name without the folder."""
    if given is None or gold is None or given.kind != gold.kind:
        return False
    return given.value in (gold.value, gold.value.rsplit("/", 1)[-1])


def same_files(left: Mapping[str, str], right: Mapping[str, str]) -> bool:
    """The same paths with the same texts, whatever white space ends their lines."""
    return left.keys() == right.keys() and all(_lines(left[path]) == _lines(right[path]) for path in left)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def clean_path(path: str) -> str:
    """The path as a key. Raises ToolError."""
    parts = path.strip().removeprefix("./").strip("/").split("/")
    if len(path) > MAX_PATH_LENGTH or any(part in ("", ".", "..") for part in parts):
        raise ToolError(f"no valid path: {path[:MAX_PATH_LENGTH]!r}; write folder/name")
    return "/".join(parts)
