"""User code that breaks in ways no tool should: it costs an episode its reward, and never the run."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from data.messages import ToolStatus
from data.trajectories import Blame, Termination, Trajectory
from pipeline.engines.base import Sampling
from pipeline.environments.toolkit import ToolSession
from pipeline.environments.tools import tool
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import Job, RolloutSettings, rollouts
from tests.pipeline.rollout_world import Room, Speaker, World, call_text, make_task
from tests.tiny import make_tiny_tokenizer

LOOK = call_text("look", key="a")


class Alarm(BaseException):
    """Not even an Exception."""


class BreakingWorld(World):
    """A world whose tool, verifier or simulated user raises `error`."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__()
        self.place, self.error = place, error

    async def open(self, task: Any, *, seed: int = 0) -> Room:
        room = await super().open(task, seed=seed)

        async def fail(*args: Any) -> Any:
            raise self.error

        setattr(room, self.place, fail)
        return room


def play(world: World, folder: Any) -> Trajectory:
    renderer = ChatMLRenderer.load(make_tiny_tokenizer(folder))

    async def one() -> Trajectory:
        played = rollouts(
            [Job(make_task())],
            environment=world,
            engine=Speaker(renderer, [LOOK, "done"]),
            renderer=renderer,
            sampling=Sampling(max_tokens=200),
            settings=RolloutSettings(),
            infra_retries=0,
        )
        return await anext(played)

    return asyncio.run(asyncio.wait_for(one(), 60))


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), Alarm("fire")])
@pytest.mark.parametrize(
    ("place", "blame"),
    [("call", Blame.TOOL), ("next_user", Blame.USER_SIMULATOR), ("verify", Blame.JUDGE)],
)
def test_whatever_user_code_raises_is_an_infrastructure_failure(
    place: str, blame: Blame, error: BaseException, tmp_path: Any
) -> None:
    world = BreakingWorld(place, error)
    trajectory = play(world, tmp_path)
    assert (trajectory.termination, trajectory.blame) == (Termination.INFRA_FAILURE, blame)
    assert trajectory.reward is None and world.opened == world.closed == 1


class Desk(ToolSession):
    """Tools whose answers cannot be stored, and one that leaves the process."""

    @tool
    def collect(self) -> Any:
        """A set, which JSON lacks."""
        return {1, 2}

    @tool
    def divide(self) -> Any:
        """No number."""
        return {"share": math.nan}

    @tool
    def leave(self) -> str:
        """What argparse does on a bad argument."""
        raise SystemExit(2)

    def judge(self, trajectory: Trajectory) -> dict[str, float]:
        return {"success": 1.0}


@pytest.mark.parametrize("name", ["collect", "divide", "leave"])
def test_an_answer_that_cannot_be_stored_says_the_tool_is_broken(name: str) -> None:
    session = Desk(make_task())
    result = asyncio.run(session.call(name, {}, "c0"))
    assert result.status is ToolStatus.INFRA_ERROR and f"tool {name} is broken" in result.text
