"""What a reward is: a task and what was done in it go in, a total and its named parts come out.

Decides the contract and what is common to every reward: a trajectory that says nothing of the agent has no
score, a judge that failed gives none either (never 0 and never 1), and the environment's verified success
stands beside whatever else is computed. The score is added to the record as components; `Reward.total` stays
the verifier's, so success always means verified success. Not covered: which rewards exist
(`pipeline.rewards`) and what training does with them (`rl`).
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

from data.tasks import Task
from data.trajectories import Reward, RewardBy, RewardComponent, RewardWhen, Termination, Trajectory
from pipeline.checks.answers import final_answer
from pipeline.checks.matching import Call, read_calls
from pipeline.errors import (
    BudgetExceededError,
    ConfigError,
    JudgeError,
    MissingExtraError,
    StoreError,
    StructuredReplyError,
    TrajsmithError,
)

_log = logging.getLogger(__name__)

PREFIX = "reward/"
"""Components of a chosen reward are called `reward/<name>` (its total) and `reward/<name>/<part>`."""
MAX_FAILED_SHARE = 0.5
"""Share of failed judgements above which a run stops instead of going on with what is left."""
FAILED_LABEL = "reward_failed"
"""A trajectory whose judge failed is labelled `reward_failed:<name>`."""

GoldCalls = Mapping[str, tuple[Call, ...]]
"""Task id to the calls of its gold solution."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward says of one trajectory."""

    total: float | None
    """None where there is no score: the episode has no reward, or the judge failed (see `error`)."""
    parts: tuple[RewardComponent, ...] = ()
    """Unweighted parts, by their own names."""
    success: bool | None = None
    """The environment's verified success, whatever `total` is."""
    error: str = ""
    """Why the judge failed; "" where it did not."""


def refuse_failures(reward: str, *, num_failed: int, num_judged: int, last: str) -> None:
    """JudgeError where most judgements of a reward failed; `last`: why the last of them did."""
    if num_failed > MAX_FAILED_SHARE * num_judged:
        raise JudgeError(
            f"{num_failed} of {num_judged} judgements of reward {reward} failed; the last: {last}"
        )


class RewardFunction(Protocol):
    """Picklable; options are set when it is made. Connections are opened at the first use."""

    name: str
    by: RewardBy
    per_group: bool
    """Whether a score depends on the other rollouts of the group: then it needs all of them at once."""

    async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
        """Scores of rollouts of one task, in order. ConfigError where the reward does not fit the task."""
        ...

    async def close(self) -> None:
        """Release connections; idempotent."""
        ...


class Measured(NamedTuple):
    """A total and its unweighted parts."""

    total: float
    parts: Mapping[str, float]


class ProgramReward(ABC):
    """Base of rewards that a program computes, one trajectory at a time: a subclass writes `measure`."""

    name: str
    by: RewardBy = RewardBy.PROGRAM
    per_group = False
    needs_gold: ClassVar[bool] = False
    """Whether it compares with the calls of the gold solution."""
    helped_by_gold: ClassVar[bool] = False
    """Whether it says more where those are known, and does without elsewhere."""

    @abstractmethod
    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Total and parts of a trajectory that has a verified reward. Reads, never changes."""

    def __call__(self, task: Task, trajectory: Trajectory) -> Score:
        """The score; ConfigError where the reward does not fit the task, an error of the program is on it."""
        if trajectory.reward is None:
            return Score(total=None)
        try:
            total, parts = self.measure(task, trajectory)
        except (ConfigError, MissingExtraError):
            raise
        except Exception as error:
            return Score(None, success=trajectory.success, error=f"{type(error).__name__}: {error}")
        values = [RewardComponent(name=name, value=float(value)) for name, value in parts.items()]
        if not math.isfinite(total):
            return Score(None, success=trajectory.success, error=f"the total is {total}, no finite number")
        return Score(float(total), tuple(values), trajectory.success)

    async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
        """See `RewardFunction.score`."""
        return [self(task, trajectory) for trajectory in group]

    async def close(self) -> None:  # noqa: B027 a program has nothing to release
        """A program holds no connection."""


def verified(trajectory: Trajectory) -> Reward:
    """The verifier's reward. JudgeError where there is none (callers leave such trajectories out first)."""
    if trajectory.reward is None:
        raise JudgeError(f"trajectory {trajectory.trajectory_id} has no reward: {trajectory.termination}")
    return trajectory.reward


def component(trajectory: Trajectory, name: str, *, reward: str) -> float:
    """A component the environment's verifier gave.

    An episode that exhausted its budget was not judged: its fixed total stands in. ConfigError where the
    verifier of a finished episode gave no such component.
    """
    given = {part.name: part.value for part in verified(trajectory).components}
    if name in given:
        return given[name]
    if trajectory.termination is not Termination.FINISHED:
        return verified(trajectory).total
    shown = ", ".join(key for key in given if not key.startswith(PREFIX)) or "none"
    raise ConfigError(
        f"reward {reward} needs the component {name!r}, and verifier {verified(trajectory).verifier} of "
        f"environment {trajectory.environment.name} gives: {shown}; name another one in its options"
    )


def known_component(trajectory: Trajectory, name: str) -> float | None:
    """A component by name, None where the verifier gave none."""
    return next((part.value for part in verified(trajectory).components if part.name == name), None)


def submitted_answer(trajectory: Trajectory) -> str:
    """The final answer of an episode the agent ended itself, "" elsewhere: cut off is not answered."""
    return final_answer(trajectory.turns) if trajectory.termination is Termination.FINISHED else ""


def gold_calls(task: Task, gold: GoldCalls | None, key: str, *, reward: str) -> tuple[Call, ...]:
    """The gold calls of a task: those under `key` of its private part, else the ones that gold played.

    ConfigError where there are none.
    """
    if not key:
        if gold is None or task.task_id not in gold:
            raise ConfigError(
                f"reward {reward} compares with gold calls and task {task.task_id} has none; give the "
                f"environment a gold script, or name the key of the private part that lists them as gold_key"
            )
        return gold[task.task_id]
    value = task.private_value()
    try:
        return read_calls(value[key])
    except (LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"reward {reward}: the private part of task {task.task_id} has no calls under {key!r}: {error}"
        ) from error


def with_score(trajectory: Trajectory, name: str, score: Score, *, by: RewardBy) -> Trajectory:
    """A copy that carries `score` as components of its reward; an earlier score of that name is replaced.

    The total stays the verifier's. A failed judge leaves the reward as it is, a label and the error.
    """
    if trajectory.reward is None:
        return trajectory
    mine = (f"{PREFIX}{name}", f"{PREFIX}{name}/")
    kept = [part for part in trajectory.reward.components if part.name != mine[0]]
    kept = [part for part in kept if not part.name.startswith(mine[1])]
    failed = f"{FAILED_LABEL}:{name}"
    labels = [label for label in trajectory.labels if label != failed]
    update: dict[str, object] = {}
    if score.total is None:
        labels.append(failed)
        update["error"] = f"reward {name} failed: {score.error}"
    else:
        total = RewardComponent(name=mine[0], value=score.total, when=RewardWhen.OUTCOME, by=by)
        kept += [total, *(part.model_copy(update={"name": mine[1] + part.name}) for part in score.parts)]
    reward = trajectory.reward.model_copy(update={"components": tuple(kept)})
    return trajectory.model_copy(update={"reward": reward, "labels": tuple(labels), **update})


def chosen_total(trajectory: Trajectory, name: str) -> float | None:
    """The stored total of reward `name`; None without a reward or where its judge failed."""
    if trajectory.reward is None:
        return None
    wanted = f"{PREFIX}{name}"
    return next((part.value for part in trajectory.reward.components if part.name == wanted), None)


async def scored(task: Task, group: Sequence[Trajectory], reward: RewardFunction) -> list[Score]:
    """The reward's scores of rollouts of one task, in order; none for those without a verified reward.

    An episode that exhausted its budget scores at most what its task says that scores: else not stopping
    would pay wherever partial credit does. JudgeError where the reward loses a score.
    """
    judged = [trajectory for trajectory in group if trajectory.reward is not None]
    scores = await reward.score(task, judged) if judged else []
    if len(scores) != len(judged):
        raise JudgeError(f"reward {reward.name} gave {len(scores)} scores for {len(judged)} trajectories")
    found = iter([_capped(item, score) for item, score in zip(judged, scores, strict=True)])
    return [Score(total=None) if trajectory.reward is None else next(found) for trajectory in group]


async def rescored(task: Task, group: Sequence[Trajectory], reward: RewardFunction) -> list[Trajectory]:
    """`group`, rollouts of one task, with the reward's scores added; what has no reward stays as it is."""
    scores = await scored(task, group, reward)
    return [
        with_score(trajectory, reward.name, score, by=reward.by)
        for trajectory, score in zip(group, scores, strict=True)
    ]


def _capped(trajectory: Trajectory, score: Score) -> Score:
    if score.total is None or trajectory.termination is Termination.FINISHED:
        return score
    return replace(score, total=min(score.total, verified(trajectory).total))


def judge_failure(error: BaseException) -> str:
    """How a failed judge is told of. Raises again what must stop the work: configuration, budgets, disks."""
    if isinstance(error, ConfigError | BudgetExceededError | MissingExtraError | StoreError):
        raise error
    if isinstance(error, StructuredReplyError):
        # The reply may quote what the judge alone was told; it must not end up in a stored record.
        _log.warning("%s", error)
        return f"StructuredReplyError: {str(error).partition('; last error')[0]}"
    if isinstance(error, TrajsmithError | TimeoutError | OSError | ValueError | LookupError | TypeError):
        return f"{type(error).__name__}: {error}"
    raise error
