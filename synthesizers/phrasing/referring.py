"""How a user points at what an earlier call answered without saying it: "the $360 flight", "that booking".

A reference must pick one value out of the rows that hold values written alike. What the user has seen may be
told apart by what stands beside it (a price, a time, a named field); what the turn's own calls will answer
only by a criterion the user can have in mind before (cheapest, earliest, first on the list), or as the only
one. A name among the names of a text is none of these, and is said. Not covered: whether an agent finds it
natural.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from data.messages import ToolSpec
from synthesizers.execution import Executed
from synthesizers.grounding.provenance import ArgumentSource, GroundedCall, Provenance
from synthesizers.grounding.reading import Field, Row, rows_of, shape, words
from synthesizers.phrasing.clauses import shown_value
from synthesizers.phrasing.closings import TurnCalls
from synthesizers.phrasing.wording import mentions

_MONEY = re.compile(r"[$€£]\s?(\d[\d,]*(?:\.\d+)?)")
_TIME = re.compile(r"(?<![\d:])(\d{1,2}:\d\d)(?![\d:])")
_IDENTIFIER = re.compile(r"[A-Z]{1,4}[-_]?\d+")
_NAME = re.compile(r"[A-Z][a-z]{2,}")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_IDS = {"id", "key", "uuid", "code", "ref", "reference"}
_OWN = re.compile(r"\b(?:my|user|current|account)\b", re.IGNORECASE)
_PRICES = ("price", "cost", "fare")
_LONGEST = 30
"""Characters of a neighbouring value that a person would repeat."""
_OF_A_RECORD = 3
"""Names that a line of a list has beside each other: "Oslo to Rome May 4". A text has more."""


def goes_unsaid(call: GroundedCall, tool: ToolSpec) -> bool:
    """Whether a look-up may be left unmentioned: the user says what it needs, or what it shows is his own.

    "My booking" is found among my bookings; "my destination" is no way to ask for the nearest tire shop.
    """
    return bool(call.of(Provenance.USER)) or _OWN.search(tool.description) is not None


def refer(
    source: ArgumentSource,
    turn: TurnCalls,
    *,
    noun: str,
    rng: random.Random,
    tail: str = "",
    nested: bool = False,
) -> str:
    """A noun phrase for an argument whose provenance is output.

    `tail` says more about a look-up that is not mentioned itself: " from Oslo to Rome". `nested`: the result
    is that of a call which is never mentioned; the user speaks of what is his as he knows it.
    """
    assert source.of is not None
    if isinstance(source.value, list | dict):
        return f"those {_plural(noun)}{tail}"
    call = source.of.call
    rows = _rivals(turn.history[call], source.value)
    here = next((place for place, row in enumerate(rows) if _place(row, source.value)), None)
    if here is None:
        return shown_value(source.value)
    if len(rows) == 1:
        if _stands_in_text(rows[0], source.value):
            return shown_value(source.value)
        if nested and not tail:
            return f"my {noun}"
        return _only_one(source, turn, noun=noun, rng=rng, tail=tail)
    seen = call < turn.seen
    beside = seen or (nested and not tail)
    told = list(_told_apart(rows, here, str(source.value), noun=noun, seen=beside))
    when = _when(source, turn) if seen and not tail else ""
    chosen = rng.choice(told[:2]) if told else _in_order(here, len(rows), noun)
    return f"{chosen}{tail}{when}"


def _rivals(done: Executed, value: Any) -> list[Row]:
    """The rows of a result that could be meant: those with something written like what holds the value."""
    rows = rows_of(done.result.text)
    held = next((field for row in rows if (field := _place(row, value))), None)
    alike = {shape(value), shape(held.value) if held else ""}
    return [row for row in rows if any(shape(field.value) in alike for field in row.fields)]


def _place(row: Row, value: Any) -> Field | None:
    """The row's field that is the value, or that says it among other things ("./a.txt" for a.txt)."""
    equal = (field for field in row.fields if str(field.value) == str(value))
    said = (field for field in row.fields if isinstance(value, str) and mentions(str(field.value), value))
    return next(equal, None) or next(said, None)


def _stands_in_text(row: Row, value: Any) -> bool:
    """Whether the value is one of many words written like it, so that "that title" would mean any of them."""
    held = _place(row, value)
    if held is None or (held.name and str(held.value) == str(value)):
        return False
    said = str(held.value).split() if held.name else [str(field.value) for field in row.fields]
    alike = [word for word in said if word[:1].isupper() and shape(word.strip(".,;:!?")) == shape(value)]
    return str(value)[:1].isupper() and len(alike) > _OF_A_RECORD


def _only_one(source: ArgumentSource, turn: TurnCalls, *, noun: str, rng: random.Random, tail: str) -> str:
    """The only value of its kind in that result; other results may hold more of the kind."""
    assert source.of is not None
    call = source.of.call
    if tail:
        return f"the {noun}{tail}"
    if call >= turn.seen:
        new = f"the new {noun}" if turn.history[call].changes else f"the {noun} that you find"
        return rng.choice((f"that {noun}", new))
    others = [
        index
        for index, done in enumerate(turn.history[: turn.seen])
        if index != call and _rivals(done, source.value) and not mentions(done.result.text, source.value)
    ]
    if not others:
        did = "made" if turn.history[call].changes else "found"
        just = f"the {noun} you just {did}" if call == turn.seen - 1 else f"the {noun} from before"
        return rng.choice((f"that {noun}", just))
    if call > max(others):
        return f"the most recent {noun}"  # "latest" is said of times, too
    return f"the {noun}{_about(turn.history[call]) or ' from before'}"


def _when(source: ArgumentSource, turn: TurnCalls) -> str:
    """ " you found for Rome" where a later list could be meant as well, else ""."""
    assert source.of is not None
    later = turn.history[source.of.call + 1 : turn.seen]
    if not any(len(_rivals(done, source.value)) > 1 for done in later):
        return ""
    return _about(turn.history[source.of.call]) or " from the earlier list"


def _about(done: Executed) -> str:
    """What a call was about, by its short arguments."""
    values = [value for value in done.arguments().values() if isinstance(value, str | int)]
    short = [str(value) for value in values if not isinstance(value, bool) and len(str(value)) <= _LONGEST]
    did = "made" if done.changes else "found"
    return f" you {did} for {' and '.join(short)}" if short else ""


def _told_apart(rows: Sequence[Row], here: int, value: str, *, noun: str, seen: bool) -> Iterator[str]:
    """Ways to pick row `here`, the most natural first."""
    texts = [" ".join(str(field.value) for field in row.fields) for row in rows]
    for pattern, least, most in (
        (_MONEY, "cheapest", "most expensive"),
        (_TIME, "earliest", "latest"),
    ):
        column = [pattern.findall(text) for text in texts]
        if not all(len(found) == 1 for found in column):
            continue
        numbers = [float(found[0].replace(",", "").replace(":", "")) for found in column]
        if extreme := _extreme(numbers, here, least, most):
            yield f"the {extreme} {noun}"
        if seen and numbers.count(numbers[here]) == 1:
            mark = pattern.search(texts[here])
            yield f"the {mark[0] if mark else ''} {noun}"
    yield from _by_field(rows, here, noun=noun, seen=seen)
    if not seen or rows[here].fields[0].name:
        return
    if not any(letter.isdigit() for letter in value):
        yield from (f"the {noun} of {mark}" for mark in _identifiers(rows, here))
        return
    names = [set(_NAME.findall(text)) for text in texts]
    others = set().union(*names[:here], *names[here + 1 :])
    yield from (f"the {name} {noun}" for name in sorted(names[here] - others))


def _identifiers(rows: Sequence[Row], here: int) -> Iterator[str]:
    """What only this row is called by."""
    columns = [
        {str(field.value) for field in row.fields if _IDENTIFIER.fullmatch(str(field.value))} for row in rows
    ]
    others = set().union(*columns[:here], *columns[here + 1 :])
    yield from (str(field.value) for field in rows[here].fields if str(field.value) in columns[here] - others)


def _by_field(rows: Sequence[Row], here: int, *, noun: str, seen: bool) -> Iterator[str]:
    """By a named field beside the value: the highest, or what only this row has there."""
    for field in rows[here].fields:
        if not field.name or set(words(field.name)) & _IDS or isinstance(field.value, bool):
            continue
        column = [next((f.value for f in row.fields if f.name == field.name), None) for row in rows]
        label = " ".join(words(field.name))
        if all(isinstance(value, int | float) for value in column):
            numbers = [float(value) for value in column if value is not None]
            if label in _PRICES and (extreme := _extreme(numbers, here, "cheapest", "most expensive")):
                yield f"the {extreme} {noun}"
            elif extreme := _extreme(numbers, here, "lowest", "highest"):
                yield f"the {noun} with the {extreme} {label}"
        if seen and column.count(field.value) == 1 and 0 < len(str(field.value)) <= _LONGEST:
            if label in ("name", "title"):
                yield f"the {noun} called {field.value}"
            else:
                yield f"the {noun} whose {label} is {field.value}"


def _extreme(numbers: Sequence[float], here: int, least: str, most: str) -> str:
    if numbers.count(numbers[here]) > 1:
        return ""
    return least if numbers[here] == min(numbers) else most if numbers[here] == max(numbers) else ""


def _in_order(here: int, total: int, noun: str) -> str:
    if here == total - 1 and here:
        return f"the last {noun} on the list"
    if here < len(_ORDINALS):
        return f"the {_ORDINALS[here]} {noun} on the list"
    return f"number {here + 1} on the list of {_plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
