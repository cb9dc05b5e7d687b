"""What is known about the values of a task's world before any call is made: state, gold calls, other tasks.

A ValuePool holds records, values that belong together: rows of the initial state, arguments of the base
task's own gold calls, arguments of executed gold calls of other tasks of the same environment (the corpus).
Gold is played, never read. Not covered: what earlier calls of the dialogue answered (read when a call is
grounded).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from data import canonical
from data.messages import ToolStatus
from data.tasks import Task
from pipeline.environments.base import Environment
from pipeline.environments.play import play_turns
from pipeline.errors import TrajsmithError
from synthesizers.grounding.reading import rows_in, shape

NUM_CORPUS = 48
"""Tasks whose gold is played for the corpus (ours): a few seconds for the slowest world that ships."""
_SPREAD = 4
MAX_SHAPES = 12
"""Shapes remembered per parameter; one written in more ways than that has no shape of its own."""


class Evidence(StrEnum):
    """Where a proposed value was seen."""

    RESULT = "result"
    STATE = "state"
    GOLD = "gold"
    CORPUS = "corpus"
    SCHEMA = "schema"


class Example(NamedTuple):
    """A gold call that worked. `leaves` are the scalar values of the state it was made in."""

    tool: str
    arguments: dict[str, Any]
    leaves: frozenset[str] = frozenset()


class Record(NamedTuple):
    """Values that belong together: (field name, value) pairs, seen as `evidence`.

    `tool` is set for arguments of a call; `affinity` (0 to 1) says how alike its world is to this one.
    """

    kind: str
    values: tuple[tuple[str, Any], ...]
    evidence: Evidence
    tool: str = ""
    affinity: float = 1.0
    call: int = -1
    """Index of the executed call whose result this is a row of; -1 for everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuePool:
    """See the module docstring. `shapes` maps (tool, parameter) to how its values have been written."""

    records: tuple[Record, ...]
    shapes: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, *, gold: Sequence[Example] = (), corpus: Sequence[Example] = ()) -> ValuePool:
        """The pool of a task's world."""
        state = task.state_value()
        known = leaves_of(state)
        rows = [
            Record(row.kind, tuple((item.name, item.value) for item in row.fields), Evidence.STATE)
            for row in rows_in(state)
        ]
        own = [_example_record(example, Evidence.GOLD, 1.0) for example in gold]
        others = [_example_record(example, Evidence.CORPUS, _affinity(example, known)) for example in corpus]
        return cls(records=tuple(rows + own + others), shapes=_shapes([*gold, *corpus]))


async def make_pool(environment: Environment, task: Task, *, num_corpus: int = NUM_CORPUS) -> ValuePool:
    """The pool of `task`, its gold and that of `num_corpus` other tasks played. Cheap from the second task
    on.

    A task without gold, or whose gold breaks, adds nothing.
    """
    corpus = await gold_corpus(environment, num_tasks=num_corpus)
    others = [example for task_id, example in corpus if task_id != task.task_id]
    return ValuePool.of(task, gold=await gold_examples(environment, task), corpus=others)


_CORPORA: dict[tuple[str, ...], tuple[tuple[str, Example], ...]] = {}
_LOCKS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def gold_corpus(
    environment: Environment, *, num_tasks: int = NUM_CORPUS
) -> tuple[tuple[str, Example], ...]:
    """(task id, example) of `num_tasks` tasks of `train`, or of the first split where none is called so.

    The tasks are spread over the first `num_tasks * 4`: some worlds list theirs by topic. Played once per
    environment and kept in memory.
    """
    split = "train" if "train" in environment.splits else environment.splits[0]
    first = next(iter(environment.tasks(split)), None)
    if first is None:
        return ()
    key = (environment.name, environment.version, split, first.task_id, str(num_tasks))
    async with _LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if key not in _CORPORA:
            found = []
            drawn = list(islice(environment.tasks(split), num_tasks * _SPREAD))
            for task in drawn[:: max(1, len(drawn) // num_tasks)][:num_tasks]:
                found += [(task.task_id, example) for example in await gold_examples(environment, task)]
            _CORPORA[key] = tuple(found)
    return _CORPORA[key]


async def gold_examples(environment: Environment, task: Task) -> list[Example]:
    """The gold calls of a task that worked when played; none where the task has no gold that plays."""
    try:
        script = environment.gold(task)
        session = await environment.open(task)
    except (TrajsmithError, LookupError, ValueError):
        return []
    try:
        turns = await play_turns(session, task, script)
    except (TrajsmithError, LookupError, ValueError):
        return []
    finally:
        await session.close()
    worked = {turn.result.call_id for turn in turns if turn.result and turn.result.status is ToolStatus.OK}
    leaves = leaves_of(task.state_value())
    calls = [call for turn in turns for call in turn.tool_calls if call.call_id in worked]
    return [Example(call.name, call.parsed_arguments(), leaves) for call in calls]


def leaves_of(value: Any) -> frozenset[str]:
    """The strings of a JSON value down to five levels: what two states may share."""
    return frozenset(text for text in _strings(value, depth=5) if len(text) > 1)


def _strings(value: Any, *, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item, depth=depth - 1)


def _affinity(example: Example, known: frozenset[str]) -> float:
    either = example.leaves | known
    return len(example.leaves & known) / len(either) if either else 0.0


def _example_record(example: Example, evidence: Evidence, affinity: float) -> Record:
    return Record("", tuple(example.arguments.items()), evidence, example.tool, affinity)


def _shapes(examples: Sequence[Example]) -> dict[tuple[str, str], frozenset[str]]:
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for example in examples:
        for name, value in example.arguments.items():
            found[example.tool, name].add(shape(value))
    return {key: frozenset(shapes) for key, shapes in found.items() if len(shapes) <= MAX_SHAPES}


def digest_of(name: str, arguments: dict[str, Any]) -> str:
    """Equal for calls of one tool with equal arguments."""
    return canonical.digest(name, arguments, length=16)
