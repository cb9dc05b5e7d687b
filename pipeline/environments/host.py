"""What every environment owes its callers, decided once.

Foreign tasks and unknown splits are refused by name, and open sessions are counted. Not covered: how a
session is made; environments say that in `open`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from data.tasks import Task
from pipeline.environments.gold import PlannedGold
from pipeline.environments.task_file import file_gold
from pipeline.errors import ConfigError


class HostEnvironment:
    """Subclasses set `name` and `splits`, and end a session's life with `_session_closed`."""

    name: str
    splits: tuple[str, ...]
    num_open = 0
    """Sessions opened and not closed yet: anything but 0 after a run is a leak."""

    def check_split(self, split: str, *, known: Sequence[str] = ()) -> None:
        """Raise ConfigError unless `split` is one of `known`; by default of `splits`."""
        if split not in (known or self.splits):
            raise ConfigError(
                f"environment {self.name} has no split {split!r}; it has {', '.join(known or self.splits)}"
            )

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for another environment's task."""
        if task.environment != self.name:
            raise ConfigError(
                f"task {task.task_id} belongs to environment {task.environment!r}, not {self.name!r}"
            )

    def _session_closed(self) -> None:
        self.num_open -= 1


class FileHost(HostEnvironment):
    """An environment whose tasks are those of a file (`task_file`), read once into `_tasks`."""

    _tasks: Sequence[Task]

    def tasks(self, split: str) -> Iterator[Task]:
        """The file's tasks of a split, in its order."""
        self.check_split(split)
        return (task for task in self._tasks if task.split == split)

    def gold(self, task: Task) -> PlannedGold:
        """The file's gold calls."""
        return file_gold(task)


def required(options: dict[str, Any], *names: str, environment: str) -> None:
    """Raise ConfigError naming the options of `names` that are not given."""
    missing = [name for name in names if name not in options]
    if missing:
        raise ConfigError(f"environment {environment} needs the options {' and '.join(missing)}")
