"""Environments by name and by dotted path, and errors that say what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.environments.counter import CounterEnvironment
from pipeline.environments.registry import BROUGHT, ENVIRONMENTS, load_environment
from pipeline.environments.splits import UNSEEN
from pipeline.errors import ConfigError


@pytest.mark.parametrize(
    "name", [name for name in ENVIRONMENTS if name != "bfcl_multi_turn" and name not in BROUGHT]
)
def test_every_registered_environment_loads_under_its_name(name: str) -> None:
    assert load_environment(name).name == name


def test_the_readme_tells_the_splits_of_every_world_that_ships(repository: Path) -> None:
    letters = {"T": "train", "D": "dev", "H": "heldout", "U": UNSEEN}
    rows = re.findall(r"^\| (`.*`) \| ([TDHU ]+) \|", (repository / "README.md").read_text(), re.MULTILINE)
    told = {
        name: tuple(letters[letter] for letter in splits.split())
        for names, splits in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    assert told == {name: load_environment(name).splits for name in ENVIRONMENTS if name not in BROUGHT}


def test_options_and_dotted_paths() -> None:
    environment = load_environment("pipeline.environments.counter:CounterEnvironment", steps=(2,)).inner
    assert isinstance(environment, CounterEnvironment)
    assert {task.template for task in environment.tasks("dev")} == {"two_steps"}


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        (
            "mars",
            {},
            "there is no environment 'mars'; known environments: counter, travel_desk, ",
        ),
        ("nowhere.at_all:make", {}, "there is no module 'nowhere'"),
        ("pipeline.environments.counter:make", {}, "counter.py) has no 'make'"),
        ("counter", {"colour": 1}, "does not take these options ['colour']"),
        ("sql", {}, "environment sql needs the options databases and tasks"),
        ("simulated", {}, "environment simulated needs the options chat and tasks"),
        ("mcp", {}, "environment mcp needs the options tasks"),
        ("trl_class", {"rows": "a.jsonl"}, "environment trl_class needs the options factory"),
        ("verifiers", {}, "environment verifiers needs the options taskset"),
        ("nemo_gym", {}, "environment nemo_gym needs the options url and rows"),
        (
            "mcp",
            {"tasks": "a", "pool_size": "b"},
            "environment mcp.pool_size: Input should be a valid",
        ),
        (
            "mcp",
            {"tasks": "a", "url": "u", "env": "KEY"},
            "MCP server.env must be a list, each a text",
        ),
        ("sql", {"databases": {}, "tasks": "a"}, "databases names no file; give a path"),
        (
            "sql",
            {"databases": "a", "tasks": "b", "statement_limits": {"max_rows": "x"}},
            "environment sql.statement_limits.max_rows: Input should be a valid integer",
        ),
        (
            "sql",
            {"databases": 3},
            "environment sql.databases must be a text or a path or a mapping to a text",
        ),
        (
            "openapi",
            {"start": "python"},
            "environment openapi.start must be a list, each a text; got 'python'",
        ),
        (
            "search_desk",
            {"hops": 3},
            "environment search_desk.hops must be a list, each a whole number; got 3",
        ),
        ("bfcl_single_turn", {"max_tokens": "a"}, "bfcl_single_turn.max_tokens: Input should be a valid"),
        ("builtins:dict", {}, "dict lacks name, version, splits, tasks, open, gold"),
        (
            "travel_desk",
            {"templates": ["cheapest", "fly"]},
            "travel_desk has no templates ['fly']; it has known_",
        ),
    ],
)
def test_errors_name_what_exists(name: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_environment(name, **options)
    assert text in str(caught.value)


def test_an_option_may_be_called_name() -> None:
    with pytest.raises(ConfigError, match="environment openapi needs the options document and tasks"):
        load_environment("openapi", name="mine")
