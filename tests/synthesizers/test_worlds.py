"""Planning in worlds that break, and settings of chats and options that make no sense."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from data.errors import ConfigError
from data.tasks import Task
from data.verdicts import Verdict
from pipeline.checks.options import check_options
from pipeline.environments.counter import CounterEnvironment
from pipeline.environments.registry import load_environment
from pipeline.environments.wrapped import PassesOn, WrappedEnvironment
from pipeline.errors import EnvironmentFailure
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout_settings import Deadlines
from synthesizers import SYNTHESIZERS, load_synthesizer
from synthesizers.base import Made
from synthesizers.execution import Trial
from synthesizers.role_chats import check_chats
from synthesizers.worlds import plannable
from tests.synthesizers.test_planning import Lookup
from tests.tiny import make_tiny_tokenizer

PLANNERS = ("astra_chains", "astra_environments", "director_actor", "magnet")


@pytest.mark.parametrize("name", PLANNERS)
def test_a_misspelt_role_is_an_error_that_names_the_roles(name: str) -> None:
    roles = load_synthesizer(name).role_names
    check_chats(None, dict.fromkeys(roles, "policy"), known=roles, method=name)
    misspelt = roles[0].replace("e", "", 1)
    with pytest.raises(ConfigError, match=rf"{name} has no role '{misspelt}'; did you mean {roles[0]}\?"):
        check_chats(None, {misspelt: "policy"}, known=roles, method=name)


def test_numbered_roles_and_settings_of_chats() -> None:
    known = ("actor", "judge_*")
    check_chats(None, {"judge_7": {"url": "http://x", "model": "m"}}, known=known, method="m")
    for chats, wrong in [
        ({"judge": "policy"}, "no role 'judge'"),
        ({"actor": {"url": "http://x", "modell": "m"}}, "chats.actor: unknown modell"),
        ({"actor": 5}, "chats.actor: 5 is no chat"),
    ]:
        with pytest.raises(ConfigError, match=wrong):
            check_chats(None, chats, known=known, method="m")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(SYNTHESIZERS))
def test_options_of_a_base_class_are_checked_too(name: str) -> None:
    kind = load_synthesizer(name)
    options: dict[str, Any] = {"random_choice": "yes"} if name in PLANNERS else {"max_in_flight": "many"}
    with pytest.raises(ConfigError, match=next(iter(options))):
        check_options(kind, options, where="options")


class NoSnapshots(CounterEnvironment):
    """A counter on a session that cannot be taken back."""

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        """The session, whose snapshot was never written."""

        class Session(PassesOn):
            inner: Any

            def snapshot(self) -> bytes:
                raise NotImplementedError

        session = Session()
        session.inner = await super().open(task, seed=seed)
        return session


def test_a_world_without_snapshots_is_one_clear_error() -> None:
    world = plannable(NoSnapshots())
    task = next(iter(world.tasks("train")))

    async def attempt() -> None:
        async with await Trial.open(world, task) as trial:
            await trial.attempt("add", {"amount": 1})

    with pytest.raises(ConfigError, match=r"sessions of counter cannot snapshot .*rejection_sampling"):
        asyncio.run(attempt())


class NoGold(CounterEnvironment):
    """A counter whose gold was never written."""

    def gold(self, task: Task) -> Any:
        """Nothing."""
        raise NotImplementedError


def test_what_a_world_raises_is_named() -> None:
    world = plannable(NoGold())
    with pytest.raises(EnvironmentFailure, match="counter has no gold for task"):
        world.gold(next(iter(world.tasks("train"))))


class Stateful(CounterEnvironment):
    """A counter that shows a state which is no JSON."""

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        """The session with a set in its state."""
        session = await super().open(task, seed=seed)
        session.end_state = lambda: {1, 2}  # type: ignore[method-assign]
        return session


def test_a_state_that_is_no_json_is_a_clear_error() -> None:
    async def state() -> str:
        world = Stateful()
        async with await Trial.open(world, next(iter(world.tasks("train")))) as trial:
            return trial.state

    with pytest.raises(ConfigError, match="end_state"):
        asyncio.run(state())


class Silent(WrappedEnvironment):
    """Tools that never answer."""

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        """The session, every call of which waits for ever."""

        class Session(PassesOn):
            inner: Any

            async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> Any:
                await asyncio.Event().wait()

        session = Session()
        session.inner = await self.inner.open(task, seed=seed)
        return session


def test_a_tool_that_never_answers_holds_up_no_plan() -> None:
    inner = CounterEnvironment()
    world = plannable(Silent(inner, version=inner.version), deadlines=Deadlines(tool=0.05))

    async def attempt() -> None:
        async with await Trial.open(world, next(iter(world.tasks("train")))) as trial:
            await trial.attempt("add", {"amount": 1})

    with pytest.raises(EnvironmentFailure, match=r"tool add of counter broke: .*no answer within 0\.05 s"):
        asyncio.run(attempt())


class Breaks(WrappedEnvironment):
    """Cannot open the tasks named."""

    def __init__(self, inner: Any, *broken: str) -> None:
        super().__init__(inner, version=inner.version)
        self.broken = broken

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        """The session, or an error as a database that is down gives."""
        if task.task_id in self.broken:
            raise OSError("the database is down")
        return await self.inner.open(task, seed=seed)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def planned(planner: Lookup, tasks: list[Task]) -> Iterator[Made]:
    """What is made before the error, then the error."""
    records: list[Made] = []

    async def run() -> None:
        async for record in planner.synthesize(tasks):
            records.append(record)

    try:
        asyncio.run(run())
    finally:
        yield from records


def test_a_plan_that_the_world_breaks_stops_no_other_and_is_no_verdict(renderer: ChatMLRenderer) -> None:
    world = load_environment("travel_desk", templates=["upgrade_no_miles"])
    tasks = [task for _, task in zip(range(3), world.tasks("train"), strict=False)]
    records: list[Made] = []
    planner = Lookup(
        environment=Breaks(world, tasks[0].task_id),
        engine=None,  # type: ignore[arg-type]
        renderer=renderer,
        max_in_flight=2,
    )
    with pytest.raises(EnvironmentFailure, match=r"a plan was broken by the environment.*database is down"):
        for record in planned(planner, tasks):
            records.append(record)
    assert sum(isinstance(record, Task) for record in records) == 2
    assert not any(isinstance(record, Verdict) for record in records)
    everything = Lookup(
        environment=Breaks(world, *(task.task_id for task in tasks)),
        engine=None,  # type: ignore[arg-type]
        renderer=renderer,
        max_in_flight=2,
    )
    with pytest.raises(EnvironmentFailure, match=r"2 plans were broken"):
        list(planned(everything, tasks))


@pytest.mark.parametrize("option", ["hops", "inner_tries", "outer_tries", "merge_tries", "irrelevant"])
def test_impossible_numbers_of_question_environments(option: str, renderer: ChatMLRenderer) -> None:
    world = load_environment("question_dag")
    with pytest.raises(ConfigError, match=f"{option} must be at least [01], got -1"):
        load_synthesizer("astra_environments")(
            environment=world, engine=None, renderer=renderer, **{option: -1}
        )
