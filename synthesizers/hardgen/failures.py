"""Failure tools: those at which two policies both come to a wrong execution result (HardGen, step 1).

Probed are train tasks that both policies have rollouts of. Their gold is played; a gold call counts as done
where a rollout has a call of the same tool that worked, with the same arguments or the same answer, and each
call answers for one only. A policy is wrong at a tool on a task where most of its rollouts leave one of
gold's calls of it undone. One policy alone is no criterion: what it fails at may be its own gap. Not covered:
making the rollouts (`rejection_sampling`, `demonstration` with slips, another run).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from data import canonical
from data.files import user_path
from data.messages import ToolResult
from data.schema import AnyRecord
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.attempts import attempts
from pipeline.checks.matching import Call
from pipeline.environments.base import Environment
from pipeline.environments.play import play_turns
from pipeline.environments.splits import EVALUATED
from pipeline.errors import ConfigError
from synthesizers.demonstration import GOLD

SHARE = 0.5
"""Share of a tool's probes at which both must be wrong. Ours: the paper probes a tool once."""
_NEEDED = (
    "HardGen takes for failure tools those at which two policies fail. Name two with rollouts in this run, "
    "e.g. `failures: [policy A, policy B]`, or {run: a run's folder} for another one; make rollouts with "
    "rejection_sampling, or with demonstration and its `slip`. Without failures: `random_choice: true`"
)

Setting = str | Mapping[str, Any]


class Stored(Protocol):
    """What is read of a run's store."""

    root: Path

    def trajectories(self) -> Iterator[Trajectory]:
        """All trajectories with a reward."""
        ...

    def get(self, kind: str, key: str) -> AnyRecord | None:
        """The record with this id."""
        ...


class ToolProbes(NamedTuple):
    """How a tool fared: tasks probed, those at which each policy was wrong, and both."""

    name: str
    probes: int
    wrong: tuple[int, int]
    both: int


@dataclass(frozen=True, slots=True)
class FailureSet:
    """All probed tools; `names` are the failure tools."""

    policies: tuple[str, str]
    probed: tuple[ToolProbes, ...]
    share: float = SHARE

    @property
    def names(self) -> tuple[str, ...]:
        """Tools at which both are wrong often enough, sorted."""
        return tuple(sorted(tool.name for tool in self.probed if self._fails(tool)))

    @property
    def digest(self) -> str:
        """12 hex digits of the failure tools: where they are the same, the graph is."""
        return canonical.digest("failures", self.names, length=12)

    @property
    def none_fails(self) -> str:
        """What to say where there is no failure tool."""
        probed = ", ".join(f"{tool.name} {tool.both}/{tool.probes}" for tool in self.probed)
        return (
            f"failures: there is no tool at which both {' and '.join(self.policies)} fail in "
            f"{self.share:.0%} of its probes ({probed}); lower `share` or probe more tasks"
        )

    def weight(self, name: str) -> float:
        """Share of a tool's probes at which both were wrong; 0 for one that was not probed."""
        return next((tool.both / tool.probes for tool in self.probed if tool.name == name), 0.0)

    def _fails(self, tool: ToolProbes) -> bool:
        return tool.both > 0 and tool.both >= self.share * tool.probes


class _Done(NamedTuple):
    """A call that worked, as it is compared."""

    name: str
    arguments: str
    answer: str


Rollouts = dict[str, list[tuple[_Done, ...]]]
"""Task id -> what each rollout did."""


def check_setting(failures: Sequence[Setting]) -> None:
    """ConfigError where `failures` does not name two different policies in a form that can be read.

    A mapping that names a run may leave its policy out, where the run has rollouts of one only.
    """
    if len(failures) != 2:
        raise ConfigError(f"failures: {len(failures)} policies, two are needed. {_NEEDED}")
    for setting in failures:
        wrong = set(setting) - {"run", "policy", "weights"} if isinstance(setting, Mapping) else set()
        if wrong or not (_policy(setting) or _run(setting)):
            unknown = ", ".join(sorted(map(str, wrong)))
            problem = f"has an unknown key {unknown}" if wrong else "names no policy"
            raise ConfigError(
                f"failures: {setting!r} {problem}; write its name, or a mapping of "
                f"policy, run (a run's folder) and weights (the start of a digest)"
            )
    if failures[0] == failures[1]:
        raise ConfigError(f"failures: {failures[0]!r} stands twice; two different policies are needed")


async def find_failures(
    environment: Environment,
    failures: Sequence[Setting],
    *,
    store: Stored,
    share: float = SHARE,
    without: str = "",
) -> FailureSet:
    """The failure set of the two policies. `without`: a synthesizer whose own rollouts in `store` are left
    out, so that a synthesis does not move what it was made for.

    Raises ConfigError where a policy has no rollouts, where its rollouts are of held-out tasks, or where the
    two share no task.
    """
    tasks: dict[str, Task] = {}
    failures = [_settled(setting, store) for setting in failures]
    (one_policy, first), (other_policy, second) = (
        _rollouts(setting, store, tasks, without) for setting in failures
    )
    labels = _label(failures[0]), _label(failures[1])
    if one_policy == other_policy:
        raise ConfigError(f"failures: {labels[0]} and {labels[1]} are one policy, {one_policy}. {_NEEDED}")
    common = sorted(first.keys() & second.keys())
    if not common:
        raise ConfigError(
            f"failures: {labels[0]} and {labels[1]} have no task in common ({len(first)} and {len(second)}); "
            f"both are probed with the same tasks: give their stages the same `skip`"
        )
    probes: Counter[str] = Counter()
    wrong: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for task_id in common:
        gold = await _gold(environment, tasks[task_id])
        missed = [_wrong(gold, rollouts[task_id]) for rollouts in (first, second)]
        for name in {done.name for done in gold}:
            probes[name] += 1
            one, other = name in missed[0], name in missed[1]
            wrong[name] = [
                old + new for old, new in zip(wrong[name], (one, other, one and other), strict=True)
            ]
    probed = tuple(
        ToolProbes(name, probes[name], (wrong[name][0], wrong[name][1]), wrong[name][2])
        for name in sorted(probes)
    )
    return FailureSet(labels, probed, share)


def rollouts_digest(failures: Sequence[Setting], *, store: Stored, without: str = "") -> str:
    """16 hex digits of which rollouts the failures are read from; other rollouts may be other failures."""
    found = []
    for setting in (_settled(each, store) for each in failures):
        with _opened(setting, store) as source:
            left_out = without if source is store else ""
            ids = (r.trajectory_id for r in source.trajectories() if _is_of(r, setting, left_out))
            found.append(sorted(ids))
    return canonical.digest("rollouts", found, length=16)


def _is_of(row: Trajectory, setting: Setting, without: str) -> bool:
    """Whether a trajectory is a rollout of the policy, and not one that the synthesizer `without` made."""
    weights = str(setting.get("weights", "")) if isinstance(setting, Mapping) else ""
    named = row.policy.name == _policy(setting) and row.policy.weights.startswith(weights)
    return named and not (without and row.synthesizer == without)


def _rollouts(
    setting: Setting, store: Stored, tasks: dict[str, Task], without: str
) -> tuple[tuple[str, str], Rollouts]:
    """A policy (name and weights) and its rollouts by task; the tasks are added to `tasks`."""
    found: Rollouts = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    others: set[str] = set()
    with _opened(setting, store) as source:
        left_out = without if source is store else ""
        for row in source.trajectories():
            if not _is_of(row, setting, left_out):
                others.add(row.policy.name)
                continue
            seen.add((row.policy.name, row.policy.weights))
            if row.task_id not in tasks:
                tasks[row.task_id] = _task(source, row.task_id, setting)
            found[row.task_id].append(tuple(_done(row)))
        if not found:
            there = ", ".join(sorted(others)) or "none"
            raise ConfigError(
                f"failures: {source.root} holds no rollout of {_label(setting)}; "
                f"it has rollouts of: {there}. {_NEEDED}"
            )
    if len(seen) > 1:
        digests = ", ".join(sorted(weights for _, weights in seen))
        raise ConfigError(
            f"failures: {_label(setting)} has rollouts with several weights ({digests}); name one: "
            f"{{policy: {_policy(setting)!r}, weights: ...}}"
        )
    return seen.pop(), dict(found)


@contextmanager
def _opened(setting: Setting, store: Stored) -> Iterator[Stored]:
    """The store that holds a policy's rollouts."""
    if run := _run(setting):
        with Store.open(user_path(run)) as other:
            yield other
    else:
        yield store


def _task(source: Stored, task_id: str, setting: Setting) -> Task:
    task = source.get("tasks", task_id)
    if not isinstance(task, Task):
        raise ConfigError(
            f"failures: {source.root} holds rollouts of task {task_id}, but not the task itself"
        )
    if task.split.startswith(EVALUATED):
        raise ConfigError(
            f"failures: rollouts of {_label(setting)} are of split {task.split!r}, which evaluations read; "
            f"data made for its failures would be training on the test. Probe tasks of train"
        )
    return task


def _settled(setting: Setting, store: Stored) -> Setting:
    """The setting with its policy, which a run may name: the one that it has rollouts of, gold apart."""
    if _policy(setting) or not isinstance(setting, Mapping):
        return setting
    with _opened(setting, store) as source:
        names = sorted({row.policy.name for row in source.trajectories()} - {GOLD})
        if len(names) != 1:
            raise ConfigError(
                f"failures: {source.root} holds rollouts of {', '.join(names) or 'no policy'}; write which "
                f"as {{run: {_run(setting)}, policy: its name}}"
            )
    return {**setting, "policy": names[0]}


def _run(setting: Setting) -> str:
    return str(setting.get("run") or "") if isinstance(setting, Mapping) else ""


def _policy(setting: Setting) -> str:
    found = setting.get("policy", "") if isinstance(setting, Mapping) else setting
    return found if isinstance(found, str) else ""


def _label(setting: Setting) -> str:
    weights = f"@{setting['weights']}" if isinstance(setting, Mapping) and setting.get("weights") else ""
    return f"{_policy(setting)}{weights}"


def _done(row: Trajectory) -> Iterator[_Done]:
    for attempt in attempts(row):
        if attempt.worked and attempt.result is not None:
            yield _as_done(Call(attempt.call.name, attempt.call.parsed_arguments()), attempt.result)


def _as_done(call: Call, result: ToolResult) -> _Done:
    return _Done(call.name, call.key(), canonical.digest(result.text, length=16))


async def _gold(environment: Environment, task: Task) -> list[_Done]:
    """Gold's calls that worked."""
    session = await environment.open(task)
    try:
        turns = await play_turns(session, task, environment.gold(task))
    finally:
        await session.close()
    results = {turn.result.call_id: turn.result for turn in turns if turn.result is not None}
    made = [(call, results.get(call.call_id)) for turn in turns for call in turn.tool_calls if call.ok]
    return [
        _as_done(Call(call.name, call.parsed_arguments()), result)
        for call, result in made
        if result is not None and result.status == "ok"
    ]


def _wrong(gold: Sequence[_Done], rollouts: Iterable[Sequence[_Done]]) -> set[str]:
    """The tools that most of the rollouts got wrong."""
    rollouts = list(rollouts)
    counts = Counter(name for rollout in rollouts for name in _missed(gold, rollout))
    return {name for name, count in counts.items() if 2 * count > len(rollouts)}


def _missed(gold: Sequence[_Done], rollout: Sequence[_Done]) -> set[str]:
    """The tools of gold's calls for which the rollout has none that did the same."""
    rest, missed = list(rollout), set()
    for wanted in gold:
        same = next(
            (
                done
                for done in rest
                if done.name == wanted.name
                and (done.arguments == wanted.arguments or done.answer == wanted.answer)
            ),
            None,
        )
        if same is None:
            missed.add(wanted.name)
        else:
            rest.remove(same)
    return missed
