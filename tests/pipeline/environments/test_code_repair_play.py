"""code_repair, played: the worked example, gold, milestones, tools, and a sandbox that breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from data.messages import Role, ToolStatus, assistant
from data.tasks import Task
from data.trajectories import Termination
from pipeline.engines.base import Sampling
from pipeline.environments.code_repair import CodeRepair, load
from pipeline.environments.code_repair.generator import make_task
from pipeline.environments.code_repair.harness import MAX_TEXT
from pipeline.environments.code_repair.mutants import defects_of
from pipeline.environments.code_repair.programs import SEEN
from pipeline.environments.code_repair.session import MILESTONES, TESTS, RepairSession
from pipeline.environments.code_repair.workspace import Level
from pipeline.environments.gold import call
from pipeline.errors import ConfigError, JudgeError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import RolloutSettings, rollout
from pipeline.sandbox.base import Outcome
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.repair import StubSandbox, broken, played, results, submitted, worked_example
from tests.pipeline.environments.scripts import components
from tests.pipeline.rollout_world import Speaker
from tests.tiny import make_tiny_tokenizer


def test_the_worked_example_step_by_step(run: Run, repair_world: CodeRepair) -> None:
    task = worked_example()
    trajectory = played(
        run,
        repair_world,
        task,
        call("read_file", path="search.py"),
        call("edit", old="low = mid\n", new="low = mid + 1\n"),
        call("run_tests"),
        call("edit", old="high = mid\n", new="high = mid - 1\n"),
        call("run_tests"),
        call("finish"),
        assistant("never said: finish ends the episode"),
    )
    read, first, tests, second, again, end = results(trajectory)
    assert "low = mid\n" in read and "high = mid\n" in read
    assert [first, second, end] == ["patch applied", "patch applied", "submitted"]
    assert tests == "4 of 5 passed\nsearch([1, 3, 5], 0): timed out after 20000 steps"
    assert again == "5 of 5 passed"
    assert trajectory.turns[-1].role is Role.TOOL
    assert components(trajectory) == {
        "success": 1,
        "submitted": 1,
        "hidden": 1,
        "step/read_file": 1,
        "step/run_tests": 2,
        **{f"milestone/{name}": 1 for name in MILESTONES},
    }


def test_half_a_repair_fails_although_most_cases_pass(run: Run, repair_world: CodeRepair) -> None:
    task = worked_example()
    half = played(
        run, repair_world, task, call("edit", old="low = mid\n", new="low = mid + 1\n"), call("finish")
    )
    found = components(half)
    assert found["success"] == 0 and found["submitted"] == 1
    assert 0 < found["hidden"] < 1


@pytest.mark.parametrize("level", list(Level))
def test_gold_reads_edits_tests_and_submits(run: Run, repair_world: CodeRepair, level: Level) -> None:
    trajectory = played(run, repair_world, broken(level))
    names = [one.name for turn in trajectory.turns for one in turn.tool_calls]
    first = [] if level is Level.FUNCTION else ["run_tests"]
    assert names == [*first, "read_file", "edit", "run_tests", "finish"]
    assert trajectory.success and components(trajectory)["milestone/all_green"] == 1


def test_a_silent_bug_fails_only_hidden_cases(run: Run, repair_world: CodeRepair) -> None:
    name, index = next(
        (name, at) for name in SEEN for at, defect in enumerate(defects_of(name)) if not defect.red
    )
    task = make_task(name, index, "train", level=Level.FUNCTION)
    assert "silent" in task.tags
    untouched = played(run, repair_world, task, call("run_tests"), call("run_tests"), call("finish"))
    total = len(task.state_value()["tests"])
    assert results(untouched)[0] == f"{total} of {total} passed"
    assert components(untouched)["success"] == 0
    assert components(untouched)["milestone/all_green"] == 0  # green from the start: nothing was achieved
    assert played(run, repair_world, task).success


def test_milestones_pay_once(run: Run, repair_world: CodeRepair) -> None:
    task = broken()
    [path] = task.state_value()["files"]
    edits = [
        turn
        for turn in played(run, repair_world, task).turns
        if turn.tool_calls and turn.tool_calls[0].name == "edit"
    ]
    undo = edits[0].tool_calls[0].parsed_arguments()
    back = call("edit", old=undo["new"], new=undo["old"])
    again = [call("read_file", path=path), call("run_tests")]
    trajectory = played(
        run, repair_world, task, *again, *edits, *again, back, *again, *edits, *again, call("finish")
    )
    paid = [turn.result.reward for turn in trajectory.turns if turn.result and turn.result.reward]
    assert sum(paid) == len(MILESTONES)
    assert trajectory.success


def test_edit_says_in_one_line_why_it_did_nothing(run: Run, repair_world: CodeRepair) -> None:
    task = broken(Level.FILES)
    names = list(task.state_value()["files"])
    trajectory = played(
        run,
        repair_world,
        task,
        call("edit", old="nowhere", new="x"),
        call("edit", old="return", new="x"),
        call("edit", old="", new="x"),
        call("edit", old="a", new="b", path="other.py"),
        call("edit", old="assert", new="#", path=TESTS),
        call("edit", old="    ", new="x" * 20_000, path=names[0]),
        call("read_file", path="/etc/passwd"),
        call("read_file", path=f"../{names[0]}"),
    )
    statuses = [turn.result.status for turn in trajectory.turns if turn.result]
    assert set(statuses) == {ToolStatus.TOOL_ERROR}
    texts = results(trajectory)
    assert texts[0] == "old text not found; read the file and copy it exactly"
    assert texts[1].startswith("old text found ") and names[0] in texts[1]
    assert texts[2:5] == [
        "old is empty; give the text to replace",
        f"no file other.py; files: {', '.join(names)}",
        "tests.py is read-only",
    ]
    assert texts[6].startswith("no file /etc/passwd; files: ")


def test_the_tests_are_shown_as_code_that_runs() -> None:
    task = broken(Level.FILES)
    session = RepairSession(task)
    text = session.read_file(path=TESTS).text
    lines = text.splitlines()
    compile(text, TESTS, "exec")
    assert sum(line.startswith("assert ") for line in lines) == len(task.state_value()["tests"])
    assert sum(line.startswith("from ") for line in lines) == 6


def test_nothing_may_follow_a_submission(run: Run, repair_world: CodeRepair) -> None:
    async def episode() -> list[str]:
        async with await repair_world.open(broken()) as session:
            names: list[tuple[str, dict[str, str]]] = [("finish", {}), ("finish", {})]
            names.append(("edit", {"old": "a", "new": "b"}))
            return [
                (await session.call(name, arguments, f"{at}")).text
                for at, (name, arguments) in enumerate(names)
            ]

    assert run(episode()) == ["submitted", "already submitted", "already submitted"]


def test_broken_code_is_an_observation(run: Run, repair_world: CodeRepair) -> None:
    task = broken(program="window_sums")
    [_, name] = task.state_value()["functions"][0]
    codes = {
        f"def {name}(*a):\n    return [\n": "SyntaxError: '[' was never closed (line 2)",
        f"def {name}(*a):\n    return a[9]\n": "IndexError: tuple index out of range (line 2)",
        f"def {name}(*a):\n    return {{1}}\n": "TypeError: Object of type set is not JSON serializable",
        f"def {name}(*a):\n    return [0] * {MAX_TEXT}\n": "the result is too long",
        "x = 1\n": f"AttributeError: module '{name}' has no attribute '{name}'",
        f"def {name}(*a):\n    return {name}()\n": "RecursionError: maximum recursion depth exceeded",
    }
    for code, said in codes.items():
        trajectory = submitted(run, repair_world, task, code)
        assert said in results(trajectory)[1].splitlines()[1], results(trajectory)[1]
        assert components(trajectory)["success"] == 0


@pytest.mark.parametrize("outcome", [None, Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY])
def test_a_sandbox_that_breaks_is_never_a_zero(run: Run, outcome: Outcome | None) -> None:
    environment, task = load(), broken()
    environment.runner._sandbox = StubSandbox(outcome)
    with pytest.raises(JudgeError):
        played(run, environment, task, call("finish"))

    async def tested() -> ToolStatus:
        async with await environment.open(task) as session:
            return (await session.call("run_tests", {}, "1")).status

    assert run(tested()) is ToolStatus.INFRA_ERROR


def test_the_same_run_is_made_once(run: Run, repair_world: CodeRepair) -> None:
    task = broken(program="pascal_row", variant=3)
    played(run, repair_world, task)
    before = repair_world.runner.num_runs
    assert played(run, repair_world, task).success
    assert repair_world.runner.num_runs == before


@pytest.mark.parametrize(
    ("sandbox", "message"),
    [
        ("nowhere", "unknown sandbox 'nowhere'"),
        ({"name": "remote"}, "sandbox remote needs url"),
        ({"name": "remote", "url": "http://127.0.0.1:9", "speed": 1}, "sandbox remote has no option speed"),
    ],
)
def test_the_sandbox_is_chosen_before_any_session(sandbox: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(sandbox=sandbox)


def test_finish_ends_a_rollout_without_another_turn(
    repair_world: CodeRepair, tmp_path_factory: pytest.TempPathFactory
) -> None:
    renderer = ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    said = '<tool_call>\n{"name": "finish", "arguments": {}}\n</tool_call>'
    task = broken()
    task = Task(**{**task.model_dump(exclude={"task_id", "budget"}), "budget": {"max_tokens": 9000}})
    trajectory = asyncio.run(
        rollout(
            task,
            environment=repair_world,
            engine=Speaker(renderer, [said, "never said"]),
            renderer=renderer,
            sampling=Sampling(max_tokens=300),
            settings=RolloutSettings(max_context_tokens=9000),
        )
    )
    assert trajectory.termination is Termination.FINISHED, trajectory.error
    assert [turn.text for turn in trajectory.turns[-1:]] == ["submitted"]
    assert trajectory.usage.engine_calls == 1
    assert components(trajectory)["submitted"] == 1 and components(trajectory)["success"] == 0
