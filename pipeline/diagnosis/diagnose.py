"""Success and failure of a pool of trajectories by capability and by template, its weaknesses, and a plan.

Decides the denominators: trajectories without a reward are counted apart and enter no rate of success
or of a kind; the valid-call rate is the share of assistant turns (of all trajectories) attempting a
call, well formed or not, whose every call parses and fits the schema shown. Streams: memory is counts
per capability, template, tool and kind, and a few numbers a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from data.messages import Record
from data.trajectories import Trajectory
from pipeline.checks.attempts import Attempt, attempts
from pipeline.diagnosis.capabilities import capabilities_of
from pipeline.diagnosis.gold import GoldBook
from pipeline.diagnosis.kinds import Departure, Finding, find
from pipeline.diagnosis.outcomes import Outcomes
from pipeline.diagnosis.plan import Plan, make_plan
from pipeline.diagnosis.weakness import Weaknesses, weaknesses
from pipeline.reporting.content import Rate, ReasonCount, ranked, rate

NO_TOOL = "(none)"
_NUM_EXAMPLES = 3


class Share(Record):
    """A kind of success or failure: how many of the group's rewarded trajectories, with the interval."""

    kind: str
    rate: Rate


class Group(Record):
    """Everything about the trajectories of one capability or template."""

    name: str
    success: Rate
    valid_calls: Rate
    """Over assistant turns that attempt a call."""
    successes: tuple[Share, ...]
    failures: tuple[Share, ...]
    infra: int
    """Trajectories without a reward; in no rate of success or kind."""
    examples: tuple[str, ...]
    """Trajectories that failed, smallest ids first."""


class Confusion(Record):
    """A tool called where gold calls another; `(none)` on the side that has no call."""

    gold: str
    called: str
    count: int


class Example(Record):
    """Where to look: a few trajectories of one failure kind, smallest ids first."""

    kind: str
    trajectory_ids: tuple[str, ...]


class Diagnosis(Record):
    """Where a policy is strong and weak."""

    policies: tuple[str, ...]
    """Who acted, in order of name."""
    num_trajectories: int
    overall: Group
    by_capability: tuple[Group, ...]
    by_template: tuple[Group, ...]
    first_failing_step: tuple[ReasonCount, ...]
    """Assistant turn ("1", "2", ...) at which failures began; "end" where no single step failed."""
    tool_confusion: tuple[Confusion, ...]
    argument_errors: tuple[ReasonCount, ...]
    """`tool.argument` whose value differed from gold."""
    examples: tuple[Example, ...]
    weaknesses: Weaknesses
    plan: Plan

    @property
    def shown_ids(self) -> tuple[str, ...]:
        """Trajectories to look at, once each: of every kind and weakness all examples, of others one."""
        weak = {each.name for each in self.weaknesses.weak}
        weak |= {each.template for each in self.weaknesses.templates}
        named = [each.trajectory_ids for each in self.examples]
        named += [
            group.examples if group.name in weak else group.examples[:1]
            for group in (*self.by_capability, *self.by_template)
        ]
        return tuple(dict.fromkeys(trajectory_id for ids in named for trajectory_id in ids))


class _Tally:
    """Counts of one group."""

    def __init__(self) -> None:
        self.failed: Counter[str] = Counter()
        self.solved: Counter[str] = Counter()
        self.infra = self.attempting = self.valid = 0
        self.examples: list[str] = []

    def add(self, trajectory: Trajectory, finding: Finding, *, attempting: int, valid: int) -> None:
        self.attempting += attempting
        self.valid += valid
        success = trajectory.success
        if success is False:
            self.examples = _smallest(self.examples, trajectory.trajectory_id)
        if success is None:
            self.infra += 1
        else:
            (self.solved if success else self.failed)[finding.kind] += 1

    def group(self, name: str) -> Group:
        solved, failed = self.solved.total(), self.failed.total()
        return Group(
            name=name,
            success=rate(solved, solved + failed),
            valid_calls=rate(self.valid, self.attempting),
            successes=_shares(self.solved, solved + failed),
            failures=_shares(self.failed, solved + failed),
            infra=self.infra,
            examples=tuple(self.examples),
        )


class _Collector:
    """All counts of a pool."""

    def __init__(self) -> None:
        self.overall = _Tally()
        self.capabilities: dict[str, _Tally] = {}
        self.templates: dict[str, _Tally] = {}
        self.steps: Counter[str] = Counter()
        self.tools: Counter[tuple[str, str]] = Counter()
        self.arguments: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.policies: set[str] = set()
        self.num_trajectories = 0
        self.outcomes = Outcomes()

    def add(self, trajectory: Trajectory, finding: Finding, capabilities: Sequence[str]) -> None:
        attempting, valid = valid_turns(list(attempts(trajectory)))
        tallies = [self.overall, self.templates.setdefault(trajectory.template, _Tally())]
        tallies += [self.capabilities.setdefault(name, _Tally()) for name in capabilities]
        for tally in tallies:
            tally.add(trajectory, finding, attempting=attempting, valid=valid)
        if trajectory.success is not None:
            self.outcomes.add(
                trajectory.task_id, trajectory.template, capabilities, success=trajectory.success
            )
        self.policies.add(trajectory.policy.name)
        self.num_trajectories += 1
        if trajectory.success is False:
            self.steps["end" if finding.step is None else str(finding.step)] += 1
            for departure in finding.departures:
                self._depart(departure)
        if not trajectory.success:
            known = self.examples.setdefault(finding.kind, [])
            self.examples[finding.kind] = _smallest(known, trajectory.trajectory_id)

    def _depart(self, departure: Departure) -> None:
        gold, called = departure.gold, departure.called
        if gold is None or called is None or gold.name != called.name:
            self.tools[gold.name if gold else NO_TOOL, called.name if called else NO_TOOL] += 1
        self.arguments.update(f"{called.name}.{name}" for name in departure.arguments if called)

    def result(self) -> Diagnosis:
        steps = sorted(self.steps.items(), key=lambda item: (item[0] == "end", len(item[0]), item[0]))
        confusion = sorted(self.tools.items(), key=lambda item: (-item[1], item[0]))
        found = weaknesses(self.outcomes)
        return Diagnosis(
            policies=tuple(sorted(self.policies)),
            num_trajectories=self.num_trajectories,
            overall=self.overall.group("all"),
            by_capability=tuple(tally.group(name) for name, tally in sorted(self.capabilities.items())),
            by_template=tuple(self.templates[name].group(name) for name in sorted(self.templates)),
            first_failing_step=tuple(ReasonCount(reason=step, count=count) for step, count in steps),
            tool_confusion=tuple(
                Confusion(gold=gold, called=called, count=n) for (gold, called), n in confusion
            ),
            argument_errors=ranked(self.arguments),
            examples=tuple(
                Example(kind=kind, trajectory_ids=tuple(ids)) for kind, ids in sorted(self.examples.items())
            ),
            weaknesses=found,
            plan=make_plan(
                found,
                failures=self.overall.failed,
                by_capability={name: tally.failed for name, tally in self.capabilities.items()},
            ),
        )


def diagnose(trajectories: Iterable[Trajectory], *, gold: GoldBook | None = None) -> Diagnosis:
    """The diagnosis of a pool, in one pass over it.

    `gold` sharpens failures into wrong tools, arguments and order, and tells the capabilities that show in
    gold's calls; a task that is not in it has its tags and its environment only.
    """
    book, collector = gold or GoldBook(), _Collector()
    for trajectory in trajectories:
        names = book.capabilities(trajectory.task_id)
        if names is None:
            names = capabilities_of(trajectory, None)
        collector.add(trajectory, find(trajectory, book.turns(trajectory.task_id)), names)
    return collector.result()


def valid_turns(calls: Sequence[Attempt]) -> tuple[int, int]:
    """Assistant turns that attempt a call, and those of them whose every call is valid."""
    turns = [
        [attempt.call.ok for attempt in group] for _, group in groupby(calls, key=lambda call: call.turn)
    ]
    return len(turns), sum(all(oks) for oks in turns)


def valid_call_rate(trajectories: Iterable[Trajectory]) -> Rate:
    """Share of call-attempting assistant turns whose every call parses and fits the schema shown."""
    attempting = valid = 0
    for trajectory in trajectories:
        tried, good = valid_turns(list(attempts(trajectory)))
        attempting, valid = attempting + tried, valid + good
    return rate(valid, attempting)


def _shares(counts: Counter[str], trials: int) -> tuple[Share, ...]:
    return tuple(Share(kind=row.reason, rate=rate(row.count, trials)) for row in ranked(counts))


def _smallest(known: Sequence[str], trajectory_id: str) -> list[str]:
    return sorted([*known, trajectory_id])[:_NUM_EXAMPLES]
