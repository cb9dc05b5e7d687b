"""The environment check is green on our worlds, and each of its checks is red on a world broken for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from data import canonical
from data.messages import ToolResult, Turn, assistant, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.check import CHECKS, WITH_GOLD, CheckResult, check_environment
from pipeline.environments.counter import CounterEnvironment, CounterSession, make_task
from pipeline.environments.gold import PlannedGold, call
from pipeline.environments.host import HostEnvironment
from pipeline.environments.registry import BROUGHT, ENVIRONMENTS, load_environment
from pipeline.environments.tools import tool
from tests.pipeline.environments.conftest import Run

OURS = [name for name in ENVIRONMENTS if not name.startswith(("bfcl_", "tau2")) and name not in BROUGHT]
"""The foreign worlds need packages of their own and have their own tests (test_bfcl*.py, test_tau2.py)."""
NUM_TASKS = {"code_repair": 6, "python_math": 14, "question_dag": 1}
"""Fewer where each task starts processes."""


@pytest.mark.parametrize("name", OURS)
def test_our_worlds_are_green(run: Run, name: str) -> None:
    environment = load_environment(name).inner
    assert isinstance(environment, HostEnvironment)
    number = NUM_TASKS.get(name, 23)
    results = run(check_environment(environment, num_tasks=number, num_ids=100))
    assert [result.name for result in results] == list(CHECKS)
    assert [result for result in results if not result.passed] == []
    assert environment.num_open == 0


class Small(CounterEnvironment):
    """A few tasks; the base of every broken world."""

    def tasks(self, split: str) -> Iterator[Task]:
        for start, amounts in ((10, [3]), (11, [4]), (12, [5, 2])):
            yield make_task(split, start + 20 * self.splits.index(split), amounts)


class ShuffledTasks(Small):
    num_listed = 0

    def tasks(self, split: str) -> Iterator[Task]:
        self.num_listed += 1
        yield make_task(split, 10 * self.num_listed + self.splits.index(split), [1])


class SharedTasks(Small):
    def tasks(self, split: str) -> Iterator[Task]:
        yield make_task(split, 10, [1])


class WrongGold(Small):
    def gold(self, task: Task) -> PlannedGold:
        return PlannedGold(turn for turn in [call("add", amount=9), assistant("Done.")])


class Crashing(CounterSession):
    @tool
    def add(self, amount: int) -> str:
        """Raise the counter."""
        raise TypeError("broken tool")


class Generous(CounterSession):
    """The reward that nobody has to earn."""

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        return {"success": 1.0}


class LikesEcho(CounterSession):
    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        asked = self.task.prompt[-1].text
        said = trajectory.turns[-1].text
        return {"success": float(asked in said or super().judge(trajectory)["success"])}


class LikesCalls(CounterSession):
    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        right = super().judge(trajectory)["success"]
        return {"success": float(right or len(self.state["calls"]) > 2)}


class OpenVerifier(CounterSession):
    """A verifier the agent can call, and one that believes what is said."""

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        called = any(item.name == "verify" for turn in trajectory.turns for item in turn.tool_calls)
        return {"success": float(called or super().judge(trajectory)["success"])}


class AnyNumber(CounterSession):
    """One public answer passes everywhere."""

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        return {"success": float(bool(self.state["calls"]))}


class Telling(Small):
    def tasks(self, split: str) -> Iterator[Task]:
        for task in super().tasks(split):
            secret = {**task.private_value(), "word": f"the word is {task.task_id}"}
            values = task.model_dump(exclude={"task_id", "private", "prompt"})
            prompt = (user(f"{task.prompt[0].text} ({secret['word']})"),)
            yield Task(**values, private=canonical.dumps(secret), prompt=prompt)


class Peeking(CounterSession):
    @tool
    def add(self, amount: int) -> str:
        """Raise the counter."""
        super().add(amount)
        return "warm" if amount in self.task.private_value()["amounts"] else "cold"


class Pooled(CounterSession):
    """Sessions of one task that are open at the same time share a warm world."""

    pool: ClassVar[dict[str, Any]] = {}

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(task, **options)
        self.state = self.pool.setdefault(task.task_id, self.state)

    async def close(self) -> None:
        self.pool.pop(self.task.task_id, None)
        await super().close()


class Forgetful(CounterSession):
    """Part of the state is not in the snapshot."""

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(task, **options)
        self.bonus = 0

    @tool
    def add(self, amount: int) -> str:
        """Raise the counter."""
        self.bonus += 1
        return f"{super().add(amount)} ({self.bonus})"


class Repeating(CounterSession):
    """A repeated call runs again."""

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        self._results.pop(call_id, None)
        return await super().call(name, arguments, call_id)


def _with(session_class: type[CounterSession]) -> Small:
    class Broken(Small):
        session = session_class

    return Broken()


class TalkativeGold(Small):
    """For the judge that likes silence."""

    session = Generous

    def gold(self, task: Task) -> PlannedGold:
        turns: list[Turn] = [*(call("add", amount=amount) for amount in task.private_value()["amounts"])]
        return PlannedGold(turn for turn in [*turns, assistant("Done.")])


BROKEN = {
    "tasks are deterministic": ShuffledTasks,
    "tasks are distinct": SharedTasks,
    "gold scores 1": WrongGold,
    "no infrastructure errors": lambda: _with(Crashing),
    "null agent scores 0": TalkativeGold,
    "echo scores 0": lambda: _with(LikesEcho),
    "spammer scores 0": lambda: _with(LikesCalls),
    "verifier-prober scores 0": lambda: _with(OpenVerifier),
    "hard-coder scores 0": lambda: _with(AnyNumber),
    "private part is hidden": Telling,
    "tools do not depend on it": lambda: _with(Peeking),
    "sessions are isolated": lambda: _with(Pooled),
    "snapshots are faithful": lambda: _with(Forgetful),
    "repeated calls run once": lambda: _with(Repeating),
}


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_is_red_on_its_broken_world(run: Run, name: str) -> None:
    results: dict[str, CheckResult] = {
        result.name: result for result in run(check_environment(BROKEN[name](), num_tasks=3, num_ids=3))
    }
    assert not results[name].passed
    assert results[name].detail


def test_the_base_of_the_broken_worlds_is_green(run: Run) -> None:
    assert all(result.passed for result in run(check_environment(Small(), num_tasks=3, num_ids=3)))


def test_what_scores_on_a_foreign_world_is_its_printed_floor(run: Run) -> None:
    class Foreign(TalkativeGold):
        foreign = True

    class ForeignEcho(Small):
        foreign, session = True, LikesEcho

    free = {one.name: one for one in run(check_environment(Foreign(), num_tasks=3, num_ids=3))}
    assert all(result.passed for result in free.values())
    note = "9 tasks; floor: it scores on 9 of them by this foreign world's own rule"
    assert free["null agent scores 0"].detail == note
    assert free["spammer scores 0"].detail == "9 tasks", "what doing nothing solves is named once"
    echoing = {one.name: one for one in run(check_environment(ForeignEcho(), num_tasks=3, num_ids=3))}
    assert not echoing["echo scores 0"].passed, (
        "a world is forgiven its own rules, not a judge that can be fooled"
    )


def test_a_world_that_breaks_under_gold_is_named_once_and_asked_no_more(run: Run) -> None:
    asked: list[str] = []

    class Down(CounterSession):
        @tool
        def add(self, amount: int) -> str:
            """Raise the counter."""
            asked.append("add")
            raise ConnectionError("nothing listens")

    class LaterGold(Small):
        session = Down

        def gold(self, task: Task) -> PlannedGold:
            def plan() -> Iterator[Turn]:
                yield call("add", amount=1)
                raise AssertionError("gold was asked to go on in a broken world")

            return PlannedGold(plan())

    results = {one.name: one for one in run(check_environment(LaterGold(), num_tasks=3, num_ids=3))}
    assert len(asked) == 1
    why = "tool add is broken: ConnectionError('nothing listens')"
    assert why in results["gold scores 1"].detail and why in results["no infrastructure errors"].detail
    rest = {one.detail for name, one in results.items() if name in WITH_GOLD}
    assert rest == {"not run: gold could not be played"}
