"""The evaluation stage: free-running episodes on held-out tasks, summarised with intervals.

Episodes are written by the synthesis stage into a directory of their own, so that an evaluation resumes
and held-out episodes cannot reach the training store. Success = verifier total >= 1. Valid-call rate =
share of assistant turns that attempt a call whose every call parses and fits the shown schemas.
Episodes the infrastructure broke are in no rate; their number stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from data.files import user_path
from data.messages import Record
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from flows.stages.policy import LivePolicy
from flows.stages.progress import Say, silent
from flows.stages.recipe import EvalSection, SynthSection
from flows.stages.rewards import RewardMean, mean_reward
from flows.stages.synthesize import make_synthesizer, synthesize
from pipeline.checks.stats import Comparison, paired_bootstrap, pass_at_k, pass_hat_k
from pipeline.diagnosis.diagnose import valid_call_rate
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError, EngineError
from pipeline.memory.stored import load_memory
from pipeline.reporting.content import Rate, ResultRow, rate
from pipeline.rewards import build_reward


class Outcome(Record):
    """Success of one task, the mean over its episodes."""

    task_id: str
    template: str
    success: float


class Attempts(Record):
    """What k episodes of one task come to: pass^k and pass@k, unbiased, the means over tasks."""

    k: int
    every: float
    """pass^k, the chance that all k succeed: how far the policy can be relied on."""
    any: float
    """pass@k, the chance that at least one of k does."""
    tasks: int
    """Tasks with at least k finished episodes; others are in neither mean."""


class Evaluation(Record):
    """One policy on one split at one temperature."""

    name: str
    model: str = ""
    """Who acted, by the name that results show; "" in an evaluation of an older version."""
    split: str
    temperature: float
    success: Rate
    """Over episodes."""
    valid_calls: Rate
    by_template: tuple[ResultRow, ...]
    outcomes: tuple[Outcome, ...]
    """Sorted by task id: what paired comparisons need."""
    infra_failures: int
    generated_tokens: int
    tasks_of: str = ""
    """The synthesizer that planned the tasks from the split; "" where they are the split's own."""
    reward: RewardMean | None = None
    """Mean of the reward that training is on, where that is not verified success."""
    attempts: tuple[Attempts, ...] = ()
    """For k from 2 to the episodes per task; empty for one episode each."""
    memory: str = ""
    """Which memory of workflows the policy was shown; "" for none."""

    @property
    def group(self) -> str:
        """How reports group rows: which tasks, and temperature."""
        planned = f", planned by {self.tasks_of}" if self.tasks_of else ""
        return f"{self.split}{planned}, temperature {self.temperature:g}"

    @property
    def reliability(self) -> str:
        """pass^k and pass@k of the largest k, in words; "" for one episode per task."""
        if not self.attempts:
            return ""
        most = self.attempts[-1]
        return f"pass^{most.k} {most.every:.0%}, pass@{most.k} {most.any:.0%} ({most.tasks} tasks)"

    def refuse_broken(self) -> None:
        """EngineError where infrastructure broke some of the episodes."""
        if self.infra_failures:
            raise EngineError(
                f"{self.infra_failures} episodes of {self.name} ({self.group}) were broken by infrastructure "
                f"and are in no rate; the same command plays them again"
            )

    def row(self) -> ResultRow:
        """The evaluation as a row of a report."""
        notes = [f"{self.infra_failures} episodes broken by infrastructure"] if self.infra_failures else []
        if self.reliability:
            notes.append(self.reliability)
        if self.memory:
            notes.append(f"shown {self.memory}")
        if self.reward is not None:
            failed = f", {self.reward.failed} judgements failed" if self.reward.failed else ""
            mean = "no score" if self.reward.mean is None else f"{self.reward.mean:.3f}"
            notes.append(f"reward {self.reward.name} {mean}{failed}")
        return ResultRow(
            name=self.name,
            group=self.group,
            success=self.success,
            valid_calls=self.valid_calls,
            note="; ".join(notes),
        )


async def evaluate(
    root: Path,
    tasks: Sequence[Task],
    *,
    name: str,
    environment: Environment,
    policy: LivePolicy,
    section: EvalSection,
    seed: int,
    reward: Mapping[str, Any] | None = None,
    say: Say = silent,
) -> Evaluation:
    """Run the missing episodes of `name` on the section's `tasks` into `root` and summarise all of them.

    `reward`: the recipe's row of the reward that training is on; its mean stands beside verified success.
    """
    if section.rollouts > 1 and section.temperature == 0:  # a copy of a section is validated by nobody
        raise ConfigError("evaluate.rollouts > 1 at temperature 0 repeats one episode; set a temperature")
    if reward:
        build_reward(reward)  # a wrong row is refused before episodes are played
    acting = policy.at(section.temperature).remembering(section.memory, environment)
    memory = acting.settings.memory
    identity = {
        "evaluation": name,
        "environment": environment.name,
        "environment_version": environment.version,
        "weights": policy.engine.weights_version,
        "seed": seed,
        **section.model_dump(mode="json"),
        "memory": None if memory is None else memory.digest,
    }
    defaults = {"tasks_of": "", "memory": None}
    with Store.create_or_open(
        root, identity, volatile=("tasks",), growing=("rollouts",), defaults=defaults
    ) as store:
        plan = SynthSection(
            synthesizer="rejection_sampling", tasks=len(tasks), options={"k": section.rollouts}
        )
        synthesizer = make_synthesizer(plan, environment=environment, policy=acting, store=store, seed=seed)
        meter = await synthesize(
            store,
            synthesizer,
            tasks,
            planned=len(tasks) * section.rollouts,
            give_up_after=policy.max_in_flight,
            say=say,
        )
        wanted = {task.task_id for task in tasks}
        rows = [row for row in store.trajectories() if row.task_id in wanted]
    if not rows:
        raise meter.failure()
    found = summarise(
        rows, name=name, section=section, infra_failures=len(meter.unfinished) + meter.stragglers
    )
    mean = await mean_reward(rows, reward, environment=environment, tasks=tasks) if reward else None
    return found.model_copy(update={"reward": mean, "memory": "" if memory is None else memory.label})


def summarise(
    rows: list[Trajectory], *, name: str, section: EvalSection, infra_failures: int = 0
) -> Evaluation:
    """An Evaluation of finished episodes."""
    return Evaluation(
        name=name,
        model=", ".join(sorted({row.policy.name for row in rows})),
        split=section.split,
        temperature=section.temperature,
        success=_success(rows),
        valid_calls=valid_call_rate(rows),
        by_template=tuple(
            ResultRow(name=template, group=name, success=_success(some), valid_calls=valid_call_rate(some))
            for template, some in _grouped(rows)
        ),
        outcomes=_outcomes(rows),
        attempts=_attempts(rows, most=section.rollouts),
        infra_failures=infra_failures,
        tasks_of=section.tasks_of,
        generated_tokens=sum(row.usage.generated_tokens for row in rows),
    )


def check_section(section: EvalSection, environment: Environment) -> None:
    """ConfigError where the memory that the episodes are shown may not be shown."""
    if section.memory is not None:
        load_memory(user_path(section.memory.path), section.memory.kind, environment)


def unseen_section(section: EvalSection, environment: Environment, *, most: int) -> EvalSection | None:
    """The section on up to `most` tasks of the split's unseen templates; None where there are none."""
    split = f"{section.split}_unseen"
    if split not in environment.splits:
        return None
    # A choice of templates may leave none of the unseen ones.
    tasks = sum(1 for _ in islice(environment.tasks(split), most))
    return section.model_copy(update={"split": split, "tasks": tasks}) if tasks else None


def compare(baseline: Evaluation, treatment: Evaluation, *, seed: int = 0) -> Comparison:
    """Treatment minus baseline on the tasks both finished, bootstrap over templates (tasks if only one)."""
    before = {outcome.task_id: outcome for outcome in baseline.outcomes}
    pairs = [(before[after.task_id], after) for after in treatment.outcomes if after.task_id in before]
    templates = [after.template for _, after in pairs]
    return paired_bootstrap(
        [earlier.success for earlier, _ in pairs],
        [later.success for _, later in pairs],
        clusters=templates if len(set(templates)) > 1 else None,
        seed=seed,
    )


def _success(rows: Iterable[Trajectory]) -> Rate:
    outcomes = [bool(row.success) for row in rows]
    return rate(sum(outcomes), len(outcomes))


def _attempts(rows: Iterable[Trajectory], *, most: int) -> tuple[Attempts, ...]:
    counts = [(sum(bool(row.success) for row in some), len(some)) for _, some in _by_task(rows)]
    found = []
    for k in range(2, most + 1):
        enough = [count for count in counts if count[1] >= k]
        if enough:
            every = fmean(pass_hat_k(successes, trials, k) for successes, trials in enough)
            once = fmean(pass_at_k(successes, trials, k) for successes, trials in enough)
            found.append(Attempts(k=k, every=every, any=once, tasks=len(enough)))
    return tuple(found)


def _grouped(rows: Iterable[Trajectory]) -> list[tuple[str, list[Trajectory]]]:
    return _sorted_groups((row.template, row) for row in rows)


def _by_task(rows: Iterable[Trajectory]) -> list[tuple[str, list[Trajectory]]]:
    return _sorted_groups((row.task_id, row) for row in rows)


def _sorted_groups(named: Iterable[tuple[str, Trajectory]]) -> list[tuple[str, list[Trajectory]]]:
    groups: dict[str, list[Trajectory]] = {}
    for name, row in named:
        groups.setdefault(name, []).append(row)
    return sorted(groups.items())


def _outcomes(rows: Iterable[Trajectory]) -> tuple[Outcome, ...]:
    return tuple(
        Outcome(
            task_id=task_id,
            template=some[0].template,
            success=sum(bool(row.success) for row in some) / len(some),
        )
        for task_id, some in _by_task(rows)
    )
