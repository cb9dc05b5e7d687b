"""ToolSession: both kinds of tool, exceptions, deadlines, repeats, snapshots, truncation."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from data.messages import ToolResult, ToolStatus, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments import isolation
from pipeline.environments.agents import ListedAgent
from pipeline.environments.base import GoldScript
from pipeline.environments.play import make_trajectory
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import (
    StatefulTool,
    ToolError,
    ToolLimits,
    ToolResponse,
    TruncateSide,
    function_tool,
    tool,
)
from pipeline.errors import ConfigError, EnvironmentFailure, JudgeError
from tests.pipeline.environments.conftest import Run
from tests.processes import survivors

RELEASE = threading.Event()


@tool(isolate=True, timeout_seconds=100)
def process_id() -> int:
    """Tell the process."""
    print("noise on standard output")
    return os.getpid()


@tool(isolate=True, timeout_seconds=100)
def spin(file: str) -> str:
    """Never return; the file gets the process id."""
    Path(file).write_text(str(os.getpid()))
    while True:
        pass


@tool(isolate=True, timeout_seconds=100)
def refuse(reason: str) -> str:
    """Refuse."""
    raise ToolError(reason)


@tool(isolate=True, timeout_seconds=100)
def die() -> str:
    """Die."""
    os._exit(3)


class Notebook(StatefulTool):
    """Write a line."""

    name = "note"
    log: ClassVar[list[str]] = []

    async def create(self, task: Task) -> None:
        self.lines: list[str] = []
        self.log.append("create")

    async def execute(self, line: str, urgent: bool = False) -> ToolResponse:
        self.lines.append(line)
        text = f"{len(self.lines)} lines"
        return ToolResponse(text=text, reward=0.5, metrics={"length": len(line), "urgent": urgent})

    async def calc_reward(self) -> float | None:
        return float(len(self.lines))

    async def release(self) -> None:
        self.log.append("release")


class BrokenNotebook(Notebook):
    """Cannot be created."""

    name = "broken"

    async def create(self, task: Task) -> None:
        raise OSError("no disk")


class DeskSession(ToolSession):
    functions = (process_id, spin, refuse, die)
    stateful: ClassVar[tuple[type[StatefulTool], ...]] = (Notebook,)
    user_turns = ("And then?",)

    @tool
    def push(self, item: str) -> list[str]:
        """Push an item."""
        if item == "bad":
            raise ToolError("bad items are not taken")
        self.state["items"].append(item)
        return self.state["items"]

    @tool
    def fail(self, kind: str) -> str:
        """Raise."""
        raise {"value": ValueError, "key": KeyError, "type": TypeError, "os": OSError}[kind]("text " * 100)

    @tool(timeout_seconds=0.01)
    async def wait(self) -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return ""

    @tool(timeout_seconds=0.01, on_timeout=ToolStatus.TOOL_ERROR)
    async def wait_politely(self) -> str:
        """Wait for ever, the agent's fault."""
        await asyncio.Event().wait()
        return ""

    @tool(blocking=True, timeout_seconds=0.01)
    def block(self) -> str:
        """Block a thread."""
        RELEASE.wait(5)
        return ""

    @tool(deterministic=False)
    async def live(self) -> None:
        """Live."""

    @tool
    def long(self) -> str:
        """Answer at length."""
        return "0123456789" * 3

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        return {"success": self.state["success"], "pushed": len(self.state["items"])}


class DeskEnvironment(ToolEnvironment):
    name = "desk"
    splits = ("train",)
    session = DeskSession

    def tasks(self, split: str) -> Iterator[Task]:
        yield make_task()

    def gold(self, task: Task) -> GoldScript:
        return ListedAgent([])


def make_task(**values: Any) -> Task:
    defaults: dict[str, Any] = {
        "environment": "desk",
        "split": "train",
        "template": "t",
        "prompt": (user("Go."),),
        "state": '{"items":[],"success":1}',
        "verifier": "desk/1",
    }
    return Task(**(defaults | values))


async def _calls(*calls: tuple[str, dict[str, Any]], limits: ToolLimits | None = None) -> list[ToolResult]:
    async with await DeskEnvironment(limits=limits).open(make_task()) as session:
        return [
            await session.call(name, arguments, str(index)) for index, (name, arguments) in enumerate(calls)
        ]


def _statuses(results: list[ToolResult]) -> list[ToolStatus]:
    return [result.status for result in results]


OK, ERROR, INFRA = ToolStatus.OK, ToolStatus.TOOL_ERROR, ToolStatus.INFRA_ERROR


def test_stateful_tool_lifecycle_rewards_and_metrics(run: Run) -> None:
    async def episode() -> None:
        Notebook.log.clear()
        environment = DeskEnvironment()
        task = make_task()
        session = await environment.open(task)
        assert Notebook.log == ["create"]
        result = await session.call("note", {"line": "abc", "urgent": True}, "c1")
        assert (result.text, result.reward) == ("1 lines", 0.5)
        assert [(metric.name, metric.value) for metric in result.metrics] == [
            ("length", 3.0),
            ("urgent", 1.0),
        ]
        reward = await session.verify(make_trajectory(environment, task, [], seed=0))
        assert [(part.name, part.value, part.when) for part in reward.components] == [
            ("success", 1.0, "outcome"),
            ("pushed", 0.0, "outcome"),
            ("tool/note", 1.0, "process"),
        ]
        assert environment.num_open == 1
        await session.close()
        await session.close()
        assert (Notebook.log, environment.num_open) == (["create", "release"], 0)
        with pytest.raises(EnvironmentFailure, match="closed session"):
            await session.call("note", {"line": "late"}, "c2")
        assert (await session.call("note", {}, "c1")) == result

    run(episode())


def test_a_tool_that_cannot_be_created_fails_the_opening_and_releases_the_rest(run: Run) -> None:
    class Broken(DeskSession):
        stateful = (Notebook, BrokenNotebook)

    class BrokenEnvironment(DeskEnvironment):
        session = Broken

    Notebook.log.clear()
    environment = BrokenEnvironment()
    with pytest.raises(EnvironmentFailure, match="tool broken could not be created: OSError"):
        run(environment.open(make_task()))
    assert (Notebook.log, environment.num_open) == (["create", "release", "release"], 0)


def test_two_sessions_have_two_notebooks(run: Run) -> None:
    async def episode() -> str:
        environment = DeskEnvironment()
        async with await environment.open(make_task()) as one, await environment.open(make_task()) as two:
            await one.call("note", {"line": "a"}, "c")
            return (await two.call("note", {"line": "b"}, "c")).text

    assert run(episode()) == "1 lines"


def test_errors_are_the_agents_only_where_arguments_can_cause_them(run: Run) -> None:
    bad = [("push", {"item": "bad"}), ("push", {"item": 3}), ("pull", {}), ("fail", {"kind": "value"})]
    results = run(_calls(*bad, ("fail", {"kind": "key"}), ("push", {"item": "a"})))
    assert _statuses(results) == [ERROR] * 5 + [OK]
    assert results[0].text == "bad items are not taken"
    assert results[1].text == "item: Input should be a valid string"
    assert results[2].text.startswith("no tool pull; tools: push, fail,")
    assert len(results[3].text) == 200


@pytest.mark.parametrize("kind", ["type", "os"])
def test_a_broken_tool_poisons_the_session(run: Run, kind: str) -> None:
    results = run(_calls(("fail", {"kind": kind}), ("push", {"item": "a"})))
    assert _statuses(results) == [INFRA, INFRA]
    assert "session unusable: tool fail is broken" in results[1].text


def test_a_poisoned_session_is_neither_judged_nor_kept(run: Run) -> None:
    async def episode() -> None:
        environment, task = DeskEnvironment(), make_task()
        async with await environment.open(task) as session:
            kept = session.snapshot()
            await session.call("wait", {}, "c")
            with pytest.raises(EnvironmentFailure, match=r"unusable: wait took longer than 0\.01 s"):
                await session.verify(make_trajectory(environment, task, [], seed=0))
            with pytest.raises(EnvironmentFailure):
                session.snapshot()
            with pytest.raises(EnvironmentFailure):
                session.restore(kept)

    run(episode())


def test_deadlines(run: Run) -> None:
    assert _statuses(run(_calls(("wait", {}), ("push", {"item": "a"})))) == [INFRA, INFRA]
    assert _statuses(run(_calls(("wait_politely", {}), ("push", {"item": "a"})))) == [ERROR, OK]


def test_an_isolated_tool_that_is_late_is_ended_for_real(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pid"

    async def episode() -> list[ToolResult]:
        async with await DeskEnvironment().open(make_task()) as session:
            spinning = asyncio.create_task(session.call("spin", {"file": str(file)}, "1"))
            while not (file.exists() and file.read_text()):
                await asyncio.sleep(0.01)
            _let_pass(100, monkeypatch)
            return [await spinning, await session.call("push", {"item": "a"}, "2")]

    results = run(episode())
    assert _statuses(results) == [ERROR, OK] and results[0].text == "spin took longer than 100 s"
    assert survivors([int(file.read_text())]) == []


SLOWLY_IMPORTED = """
import time
from pathlib import Path

Path(__file__).with_name("importing").touch()
while not Path(__file__).with_name("go").exists():
    time.sleep(0.01)

def answer():
    return 42
"""


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module whose import in a child ends when there is a file `go` beside it."""
    (tmp_path / "slowly_imported.py").write_text(SLOWLY_IMPORTED)
    (tmp_path / "go").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("slowly_imported")
    del sys.modules["slowly_imported"]


def test_the_time_of_an_isolated_tool_begins_when_it_is_imported(
    run: Run, tmp_path: Path, slow_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("go", "importing"):
        (tmp_path / name).unlink()
    monkeypatch.setattr(isolation, "START_SECONDS", 1e6)

    async def episode() -> Any:
        calling = asyncio.create_task(isolation.call_isolated(slow_module.answer, {}, timeout_seconds=100))
        while not (tmp_path / "importing").exists():
            await asyncio.sleep(0.01)
        _let_pass(100, monkeypatch)
        await asyncio.sleep(0.01)
        (tmp_path / "go").touch()
        return await calling

    assert run(episode()) == 42


def test_a_tool_that_is_never_imported_is_infrastructure(
    run: Run, tmp_path: Path, slow_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "go").unlink()
    monkeypatch.setattr(isolation, "START_SECONDS", 0.2)
    with pytest.raises(EnvironmentFailure, match=r"slowly_imported\.answer was not imported in 0\.2 s"):
        run(isolation.call_isolated(slow_module.answer, {}, timeout_seconds=100))


def _let_pass(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the running event loop's clock."""
    loop = asyncio.get_running_loop()
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + seconds)


def test_a_blocking_tool_that_is_late_poisons_the_session(run: Run) -> None:
    async def episode() -> list[ToolStatus]:
        async with await DeskEnvironment().open(make_task()) as session:
            results = [await session.call("block", {}, "1"), await session.call("push", {"item": "a"}, "2")]
            RELEASE.set()
            return _statuses(results)

    assert run(episode()) == [INFRA, INFRA]


def test_a_plain_tool_that_is_late_poisons_the_session(run: Run) -> None:
    results = run(
        _calls(("push", {"item": "a"}), ("push", {"item": "b"}), limits=ToolLimits(timeout_seconds=1e-9))
    )
    assert _statuses(results) == [INFRA, INFRA]


def test_isolated_tools_run_elsewhere_and_may_crash(run: Run) -> None:
    calls = [("process_id", {}), ("refuse", {"reason": "not today"}), ("die", {}), ("push", {"item": "a"})]
    results = run(_calls(*calls))
    assert _statuses(results) == [OK, ERROR, INFRA, INFRA]
    assert int(results[0].text) != os.getpid()
    assert results[1].text == "not today"
    assert "die died with exit code 3" in results[2].text


def test_a_repeated_call_id_executes_nothing(run: Run) -> None:
    async def episode() -> None:
        async with await DeskEnvironment().open(make_task()) as session:
            first = await session.call("push", {"item": "a"}, "same")
            again = await session.call("push", {"item": "b"}, "same")
            assert again is first
            assert session.state["items"] == ["a"]

    run(episode())


def test_a_cancelled_call_poisons_the_session(run: Run) -> None:
    async def episode() -> ToolResult:
        async with await DeskEnvironment().open(make_task()) as session:
            waiting = asyncio.create_task(session.call("wait", {}, "1"))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return await session.call("wait", {}, "1")

    result = run(episode())
    assert result.status is INFRA
    assert "call 1 (wait) was cut off" in result.text


def test_overlapping_calls_are_refused(run: Run) -> None:
    async def episode() -> list[ToolStatus]:
        async with await DeskEnvironment().open(make_task()) as session:
            waiting = asyncio.create_task(session.call("wait_politely", {}, "1"))
            await asyncio.sleep(0)
            late = await session.call("push", {"item": "a"}, "2")
            assert "began while 1 was running" in late.text
            return [late.status, (await waiting).status]

    assert run(episode())[0] is INFRA


def test_snapshot_covers_state_tools_and_stored_results(run: Run) -> None:
    async def episode() -> None:
        environment = DeskEnvironment()
        async with (
            await environment.open(make_task()) as session,
            await environment.open(make_task()) as other,
        ):
            await session.call("push", {"item": "a"}, "1")
            await session.call("note", {"line": "a"}, "2")
            kept = session.snapshot()
            for target in (session, other):
                target.restore(kept)
                assert (await target.call("push", {"item": "b"}, "3")).text == '["a","b"]'
                assert (await target.call("note", {"line": "b"}, "4")).text == "2 lines"
                assert (await target.call("push", {"item": "z"}, "1")).text == '["a"]'
            async with await environment.open(make_task(template="other")) as foreign:
                with pytest.raises(ConfigError, match="snapshot belongs to task"):
                    foreign.restore(kept)

    run(episode())


@pytest.mark.parametrize(
    ("side", "text"), [("right", "0123456..."), ("left", "...3456789"), ("middle", "0123...789")]
)
def test_truncation(run: Run, side: str, text: str) -> None:
    limits = ToolLimits(max_tool_response_length=10, truncate_side=TruncateSide(side))
    [result] = run(_calls(("long", {}), limits=limits))
    assert (result.text, result.truncated) == (text, True)
    [whole] = run(_calls(("long", {})))
    assert (len(whole.text), whole.truncated) == (30, False)


def test_tool_subset_in_the_tasks_order_and_under_other_names(run: Run) -> None:
    async def episode() -> None:
        class Renamed(DeskEnvironment):
            def rename(self, task: Task) -> Mapping[str, str]:
                return {"push": "append"}

        async with await Renamed().open(make_task(tools=("note", "append"))) as session:
            assert [spec.name for spec in session.tools] == ["note", "append"]
            assert (await session.call("append", {"item": "a"}, "1")).text == '["a"]'
            assert (
                await session.call("push", {"item": "a"}, "2")
            ).text == "no tool push; tools: note, append"
        with pytest.raises(ConfigError, match=r"tools \['push'\] that DeskSession lacks"):
            await Renamed().open(make_task(tools=("push",)))

    run(episode())


def test_live_tools_are_named(run: Run) -> None:
    async def episode() -> tuple[str, ...]:
        async with await DeskEnvironment().open(make_task()) as session:
            return session.live_tools

    assert run(episode()) == ("live",)


def test_a_verifier_that_breaks_is_no_reward(run: Run) -> None:
    async def episode() -> None:
        environment, task = DeskEnvironment(), make_task(state='{"items":[]}')
        async with await environment.open(task) as session:
            with pytest.raises(JudgeError, match="verifier desk/1 failed"):
                await session.verify(make_trajectory(environment, task, [], seed=0))

    run(episode())


def test_scripted_user_turns_come_in_order_and_end(run: Run) -> None:
    async def episode() -> None:
        async with await DeskEnvironment().open(make_task()) as session:
            turns = list(session.task.prompt)
            reply = await session.next_user(turns)
            assert reply is not None and reply.text == "And then?"
            assert await session.next_user(turns) == reply
            assert await session.next_user([*turns, reply]) is None

    run(episode())


def test_a_foreign_task_is_refused(run: Run) -> None:
    with pytest.raises(ConfigError, match="belongs to environment 'elsewhere', not 'desk'"):
        run(DeskEnvironment().open(make_task(environment="elsewhere")))


def test_limits_as_a_recipe_writes_them() -> None:
    environment = DeskEnvironment(limits={"truncate_side": "left", "timeout_seconds": 1})
    assert environment.limits == ToolLimits(truncate_side=TruncateSide.LEFT, timeout_seconds=1)
    with pytest.raises(ConfigError, match="truncate_side 'up'; choose one of left, right, middle"):
        DeskEnvironment(limits={"truncate_side": "up"})
    with pytest.raises(ConfigError, match="unexpected keyword argument 'timeout'"):
        DeskEnvironment(limits={"timeout": 1})


def test_limits_change_the_version() -> None:
    assert DeskEnvironment().version == DeskEnvironment().version
    assert DeskEnvironment().version != DeskEnvironment(limits=ToolLimits(timeout_seconds=1)).version


def test_impossible_tools_are_refused() -> None:
    with pytest.raises(ConfigError, match="is async; isolate and blocking are for plain functions"):

        @tool(isolate=True)
        async def both() -> None:
            """Both."""

    with pytest.raises(ConfigError, match="must be importable"):

        @tool(isolate=True)
        def local() -> None:
            """Local."""

    with pytest.raises(ConfigError, match="cannot be a method"):
        function_tool(process_id, is_method=True)
