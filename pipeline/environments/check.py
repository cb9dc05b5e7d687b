"""`check_environment`: what a world must prove before anything is trained on it.

Gold scores 1; agents that must not score do not; tasks are deterministic and distinct; nothing private shows;
parallel sessions do not touch each other; a restored snapshot answers as before. Driven directly over
Session, without an engine. Live tools are recorded as they are asked, then replayed. Not covered: whether the
tasks are worth learning.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from data import canonical
from data.media import MediaStore
from data.messages import Role, ToolCall, Turn
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.agents import EchoAgent, ListedAgent, made_up_call, null_agent, prober, spammer
from pipeline.environments.base import Environment, GoldScript, Session
from pipeline.environments.cassette import with_cassette
from pipeline.environments.play import play
from pipeline.errors import EnvironmentFailure, TrajsmithError

MARKER = "trajsmith-marker"
INFRASTRUCTURE = EnvironmentFailure.exit_code
_SHOWN_FAILURES = 3
_MIN_SECRET_LENGTH = 12
"""Shorter private texts (ids, numbers) may stand in a prompt for good reasons."""


class CheckResult(NamedTuple):
    """One check: its name, whether it passed, and what was seen."""

    name: str
    passed: bool
    detail: str


@dataclass(slots=True)
class Sample:
    """The tasks under check, and the dialogues of gold on them."""

    environment: Environment
    num_tasks: int
    """Tasks played, of each split."""
    num_ids: int
    """Tasks compared by id, of each split."""
    seed: int
    tasks: list[Task] = field(default_factory=list)
    ids: dict[str, list[str]] = field(default_factory=dict)
    gold: dict[str, Trajectory] = field(default_factory=dict)
    floor: set[str] = field(default_factory=set)
    """Tasks of a foreign world that an agent solves which should not: the world's own rule, printed."""
    broken: str = ""
    """What broke under gold, no fault of the task's; nothing is played after it."""

    def gold_script(self, task: Task) -> list[Turn]:
        """The turns gold said on the task, without those its prompt holds."""
        turns = self.gold[task.task_id].turns[len(task.prompt) :]
        return [turn for turn in turns if turn.role is Role.ASSISTANT]

    def gold_calls(self, task: Task) -> list[ToolCall]:
        """The calls gold made on the task, in order."""
        return [call for turn in self.gold[task.task_id].turns for call in turn.tool_calls]


Check = Callable[[Sample], Awaitable[list[str]]]


async def check_environment(
    environment: Environment, *, num_tasks: int = 48, seed: int = 0, num_ids: int = 400
) -> list[CheckResult]:
    """All checks on the first `num_tasks` tasks of each split; ids are compared over `num_ids` of each split.

    A check that raises counts as failed, with the error as its detail; nothing is raised.
    """
    with TemporaryDirectory(prefix="trajsmith-check-") as folder:
        # Live tools answer once and are replayed, so that what differs is the environment's own doing.
        world = with_cassette(environment, Path(folder) / "cassette.jsonl", per_task=False)
        kept, world.media = world.media, MediaStore(Path(folder) / "media")
        results = await _run_checks(Sample(world, num_tasks, num_ids, seed))
        world.media = kept
    return results


async def _run_checks(sample: Sample) -> list[CheckResult]:
    results = []
    for name, check in CHECKS.items():
        known = len(sample.floor)
        try:
            is_played = name not in WITH_GOLD or len(sample.gold) == len(sample.tasks)
            problems = await check(sample) if is_played else ["not run: gold could not be played"]
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        detail, floor = _detail(problems, sample), len(sample.floor) - known
        if floor:
            detail += f"; floor: it scores on {floor} of them by this foreign world's own rule"
        results.append(CheckResult(name, not problems, detail))
    return results


def _detail(problems: Sequence[str], sample: Sample) -> str:
    if not problems:
        return f"{len(sample.tasks)} tasks"
    more = len(problems) - _SHOWN_FAILURES
    return "; ".join(problems[:_SHOWN_FAILURES]) + (f"; and {more} more" if more > 0 else "")


def _first(environment: Environment, split: str, number: int) -> Iterator[Task]:
    return itertools.islice(environment.tasks(split), number)


async def _deterministic(sample: Sample) -> list[str]:
    environment, problems = sample.environment, []
    for split in environment.splits:
        tasks = list(_first(environment, split, max(sample.num_tasks, sample.num_ids)))
        again = [task.task_id for task in _first(environment, split, len(tasks))]
        sample.tasks += tasks[: sample.num_tasks]
        sample.ids[split] = [task.task_id for task in tasks]
        if sample.ids[split] != again:
            problems.append(f"split {split} yields other tasks the second time")
        if not tasks:
            problems.append(f"split {split} is empty")
    return problems


async def _distinct(sample: Sample) -> list[str]:
    seen: dict[str, str] = {}
    problems = []
    for split, ids in sample.ids.items():
        problems += [f"task {key} of {split} is also in {seen[key]}" for key in ids if key in seen]
        problems += [f"split {split} repeats tasks"] * (len(set(ids)) < len(ids))
        seen.update(dict.fromkeys(ids, split))
    return problems


async def _gold(sample: Sample) -> list[str]:
    problems = []
    for task in sample.tasks:
        try:
            played = await play(sample.environment, task, sample.environment.gold(task), seed=sample.seed)
        except TrajsmithError as error:
            if error.exit_code == INFRASTRUCTURE:
                sample.broken = f"{type(error).__name__}: {error}"
            raise
        sample.gold[task.task_id] = played
        if not played.success:
            problems.append(f"gold scores {_total(played)} on {task.template} {task.task_id}")
    return problems


async def _no_score(
    sample: Sample, agent: Callable[[Task], GoldScript | None], *, may_be_floor: bool = False
) -> list[str]:
    """The tasks `agent` scores on; of a world that declares itself `foreign` they may be its floor."""
    problems = []
    is_floor = may_be_floor and getattr(sample.environment, "foreign", False)
    for task in sample.tasks:
        script = agent(task)
        if script is None:
            continue
        total = _total(await play(sample.environment, task, script, seed=sample.seed))
        if total > 0 and is_floor:
            sample.floor.add(task.task_id)
        elif total > 0 and task.task_id not in sample.floor:
            problems.append(f"scores {total:g} on {task.template} {task.task_id}")
    return problems


async def _null(sample: Sample) -> list[str]:
    return await _no_score(sample, lambda task: null_agent(), may_be_floor=True)


async def _echo(sample: Sample) -> list[str]:
    return await _no_score(sample, lambda task: EchoAgent())


async def _prober(sample: Sample) -> list[str]:
    return await _no_score(sample, lambda task: prober())


async def _spammer(sample: Sample) -> list[str]:
    shown = {}
    for task in sample.tasks:
        session = await sample.environment.open(task, seed=sample.seed)
        shown[task.task_id] = session.tools
        await session.close()
    return await _no_score(sample, lambda task: spammer(shown[task.task_id]), may_be_floor=True)


async def _hard_coder(sample: Sample) -> list[str]:
    """Another task's gold turns, of the same template where there are two; equal scripts prove nothing."""

    def memorised(task: Task) -> GoldScript | None:
        own = sample.gold_script(task)
        others = sorted(sample.tasks, key=lambda other: other.template != task.template)
        for other in others:
            if _skeleton(sample.gold_script(other)) != _skeleton(own):
                return ListedAgent(sample.gold_script(other))
        return None

    return await _no_score(sample, memorised, may_be_floor=True)


async def _hidden(sample: Sample) -> list[str]:
    """No private text stands in a prompt or tool; words of the rules and tools' names do not count."""
    shown, secrets = {}, {}
    for task in sample.tasks:
        session = await sample.environment.open(task, seed=sample.seed)
        texts = [*(turn.text for turn in task.prompt), *(tool.model_dump_json() for tool in session.tools)]
        names = {tool.name for tool in session.tools}
        await session.close()
        shown[task.task_id] = "\n".join(texts)
        secrets[task.task_id] = set(_texts(task.private_value())) - names
    leaks = [
        (key, text)
        for key, texts in secrets.items()
        for text in sorted(texts)
        if len(text) >= _MIN_SECRET_LENGTH and text in shown[key]
    ]
    words = {
        text for _, text in leaks if any(text in shown[key] and text not in secrets[key] for key in shown)
    }
    return [f"{text!r:.60} of {key} shows" for key, text in leaks if text not in words]


async def _no_influence(sample: Sample) -> list[str]:
    """With the private part exchanged, tools and their answers stay the same: they cannot know it."""
    problems = []
    for task in sample.tasks:
        values = task.model_dump(exclude={"task_id", "private"})
        other = Task(**values, private=canonical.dumps(_exchanged(task.private_value())))
        session = await sample.environment.open(other, seed=sample.seed)
        answers = await _answers(session, sample.gold_calls(task))
        await session.close()
        if answers != _observed(sample.gold[task.task_id]):
            problems.append(f"tools of {task.template} {task.task_id} depend on its private part")
    return problems


async def _isolated(sample: Sample) -> list[str]:
    """One session acts and plants a marker while a second is open; the second and a third must not notice."""
    problems = []
    for task in sample.tasks:
        calls, expected = sample.gold_calls(task), _observed(sample.gold[task.task_id])
        first, second = [await sample.environment.open(task, seed=sample.seed) for _ in range(2)]
        plants = [made_up_call(tool, variant, text=MARKER) for variant in range(2) for tool in first.tools]
        await _answers(first, calls)
        await _answers(first, plants, prefix="plant")
        seen = await _answers(second, calls)
        await first.close()
        third = await sample.environment.open(task, seed=sample.seed)
        later = await _answers(third, calls)
        await asyncio.gather(second.close(), third.close())
        if seen != expected or later != expected or MARKER in canonical.dumps([seen, later]):
            problems.append(f"sessions of {task.template} {task.task_id} see each other")
    return problems


async def _snapshots(sample: Sample) -> list[str]:
    """Snapshot before each gold call; act, restore here and in a fresh session, act again."""
    problems = []
    for task in sample.tasks:
        calls = sample.gold_calls(task)
        session = await sample.environment.open(task, seed=sample.seed)
        fresh = await sample.environment.open(task, seed=sample.seed)
        for index in range(len(calls)):
            kept = session.snapshot()
            expected = await _answers(session, calls[index:], prefix=f"at{index}")
            session.restore(kept)
            again = await _answers(session, calls[index:], prefix=f"at{index}")
            fresh.restore(kept)
            elsewhere = await _answers(fresh, calls[index:], prefix=f"at{index}")
            if not expected == again == elsewhere:
                problems.append(f"{task.template} {task.task_id} differs after restore at call {index}")
            session.restore(kept)
            await _answers(session, calls[index : index + 1], prefix="on")
        await asyncio.gather(session.close(), fresh.close())
    return problems


async def _repeats(sample: Sample) -> list[str]:
    """A call id said twice answers the stored result, and the state does not move."""
    problems = []
    for task in sample.tasks:
        session = await sample.environment.open(task, seed=sample.seed)
        for call in sample.gold_calls(task):
            result = await session.call(call.name, call.parsed_arguments(), call.call_id)
            kept = session.snapshot()
            again = await session.call(call.name, call.parsed_arguments(), call.call_id)
            if result != again or session.snapshot() != kept:
                problems.append(f"{call.name} of {task.template} {task.task_id} was executed twice")
        await session.close()
    return problems


async def _infra_free(sample: Sample) -> list[str]:
    return [sample.broken] if sample.broken else []


WITH_GOLD: dict[str, Check] = {
    "null agent scores 0": _null,
    "echo scores 0": _echo,
    "spammer scores 0": _spammer,
    "verifier-prober scores 0": _prober,
    "hard-coder scores 0": _hard_coder,
    "private part is hidden": _hidden,
    "tools do not depend on it": _no_influence,
    "sessions are isolated": _isolated,
    "snapshots are faithful": _snapshots,
    "repeated calls run once": _repeats,
}
"""What is played after gold, and against its dialogues."""
CHECKS: dict[str, Check] = {
    "tasks are deterministic": _deterministic,
    "tasks are distinct": _distinct,
    "gold scores 1": _gold,
    "no infrastructure errors": _infra_free,
    **WITH_GOLD,
}
"""In this order: the first takes the sample, `gold scores 1` records the dialogues that later ones use."""


async def _answers(session: Session, calls: Sequence[ToolCall], *, prefix: str = "replay") -> list[Any]:
    results = []
    for index, call in enumerate(calls):
        result = await session.call(call.name, call.parsed_arguments(), f"{prefix}_{index}")
        results.append([result.status, result.text])
    return results


def _observed(played: Trajectory) -> list[Any]:
    return [[turn.result.status, turn.result.text] for turn in played.turns if turn.result is not None]


def _skeleton(script: Sequence[Turn]) -> list[Any]:
    return [[turn.text, *([call.name, call.arguments] for call in turn.tool_calls)] for turn in script]


def _total(played: Trajectory) -> float:
    return played.reward.total if played.reward is not None else 0.0


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(_texts, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_texts, value))


def _exchanged(value: Any) -> Any:
    """The same shape with other leaves."""
    if isinstance(value, dict):
        return {key: _exchanged(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_exchanged(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    return f"{MARKER}-private" if isinstance(value, str) else value + 1
