"""Many rollouts: bounds, retries, group deadlines, and the same result under any interleaving."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from data.trajectories import Blame, Termination, Trajectory
from pipeline.engines.base import Completion, Sampling
from pipeline.errors import BudgetExceededError, EngineError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import Deadlines, Job, RolloutSettings, rollouts
from pipeline.rollout_tokens import PromptCache
from tests.pipeline.rollout_world import Speaker, Speech, World, call_text, make_task
from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def seeded(token_ids: list[int], sampling: Sampling) -> Speech:
    """A policy that looks up a key drawn from the seed, or says it is done."""
    seed = sampling.seed or 0
    return call_text("look", key=str(seed % 5)) if seed % 3 else "done"


def gather(engine: Any, jobs: Any, world: World | None = None, **more: Any) -> list[Trajectory]:
    settings = more.pop("settings", RolloutSettings())

    async def run() -> list[Trajectory]:
        stream = rollouts(
            jobs,
            environment=world or World(),
            engine=engine,
            renderer=engine.renderer,
            sampling=Sampling(max_tokens=100),
            settings=settings,
            **more,
        )
        return [trajectory async for trajectory in stream]

    return asyncio.run(run())


def jobs(count: int, size: int = 4) -> list[Job]:
    return [Job(make_task(f"Task {t}"), rollout_index=i, seed=5) for t in range(count) for i in range(size)]


def digests(trajectories: list[Trajectory]) -> list[str]:
    return [t.content_digest() for t in sorted(trajectories, key=lambda t: t.trajectory_id)]


def test_any_interleaving_gives_the_same_content(renderer: ChatMLRenderer) -> None:
    alone = gather(Speaker(renderer, seeded), jobs(4), max_in_flight=1)
    crowded = gather(Speaker(renderer, seeded, waits=(1,)), jobs(4), max_in_flight=16)
    assert [t.trajectory_id for t in alone] != [t.trajectory_id for t in crowded]
    assert digests(alone) == digests(crowded)
    assert len({t.trajectory_id for t in alone}) == 16
    assert len({t.segments[0].token_ids for t in alone if t.task_id == alone[0].task_id}) > 1


def test_groups_hold_one_task_each(renderer: ChatMLRenderer) -> None:
    done = gather(Speaker(renderer, seeded), jobs(3))
    assert len({t.group_id for t in done}) == 3
    for group in {t.group_id for t in done}:
        assert len({t.task_id for t in done if t.group_id == group}) == 1


class Gauge(Speaker):
    """Counts how many calls wait at once."""

    now = most = 0

    async def generate(self, *args: Any, **more: Any) -> list[Completion]:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return await super().generate(*args, **more)


def test_in_flight_is_bounded_and_jobs_are_read_lazily(renderer: ChatMLRenderer) -> None:
    engine, read = Gauge(renderer, lambda ids, sampling: "done"), []

    def source() -> Iterator[Job]:
        for job in jobs(20):
            read.append(job)
            yield job

    async def first_few() -> None:
        stream = rollouts(
            source(),
            environment=World(),
            engine=engine,
            renderer=renderer,
            sampling=Sampling(max_tokens=100),
            settings=RolloutSettings(),
            max_in_flight=3,
        )
        await anext(stream)
        assert len(read) <= 9, "a reader that does not read holds the workers back"
        await stream.aclose()

    asyncio.run(first_few())
    assert engine.most == 3


def test_closing_the_stream_closes_every_session(renderer: ChatMLRenderer) -> None:
    world = World()

    def hang_after_two(token_ids: list[int], sampling: Sampling) -> Speech:
        return "done" if world.opened <= 2 else TimeoutError()

    async def run() -> None:
        stream = rollouts(
            jobs(2),
            environment=world,
            engine=Speaker(renderer, hang_after_two),
            renderer=renderer,
            sampling=Sampling(max_tokens=100),
            settings=RolloutSettings(),
            max_in_flight=2,
        )
        await anext(stream)
        for _ in range(20):
            await asyncio.sleep(0)
        await stream.aclose()

    asyncio.run(run())
    assert world.opened == world.closed > 2


def test_infra_failures_are_retried_and_every_attempt_recorded(renderer: ChatMLRenderer) -> None:
    left = [EngineError("down"), EngineError("down")]

    def flaky(token_ids: list[int], sampling: Sampling) -> Speech:
        return left.pop() if left else seeded(token_ids, sampling)

    done = gather(Speaker(renderer, flaky), jobs(1, 1), infra_retries=2)
    assert [t.attempt for t in done] == [0, 1, 2]
    assert [t.termination for t in done[:2]] == [Termination.INFRA_FAILURE] * 2
    assert all(t.reward is None for t in done[:2]) and done[2].reward is not None
    assert len({t.trajectory_id for t in done}) == 3 and len({t.group_id for t in done}) == 1
    [undisturbed] = gather(Speaker(renderer, seeded), jobs(1, 1))
    assert undisturbed.segments == done[2].segments


def test_a_dead_server_never_scores(renderer: ChatMLRenderer) -> None:
    done = gather(Speaker(renderer, lambda ids, sampling: EngineError("dead")), jobs(3, 2), infra_retries=1)
    assert len(done) == 12
    assert {(t.termination, t.blame, t.reward) for t in done} == {
        (Termination.INFRA_FAILURE, Blame.INFRASTRUCTURE, None)
    }


def test_straggler_is_cut_and_its_group_kept(renderer: ChatMLRenderer) -> None:
    def slow_first(token_ids: list[int], sampling: Sampling) -> Speech:
        return TimeoutError() if engine.prompts[:-1] == [] else "done"

    engine = Speaker(renderer, slow_first)
    settings = RolloutSettings(deadlines=Deadlines(group=0.5))
    done = gather(engine, jobs(1, 4), settings=settings, max_in_flight=4)
    cut = [t for t in done if t.termination is Termination.CANCELLED]
    assert len(done) == 4 and len(cut) == 1
    assert (cut[0].blame, cut[0].reward) == (Blame.INFRASTRUCTURE, None)
    assert "straggler" in cut[0].error
    assert all(t.success for t in done if t is not cut[0])


def test_a_straggling_tool_is_blamed(renderer: ChatMLRenderer) -> None:
    settings = RolloutSettings(deadlines=Deadlines(group=0.3))
    engine = Speaker(renderer, lambda ids, sampling: call_text("look", key="a"))
    [cut] = gather(engine, jobs(1, 1), world=World(broken="tool_hangs"), settings=settings)
    assert (cut.termination, cut.blame) == (Termination.CANCELLED, Blame.TOOL)


def test_exhausted_money_stops_the_batch(renderer: ChatMLRenderer) -> None:
    world = World()
    with pytest.raises(BudgetExceededError):
        gather(Speaker(renderer, lambda ids, sampling: BudgetExceededError("0")), jobs(5), world=world)
    assert world.opened == world.closed


class CountingRenderer:
    """Counts how often a whole prompt is rendered."""

    def __init__(self, inner: ChatMLRenderer) -> None:
        self.inner, self.count = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def render(self, *args: Any, **more: Any) -> Any:
        self.count += 1
        return self.inner.render(*args, **more)


def test_a_group_renders_its_prompt_once_and_shares_nothing_else(renderer: ChatMLRenderer) -> None:
    counting = CountingRenderer(renderer)
    engine = Speaker(renderer, seeded)
    engine.renderer = counting  # type: ignore[assignment]
    assert digests(gather(engine, jobs(3))) == digests(gather(Speaker(renderer, seeded), jobs(3)))
    assert counting.count == 3


def test_prompt_cache_forgets_the_oldest(renderer: ChatMLRenderer) -> None:
    counting = CountingRenderer(renderer)
    cache = PromptCache(counting, size=1)
    for name in ("a", "a", "b", "a"):
        assert cache.render(name, make_task().prompt, ()) == renderer.render(make_task().prompt, ())
    assert counting.count == 3


def test_no_jobs_no_trajectories(renderer: ChatMLRenderer) -> None:
    assert gather(Speaker(renderer, seeded), []) == []
