"""BFCL multi-turn base: what is offered. The package, the split, the tools shown and their schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from data import canonical
from data.messages import ToolCall, Turn
from data.tasks import Task
from pipeline.checks.calls import check_call
from pipeline.environments.bfcl import dataset, load
from pipeline.environments.bfcl.environment import BfclEnvironment
from pipeline.environments.bfcl.worlds import load_class, read_gold
from pipeline.errors import ConfigError, MissingExtraError
from tests.pipeline.environments.conftest import Run

installed = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="bfcl_eval is not installed; run: make bfcl-setup"
)


@pytest.fixture(scope="module")
def environment() -> BfclEnvironment:
    return load()


@pytest.fixture(scope="module")
def tasks(environment: BfclEnvironment) -> list[Task]:
    return list(environment.tasks("all"))


def test_without_the_package_the_error_holds_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(dataset, "version", missing)
    with pytest.raises(MissingExtraError, match="found: not installed; run: make bfcl-setup"):
        load()
    monkeypatch.setattr(dataset, "version", lambda name: "1.0")
    with pytest.raises(MissingExtraError, match=r"reads bfcl-eval 20\S+, found: 1.0"):
        load()


def test_the_setup_script_installs_the_release_that_is_read(repository: Path) -> None:
    script = (repository / "scripts" / "bfcl_setup.sh").read_text(encoding="utf-8")
    assert re.findall(r"^version=(.*)$", script, re.MULTILINE) == [dataset.VERSION]


@installed
def test_the_split_is_even_and_odd(environment: BfclEnvironment, tasks: list[Task]) -> None:
    halves = {split: list(environment.tasks(split)) for split in environment.splits}
    assert list(halves) == ["train", "heldout"]
    assert halves["train"] == tasks[0::2] and halves["heldout"] == tasks[1::2] and len(tasks) == 200
    assert [task.synthesizer.rsplit("_", 1)[1] for task in tasks] == [str(index) for index in range(200)]
    assert len({task.task_id for task in tasks}) == 200
    assert load(whole=True).splits == ("all",)
    with pytest.raises(ConfigError, match="no split 'dev'; it has train, heldout, all"):
        next(environment.tasks("dev"))
    with pytest.raises(ConfigError, match="tools is 'all' or 'gold'"):
        load(tools="some")


@installed
def test_gold_tools_and_distractors(run: Run, environment: BfclEnvironment, tasks: list[Task]) -> None:
    small, again = load(tools="gold", distractors=2), load(tools="gold", distractors=2)
    assert len({environment.version, small.version, load(tools="gold").version}) == 3
    assert list(small.tasks("all")) == list(again.tasks("all"))
    for task, row in zip(small.tasks("all"), dataset.rows(), strict=True):
        used = {read_gold(text, row.classes)[0] for turn in row.gold for text in turn}
        assert task.tools is not None and used < set(task.tools) and len(task.tools) == len(used) + 2
    session = run(small.open(task))
    assert tuple(spec.name for spec in session.tools) == task.tools
    wrong = task.model_copy(update={"tools": ("fly",)})
    with pytest.raises(ConfigError, match=r"task shows tools \['fly'\]"):
        run(small.open(wrong))
    with pytest.raises(ConfigError, match="belongs to environment 'counter'"):
        run(small.open(task.model_copy(update={"environment": "counter"})))


@installed
def test_schemas_are_valid_compact_and_fit_all_gold_calls(
    environment: BfclEnvironment, tasks: list[Task]
) -> None:
    specs = {spec.name: spec for name in dataset._DOCUMENTS for spec in dataset.documented_tools(name)}
    assert len(specs) == 128
    for name in dataset._DOCUMENTS:
        methods = {method for method in dir(load_class(name)) if not method.startswith("_")}
        assert methods == {spec.name for spec in dataset.documented_tools(name)}
    for spec in specs.values():
        Draft202012Validator.check_schema(canonical.loads(spec.parameters))
        assert "belongs to" not in spec.description and spec.description[:1].isupper()
    refused: list[ToolCall] = []
    for task in tasks:
        for turn in _gold_turns(environment, task):
            refused += [call for call in turn.tool_calls if not check_call(call, [*specs.values()]).ok]
    assert refused == []


def _gold_turns(environment: BfclEnvironment, task: Task) -> Iterator[Turn]:
    script = environment.gold(task)
    while (turn := script.next_turn(task.prompt)) is not None:
        yield turn
