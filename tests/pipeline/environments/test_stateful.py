"""Stateful tools on real rollouts: rewards and metrics reach the record, release runs however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from data import schema
from data.messages import user
from data.tasks import Task
from data.trajectories import Termination, Trajectory
from pipeline.engines.base import Sampling
from pipeline.environments.agents import ListedAgent
from pipeline.environments.base import GoldScript
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import StatefulTool, ToolLimits, ToolResponse, tool
from pipeline.errors import EnvironmentFailure
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import RolloutSettings, rollout
from tests.pipeline.environments.conftest import Run
from tests.pipeline.rollout_world import Speaker, call_text
from tests.tiny import make_tiny_tokenizer


class Meter(StatefulTool):
    """Read the meter."""

    name = "meter"
    released: ClassVar[list[str]] = []
    creating: ClassVar[asyncio.Event | None] = None
    executing: ClassVar[asyncio.Event | None] = None

    async def create(self, task: Task) -> None:
        self.value = 0
        if self.creating is not None:
            self.creating.set()
            await asyncio.Event().wait()

    async def execute(self, by: int = 1) -> ToolResponse:
        if by < 0:
            if self.executing is not None:
                self.executing.set()
            await asyncio.Event().wait()
        self.value += by
        return ToolResponse(text=str(self.value), reward=0.25 * by, metrics={"by": by})

    async def calc_reward(self) -> float:
        return self.value / 4

    async def release(self) -> None:
        self.released.append(self.name)


class Stubborn(Meter):
    """Its release never ends."""

    name = "stubborn"

    async def release(self) -> None:
        self.released.append(self.name)
        await asyncio.Event().wait()


class Broken(Meter):
    """Its release fails."""

    name = "broken"

    async def release(self) -> None:
        self.released.append(self.name)
        raise OSError("no route")


class MeterSession(ToolSession):
    stateful: ClassVar[tuple[type[StatefulTool], ...]] = (Meter,)

    @tool
    def look(self) -> ToolResponse:
        """Look."""
        return ToolResponse(text="dark", reward=-0.5)

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        return {"success": self.tool_scores["meter"] >= 1.0}


class MeterEnvironment(ToolEnvironment):
    name, splits, session = "meter", ("train",), MeterSession

    def tasks(self, split: str) -> Iterator[Task]:
        yield Task(
            environment=self.name, split=split, template="t", prompt=(user("Read it."),), verifier="meter/1"
        )

    def gold(self, task: Task) -> GoldScript:
        return ListedAgent([])


def with_tools(*kinds: type[StatefulTool], **options: Any) -> MeterEnvironment:
    class Session(MeterSession):
        stateful = kinds

    class Environment(MeterEnvironment):
        session = Session

    return Environment(**options)


@pytest.fixture(autouse=True)
def _forget() -> None:
    Meter.released.clear()
    Meter.creating = Meter.executing = None


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def play(environment: MeterEnvironment, renderer: ChatMLRenderer, *said: str, **more: Any) -> Any:
    return rollout(
        next(environment.tasks("train")),
        environment=environment,
        engine=Speaker(renderer, list(said)),
        renderer=renderer,
        sampling=Sampling(max_tokens=200),
        settings=RolloutSettings(),
        **more,
    )


def test_step_rewards_and_metrics_reach_the_stored_record(run: Run, renderer: ChatMLRenderer) -> None:
    environment = MeterEnvironment()
    said = [call_text("meter", by=1), call_text("meter", by=3), call_text("look"), "done"]
    trajectory = run(play(environment, renderer, *said))
    assert trajectory.termination is Termination.FINISHED
    stored = schema.from_json(schema.Kind.TRAJECTORIES, schema.to_json(trajectory))
    assert isinstance(stored, Trajectory) and stored.reward is not None
    results = [turn.result for turn in stored.turns if turn.result is not None]
    assert [result.reward for result in results] == [0.25, 0.75, -0.5]
    assert [[(item.name, item.value) for item in result.metrics] for result in results] == [
        [("by", 1.0)],
        [("by", 3.0)],
        [],
    ]
    components = {(part.name, part.when.value): part.value for part in stored.reward.components}
    assert components == {
        ("success", "outcome"): 1.0,
        ("tool/meter", "process"): 1.0,
        ("step/meter", "process"): 1.0,
        ("step/look", "process"): -0.5,
    }
    assert stored.reward.total == 1.0  # raw success; process rewards stand beside it
    assert Meter.released == ["meter"] and environment.num_open == 0


def test_a_cancelled_episode_releases(run: Run, renderer: ChatMLRenderer) -> None:
    environment = MeterEnvironment()

    async def cut() -> None:
        Meter.executing = asyncio.Event()
        task = asyncio.create_task(play(environment, renderer, call_text("meter", by=-1)))
        await Meter.executing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(cut())
    assert Meter.released == ["meter"] and environment.num_open == 0


def test_an_episode_past_its_deadline_releases(run: Run, renderer: ChatMLRenderer) -> None:
    environment = MeterEnvironment()

    async def late() -> Trajectory:
        deadline = asyncio.get_running_loop().time() + 0.2
        made: Trajectory = await play(
            environment, renderer, call_text("meter", by=-1), group_deadline=deadline
        )
        return made

    trajectory = run(late())
    assert trajectory.termination is Termination.CANCELLED and trajectory.reward is None
    assert Meter.released == ["meter"] and environment.num_open == 0


def test_a_creation_that_is_cut_is_released_too(run: Run) -> None:
    environment = MeterEnvironment()

    async def cut() -> None:
        Meter.creating = asyncio.Event()
        opening = asyncio.create_task(environment.open(next(environment.tasks("train"))))
        await Meter.creating.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    run(cut())
    assert Meter.released == ["meter"] and environment.num_open == 0


def test_every_tool_is_released_though_one_fails_or_hangs(run: Run) -> None:
    environment = with_tools(Meter, Stubborn, Broken, limits=ToolLimits(timeout_seconds=0.05))

    async def episode() -> None:
        session = await environment.open(next(environment.tasks("train")))
        with pytest.raises(EnvironmentFailure, match=r"broken: OSError.*stubborn: TimeoutError"):
            await session.close()
        await session.close()

    run(episode())
    assert Meter.released == ["broken", "stubborn", "meter"] and environment.num_open == 0


def test_a_close_that_is_cut_releases_the_rest(run: Run) -> None:
    environment = with_tools(Meter, Stubborn)

    async def episode() -> None:
        session = await environment.open(next(environment.tasks("train")))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await session.close()

    run(episode())
    assert Meter.released == ["stubborn", "meter"] and environment.num_open == 0
