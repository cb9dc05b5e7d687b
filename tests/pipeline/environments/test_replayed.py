"""Worlds restored by replay: when a fresh one is made, what is made again, and what a wrong answer does."""

from __future__ import annotations

from typing import Any

import pytest

from data.messages import ToolResult, ToolSpec, ToolStatus, text_parts, user
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.environments.replayed import ReplayedSession
from pipeline.errors import EnvironmentFailure
from tests.pipeline.environments.conftest import Run

TASK = Task(environment="till", split="train", template="t", prompt=(user("Add."),), verifier="till")


class Till(ReplayedSession):
    """A foreign till: `add` changes it, `look` does not. `made` are the worlds begun."""

    tools = (ToolSpec(name="add", parameters="{}"), ToolSpec(name="look", parameters="{}"))
    offset = 0

    def __init__(self) -> None:
        super().__init__(TASK)
        self.total, self.made, self.seen = 0, 1, []  # type: ignore[var-annotated]

    async def start(self) -> None:
        self.total, self.made = self.offset, self.made + 1

    async def _answered(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        self.seen.append(call_id)
        self.total += arguments.get("by", 0)
        return ToolResult(call_id=call_id, name=name, parts=text_parts(str(self.total)))

    def _is_effect(self, name: str) -> bool:
        return name == "add"

    async def _release(self) -> None:
        self.total = -1

    async def verify(self, trajectory: Trajectory) -> Reward:
        self._refuse_if_poisoned()
        await self._catch_up()
        return Reward(total=float(self.total), verifier="till")


async def _played(till: Till) -> bytes:
    await till.call("add", {"by": 2}, "a")
    await till.call("look", {}, "b")
    return till.snapshot()


def test_only_what_the_world_lacks_is_made_again(run: Run) -> None:
    async def episode() -> tuple[Till, Till, ToolResult]:
        first, other = Till(), Till()
        kept = await _played(first)
        await first.call("look", {}, "c")
        first.restore(kept)  # the world has seen the same effects: nothing to do
        await first.call("look", {}, "d")
        other.restore(kept)  # an untouched world only lacks them
        return first, other, await other.call("look", {}, "d")

    first, other, looked = run(episode())
    assert (first.made, first.seen) == (1, ["a", "b", "c", "d"])
    assert (other.made, other.seen, looked.text) == (1, ["a", "d"], "2")


def test_a_world_that_went_further_is_made_afresh(run: Run) -> None:
    async def episode() -> tuple[Till, ToolResult]:
        till = Till()
        kept = await _played(till)
        await till.call("add", {"by": 5}, "c")
        till.restore(kept)
        return till, await till.call("look", {}, "d")

    till, looked = run(episode())
    assert (till.made, till.seen, looked.text) == (2, ["a", "b", "c", "a", "d"], "2")


def test_a_world_that_cannot_be_brought_back_is_never_judged(run: Run) -> None:
    async def episode() -> None:
        till = Till()
        kept = await _played(till)
        await till.call("add", {"by": 5}, "c")
        till.restore(kept)
        till.offset = 1  # a fresh world that is not the old one
        for _ in range(2):
            with pytest.raises(EnvironmentFailure, match="answered the same call differently"):
                await till.verify(None)  # type: ignore[arg-type]
        late = await till.call("look", {}, "d")
        assert late.status is ToolStatus.INFRA_ERROR
        with pytest.raises(EnvironmentFailure):
            till.snapshot()

    run(episode())
