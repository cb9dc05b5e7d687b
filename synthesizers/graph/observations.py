"""Links that execution showed: a value of one result was used as an argument of a later call.

What counts: the value is not trivial (see `telling`), neither the user nor the system prompt had said it
before that call, and it was no argument of the call that answered it (an echo gives nothing). Bare numbers
coincide easily, so they need two distinct values. All earlier results that hold the value are its sources.
Values inside a longer argument count as parts (`Link.whole` False). Not covered: computed values.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from data.messages import Role, ToolStatus, Turn
from synthesizers.graph.dependency import Evidence, Link
from synthesizers.graph.fields import Field, Shape, fields_of, leaves

_COMMON = """
    yes no on off true false none null ok error success failed pending open closed active all new name booked
    cancelled submitted done low medium high small large left right read write default user
"""
COMMON = frozenset(_COMMON.split())
"""Words that results and arguments share by chance. Ours."""
_MIN_NUMBER = 10
"""Integers nearer to zero are trivial. Ours."""
_MAX_ARGUMENT = 20_000
"""Characters of an argument that are searched for parts."""
_TOKEN = re.compile(r"[\w.@:/$-]+")


class Step(NamedTuple):
    """One executed call. `said` is what users and the system said since the call before."""

    name: str
    arguments: Mapping[str, Any]
    result: str
    ok: bool = True
    said: str = ""


def steps_of(turns: Iterable[Turn]) -> list[Step]:
    """The executed calls of a dialogue, in the order of their results."""
    calls, steps, said = {}, [], ""
    for turn in turns:
        if turn.role in (Role.USER, Role.SYSTEM):
            said += f"\n{turn.text}"
        calls.update({call.call_id: call for call in turn.tool_calls if call.ok})
        if turn.result is not None and turn.result.call_id in calls:
            call = calls[turn.result.call_id]
            ok = turn.result.status is ToolStatus.OK
            steps.append(Step(call.name, call.parsed_arguments(), turn.result.text, ok, said))
            said = ""
    return steps


def telling(value: Any) -> str:
    """What a value is compared by, or "" for one that proves nothing.

    Trivial are truth values, null, integers nearer to zero than 10, texts under two characters, and COMMON
    words. Numbers compare by value (210 = 210.0 = "210"), texts without case and outer blanks.
    """
    if isinstance(value, bool) or value is None or isinstance(value, list | dict):
        return ""
    text = f"{value:.12g}" if isinstance(value, int | float) else str(value).strip().casefold()
    if re.fullmatch(r"-?\d{1,15}(?:\.\d{1,12})?", text):
        return (
            f"{float(text):.12g}" if not float(text).is_integer() or abs(float(text)) >= _MIN_NUMBER else ""
        )
    return "" if len(text) < 2 or text in COMMON else text


def observed_links(episodes: Iterable[Sequence[Step]]) -> list[Link]:
    """The links of executed sequences, in a fixed order; see the module docstring for what counts."""
    seen: dict[tuple[str, str, str, str], dict[str, bool]] = defaultdict(dict)
    for steps in episodes:
        for source, target, output, name, value, whole in _uses(steps):
            values = seen[source, target, output, name]
            values[value] = values.get(value, False) or whole
    links = []
    for (source, target, output, name), values in sorted(seen.items()):
        if any(not _is_number(value) for value in values) or len(values) > 1:
            count = len(values)
            score = 1.0 - 0.5 / (1 + count)
            whole = any(values.values())
            links.append(Link(source, target, output, name, Evidence.OBSERVED, score, whole, count))
    return links


def _uses(steps: Sequence[Step]) -> Iterator[tuple[str, str, str, str, str, bool]]:
    """(source, target, output, input, value, whole) of every use of an earlier value in one sequence."""
    answered: dict[str, set[tuple[str, str]]] = defaultdict(set)
    said = ""
    for step in steps:
        said += f"\n{step.said.casefold()}"
        for name, argument in step.arguments.items():
            for value, whole in _found(argument, answered):
                if not _mentions(said, value):
                    yield from (
                        (source, step.name, output, name, value, whole)
                        for source, output in sorted(answered[value])
                        if source != step.name
                    )
        if step.ok:
            own = {telling(leaf) for argument in step.arguments.values() for leaf in leaves(argument)}
            for found in fields_of(step.result):
                if (value := _carried(found)) and value not in own:
                    answered[value].add((step.name, found.path))


def _carried(found: Field) -> str:
    """The comparable value of a field; sentences are read for the tokens in them, not as a whole."""
    return "" if found.shape is Shape.TEXT and len(str(found.value)) > 80 else telling(found.value)


def _found(argument: Any, answered: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The earlier values an argument is or holds."""
    for leaf in leaves(argument):
        key = telling(leaf)
        if key in answered:
            yield key, True
        elif isinstance(leaf, str):
            yield from ((part, False) for part in sorted(_parts(leaf)) if part in answered)


def _parts(argument: str) -> set[str]:
    """The tokens of a longer argument that could be values: not numbers, and three characters or more."""
    tokens = {
        token
        for text in _TOKEN.findall(argument[:_MAX_ARGUMENT].casefold())
        for token in (text, *text.split("."))
    }
    return {token for token in tokens if len(token) > 2 and telling(token) and not _is_number(token)}


def _mentions(text: str, value: str) -> bool:
    """Whether `value` stands in `text` as a whole word or number."""
    start = text.find(value)
    while start >= 0:
        around = text[max(start - 1, 0) : start] + text[start + len(value) : start + len(value) + 1]
        if not any(character.isalnum() or character == "_" for character in around):
            return True
        start = text.find(value, start + 1)
    return False


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(?:\.\d+)?", text) is not None
