"""Dataset rows of other libraries: read from JSONL, their messages as turns, their gold as a script.

Two columns of a row are ours: `gold`, a list of {name, arguments} or {say}, without which `env check` cannot
prove that the task is solvable, and `split` ("train" where absent). Private columns are never published.
Not covered: what the other columns mean; each adapter says that.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data.files import numbered_lines
from data.messages import Turn, assistant, system, user
from data.tasks import Task
from pipeline.environments.base import Environment
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.errors import ConfigError

Row = dict[str, Any]
_OURS = ("gold", "split")
_SPEAKERS: dict[str, Callable[[str], Turn]] = {
    "system": system,
    "developer": system,
    "user": user,
    "assistant": assistant,
}


def first_tasks(environment: Environment, split: str, number: int) -> Iterator[Task]:
    """The first `number` tasks of a split. ConfigError where that is no number of tasks."""
    if not isinstance(number, int) or number < 1:
        raise ConfigError(f"tasks must be a whole number of at least 1, got {number!r}")
    return itertools.islice(environment.tasks(split), number)


def read_rows(path: Path, *, check: Callable[[Row], object]) -> list[Row]:
    """The objects of a JSONL file. ConfigError names the line that is none or that `check` raises on."""
    if not path.is_file():
        raise ConfigError(f"rows {path} do not exist; name a JSONL file")
    rows = []
    for number, line in numbered_lines(path.read_text(encoding="utf-8")):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ConfigError(f"a row is an object, not {line[:40]!r}")
            check(row)
        except (ValueError, LookupError, TypeError, ConfigError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path} holds no rows")
    return rows


def splits_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """The splits the rows name, in order of appearance."""
    return tuple(dict.fromkeys(str(row.get("split", "train")) for row in rows))


def parted(row: Row, private: Sequence[str]) -> tuple[Row, Row]:
    """The row's own columns: those that may be published, and the private ones."""
    theirs = {name: value for name, value in row.items() if name not in _OURS}
    hidden = {name: theirs.pop(name) for name in private if name in theirs}
    return theirs, hidden


def turns_of(prompt: str | Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Text or messages as turns. Raises ConfigError."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        turns = tuple(_SPEAKERS[message["role"]](message["content"]) for message in messages)
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(f"prompt {str(prompt)[:80]!r} is neither text nor messages: {error!r}") from error
    if not turns:
        raise ConfigError("the prompt has no message")
    return turns


def gold_of(task: Task) -> PlannedGold:
    """The script of the row's `gold`. ConfigError where it has none."""
    steps = task.private_value()["gold"]
    if steps is None:
        raise ConfigError(
            f"task {task.task_id} has no gold; give its row a column `gold`: [{{name, arguments}}, ...]"
        )
    return PlannedGold(_plan(steps))


def _plan(steps: list[Row]) -> Plan:
    for step in steps:
        yield assistant(step["say"]) if "say" in step else call(step["name"], **step["arguments"])
    if not steps or "say" not in steps[-1]:
        yield assistant("Done.")
