"""question_dag: items of a file, which are hostile until read; their code runs in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.messages import ToolStatus
from data.tasks import Task
from pipeline.environments.check import check_environment
from pipeline.environments.play import play
from pipeline.environments.question_dag import QuestionDagWorld, load
from pipeline.environments.question_dag.items import read_item
from pipeline.errors import ConfigError
from pipeline.sandbox.base import Outcome
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.repair import StubSandbox
from tests.pipeline.environments.scripts import components, listed

CREW = """
def ship_crew(ship):
    if ship not in DATA:
        raise KeyError(f"no ship {ship!r}")
    return DATA[ship]["crew"]
"""
SHIP = """
def ship_of(voyage, year=1):
    print("noise that goes nowhere")
    return {"alba": "Brio", "cora": "Dune"}[voyage.lower()]
"""
ITEM: dict[str, Any] = {
    "dag": {
        "question": "How many crew has the ship of voyage Alba?",
        "answer": "42",
        "steps": [
            {"text": "What is the ship of voyage Alba?", "answer": "Brio"},
            {"text": "What is the crew of #0?", "answer": "42", "depends_on": [0]},
        ],
    },
    "calls": [
        {"tool": "ship_of", "arguments": {"voyage": "Alba"}},
        {"tool": "ship_crew", "arguments": {"ship": "Brio"}},
    ],
    "tools": [
        {
            "name": "ship_of",
            "description": "The ship of a voyage.",
            "parameters": {
                "type": "object",
                "properties": {"voyage": {"type": "string"}, "year": {"type": "integer"}},
                "required": ["voyage"],
            },
            "code": SHIP,
        },
        {
            "name": "ship_crew",
            "description": "The crew of a ship.",
            "parameters": {
                "type": "object",
                "properties": {"ship": {"type": "string"}},
                "required": ["ship"],
            },
            "code": CREW,
            "data": {"Brio": {"crew": 42}, "Dune": {"crew": 17}},
        },
    ],
}


def changed(path: str, value: Any) -> str:
    """The item's JSON with the value at a place (keys and numbers between dots) exchanged."""
    item = deepcopy(ITEM)
    *way, last = path.split(".")
    place: Any = item
    for key in way:
        place = place[int(key) if key.isdigit() else key]
    place[int(last) if last.isdigit() else last] = value
    return canonical.dumps(item)


DEEP = '{"x":' * 50_000 + "{}" + "}" * 50_000


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuestionDagWorld]:
    path = tmp_path_factory.mktemp("items") / "items.jsonl"
    second = changed("dag.question", "And the crew of voyage Alba's ship?")
    path.write_text(f"{canonical.dumps(ITEM)}\n{second}\n", encoding="utf-8")
    environment = load(items=path)
    yield environment
    asyncio.run(environment.runner.close())


def test_items_are_played_and_judged_by_what_results_say(run: Run, world: QuestionDagWorld) -> None:
    task = next(iter(world.tasks("train")))
    assert world.splits == ("train",)
    played = run(play(world, task, world.gold(task)))
    assert components(played)["success"] == 1
    # Another spelling of the argument gives the same result, so it solves the sub-question, too.
    way = [("ship_of", {"voyage": "ALBA"}), ("ship_crew", {"ship": "Brio"})]
    assert components(run(play(world, task, listed(*way, "ANSWER 42"))))["success"] == 1
    # The other voyage's ship does not say the sub-answer.
    way = [("ship_of", {"voyage": "Cora"}), ("ship_crew", {"ship": "Brio"})]
    found = components(run(play(world, task, listed(*way, "ANSWER 42"))))
    assert (found["solved"], found["right"], found["success"]) == (1, 1, 0)


def test_code_and_data_show_nowhere(run: Run, world: QuestionDagWorld) -> None:
    task = next(iter(world.tasks("train")))

    async def shown() -> str:
        async with await world.open(task) as session:
            specs = [tool.model_dump_json() for tool in session.tools]
            return "\n".join([*(turn.text for turn in task.prompt), *specs])

    text = run(shown())
    assert "DATA" not in text and "Brio" not in text and "42" not in text
    assert "CREW" not in task.private and "def " not in task.private


def test_items_pass_the_checks_of_every_world(run: Run, world: QuestionDagWorld) -> None:
    results = run(check_environment(world, num_tasks=2, num_ids=2))
    failed = {result.name: result.detail for result in results if not result.passed}
    # Both items have the same way and answer, which is what a hard-coder plays.
    assert set(failed) <= {"hard-coder scores 0"}, failed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1]", "should be an object"),
        ("{", "line 1"),
        (changed("dag.answer", "43"), "answers '42', not '43'"),
        (changed("dag.steps.1.depends_on", [1]), "depends on 1"),
        (changed("dag.steps.1.depends_on", [True]), "valid integer"),
        (changed("dag.steps.0.needs_tool", False), "needs no tool and is no leaf"),
        (changed("dag.steps.0.answer", 7), "valid string"),
        (changed("calls", []), "0 calls for 2 sub-questions"),
        (changed("calls.0", None), "sub-question 0: a call belongs"),
        (changed("calls.0.tool", "rm"), "calls 'rm', which is no tool"),
        (changed("calls.0.arguments", {"ship": 1}), "missing argument: voyage"),
        (changed("calls.1.arguments", {"ship": 1}), "wrong type: ship"),
        (changed("tools.0.name", "../x"), "is no name of a tool"),
        (changed("tools.1.name", "ship_of"), "two tools have one name"),
        (changed("tools.0.parameters", {"type": "array"}), "JSON Schema of type object"),
        (changed("tools.0.parameters.properties.voyage", {"type": "text", "x": []}), "no JSON Schema"),
        (
            changed("tools.0.parameters.properties.voyage", {"type": "string", "pattern": "(a+)+$"}),
            "use pattern",
        ),
        (changed("tools.0.parameters.properties.voyage", {"$ref": "http://127.0.0.1/x"}), "use $ref"),
        (changed("tools.0.data", {"x": "deep"}).replace('"deep"', DEEP), "recursion"),
        (changed("tools.0.code", "x" * 30_000), "at most 20000"),
        (changed("tools.0.data", {"x": "y" * 300_000}), "longer than 200,000"),
        (changed("tools", []), "at least 1"),
        (changed("split", "../../etc"), "match pattern"),
        (changed("more", 1), "Extra inputs"),
        (changed("dag.question", "\ud800?"), "hex escape"),
    ],
)
def test_each_defect_of_an_item_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match="line 1") as caught:
        read_item(text, where="items.jsonl, line 1")
    assert problem in str(caught.value), caught.value


def test_a_file_without_items_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text("\n\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="there are none"):
        load(items=path)


def test_a_task_whose_state_was_tampered_with_is_refused(run: Run, world: QuestionDagWorld) -> None:
    task = next(iter(world.tasks("train")))
    brought = task.state_value()["tools"]
    # A world's name does not pass code off as the package's own, which runs without a sandbox.
    ours = {"world": "", "tools": brought}
    for state in ({}, {"tools": 3}, {"tools": [{"name": "x"}]}, {"tools": brought[:1]}, ours):
        values = task.model_dump(exclude={"task_id", "state"})
        with pytest.raises(ConfigError, match="tools"):
            run(world.open(Task(**values, state=canonical.dumps(state))))


HOSTILE = {
    "reads": ("def t(x):\n    return open('/etc/shadow').read()\n", "No such file"),
    "network": (
        "import socket\ndef t(x):\n    return socket.create_connection(('127.0.0.1', 80), 1)\n",
        "Error",
    ),
    "floods": ("def t(x):\n    return 'a' * 100_000\n", "the result is too long"),
    "exits": ("import os\ndef t(x):\n    os._exit(3)\n", "without an answer"),
    "no function": ("x = 1\n", "t"),
    "no JSON": ("def t(x):\n    return object()\n", "which is not JSON"),
    "not a number": ("def t(x):\n    return float('nan')\n", "JSON compliant"),
    "syntax": ("def t(x:\n", "SyntaxError"),
    "forges": (
        "import os\ndef t(x):\n    for fd in range(3, 20):\n        try:\n"
        "            os.write(fd, b'{\"value\": 1}{')\n        except OSError:\n            pass\n"
        "    os._exit(0)\n",
        "without an answer",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_code_is_an_observation(run: Run, world: QuestionDagWorld, name: str) -> None:
    code, expected = HOSTILE[name]
    task = next(iter(world.tasks("train")))
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    state = {"tools": [{"name": "t", "description": "T.", "parameters": parameters, "code": code}]}
    values = task.model_dump(exclude={"task_id", "state", "tools"})
    bad = Task(**values, state=canonical.dumps(state), tools=("t",))

    async def answer() -> Any:
        async with await world.open(bad) as session:
            return await session.call("t", {"x": "y"}, "1")

    result = run(answer())
    assert result.status is ToolStatus.TOOL_ERROR
    assert expected in result.text
    assert "root:" not in result.text


def test_sets_answer_the_same_in_every_process(run: Run, world: QuestionDagWorld) -> None:
    task = next(iter(world.tasks("train")))
    code = "def t(x):\n    return {word for word in x.split()}\n"
    parameters = {"type": "object", "properties": {"x": {"type": "string"}}}
    state = {"tools": [{"name": "t", "description": "T.", "parameters": parameters, "code": code}]}
    values = task.model_dump(exclude={"task_id", "state", "tools"})
    good = Task(**values, state=canonical.dumps(state), tools=("t",))

    async def answer() -> str:
        async with await world.open(good) as session:
            return (await session.call("t", {"x": "delta alpha gamma beta"}, "1")).text

    assert run(answer()) == '["alpha","beta","delta","gamma"]'


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (Outcome.TIMEOUT, ToolStatus.TOOL_ERROR),
        (Outcome.OUT_OF_MEMORY, ToolStatus.TOOL_ERROR),
        (None, ToolStatus.INFRA_ERROR),
    ],
)
def test_a_tool_that_breaks_is_an_observation_a_sandbox_that_breaks_is_not(
    run: Run, world: QuestionDagWorld, outcome: Outcome | None, status: ToolStatus
) -> None:
    task, environment = next(iter(world.tasks("train"))), load()
    environment.runner._sandbox = StubSandbox(outcome)

    async def answer() -> object:
        async with await environment.open(task) as session:
            return (await session.call("ship_of", {"voyage": "Alba"}, "1")).status

    assert run(answer()) is status
