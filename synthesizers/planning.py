"""What all synthesizers that plan first have in common: plan, gate, teach.

A planner makes a blueprint task from a base task, or says why it gave up (a Verdict: nothing is dropped
silently). The gate replays the plan in a fresh session: only a task whose gold scores 1 there goes on. Then
the teacher acts on the new task: the plan itself (`gold`), the policy (`policy`), or the policy told what to
do, with the hints taken out afterwards (`hinted`). Planning is a function of seed, base task and replies, so
a resumed synthesis makes the same plans; replies come from the cache. Not covered: how a method plans (its
own module), and filters after the teacher.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Pair, Verdict
from pipeline.checks.options import check_least
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.environments.play import play
from pipeline.errors import EnvironmentFailure, StructuredReplyError
from pipeline.renderers.base import Renderer
from pipeline.rollout import RolloutSettings
from pipeline.rollout_pool import Emit, pooled
from synthesizers.base import Made
from synthesizers.demonstration import Demonstration
from synthesizers.hints import with_hints, without_hints
from synthesizers.rejection_sampling import RejectionSampling
from synthesizers.role_chats import ChatSetting, RoleChats, check_chats
from synthesizers.worlds import plannable


class Planned(NamedTuple):
    """What became of a plan: a task, or the reason (a stable identifier) why there is none."""

    task: Task | None = None
    reason: str = ""
    detail: str = ""
    hints: tuple[str, ...] = ()
    """For the teacher `hinted`: what to tell it in each user turn, "" for nothing."""


def given_up(reason: str, detail: str = "") -> Planned:
    """A plan that made no task."""
    return Planned(reason=reason, detail=detail)


@dataclass(kw_only=True)
class Planner(ABC):
    """Base of the planning synthesizers; a subclass sets `name` and writes `plan`.

    `plans`: plans per base task. `k`: rollouts per task of the teachers `policy` and `hinted`. `chat` plays
    every role that `chats` does not give to another one; without a chat a role is played by templates, types
    and execution. `random_choice` replaces the method's distinctive choice by a random one (ablation).
    """

    environment: Environment
    engine: Engine
    renderer: Renderer
    sampling: Sampling = field(default_factory=Sampling)
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    teacher: Literal["gold", "policy", "hinted"] = "gold"
    plans: int = 1
    k: int = 4
    chat: ChatSetting | None = None
    chats: Mapping[str, Any] = field(default_factory=dict)
    random_choice: bool = False
    load: Callable[[str], Trajectory | None] | None = None
    """Reads a trajectory made earlier: pairs of a resumed synthesis come from those, too."""
    chat_dir: Path | None = None
    seed: int = 0
    run_id: str = ""
    max_in_flight: int = 8
    name: ClassVar[str]
    role_names: ClassVar[tuple[str, ...]] = ()
    """Roles that chats may play; `judge_*` stands for judge_1, judge_2, ..."""

    def __post_init__(self) -> None:
        check_least(self, {"plans": 1, "k": 1})
        if self.teacher not in ("gold", "policy", "hinted"):
            raise ConfigError(f"teacher is gold, policy or hinted, got {self.teacher!r}")
        self.environment = plannable(self.environment, deadlines=self.settings.deadlines)
        check_chats(self.chat, self.chats, known=self.role_names, method=self.name)
        self.roles = RoleChats(
            default=self.chat,
            by_role=self.chats,
            directory=self.chat_dir,
            engine=self.engine,
            renderer=self.renderer,
        )

    @abstractmethod
    async def plan(self, base: Task, rng: random.Random) -> Planned:
        """One plan from a base task. May raise StructuredReplyError: the plan is then given up."""

    async def prepare(self, tasks: Sequence[Task]) -> None:  # noqa: B027 most learn nothing
        """Learn what planning needs to know of the environment from the base tasks; nothing by default."""

    async def pairs(self, task: Task, taught: Sequence[Trajectory]) -> AsyncIterator[Pair]:
        """Preference pairs from what the teacher did; none by default."""
        return
        yield

    async def further(
        self, planned: Planned, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncIterator[Trajectory | Verdict]:
        """What else is made of a planned task, after its teacher; nothing by default."""
        return
        yield

    async def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Made]:
        """See `Synthesizer`. A plan that the environment broke gets no verdict: it is made again next time.

        Raises EnvironmentFailure for such plans after the last one, or where as many in a row broke as are
        at work.
        """
        bases = list(tasks)
        jobs = ((base, index) for base in bases for index in range(self.plans))
        broken: list[EnvironmentFailure] = []
        in_a_row = 0

        async def work(job: tuple[Task, int], emit: Emit[Made]) -> None:
            nonlocal in_a_row
            try:
                async for record in self._made(*job, done=done, failed=failed):
                    await emit(record)
                in_a_row = 0
            except EnvironmentFailure as failure:
                broken.append(failure)
                in_a_row += 1
                if in_a_row >= self.max_in_flight:
                    raise _broken_plans(broken) from failure

        try:
            await self.prepare(bases)
            async with aclosing(pooled(jobs, work, max_in_flight=self.max_in_flight)) as made:
                async for record in made:
                    yield record
        finally:
            await self.roles.close()
        if broken:
            raise _broken_plans(broken) from broken[0]

    async def _made(
        self, base: Task, index: int, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncGenerator[Made]:
        planned = await self._gated(base, index)
        if planned.task is None:
            yield Verdict(
                trajectory_id=f"{base.task_id}/{index}",
                filter=self.name,
                keep=False,
                reason=planned.reason,
                detail=planned.detail,
            )
            return
        yield planned.task
        taught = list(self._taught_before(planned, done=done, failed=failed))
        async with aclosing(self._taught(planned, done=done, failed=failed)) as rolled:
            async for trajectory in rolled:
                taught.append(trajectory)
                yield trajectory
        async for pair in self.pairs(planned.task, taught):
            yield pair
        async for record in self.further(planned, done=done, failed=failed):
            yield record

    async def _gated(self, base: Task, index: int) -> Planned:
        """A plan whose gold scores 1 in a fresh session, or the reason why there is none."""
        rng = random.Random(f"{self.name}/{self.seed}/{base.task_id}/{index}")
        try:
            planned = await self.plan(base, rng)
        except StructuredReplyError as error:
            return given_up("invalid_reply", str(error))
        if planned.task is None:
            return planned
        gold = await play(self.environment, planned.task, self.environment.gold(planned.task))
        if not gold.success:
            return given_up("gold_failed", str(gold.reward))
        return planned

    def _taught(
        self, planned: Planned, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncGenerator[Trajectory]:
        assert planned.task is not None
        if self.teacher == "gold":
            gold = Demonstration(
                environment=self.environment,
                renderer=self.renderer,
                settings=self.settings,
                seed=self.seed,
                run_id=self.run_id,
                name=self.name,
            )
            return gold.synthesize([planned.task], done=done, failed=failed)
        if self.teacher == "policy":
            return self._sampler().synthesize([planned.task], done=done, failed=failed)
        return self._hinted(planned.task, planned.hints, done=done, failed=failed)

    async def _hinted(
        self, task: Task, hints: Sequence[str], *, done: Collection[str], failed: Collection[str]
    ) -> AsyncGenerator[Trajectory]:
        """The policy on the hinted task, hints taken out."""
        told = with_hints(task, hints)
        async with aclosing(self._sampler().synthesize([told], done=done, failed=failed)) as rolled:
            async for trajectory in rolled:
                yield without_hints(trajectory, task, hints, self.renderer)

    def _taught_before(
        self, planned: Planned, *, done: Collection[str], failed: Collection[str]
    ) -> Iterator[Trajectory]:
        """What a rolling teacher made of the task in an earlier run, where pairs are made of it."""
        if planned.task is None or self.teacher == "gold" or type(self).pairs is Planner.pairs:
            return
        task = with_hints(planned.task, planned.hints) if self.teacher == "hinted" else planned.task
        yield from self._sampler().recalled([task], done=done, failed=failed)

    def _sampler(self) -> RejectionSampling:
        return RejectionSampling(
            environment=self.environment,
            engine=self.engine,
            renderer=self.renderer,
            sampling=self.sampling,
            settings=self.settings,
            k=self.k,
            load=self.load,
            seed=self.seed,
            run_id=self.run_id,
            max_in_flight=self.max_in_flight,
            name=self.name,
        )


def _broken_plans(broken: Sequence[EnvironmentFailure]) -> EnvironmentFailure:
    number = f"{len(broken)} plans were" if len(broken) > 1 else "a plan was"
    return EnvironmentFailure(
        f"{number} broken by the environment; the first: {broken[0]}. "
        f"The same command tries again what is missing"
    )
