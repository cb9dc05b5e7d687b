"""The loop's own arm: a round's data from the model's errors, in four arrows.

probe (what the kept model makes of every step it was trained on) -> repair (who is right where it differs) ->
expand (new tasks around its errors) -> curate (filters on what is new, then the round's training set). The
parts are `synthesizers.looptool`; here they meet the run's stores. Not covered: training and the gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from data.files import write_atomically
from data.schema import Kind, kind_of, record_id
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from flows.stages.curate import curate
from flows.stages.loop.baselines import seeds
from flows.stages.loop.round import (
    Kept,
    LoopWork,
    RoundResult,
    arrow,
    counts_of,
    rows_digest,
    train_and_judge,
)
from flows.stages.policy import policy_label
from flows.stages.progress import Say
from flows.stages.proof import named
from pipeline.diagnosis.capabilities import capabilities_of
from pipeline.diagnosis.plan import Plan
from pipeline.errors import EngineError
from pipeline.reporting.content import ReasonCount
from synthesizers.demonstration import GOLD
from synthesizers.looptool.expansion import K, expand
from synthesizers.looptool.probing import Probe, ProbeVerdict, probe
from synthesizers.looptool.records import LabelVerdict, Repair
from synthesizers.looptool.repairing import repair
from synthesizers.looptool.roles import JUDGES
from synthesizers.looptool.rounds import Parts, compose
from synthesizers.looptool.rows import RowLog
from synthesizers.looptool.spending import TRAINED, round_plan
from synthesizers.looptool.weakness import write_weakness
from synthesizers.role_chats import CHATS, RoleChats

LOOPTOOL = "looptool"
PROBES, REPAIRS = "probes.log", "repairs.log"
PLAN = "plan.json"
"""Where a round's variants go, where that is planned."""
_EVERY = 200
"""Rows between two status lines."""
Work = Callable[[], Awaitable[dict[str, int]]]


@dataclass
class Pool:
    """What a round probes, and where its tasks are found."""

    rows: list[Trajectory]
    tasks: dict[str, Task] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._by_id = {row.trajectory_id: row for row in self.rows}

    def load(self, trajectory_id: str) -> Trajectory | None:
        """A trajectory of the pool."""
        return self._by_id.get(trajectory_id)

    def template(self, trajectory_id: str) -> str:
        """The template of a trajectory."""
        return self._by_id[trajectory_id].template

    def capabilities(self, trajectory_id: str) -> tuple[str, ...]:
        """What a trajectory's task exercises; its own dialogue solves it."""
        row = self._by_id[trajectory_id]
        return capabilities_of(row, self.tasks.get(row.task_id), row.turns)

    @property
    def digest(self) -> str:
        """Digest of the rows."""
        return rows_digest(self.rows)


async def looptool_round(
    work: LoopWork, number: int, seen: Sequence[Trajectory], *, kept: Kept, start: Kept
) -> tuple[RoundResult | None, Kept]:
    """One round; no result where nothing was found that a round could be made of.

    `seen`: the seeds of the rounds before. The first round probes them, a later one what the round before
    trained on.
    """
    say = named(work.say, f"round {number}, {LOOPTOOL}")
    fresh = await seeds(work, number, teacher=start)
    pool = _pool(work, number, [*seen, *fresh], rows=list(seen))
    with work.open_round(number, LOOPTOOL) as store:
        maker = _Round(work, store, number, pool, fresh, kept, say)
        key = await maker.data()
        counts = counts_of(store, "curate")
        if not counts["trajectories"]:
            return None, kept
        return await train_and_judge(
            work,
            store,
            store.read_curated,
            tasks=lambda: pool.tasks | {task.task_id: task for task in store.tasks()},
            number=number,
            arm=LOOPTOOL,
            kept=kept,
            data_key=key,
            sampled_tokens=maker.sampled_tokens(),
            data=tuple(ReasonCount(reason=name, count=count) for name, count in counts.items()),
            say=say,
        )


def found_nothing(place: Path) -> bool:
    """Whether the data of the round in this folder are made, and there is nothing to train on."""
    if not place.is_dir():
        return False
    with Store.open(place) as store:
        return store.manifest("curate") is not None and not counts_of(store, "curate")["trajectories"]


def _pool(work: LoopWork, number: int, seeds_: Sequence[Trajectory], *, rows: list[Trajectory]) -> Pool:
    """`rows` in the first round, else what the round before trained on; tasks of no later round."""
    known = {row.task_id for row in seeds_}
    tasks = {task.task_id: task for task in work.store.tasks() if task.task_id in known}
    for earlier in range(1, number):
        with Store.open(work.place(earlier, LOOPTOOL)) as store:
            tasks |= {task.task_id: task for task in store.tasks()}
            if earlier == number - 1:
                rows = list(store.read_curated())
    work.policy.told_of(list(tasks.values()))
    return Pool(rows, tasks)


@dataclass
class _Round:
    """The four arrows of a round."""

    work: LoopWork
    store: Store
    number: int
    pool: Pool
    fresh: Sequence[Trajectory]
    kept: Kept
    say: Say

    async def data(self) -> str:
        """Run what is missing of the four arrows; the key of the last."""
        section = self.work.recipe.loop
        inputs = {"weights": self.kept.weights, "pool": self.pool.digest}
        key = await self._arrow("probe", self._probe, config=section.probe, inputs=inputs)
        key = await self._arrow("repair", self._repair, config=section.repair, inputs={"probe": key})
        key = await self._arrow("expand", self._expand, config=section.expand, inputs={"repair": key})
        config = {"compose": section.compose, "curate": self.work.recipe.curate.model_dump(mode="json")}
        inputs = {"expand": key, "fresh": rows_digest(self.fresh)}
        return await self._arrow("curate", self._curate, config=config, inputs=inputs)

    def sampled_tokens(self) -> int:
        """What the policy generated for the round's data."""
        found = sum(len(row.token_ids) for row in self.probes())
        found += sum(row.sampled_tokens for row in self.repairs())
        # What gold says in a variant was rendered, not sampled.
        sampled = (row for row in self.store.trajectories() if row.policy.name != GOLD)
        return found + sum(row.usage.generated_tokens for row in sampled)

    def probes(self) -> list[Probe]:
        """All probes there are."""
        with RowLog(self.store.root / PROBES, Probe) as log:
            return list(log.rows())

    def repairs(self) -> list[Repair]:
        """All verdicts on mismatches there are."""
        with RowLog(self.store.root / REPAIRS, Repair) as log:
            return list(log.rows())

    async def _probe(self) -> dict[str, int]:
        work, broken = self.work, []
        await work.act_with(self.kept)
        with RowLog(self.store.root / PROBES, Probe) as log:
            probing = probe(
                self.pool.rows,
                engine=work.policy.engine,
                renderer=work.policy.renderer,
                environment=work.environment,
                load_task=self.pool.tasks.get,
                sampling=work.policy.sampling,
                settings=work.policy.settings,
                max_in_flight=work.policy.max_in_flight,
                done=log.keys,
                **work.recipe.loop.probe,
            )
            async with aclosing(probing) as made:
                async for row in made:
                    if row.verdict is ProbeVerdict.INFRA:
                        broken.append(row.reason)
                    else:
                        log.append(row.step_id, row)
                        self._count("probed", len(log.keys))
            _refuse_broken("probes", broken)
            return _by_name(ProbeVerdict, (row.verdict for row in log.rows()))

    async def _repair(self) -> dict[str, int]:
        work, chats, broken = self.work, self._chats(), []
        await work.act_with(self.kept)
        names = (name for name in sorted(work.recipe.loop.chats) if fnmatchcase(name, JUDGES))
        with RowLog(self.store.root / REPAIRS, Repair) as log:
            repairing = repair(
                self.probes(),
                load=self.pool.load,
                load_task=self.pool.tasks.get,
                environment=work.environment,
                renderer=work.policy.renderer,
                engine=work.policy.engine,
                sampling=work.policy.sampling,
                settings=work.policy.settings,
                judges=[chat for chat in map(chats.of, names) if chat is not None],
                max_in_flight=work.policy.max_in_flight,
                run_id=work.store.root.name,
                done=log.keys,
                **work.recipe.loop.repair,
            )
            async with aclosing(repairing) as made:
                async for row in made:
                    if row.is_broken:
                        broken.append(row.analysis)
                    else:
                        log.append(row.step_id, row)
                        self._count("judged", len(log.keys))
            await chats.close()
            _refuse_broken("verdicts on labels", broken)
            return _by_name(LabelVerdict, (row.verdict for row in log.rows()))

    def _plan(self, repairs: Sequence[Repair]) -> Plan | None:
        """Where the variants go, kept in the round's folder; None where every error gets as many."""
        options = self.work.recipe.loop.expand
        if options.get("by") != "plan":
            return None
        made = round_plan(
            self.probes(),
            repairs,
            capabilities=self.pool.capabilities,
            template=self.pool.template,
            k=options.get("k", K),
        )
        write_atomically(self.store.root / PLAN, made.model_dump_json(indent=1) + "\n")
        planned = (f"{row.count} for {row.target}" for row in made.samples if row.kind in TRAINED)
        self.say(f"expand by plan: {', '.join(planned) or 'nothing named, as many for every error'}")
        return made

    async def _expand(self) -> dict[str, int]:
        work, store, chats = self.work, self.store, self._chats()
        await work.act_with(self.kept)
        known = {kind: store.ids(kind) for kind in (Kind.TASKS, Kind.PAIRS, Kind.VERDICTS)}
        repairs = self.repairs()
        expanding = expand(
            repairs,
            plan=self._plan(repairs),
            capabilities=self.pool.capabilities,
            load=self.pool.load,
            load_task=self.pool.tasks.get,
            environment=work.environment,
            renderer=work.policy.renderer,
            engine=work.policy.engine,
            sampling=work.policy.sampling,
            settings=work.policy.settings,
            max_in_flight=work.policy.max_in_flight,
            writer=chats.of("sample_writer"),
            judge=chats.of("sample_judge"),
            used=frozenset(self.pool.tasks),
            seed=work.recipe.seed,
            run_id=work.store.root.name,
            done=store.ids(Kind.TRAJECTORIES),
            failed=store.ids("failures"),
            **work.recipe.loop.expand,
        )
        async with aclosing(expanding) as made:
            async for record in made:
                kind, key = kind_of(record), record_id(record)
                if key not in known.get(kind, ()):
                    store.append(record)
        await chats.close()
        store.seal()
        tasks, rows = len(store.ids(Kind.TASKS)), len(store.ids(Kind.TRAJECTORIES))
        return {"tasks": tasks, "trajectories": rows, "given_up": sum(not v.keep for v in store.verdicts())}

    async def _curate(self) -> dict[str, int]:
        work, store = self.work, self.store
        passed: list[Trajectory] = []
        if store.ids(Kind.TRAJECTORIES):
            await curate(
                store,
                work.recipe.curate,
                environment=work.environment,
                renderer=work.policy.renderer,
                policy_name=policy_label(work.recipe.policy),
                may_be_empty=True,
                say=self.say,
            )
            passed = list(store.read_curated())
        probes, repairs = self.probes(), self.repairs()
        composed = compose(
            rows=self.pool.rows,
            probes=probes,
            repairs=repairs,
            expansions=passed,
            fresh=self.fresh,
            round_number=self.number + 1,
            **work.recipe.loop.compose,
        )
        write_weakness(store.root, probes, self.pool.capabilities)
        self._hold_tasks({row.task_id for row in composed.trajectories})
        if composed.trajectories:
            store.write_curated(composed.trajectories, lambda: _card(store.root, composed.parts))
        return {**composed.parts._asdict(), "trajectories": len(composed.trajectories)}

    def _hold_tasks(self, wanted: Set[str]) -> None:
        """Put the tasks that are not the round's own beside its rows: a round is a run, and published."""
        for task_id in sorted(wanted - self.store.ids(Kind.TASKS)):
            self.store.append(self.pool.tasks[task_id])
        self.store.seal()

    async def _arrow(self, name: str, do: Work, *, config: object, inputs: dict[str, str]) -> str:
        return await arrow(self.store, name, do, config=config, inputs=inputs, say=self.say)

    def _chats(self) -> RoleChats:
        """Who plays the roles of repair and expansion; their replies are kept in the round's folder."""
        work = self.work
        return RoleChats(
            default=work.recipe.loop.chat,
            by_role=work.recipe.loop.chats,
            directory=self.store.root / CHATS / LOOPTOOL,
            engine=work.policy.engine,
            renderer=work.policy.renderer,
        )

    def _count(self, what: str, number: int) -> None:
        if number % _EVERY == 0:
            self.say(f"{number} steps {what}")


def _refuse_broken(what: str, broken: Sequence[str]) -> None:
    """EngineError where infrastructure broke some."""
    if broken:
        raise EngineError(
            f"{len(broken)} {what} were broken by infrastructure; the first: {broken[0]}. "
            f"The same command tries them again"
        )


def _by_name(names: type[StrEnum], found: Iterable[StrEnum]) -> dict[str, int]:
    """How often each member was found."""
    counts = Counter(found)
    return {str(name): counts[name] for name in names}


def _card(root: Path, parts: Parts) -> str:
    """The README.md beside the round's training set."""
    rows = "\n".join(f"| {name} | {count} |" for name, count in parts._asdict().items())
    return (
        f"# What {'/'.join(root.parts[-3:])} trains on\n\nSteps of weight 0 are context.\n\n"
        f"| part | steps |\n| --- | ---: |\n{rows}\n"
    )
