"""LoopTool (arXiv 2511.09148) as one synthesis: probe, repair, expand, and keep what is worth training.

The seeds are demonstrations, made where they are missing, or stored successes of another synthesizer. Every
step is probed with the policy as it is (GCP), every mismatch verified (JGLV), every error seed expanded
(EDDE). What comes out under the name `looptool` is what a round trains on: seed dialogues that train their
error seeds and borderline steps only, repaired dialogues, variants; beside it preference pairs, and a verdict
for every step. `trajsmith loop` takes the same parts round by round. Not covered: training.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from data import canonical
from data.errors import ConfigError
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Pair, Verdict
from pipeline.chat.base import Chat
from pipeline.chat.core import LEDGER, ChatLedger
from pipeline.diagnosis.capabilities import capabilities_of
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.errors import EngineError, EnvironmentFailure
from pipeline.renderers.base import Renderer
from pipeline.rollout import RolloutSettings
from synthesizers.base import Made
from synthesizers.demonstration import Demonstration
from synthesizers.looptool.expansion import K, Teacher, check_weights, expand
from synthesizers.looptool.judging import check_judges
from synthesizers.looptool.probing import Probe, ProbeVerdict, probe, read_prediction
from synthesizers.looptool.records import SYNTHESIZER, Repair
from synthesizers.looptool.repairing import preference, repair, sample_of
from synthesizers.looptool.roles import JUDGES, SAMPLE_JUDGE, SAMPLE_WRITER
from synthesizers.looptool.rounds import HIGH_SHARE, compose
from synthesizers.looptool.rows import Row, RowLog
from synthesizers.looptool.spending import By, Names, round_plan
from synthesizers.looptool.weakness import write_weakness
from synthesizers.role_chats import ChatSetting, RoleChats, check_chats

DEMONSTRATION = "demonstration"
PROBED = "looptool/gcp"
"""Filter of the verdicts on steps: reason `mastered` or how the model differs, score the perplexity."""
VERIFIED = "looptool/jglv"
"""Filter of the verdicts on mismatches: reason one of the five, kept where the step is an error seed."""


@dataclass(kw_only=True)
class LoopTool:
    """See the module docstring.

    `of`: the synthesizer whose successes are probed. `k`: variants per error seed, `by` plan shared out
    as `spending` says. `weights`: how often each
    variation kind is drawn. `teacher`: who plays the variants (gold, or the policy where two samples agree).
    `high_share`: share of the mastered steps that is kept as borderline. `executed_check`: whether a label
    that judges call wrong is replaced only after the prediction was executed. `policy_finishes`: whether the
    policy may finish a dialogue from its own prediction where gold cannot. `chat` plays every role that
    `chats` does not give to another one: sample_writer, sample_judge; labels are judged by label_judge_1,
    label_judge_2, ... where `chats` names them, else by execution.
    """

    environment: Environment
    engine: Engine
    renderer: Renderer
    sampling: Sampling = field(default_factory=Sampling)
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    store: Store | None = None
    of: str = DEMONSTRATION
    k: int = K
    by: By = "errors"
    weights: Mapping[str, float] | None = None
    teacher: Teacher = "gold"
    high_share: float = HIGH_SHARE
    executed_check: bool = True
    policy_finishes: bool = True
    chat: ChatSetting | None = None
    chats: Mapping[str, Any] = field(default_factory=dict)
    chat_dir: Path | None = None
    seed: int = 0
    run_id: str = ""
    max_in_flight: int = 8
    name: ClassVar[str] = SYNTHESIZER
    role_names: ClassVar[tuple[str, ...]] = (JUDGES, SAMPLE_WRITER.name, SAMPLE_JUDGE.name)

    def __post_init__(self) -> None:
        check_weights(self.weights or {"data": 1})
        if self.k < 1 or not 0.0 <= self.high_share <= 1.0:
            raise ConfigError(
                f"k is at least 1 and high_share a share, got k={self.k}, high_share={self.high_share}"
            )
        if self.by not in ("errors", "plan"):
            raise ConfigError(f"variants are shared out by errors or by plan, got by={self.by!r}")
        if self.of != DEMONSTRATION and self.store is None:
            raise ConfigError(
                f"dialogues of {self.of!r} are read from a run's store; hand it over as `store`"
            )
        check_chats(self.chat, self.chats, known=self.role_names, method=self.name)
        self.roles = RoleChats(
            default=self.chat,
            by_role=self.chats,
            directory=self.chat_dir,
            engine=self.engine,
            renderer=self.renderer,
        )
        self.judges = self._judges()

    def most(self, tasks: Sequence[Task]) -> int:
        """See `Synthesizer`: what a probe finds nobody knows."""
        return 0

    def inputs(self) -> Mapping[str, str]:
        """What is read of the store: the dialogues that are probed, where they are not made here."""
        if self.of == DEMONSTRATION or self.store is None:
            return {}
        ids = sorted(row.trajectory_id for row in self.store.trajectories() if self._is_seed(row))
        return {self.of: canonical.digest(ids)}

    async def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Made]:
        """See `Synthesizer`. ConfigError where `of` has no success to probe.

        Raises EngineError after the last probe, EnvironmentFailure after the last repair or sample, where the
        infrastructure broke some.
        """
        bases = {task.task_id: task for task in tasks}
        rows = {row.trajectory_id: row for row in self._stored(bases)}
        if not rows and self.of != DEMONSTRATION:
            raise ConfigError(
                f"the run holds no success of {self.of!r} on these tasks to probe; run that stage first, on "
                f"the same tasks, or name another synthesizer in `of`"
            )
        try:
            if self.of == DEMONSTRATION:
                seeds = self._demonstration().synthesize(bases.values(), done=done, failed=failed)
                async with aclosing(seeds) as made:
                    async for row in made:
                        yield row
                        if row.success:
                            rows[row.trajectory_id] = row
            probes = await self._probed(rows, bases)
            if self.chat_dir is not None and probes:
                write_weakness(self.chat_dir, probes, _capabilities(rows, bases))
            for each in probes:
                yield _probe_verdict(each)
            repairs = await self._repaired(probes, rows, bases)
            for record in self._trained(probes, repairs, rows):
                if not (isinstance(record, Trajectory) and record.trajectory_id in done):
                    yield record
            async with aclosing(self._expanded(probes, repairs, rows, bases, done, failed)) as variants:
                async for variant in variants:
                    yield variant
        finally:
            await self.roles.close()

    def _stored(self, bases: Collection[str]) -> Iterable[Trajectory]:
        if self.store is None:
            return ()
        return (row for row in self.store.trajectories() if self._is_seed(row) and row.task_id in bases)

    def _is_seed(self, row: Trajectory) -> bool:
        return row.synthesizer == self.of and bool(row.success)

    async def _probed(self, rows: Mapping[str, Trajectory], bases: Mapping[str, Task]) -> list[Probe]:
        """All probes by step. EngineError where some say nothing."""
        broken: list[Probe] = []
        with self._log(Probe, "probes") as log:
            made = probe(
                rows.values(),
                engine=self.engine,
                renderer=self.renderer,
                environment=self.environment,
                load_task=bases.get,
                sampling=self.sampling,
                settings=self.settings,
                max_in_flight=self.max_in_flight,
                done=log.keys,
            )
            async with aclosing(made) as probes:
                async for each in probes:
                    if each.verdict is ProbeVerdict.INFRA:
                        broken.append(each)
                    else:
                        log.append(each.step_id, each)
                        self._note("probe", each.context_tokens + len(each.token_ids))
            if broken:
                first = f"{broken[0].step_id}: {broken[0].reason}"
                raise EngineError(
                    f"{len(broken)} steps could not be probed; the first, {first}. The same command tries "
                    f"again what is missing"
                )
            return sorted((each for each in log.rows() if each.trajectory_id in rows), key=_place)

    async def _repaired(
        self, probes: Sequence[Probe], rows: Mapping[str, Trajectory], bases: Mapping[str, Task]
    ) -> list[Repair]:
        """All repairs by step. EnvironmentFailure where some could not be decided."""
        judged = [judge.name for judge in self.judges]
        broken: list[Repair] = []
        with self._log(Repair, "repairs", judged, self.executed_check, self.policy_finishes) as log:
            made = repair(
                probes,
                load=rows.get,
                load_task=bases.get,
                environment=self.environment,
                renderer=self.renderer,
                engine=self.engine,
                sampling=self.sampling,
                settings=self.settings,
                judges=self.judges,
                executed_check=self.executed_check,
                policy_finishes=self.policy_finishes,
                max_in_flight=self.max_in_flight,
                done=log.keys,
                run_id=self.run_id,
            )
            async with aclosing(made) as repairs:
                async for each in repairs:
                    self._note("repair", each.sampled_tokens)
                    if each.is_broken:
                        broken.append(each)
                    else:
                        log.append(each.step_id, each)
            if broken:
                raise EnvironmentFailure(
                    f"{len(broken)} mismatches could not be verified; the first, {broken[0].step_id}: "
                    f"{broken[0].analysis}. The same command tries again what is missing"
                )
            return sorted((each for each in log.rows() if each.trajectory_id in rows), key=_place)

    def _trained(
        self, probes: Sequence[Probe], repairs: Sequence[Repair], rows: Mapping[str, Trajectory]
    ) -> list[Made]:
        """Verdicts, pairs, and the probed dialogues with the weights of the round."""
        by_step = {each.step_id: each for each in probes}
        records: list[Made] = []
        for each in repairs:
            records.append(_repair_verdict(each))
            if (pair := self._pair(each, by_step[each.step_id], rows)) is not None:
                records.append(pair)
        composed = compose(
            rows=rows.values(),
            probes=probes,
            repairs=repairs,
            expansions=(),
            fresh=(),
            round_number=2,
            high_share=self.high_share,
        )
        return [*records, *composed.trajectories]

    def _pair(self, each: Repair, made: Probe, rows: Mapping[str, Trajectory]) -> Pair | None:
        sample = sample_of(made, rows.get)
        return preference(each, sample, read_prediction(self.renderer, sample, made.token_ids))

    def _expanded(
        self,
        probes: Sequence[Probe],
        repairs: Sequence[Repair],
        rows: Mapping[str, Trajectory],
        bases: Mapping[str, Task],
        done: Collection[str],
        failed: Collection[str],
    ) -> AsyncGenerator[Made]:
        capabilities = _capabilities(rows, bases)
        plan = None
        if self.by == "plan":
            plan = round_plan(
                probes,
                repairs,
                capabilities=capabilities,
                template=lambda trajectory_id: rows[trajectory_id].template,
                k=self.k,
            )
        return expand(
            repairs,
            by=self.by,
            plan=plan,
            capabilities=capabilities,
            load=rows.get,
            load_task=bases.get,
            environment=self.environment,
            renderer=self.renderer,
            engine=self.engine,
            sampling=self.sampling,
            settings=self.settings,
            writer=self.roles.of(SAMPLE_WRITER.name),
            judge=self.roles.of(SAMPLE_JUDGE.name),
            teacher=self.teacher,
            k=self.k,
            weights=self.weights,
            used=set(bases),
            seed=self.seed,
            run_id=self.run_id,
            max_in_flight=self.max_in_flight,
            done=done,
            failed=failed,
        )

    def _demonstration(self) -> Demonstration:
        return Demonstration(
            environment=self.environment,
            renderer=self.renderer,
            settings=self.settings,
            seed=self.seed,
            run_id=self.run_id,
            max_in_flight=self.max_in_flight,
        )

    def _judges(self) -> list[Chat]:
        """The judges that `chats` names. ConfigError for a single one."""
        names = sorted(name for name in self.chats if name.startswith(JUDGES.rstrip("*")))
        judges = [judge for name in names if (judge := self.roles.of(name)) is not None]
        check_judges(judges)
        return judges

    def _note(self, what: str, tokens: int) -> None:
        """Put what the policy cost outside of trajectories beside what chats cost."""
        if self.chat_dir is not None and tokens:
            ChatLedger(self.chat_dir / LEDGER).note(f"{self.engine.name} ({what})", tokens)

    @contextmanager
    def _log(self, kind: type[Row], name: str, *of: object) -> Iterator[RowLog[Row]]:
        """The rows there are: others for other weights, another window, other judges. Without a directory
        for the chats they last as long as the log is open."""
        asked = (self.engine.weights_version, self.renderer.digest, self.settings.digest)
        key = canonical.digest(*asked, self.sampling.max_tokens, self.environment.version, *of, length=12)
        with (
            TemporaryDirectory(prefix="trajsmith-looptool-") as passing,
            RowLog((self.chat_dir or Path(passing)) / f"{name}-{key}.log", kind) as log,
        ):
            yield log


def _capabilities(rows: Mapping[str, Trajectory], bases: Mapping[str, Task]) -> Names:
    """Trajectory id to the capabilities of its task."""

    def named(trajectory_id: str) -> tuple[str, ...]:
        row = rows[trajectory_id]
        return capabilities_of(row, bases.get(row.task_id), row.turns)

    return named


def _place(row: Probe | Repair) -> tuple[str, int]:
    return row.trajectory_id, row.turn


def _probe_verdict(made: Probe) -> Verdict:
    return Verdict(
        trajectory_id=made.step_id,
        filter=PROBED,
        keep=made.verdict is ProbeVerdict.MASTERED,
        reason=made.reason or str(made.verdict),
        score=made.perplexity,
        detail="" if made.verdict is ProbeVerdict.MASTERED else made.predicted,
    )


def _repair_verdict(made: Repair) -> Verdict:
    return Verdict(
        trajectory_id=made.step_id,
        filter=VERIFIED,
        keep=made.is_error_seed,
        reason=str(made.verdict),
        detail=f"{made.reason}: {made.analysis}" if made.reason else made.analysis,
    )
