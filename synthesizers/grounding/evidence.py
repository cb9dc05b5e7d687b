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
from data.messages import Role, ToolCall, ToolStatus, Turn
from data.tasks import Task
from pipeline.environments.base import Environment
from pipeline.errors import TrajsmithError
from synthesizers.grounding.reading import rows_in, shape
from synthesizers.worlds import gold_turns, training_split

NUM_CORPUS = 48
"""Tasks whose gold is played for the corpus (ours): a few seconds for the slowest world that ships."""
_SPREAD = 4
_WRITTEN = 20
"""Characters of an argument that the user did not say and gold must have written itself. Ours."""
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
    question: Question | None = None
    written: bool = False
    """Whether gold wrote an argument itself."""


class Question(NamedTuple):
    """What a user asked where gold answered with a call whose argument it wrote itself, e.g. a query.

    Nobody would dictate such an argument, so a request for the call is this text. `before` are the tools,
    without arguments, that gold called first.
    """

    text: str
    before: tuple[str, ...] = ()


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
    questions: dict[str, Question] = field(default_factory=dict)
    """By `digest_of` a call."""
    written: frozenset[str] = frozenset()
    """Tools that gold calls with arguments of its own, of which some have a question; others nobody asks."""

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
        asked = {
            digest_of(example.tool, example.arguments): example.question
            for example in (*corpus, *gold)
            if example.question is not None
        }
        written = frozenset(example.tool for example in (*gold, *corpus) if example.written) if asked else ()
        return cls(
            records=tuple(rows + own + others),
            shapes=_shapes([*gold, *corpus]),
            questions=asked,
            written=frozenset(written),
        )


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
    split = training_split(environment)
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
        session = await environment.open(task)
    except (TrajsmithError, LookupError, ValueError):
        return []
    try:
        turns = await gold_turns(environment, task, session)
    finally:
        await session.close()
    worked = {turn.result.call_id for turn in turns if turn.result and turn.result.status is ToolStatus.OK}
    leaves = leaves_of(task.state_value())
    calls = [call for turn in turns for call in turn.tool_calls if call.call_id in worked]
    written = _written(turns, calls)
    asked, question = _question(turns, calls, written) or (None, None)
    return [
        Example(
            call.name,
            call.parsed_arguments(),
            leaves,
            question if call is asked else None,
            _holds(call, written),
        )
        for call in calls
    ]


def _written(turns: Sequence[Turn], calls: Sequence[ToolCall]) -> str:
    """The first argument of gold's that it must have written itself; "" where there is none."""
    said = _flat(" ".join(turn.text for turn in turns if turn.role is Role.USER))
    for call in calls:
        for value in call.parsed_arguments().values():
            long = isinstance(value, str) and " " in value and len(value) >= _WRITTEN
            if long and _flat(value) not in said:
                return str(value)
    return ""


def _flat(text: str) -> str:
    return " ".join(text.lower().split())


def _question(
    turns: Sequence[Turn], calls: Sequence[ToolCall], written: str
) -> tuple[ToolCall, Question] | None:
    """The first call with what gold wrote, where that is all that the user's one turn asks for: the calls
    before it take no arguments."""
    said = [turn.text for turn in turns if turn.role is Role.USER]
    place = next((place for place, call in enumerate(calls) if _holds(call, written)), None)
    if place is None or len(said) != 1 or any(call.parsed_arguments() for call in calls[:place]):
        return None
    return calls[place], Question(said[0], tuple(call.name for call in calls[:place]))


def _holds(call: ToolCall, written: str) -> bool:
    return bool(written) and written in call.parsed_arguments().values()


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
