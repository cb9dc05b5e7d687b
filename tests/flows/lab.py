"""What the stages' tests share: a small recipe, the command line in this process, bad worlds."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import yaml

from data import canonical
from data.messages import assistant
from data.store import Store
from data.tasks import Task
from flows import cli
from pipeline.environments.counter import CounterEnvironment
from pipeline.environments.gold import PlannedGold, call

TABLES = ("tasks", "trajectories", "failures")


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def recipe(tokenizer: Path, **changes: Any) -> dict[str, Any]:
    """A recipe of 4 demonstrations and 6 x 2 rollouts of the scripted policy; dotted keys change it."""
    value: dict[str, Any] = {
        "name": "small",
        "environment": {"name": "counter"},
        "policy": {
            "engine": "scripted",
            "mistakes": 0.3,
            "model": str(tokenizer),
            "max_turn_tokens": 96,
            "max_context_tokens": 2048,
            "max_in_flight": 4,
        },
        "synth": {
            "demonstrations": {"synthesizer": "demonstration", "tasks": 4},
            "rollouts": {"synthesizer": "rejection_sampling", "tasks": 6, "skip": 4, "options": {"k": 2}},
        },
        "evaluate": {"tasks": 8},
    }
    for key, change in changes.items():
        *path, last = key.split(".")
        section = value
        for part in path:
            section = section[part]
        section[last] = change
    return value


def write_recipe(folder: Path, value: Mapping[str, Any], name: str = "recipe.yaml") -> Path:
    """The recipe as a file in `folder`."""
    path = folder / name
    path.write_text(yaml.safe_dump(dict(value)))
    return path


def trajsmith(*arguments: str | Path) -> Done:
    """Run the command's entry point in this process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", ["trajsmith", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def digests(root: Path) -> dict[str, str]:
    """Content of a run's tables: what "the same result" means."""
    with Store.open(root) as store:
        return {table: store.digest(table) for table in TABLES}


class WrongGold(CounterEnvironment):
    """A counter whose gold adds one too many."""

    def gold(self, task: Task) -> PlannedGold:
        """Wrong by one call."""

        def plan() -> Any:
            for amount in [*canonical.loads(task.private)["amounts"], 1]:
                yield call("add", amount=amount)
            yield assistant("Done.")

        return PlannedGold(plan())


class BrokenTool(CounterEnvironment):
    """A counter that cannot be opened."""

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        """Breaks, as a database that is down would."""
        raise OSError("the counter's database is down")


def wrong_gold(**options: Any) -> WrongGold:
    """Factory of WrongGold."""
    return WrongGold(**options)


def broken(**options: Any) -> BrokenTool:
    """Factory of BrokenTool."""
    return BrokenTool(**options)


class SometimesBroken(CounterEnvironment):
    """A counter that cannot be opened where it starts in the thirties, sixties or nineties."""

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        """Breaks for some tasks, whoever plays them."""
        if task.state_value()["value"] // 10 % 3 == 0:
            raise OSError("the counter's database is down")
        return await super().open(task, seed=seed)


def sometimes_broken(**options: Any) -> SometimesBroken:
    """Factory of SometimesBroken."""
    return SometimesBroken(**options)


class Faulty(CounterEnvironment):
    """A counter with a fault in the user's own code."""

    fault = ""

    def tasks(self, split: str) -> Iterator[Task]:
        """The tasks, unless their list is down."""
        if self.fault == "no_tasks":
            raise OSError("the task list is down")
        return super().tasks(split)

    def gold(self, task: Task) -> PlannedGold:
        """None, or one that breaks in the middle."""
        if self.fault == "no_gold":
            raise TypeError("gold was never written")

        def plan() -> Any:
            yield call("add", amount=1)
            raise KeyError("price")

        return PlannedGold(plan())


def no_tasks() -> Faulty:
    """Factory of a Faulty without tasks."""
    return _faulty("no_tasks")


def no_gold() -> Faulty:
    """Factory of a Faulty without gold."""
    return _faulty("no_gold")


def torn_gold() -> Faulty:
    """Factory of a Faulty whose gold breaks."""
    return _faulty("torn_gold")


def no_licence() -> Faulty:
    """A factory that fails."""
    raise OSError("no licence")


def _faulty(fault: str) -> Faulty:
    environment = Faulty()
    environment.fault = fault
    return environment
