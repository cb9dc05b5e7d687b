"""What a survey counts while it streams through a run: numbers and digests, never records.

Memory per task: a few dozen bytes per planned turn; per trajectory: nothing, but a digest for every new tool
sequence; per environment: the calls of a few hundred trajectories. Not covered: what the numbers are called
and shown as (`survey`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from data import canonical
from data.messages import Role, ToolSpec, ToolStatus
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.checks.attempts import Attempt, attempts
from pipeline.environments.blueprint import Blueprint, PlannedTurn, is_blueprint, read_blueprint
from synthesizers.base import Turned, is_given_up
from synthesizers.graph.observations import Step, steps_of

_RESULTS = 24
"""Results kept per tool, for the signature graph."""
_MAX_RESULT = 4_000
_EPISODES = 300
"""Trajectories kept per environment whose calls show links of the signature graph."""
WRITTEN_BY_PROGRAM = ("template", "task")
"""Values of `PlannedTurn.text_by` that name no chat."""


class PlanNote(NamedTuple):
    """What is remembered of a planned task: a digest of the calls of each user turn."""

    synthesizer: str
    turns: tuple[str, ...]
    directed: bool
    """Whether its blueprint says itself where plan and actor differed."""


@dataclass(slots=True)
class Counts:
    """One synthesizer's numbers."""

    bases: set[str] = field(default_factory=set)
    plans_made: int = 0
    given_up: Counter[str] = field(default_factory=Counter)
    trajectories: int = 0
    failures: int = 0
    kept: int = 0
    kept_tasks: set[str] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)
    sampled_tokens: int = 0
    engine_calls: int = 0
    kept_calls: int = 0
    kept_user_turns: int = 0
    sequences: set[str] = field(default_factory=set)
    edges: Counter[tuple[str, str]] = field(default_factory=Counter)
    turns_compared: int = 0
    turns_differing: int = 0
    turns_planned: int = 0
    replans: int = 0
    provenance: Counter[str] = field(default_factory=Counter)
    written_by: Counter[str] = field(default_factory=Counter)
    turned: Counter[str] = field(default_factory=Counter)
    """Finished episodes of another synthesizer, by what became of them (`Turned`)."""

    def add_plan(self, task: Task, blueprint: Blueprint) -> PlanNote:
        """Count a planned task."""
        self.plans_made += 1
        self.bases.update(task.parents)
        self.turns_planned += len(blueprint.turns)
        for turn in blueprint.turns:
            by = "program" if turn.text_by in WRITTEN_BY_PROGRAM else "chat"
            self.written_by[by] += 1
            self.replans += bool(turn.direction and turn.direction.contradiction)
            worked = [call for call in turn.calls if call.status is ToolStatus.OK]
            self.provenance.update(source.provenance for call in worked for source in call.sources)
        directed = [turn.direction for turn in blueprint.turns if turn.direction is not None]
        self.turns_compared += len(directed)
        self.turns_differing += sum(direction.differs for direction in directed)
        digests = tuple(_planned_digest(turn) for turn in blueprint.turns)
        return PlanNote(task.synthesizer, digests, bool(directed))

    def add_verdict(self, verdict: Verdict) -> None:
        """Count a plan that was given up; `trajectory_id` is then `<base task>/<number>`."""
        self.given_up[verdict.reason] += 1
        self.bases.add(verdict.trajectory_id.rsplit("/", maxsplit=1)[0])

    def add(self, trajectory: Trajectory, plan: PlanNote | None) -> None:
        """Count a trajectory and, where it is kept (verified success), what is in it."""
        self.trajectories += 1
        self.failures += trajectory.reward is None
        self.tasks.add(trajectory.task_id)
        self.engine_calls += trajectory.usage.engine_calls
        self.sampled_tokens += trajectory.usage.generated_tokens if trajectory.usage.engine_calls else 0
        calls = list(attempts(trajectory))
        if plan is not None and not plan.directed and trajectory.reward is not None:
            self._compare(trajectory, calls, plan)
        if trajectory.success:
            self._keep(trajectory, calls)

    def _keep(self, trajectory: Trajectory, calls: Sequence[Attempt]) -> None:
        self.kept += 1
        self.kept_tasks.add(trajectory.task_id)
        self.kept_calls += len(calls)
        self.kept_user_turns += sum(turn.role is Role.USER for turn in trajectory.turns)
        names = [attempt.call.name for attempt in calls if attempt.worked]
        self.sequences.add(canonical.digest(names, length=16))
        self.edges.update(pairwise(names))

    def _compare(self, trajectory: Trajectory, calls: Sequence[Attempt], plan: PlanNote) -> None:
        """Count user turns whose calls are not the plan's; turns that were never reached differ as well."""
        by_turn: list[list[tuple[str, str]]] = [[] for _ in plan.turns]
        reached = _user_turns(trajectory)
        for attempt in calls:
            place = reached[attempt.turn]
            if attempt.worked and place < len(by_turn):
                by_turn[place].append((attempt.call.name, attempt.call.arguments))
        self.turns_compared += len(plan.turns)
        self.turns_differing += sum(
            _digest(made) != meant for made, meant in zip(by_turn, plan.turns, strict=True)
        )


@dataclass(slots=True)
class Collected:
    """Everything a survey knows of its runs."""

    counts: dict[str, Counts] = field(default_factory=dict)
    plans: dict[str, PlanNote] = field(default_factory=dict)
    tools: dict[str, dict[str, ToolSpec]] = field(default_factory=dict)
    """By environment."""
    episodes: dict[str, list[list[Step]]] = field(default_factory=dict)
    """By environment, the executed calls of some trajectories."""
    results: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """By environment and tool, a few each."""
    environments: dict[str, set[str]] = field(default_factory=dict)
    """By synthesizer."""

    def of(self, name: str) -> Counts:
        """The counts of a synthesizer."""
        return self.counts.setdefault(name, Counts())

    def add_tasks(self, tasks: Iterable[Task], *, label: str) -> None:
        """Count planned tasks; all others are base tasks of somebody."""
        for task in tasks:
            if is_blueprint(task):
                name = task.synthesizer + label
                note = self.of(name).add_plan(task, read_blueprint(task))
                self.plans[task.task_id] = note

    def add_verdicts(self, verdicts: Iterable[Verdict], *, label: str) -> None:
        """Count plans given up, and episodes that were looked back at. Another verdict on a trajectory is a
        filter's and says nothing of plans."""
        for verdict in verdicts:
            if is_given_up(verdict):
                self.of(verdict.filter + label).add_verdict(verdict)
            elif verdict.reason in list(Turned):
                self.of(verdict.filter + label).turned[verdict.reason] += 1

    def add_trajectories(self, trajectories: Iterable[Trajectory], *, label: str) -> None:
        """Count trajectories, failures included, and keep their tools and some results."""
        for trajectory in trajectories:
            name = trajectory.synthesizer + label
            self.of(name).add(trajectory, self.plans.get(trajectory.task_id))
            world = trajectory.environment.name
            self.environments.setdefault(name, set()).add(world)
            known = self.tools.setdefault(world, {})
            for segment in trajectory.segments:
                known.update((tool.name, tool) for tool in segment.tools)
            self._add_results(trajectory, world)
            episodes = self.episodes.setdefault(world, [])
            if trajectory.success and len(episodes) < _EPISODES:
                episodes.append(steps_of(trajectory.turns))

    def _add_results(self, trajectory: Trajectory, world: str) -> None:
        for turn in trajectory.turns:
            if turn.result is not None and turn.result.status is ToolStatus.OK:
                held = self.results.setdefault((world, turn.result.name), [])
                if len(held) < _RESULTS:
                    held.append(turn.result.text[:_MAX_RESULT])


def _user_turns(trajectory: Trajectory) -> list[int]:
    """For every turn the number of the user turn it belongs to, 0 for the first."""
    said = accumulate(turn.role is Role.USER for turn in trajectory.turns)
    return [max(number - 1, 0) for number in said]


def _planned_digest(turn: PlannedTurn) -> str:
    return _digest([(call.name, call.arguments) for call in turn.calls if call.status is ToolStatus.OK])


def _digest(calls: Sequence[tuple[str, str]]) -> str:
    """Equal for the same calls with the same arguments in the same order."""
    same = [[name, canonical.dumps(canonical.loads(arguments), sort_keys=True)] for name, arguments in calls]
    return canonical.digest(same, length=12)
