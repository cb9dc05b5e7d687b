"""Error-driven expansion (EDDE): new samples for the steps that the model does not master.

Each is of one of four kinds, drawn with weights (for a program ours, for a chat the released code's), made by
a program (`varying`) or a chat (`writing`), and passes two gates: its gold, executed in a fresh session,
scores 1 with calls that all fit their schemas (a boolean is no integer); and it is no duplicate of a seed or
of another sample. What does not pass is a verdict with its reason. The task's parent is the seed's task, the
trajectory's the seed's; one step of it is trained, the one that stands where the error stood, and the others
are context. A function of seed, repairs and replies, whatever runs at the same time. Not covered: how much of
it a round trains on (`rounds`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from data import canonical
from data.errors import ConfigError
from data.messages import Role
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.chat.base import Chat
from pipeline.diagnosis.plan import Plan
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.errors import EnvironmentFailure
from pipeline.renderers.base import Renderer
from pipeline.rollout_settings import RolloutSettings
from synthesizers.base import Made
from synthesizers.looptool.agreement import AgreementSampling
from synthesizers.looptool.gates import GoldGate, fits_schemas, wording
from synthesizers.looptool.probing import LoadTask
from synthesizers.looptool.records import SYNTHESIZER, Part, Repair
from synthesizers.looptool.repairing import Load
from synthesizers.looptool.samples import step_samples, trained_at
from synthesizers.looptool.spending import By, Names, variants_by_plan
from synthesizers.looptool.varying import Kind, Variants
from synthesizers.looptool.writing import ErrorSeed, Writer
from synthesizers.planning import Planned, given_up
from synthesizers.worlds import plannable

K = 4
"""Samples per error seed. The paper: 4; its released code: 3."""
WEIGHTS: Mapping[str, float] = {Kind.COMPLEXITY: 2, Kind.PERSONA: 2, Kind.INTERACTION: 2, Kind.DATA: 1}
"""How often each kind is drawn for a chat to write. The released code: randint(0, 6) % 4."""
PROGRAM_WEIGHTS: Mapping[str, float] = {
    Kind.COMPLEXITY: 2,
    Kind.PERSONA: 1,
    Kind.INTERACTION: 2,
    Kind.DATA: 2,
}
"""The same without a chat (ours): a program changes a manner by a few words only."""
Teacher = Literal["gold", "agreement"]


async def expand(
    repairs: Iterable[Repair],
    *,
    load: Load,
    load_task: LoadTask,
    environment: Environment,
    renderer: Renderer,
    engine: Engine | None = None,
    sampling: Sampling | None = None,
    settings: RolloutSettings | None = None,
    writer: Chat | None = None,
    judge: Chat | None = None,
    teacher: Teacher = "gold",
    k: int = K,
    by: By = "errors",
    plan: Plan | None = None,
    capabilities: Names | None = None,
    weights: Mapping[str, float] | None = None,
    used: Collection[str] = (),
    seed: int = 0,
    run_id: str = "",
    max_in_flight: int = 8,
    done: Collection[str] = (),
    failed: Collection[str] = (),
) -> AsyncGenerator[Made]:
    """New tasks with their trajectories, and verdicts on what was given up (`<step id>/<number>`).

    `by` plan, the variants go where `plan` says (`spending`, which needs the `capabilities` of trajectories),
    else `k` to every error seed. `used` are tasks that no variant may be. `done` and `failed` are those of a
    Synthesizer. Raises ConfigError for a wrong option, EnvironmentFailure after the last one where the world
    broke some.
    """
    expander = Expander(
        environment=environment,
        renderer=renderer,
        engine=engine,
        sampling=sampling or Sampling(),
        settings=settings or RolloutSettings(),
        writer=writer,
        judge=judge,
        teacher=teacher,
        k=k,
        weights=weights or (WEIGHTS if writer is not None else PROGRAM_WEIGHTS),
        seed=seed,
        run_id=run_id,
        max_in_flight=max_in_flight,
    )
    repairs = list(repairs)
    seeds = error_seeds(repairs, load=load, load_task=load_task)
    if by == "plan":
        if plan is None or capabilities is None:
            raise ConfigError("by plan needs the plan and the capabilities of the trajectories")
        templates = {seed.trajectory.trajectory_id: seed.trajectory.template for seed in seeds}
        expander.numbers = variants_by_plan(
            plan, repairs, capabilities=capabilities, template=templates.__getitem__, k=k
        )
    async with aclosing(expander.expand(seeds, used=used, done=done, failed=failed)) as made:
        async for record in made:
            yield record


def error_seeds(repairs: Iterable[Repair], *, load: Load, load_task: LoadTask) -> list[ErrorSeed]:
    """The error seeds among repairs, by step id. ConfigError where a trajectory or task is not there."""
    found = []
    for repair in sorted(repairs, key=lambda each: (each.trajectory_id, each.turn)):
        if not repair.is_error_seed:
            continue
        row = load(repair.trajectory_id)
        task = load_task(row.task_id) if row is not None else None
        if row is None or task is None:
            missing = "trajectory" if row is None else "task"
            raise ConfigError(f"the {missing} of step {repair.step_id} is not in the store; probe again")
        tools = next((step.tools for step in step_samples(row) if step.turn == repair.turn), ())
        found.append(ErrorSeed(repair, row, task, tools))
    return found


class _Slot(NamedTuple):
    """One sample to be made."""

    seed: ErrorSeed
    number: int
    kind: Kind

    @property
    def name(self) -> str:
        """`<step id>/<number>`: what a verdict on it names."""
        return f"{self.seed.repair.step_id}/{self.number}"


@dataclass(kw_only=True)
class Expander:
    """Makes samples for error seeds; see the module docstring."""

    environment: Environment
    renderer: Renderer
    engine: Engine | None = None
    sampling: Sampling = field(default_factory=Sampling)
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    writer: Chat | None = None
    judge: Chat | None = None
    teacher: Teacher = "gold"
    k: int = K
    weights: Mapping[str, float]
    seed: int = 0
    run_id: str = ""
    max_in_flight: int = 8
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Step id to its number of samples, where that is not `k`."""

    def __post_init__(self) -> None:
        check_weights(self.weights)
        if self.k < 0 or self.max_in_flight < 1:
            raise ConfigError(f"k is at least 0, max_in_flight 1, got {self.k} and {self.max_in_flight}")
        if self.teacher not in ("gold", "agreement"):
            raise ConfigError(f"teacher is gold or agreement, got {self.teacher!r}")
        if self.teacher == "agreement" and self.engine is None:
            raise ConfigError("teacher agreement needs an engine")
        self.environment = plannable(self.environment)
        self._variants = Variants(environment=self.environment, seed=self.seed)
        self._gate = GoldGate(
            environment=self.environment,
            renderer=self.renderer,
            settings=self.settings,
            seed=self.seed,
            run_id=self.run_id,
        )

    async def expand(
        self,
        seeds: Sequence[ErrorSeed],
        *,
        used: Collection[str] = (),
        done: Collection[str] = (),
        failed: Collection[str] = (),
    ) -> AsyncGenerator[Made]:
        """See `expand`."""
        taken = {*used, *(seed.task.task_id for seed in seeds)}
        wordings = {wording(seed.task) for seed in seeds}
        broken: list[EnvironmentFailure] = []
        slots = sorted(
            (slot for seed in seeds for slot in self._slots(seed)), key=lambda slot: slot.number
        )  # a larger k adds slots at the end and changes none before
        for start in range(0, len(slots), self.max_in_flight):
            batch = slots[start : start + self.max_in_flight]
            plans = await asyncio.gather(*(self._plan(slot, taken) for slot in batch), return_exceptions=True)
            for slot, outcome in zip(batch, plans, strict=True):
                try:
                    if isinstance(outcome, BaseException):
                        raise outcome
                    planned = outcome
                    if planned is None:
                        planned = await self._other_instance(slot, taken)
                    records = self._gated(slot, planned, taken, wordings, done=done, failed=failed)
                    async with aclosing(records) as made:
                        async for record in made:
                            yield record
                except EnvironmentFailure as failure:
                    broken.append(failure)
        if broken:
            raise EnvironmentFailure(
                f"{len(broken)} samples were broken by the environment; the first: {broken[0]}. The same "
                f"command tries again what is missing"
            ) from broken[0]

    def _slots(self, seed: ErrorSeed) -> Iterator[_Slot]:
        step_id = seed.repair.step_id
        rng, number = self._rng(step_id, "kinds"), self.numbers.get(step_id, self.k)
        kinds = [Kind(name) for name in self.weights]
        drawn = rng.choices(kinds, list(self.weights.values()), k=number) if number else []
        return (_Slot(seed, number, kind) for number, kind in enumerate(drawn))

    def _rng(self, *of: object) -> random.Random:
        return random.Random(canonical.digest("looptool", self.seed, *of))

    async def _plan(self, slot: _Slot, taken: Collection[str]) -> Planned | None:
        """The sample by whoever makes it; None where it is to be another task of the environment."""
        rng = self._rng(slot.name)
        if self.writer is not None:
            writer = Writer(environment=self.environment, chat=self.writer, judge=self.judge, seed=self.seed)
            return await writer.write(slot.kind, slot.seed, rng=rng)
        if slot.kind is Kind.DATA:
            return None
        others = [kind for kind in Kind if kind not in (slot.kind, Kind.DATA)]
        for kind in (slot.kind, *others):
            task = await self._variants.of(kind, slot.seed.task, rng=rng, used=taken)
            if task is not None:
                return Planned(task=task, detail=kind)
        return None

    async def _other_instance(self, slot: _Slot, taken: set[str]) -> Planned:
        """Another task of the environment, chosen in turn, so that no two seeds take the same."""
        rng = self._rng(slot.name, "instance")
        task = await self._variants.of(Kind.DATA, slot.seed.task, rng=rng, used=taken)
        return Planned(task=task, detail=Kind.DATA) if task is not None else given_up("no_variant", slot.kind)

    async def _gated(
        self,
        slot: _Slot,
        planned: Planned,
        taken: set[str],
        wordings: set[str],
        *,
        done: Collection[str],
        failed: Collection[str],
    ) -> AsyncGenerator[Made]:
        """The task and its trajectories, or the verdict on what did not pass."""
        task = planned.task
        gold: Trajectory | None = None
        if task is not None and (task.task_id in taken or wording(task) in wordings):
            planned = given_up("duplicate", planned.detail)
        elif task is not None:
            try:
                gold = await self._gate.gold(task, failed=failed)
            except ConfigError as error:
                planned = given_up("no_gold", str(error))
            if gold is not None and not (gold.success and fits_schemas(gold)):
                planned = given_up("gold_failed", f"{planned.detail or slot.kind}: {gold.reward}")
        if planned.task is None or task is None or gold is None:
            yield Verdict(
                trajectory_id=slot.name,
                filter=SYNTHESIZER,
                keep=False,
                reason=planned.reason,
                detail=planned.detail,
            )
            return
        taken.add(task.task_id)
        wordings.add(wording(task))
        yield task
        kind = Kind(planned.detail or slot.kind)
        if self.teacher == "gold":
            if gold.trajectory_id not in done:
                yield self._marked(gold, slot, kind)
            return
        assert self.engine is not None
        teacher = AgreementSampling(
            environment=self.environment,
            engine=self.engine,
            renderer=self.renderer,
            sampling=self.sampling,
            settings=self.settings,
            seed=self.seed,
            run_id=self.run_id,
            name=SYNTHESIZER,
        )
        async with aclosing(teacher.synthesize([task], done=done, failed=failed)) as taught:
            async for trajectory in taught:
                yield self._marked(trajectory, slot, kind)

    def _marked(self, trajectory: Trajectory, slot: _Slot, kind: Kind) -> Trajectory:
        """The sample with its names, trained where the error stood: the paper's sample is one step."""
        place = standing_for(slot.seed, trajectory, kind=kind, written=self.writer is not None)
        changed = {
            "parents": (slot.seed.trajectory.trajectory_id,),
            "labels": (*trajectory.labels, Part.EXPANSION.mark, f"looptool:{kind}"),
            "turns": trained_at(trajectory.turns, {place}),
        }
        return trajectory.model_copy(update=changed)


def standing_for(seed: ErrorSeed, sample: Trajectory, *, kind: Kind, written: bool) -> int:
    """The turn of `sample` that stands where `seed`'s error stood in its dialogue.

    A chat writes one request: its last call, or its closing words where words were in error. A program keeps
    the dialogue: the same assistant turn, counted from the end where something was asked before.
    """
    before, after = _assistant_places(seed.trajectory), _assistant_places(sample)
    if written:
        called = [place for place in after if sample.turns[place].tool_calls]
        return called[-1] if called and seed.calls else after[-1]
    place = before.index(seed.repair.turn)
    if kind is Kind.INTERACTION:
        return after[max(0, len(after) - (len(before) - place))]
    return after[min(place, len(after) - 1)]


def _assistant_places(trajectory: Trajectory) -> list[int]:
    return [place for place, turn in enumerate(trajectory.turns) if turn.role is Role.ASSISTANT]


def check_weights(weights: Mapping[str, float]) -> None:
    """ConfigError where the weights of the kinds name another kind, or add up to nothing."""
    kinds = [kind.value for kind in Kind]
    unknown = [name for name in weights if name not in kinds]
    if unknown or any(weight < 0 for weight in weights.values()) or not sum(weights.values()):
        raise ConfigError(
            f"weights of the kinds ({', '.join(kinds)}) are 0 or more and not all 0, got {dict(weights)}"
        )
