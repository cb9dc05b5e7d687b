"""Who was right at a step, by execution (JGLV): label and prediction each played to an end that is verified.

The label's side is finished by the stored rest, else by gold, else, where gold cannot stand behind the step,
by the policy. The prediction's side the same way; and where gold does not bring it to success, the policy
itself may, unless it needs more calls than the stored dialogue has: a detour is no equal. A prediction that
does not parse, does not fit its schema or says nothing is wrong without being played. Where the way to the
step no longer answers as it did, where the label is not answered twice alike, or where the infrastructure
broke, nothing is decided. Not covered: worlds that cannot be played (`judging`), what is made of the verdict
(`repairing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from data import canonical
from data.messages import Role, Turn
from data.tasks import Task
from data.trajectories import Policy, Trajectory
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.renderers.base import Renderer
from pipeline.rollout_episode import Episode, Identity
from pipeline.rollout_settings import RolloutSettings
from synthesizers.looptool.records import INFRA, SYNTHESIZER, LabelVerdict
from synthesizers.looptool.samples import StepSample
from synthesizers.looptool.splicing import (
    Finish,
    PolicyFinish,
    RestFinish,
    SplicedAuthor,
    gold_finish,
    same_answers,
)

_BY_SIDES = {
    (True, True): LabelVerdict.BOTH_CORRECT,
    (True, False): LabelVerdict.PRED_WRONG,
    (False, True): LabelVerdict.LABEL_WRONG,
    (False, False): LabelVerdict.BOTH_WRONG,
}


class Side(NamedTuple):
    """How one of the two fared."""

    right: bool | None
    """None where nothing could be told; `analysis` says why."""
    analysis: str
    trajectory: Trajectory | None = None
    """The verified dialogue, where it is right."""


class Executed(NamedTuple):
    """The verdict and what it rests on."""

    verdict: LabelVerdict
    reason: str
    analysis: str
    label: Side
    prediction: Side
    sampled_tokens: int


@dataclass(kw_only=True)
class Verifier:
    """Plays both sides of a step. `engine` None: nothing is finished by the policy."""

    environment: Environment
    renderer: Renderer
    engine: Engine | None = None
    sampling: Sampling = field(default_factory=Sampling)
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    run_id: str = ""

    async def verify(
        self, sample: StepSample, task: Task, prediction: Turn, *, problem: str = ""
    ) -> Executed:
        """The verdict on one mismatch; with a `problem` the prediction is wrong whatever the world says.

        Raises ConfigError, MissingExtraError and BudgetExceededError only.
        """
        case = _Case(self, sample, task)
        label = await case.side(sample.label, may_detour=False)
        predicted = Side(False, problem) if problem else Side(None, label.analysis)
        if label.right is not None and not problem:
            predicted = await case.side(prediction, may_detour=True)
        return _judged(label, predicted, case.sampled_tokens)

    async def holds(self, sample: StepSample, task: Task, prediction: Turn) -> tuple[Side, int]:
        """The prediction's side alone, and the tokens sampled for it: the check before it is adopted."""
        case = _Case(self, sample, task)
        return await case.side(prediction, may_detour=True), case.sampled_tokens


class _Case:
    """One step being played."""

    def __init__(self, verifier: Verifier, sample: StepSample, task: Task) -> None:
        self.verifier, self.sample, self.task = verifier, sample, task
        self.stored = sample.trajectory.turns
        self.sampled_tokens = 0

    async def side(self, action: Turn, *, may_detour: bool) -> Side:
        """Whether an end that is verified can be reached from `action`."""
        problem = unplayable(action)
        if problem:
            return Side(False, problem)
        tried: list[str] = []
        unknown = ""
        for name, make in self._finishers(may_detour=may_detour):
            finish = make()
            if finish is None:
                continue
            played = await self._played(action, finish, name)
            self.sampled_tokens += finish.sampled_tokens
            if played.success is None:
                unknown = unknown or f"{INFRA}: {played.error}"
            elif not self._same_way(played):
                return Side(None, "prefix_differs: the world does not answer as it did")
            elif not may_detour and await self._is_live(action, finish, played):
                return Side(None, "live: the world does not answer twice alike")
            elif played.success and (name != "policy" or not self._is_detour(played)):
                return Side(True, f"scored {_total(played)}, finished by {name}", played)
            else:
                tried.append(f"{name}: {_why(played)}")
        if unknown or not tried:
            return Side(None, unknown or "nobody could finish the dialogue")
        return Side(False, "; ".join(tried))

    def _finishers(self, *, may_detour: bool) -> Iterator[tuple[str, Callable[[], Finish | None]]]:
        gold = gold_finish(self.verifier.environment, self.task, self.stored, self.sample.turn)
        yield "rest", lambda: RestFinish(self.stored, self.sample.turn)
        yield "gold", lambda: gold
        if self.verifier.engine is not None and (may_detour or gold is None):
            yield "policy", self._policy

    def _policy(self) -> PolicyFinish:
        assert self.verifier.engine is not None
        return PolicyFinish(
            self.verifier.engine,
            self.verifier.renderer,
            sampling=self.verifier.sampling,
            settings=self.verifier.settings,
        )

    async def _played(self, action: Turn, finish: Finish, name: str) -> Trajectory:
        verifier, row = self.verifier, self.sample.trajectory
        author = SplicedAuthor(self.stored, self.sample.turn, action, finish, renderer=verifier.renderer)
        weights = verifier.engine.weights_version if verifier.engine is not None else ""
        policy = Policy(
            name=f"{SYNTHESIZER}/{name}",
            weights=weights,
            renderer=verifier.renderer.digest,
            harness=verifier.settings.digest,
        )
        written = [action.text, *([call.name, call.arguments] for call in action.tool_calls)]
        identity = Identity(
            group_id=canonical.digest("looptool/splice", self.sample.step_id, written, name, length=24),
            synthesizer=SYNTHESIZER,
            policy=policy,
            seed=row.environment.seed,
            run_id=verifier.run_id,
        )
        return await Episode(
            self.task,
            environment=verifier.environment,
            author=author,
            settings=verifier.settings,
            identity=identity,
        ).run()

    async def _is_live(self, label: Turn, finish: Finish, played: Trajectory) -> bool:
        """Whether the label, not answered as it is stored, is answered otherwise when it is played again."""
        if not isinstance(finish, RestFinish) or not finish.diverged:
            return False
        again = await self._played(label, RestFinish(self.stored, self.sample.turn), "rest")
        return not same_answers(again.turns, played.turns)

    def _same_way(self, played: Trajectory) -> bool:
        """Whether the world answered up to the step as it did when the dialogue was stored."""
        step = self.sample.turn
        return same_answers(played.turns[:step], self.stored[:step])

    def _is_detour(self, played: Trajectory) -> bool:
        return _num_calls(played) > _num_calls(self.sample.trajectory)


def unplayable(action: Turn) -> str:
    """Why a turn is wrong whatever the world says; "" where it can be played."""
    wrong = next((call for call in action.tool_calls if not call.ok), None)
    if wrong is not None:
        return f"{wrong.status}: {wrong.error}" if wrong.error else str(wrong.status)
    return "" if action.tool_calls or action.text.strip() else "it says nothing"


def _judged(label: Side, prediction: Side, sampled_tokens: int) -> Executed:
    analysis = f"label: {label.analysis}; prediction: {prediction.analysis}"
    if label.right is None or prediction.right is None:
        blamed = label if label.right is None else prediction
        reason = blamed.analysis.partition(":")[0].replace(" ", "_")
        return Executed(LabelVerdict.UNDECIDED, reason, analysis, label, prediction, sampled_tokens)
    verdict = _BY_SIDES[label.right, prediction.right]
    return Executed(verdict, "", analysis, label, prediction, sampled_tokens)


def _total(played: Trajectory) -> float | None:
    return played.reward.total if played.reward is not None else None


def _why(played: Trajectory) -> str:
    """What the verifier missed."""
    parts = played.reward.components if played.reward is not None else ()
    missed = [part.name for part in parts if part.value < 1.0 and part.name != "success"]
    return f"scored {_total(played)}" + (f" ({', '.join(missed)})" if missed else "")


def _num_calls(trajectory: Trajectory) -> int:
    return sum(len(turn.tool_calls) for turn in trajectory.turns if turn.role is Role.ASSISTANT)
