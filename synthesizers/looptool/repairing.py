"""From a mismatch to a verdict, a repaired dialogue and a preference pair.

By execution unless there are judges. A wrong label is replaced by the model's own prediction, never by
something written anew; also where judges decided, only after an executed check, unless that is switched off.
The repaired dialogue trains that one turn and carries what was executed behind it as context. Not covered:
new samples (`expansion`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from data import canonical
from data.messages import ToolSpec, Turn
from data.tasks import Task
from data.trajectories import (
    Origin,
    Reward,
    RewardBy,
    RewardComponent,
    Termination,
    Trajectory,
    Usage,
)
from data.verdicts import Pair
from pipeline.chat.base import Chat
from pipeline.chat.roles import shown_dialogue
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError
from pipeline.renderers.base import Renderer
from pipeline.rollout_pool import Emit, pooled
from pipeline.rollout_settings import RolloutSettings
from synthesizers.looptool.judging import check_judges, judge_label
from synthesizers.looptool.probing import LoadTask, Probe, ProbeVerdict, read_prediction
from synthesizers.looptool.records import INFRA, REPAIRED, SYNTHESIZER, LabelVerdict, Part, Repair
from synthesizers.looptool.roles import LabelRequest, shown_tools, shown_turn
from synthesizers.looptool.samples import StepSample, step_samples, trained_at
from synthesizers.looptool.verification import Verifier, unplayable
from synthesizers.segments import rendered_segments

Load = Callable[[str], Trajectory | None]
"""Trajectory id to trajectory; None where it is not known."""
JUDGED = "looptool/judges/1"
"""Verifier of a dialogue whose adopted turn only judges have seen."""


async def repair(
    probes: Iterable[Probe],
    *,
    load: Load,
    load_task: LoadTask,
    environment: Environment,
    renderer: Renderer,
    engine: Engine | None = None,
    sampling: Sampling | None = None,
    settings: RolloutSettings | None = None,
    judges: Sequence[Chat] = (),
    executed_check: bool = True,
    policy_finishes: bool = True,
    max_in_flight: int = 8,
    done: Collection[str] = (),
    run_id: str = "",
) -> AsyncGenerator[Repair]:
    """A Repair of every mismatch among `probes` whose step id is not in `done`, as they come.

    Without `engine`, or where not `policy_finishes`, no dialogue is finished by the policy: cheaper, and a
    right call in another order than gold's counts as wrong. Raises ConfigError for a single judge, and where
    a probe names a trajectory, step or task that is not there.
    """
    check_judges(judges)
    repairer = _Repairer(
        verifier=Verifier(
            environment=environment,
            renderer=renderer,
            engine=engine if policy_finishes else None,
            sampling=sampling or Sampling(),
            settings=settings or RolloutSettings(),
            run_id=run_id,
        ),
        load=load,
        load_task=load_task,
        judges=judges,
        executed_check=executed_check,
    )
    waiting = (each for each in probes if each.verdict is ProbeVerdict.MISMATCH and each.step_id not in done)

    async def work(made: Probe, emit: Emit[Repair]) -> None:
        await emit(await repairer.repair(made))

    async with aclosing(pooled(waiting, work, max_in_flight=max_in_flight)) as repaired:
        async for each in repaired:
            yield each


def sample_of(probe: Probe, load: Load) -> StepSample:
    """The step that was probed. ConfigError where it is not there any more."""
    row = load(probe.trajectory_id)
    if row is None:
        raise ConfigError(f"probe {probe.step_id} names a trajectory that is not in the store; probe again")
    found = next((sample for sample in step_samples(row) if sample.turn == probe.turn), None)
    if found is None:
        raise ConfigError(f"probe {probe.step_id}: that turn is no step of the trajectory; probe again")
    return found


def preference(repair: Repair, sample: StepSample, prediction: Turn) -> Pair | None:
    """The right turn over the wrong one behind the same dialogue; None where not exactly one is right."""
    if repair.verdict is LabelVerdict.PRED_WRONG:
        chosen, rejected = sample.label, prediction
    elif repair.repaired is not None:
        chosen, rejected = prediction, sample.label
    else:
        return None
    sides = [shown_turn(turn) for turn in (chosen, rejected)]
    return Pair(
        pair_id=canonical.digest("looptool/pair", repair.step_id, sides, length=24),
        prompt=sample.trajectory.turns[: sample.turn],
        tools=sample.tools,
        chosen=(chosen,),
        rejected=(rejected,),
        parents=(repair.trajectory_id,),
        synthesizer=SYNTHESIZER,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repairer:
    verifier: Verifier
    load: Load
    load_task: LoadTask
    judges: Sequence[Chat]
    executed_check: bool

    async def repair(self, probe: Probe) -> Repair:
        """The verdict on one mismatch."""
        sample = sample_of(probe, self.load)
        task = self.load_task(probe.task_id)
        if task is None:
            raise ConfigError(f"probe {probe.step_id} names task {probe.task_id}, which is not in the store")
        prediction = read_prediction(self.verifier.renderer, sample, probe.token_ids)
        begun = Repair(
            trajectory_id=probe.trajectory_id,
            turn=probe.turn,
            verdict=LabelVerdict.UNDECIDED,
            label=shown_turn(sample.label),
            predicted=shown_turn(prediction) or probe.predicted,
        )
        problem = "truncated" if probe.reason == "truncated" else ""
        if self.judges:
            return await self._by_judges(begun, sample, task, prediction, problem)
        return await self._by_execution(begun, sample, task, prediction, problem)

    async def _by_execution(
        self, begun: Repair, sample: StepSample, task: Task, prediction: Turn, problem: str
    ) -> Repair:
        executed = await self.verifier.verify(sample, task, prediction, problem=problem)
        repaired = None
        if executed.verdict is LabelVerdict.LABEL_WRONG and executed.prediction.trajectory is not None:
            repaired = adopted(sample, executed.prediction.trajectory)
        return _with(
            begun,
            verdict=executed.verdict,
            reason=executed.reason,
            analysis=executed.analysis,
            sampled_tokens=executed.sampled_tokens,
            repaired=repaired,
        )

    async def _by_judges(
        self, begun: Repair, sample: StepSample, task: Task, prediction: Turn, problem: str
    ) -> Repair:
        request = LabelRequest(
            tools=shown_tools(sample.tools),
            dialogue=shown_dialogue(sample.trajectory.turns[: sample.turn]),
            label=begun.label,
            prediction=f"{begun.predicted} ({problem})" if problem else begun.predicted,
        )
        word = await judge_label(self.judges, request)
        judged = _with(
            begun, verdict=word.verdict, reason=word.reason, analysis=word.analysis, votes=word.votes
        )
        if word.verdict is not LabelVerdict.LABEL_WRONG:
            return judged
        if problem := problem or unplayable(prediction):
            return _with(judged, reason="unplayable", analysis=f"{word.analysis} ({problem})".strip())
        if not self.executed_check:
            return _with(judged, repaired=self._unexecuted(sample, prediction))
        side, sampled_tokens = await self.verifier.holds(sample, task, prediction)
        judged = _with(judged, sampled_tokens=sampled_tokens)
        if side.trajectory is None:
            reason = "check_undecided" if side.right is None else "check_failed"
            if side.right is None and side.analysis.startswith(INFRA):
                judged = _with(judged, verdict=LabelVerdict.UNDECIDED)
                reason = INFRA
            return _with(judged, reason=reason, analysis=f"{word.analysis} Executed: {side.analysis}".strip())
        return _with(judged, repaired=adopted(sample, side.trajectory))

    def _unexecuted(self, sample: StepSample, prediction: Turn) -> Trajectory:
        """The dialogue up to the prediction, on the judges' word alone."""
        turns = (*sample.trajectory.turns[: sample.turn], prediction)
        segments = rendered_segments(
            turns, _starts(sample), renderer=self.verifier.renderer, origin=Origin.EDITED
        )
        judges = RewardComponent(name="judges", value=1.0, by=RewardBy.MODEL)
        changed = {
            "turns": turns,
            "segments": segments,
            "termination": Termination.FINISHED,
            "reward": Reward(total=1.0, components=(judges,), verifier=JUDGED),
            "group_id": canonical.digest(
                "looptool/judged", sample.step_id, shown_turn(prediction), length=24
            ),
        }
        return adopted(sample, sample.trajectory.model_copy(update=changed))


def adopted(sample: StepSample, played: Trajectory) -> Trajectory:
    """`played` as the repaired dialogue: the step's turn alone is trained. What it cost is on the Repair."""
    changed = {
        "trajectory_id": "",
        "rollout_index": 0,
        "attempt": 0,
        "parents": (sample.trajectory.trajectory_id,),
        "synthesizer": SYNTHESIZER,
        "labels": (REPAIRED, Part.ERROR_SEED.mark),
        "turns": trained_at(played.turns, {sample.turn}),
        "usage": Usage(),
    }
    return Trajectory.model_validate(played.model_copy(update=changed).model_dump())


def _starts(sample: StepSample) -> list[tuple[int, tuple[ToolSpec, ...]]]:
    """Where the tools changed up to the step."""
    turns = sample.trajectory.turns[: sample.turn + 1]
    first = sample.trajectory.segments[0].tools
    changes = [(place, turn.tools_changed) for place, turn in enumerate(turns)]
    return [(0, first), *((place, tools) for place, tools in changes if tools is not None)]


def _with(repair: Repair, **changes: object) -> Repair:
    return repair.model_copy(update=changes)
