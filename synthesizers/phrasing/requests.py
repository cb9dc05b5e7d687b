"""User sentences without a model: from tool descriptions, arguments and their provenance.

A request names no tool, says every value that only the user can know, points at values of earlier results
without saying them, is silent about nested calls but for what those need from the user, and ends with a
question where an answer is too long to be told (`saying`). It is checked
before it is returned; a wording that fails is drawn again, and what no wording can say is an error, never a
request with a hole. Equal arguments and an equal `rng` give equal text. Not covered: requests by a model
(`back_translation`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from pipeline.errors import ConfigError
from synthesizers.grounding.provenance import ArgumentSource, Provenance
from synthesizers.grounding.reading import parts_of
from synthesizers.phrasing.clauses import Clause, Slot, adjuncts_of, clause_of, noun_of, shown_value, unnamed
from synthesizers.phrasing.closings import TurnCalls, phrase_closing
from synthesizers.phrasing.referring import refer
from synthesizers.phrasing.saying import with_question
from synthesizers.phrasing.wording import (
    answerable,
    leaked_tool_name,
    leaks_tool_name,
    mentions,
    secret_names,
    unsaid,
)

__all__ = [
    "PhrasingError",
    "TurnCalls",
    "answerable",
    "leaks_tool_name",
    "mentions",
    "phrase_closing",
    "phrase_request",
    "phrase_supply",
    "request_problem",
]

FRAMES = (
    "Please {}.",
    "Could you {}?",
    "Can you {}?",
    "I'd like you to {}.",
    "{}, please.",
    "I need you to {}.",
    "Would you {}?",
    "{}.",
)
LATER_FRAMES = (
    "Now {}.",
    "Thanks. Now {}.",
    "Great, now {}.",
    "Next, {}.",
    "OK. Please {}.",
    "And {}, please.",
)
JOINS = (" and ", ", then ", ", and then ", ", and after that ")
_DRAWS = 24


class PhrasingError(ConfigError):
    """No wording says all that must be said without a tool's name."""


def phrase_request(turn: TurnCalls, *, rng: random.Random, said: str = "", left_out: str = "") -> str:
    """One user request for the mentioned calls of a turn.

    `said` is what the user has said before and need not repeat. `left_out` is a parameter whose value is
    kept back (a turn in which something is missing). Raises PhrasingError where no wording passes the checks.
    """
    problem = ""
    for _ in range(_DRAWS):
        text = with_question(_request(turn, rng=rng, left_out=left_out), turn.told)
        problem = request_problem(text, turn, said=said, left_out=left_out)
        if not problem:
            return text
    raise PhrasingError(f"no request found in {_DRAWS} wordings: {problem}")


def request_problem(text: str, turn: TurnCalls, *, said: str = "", left_out: str = "") -> str:
    """What is wrong with a request, whoever wrote it; "" where nothing is."""
    if not text.strip():
        return "it is empty"
    sources = turn.sources(left_out=left_out)
    values = [source.value for source in sources if source.provenance is Provenance.USER]
    name = leaked_tool_name(text, secret_names(turn.tools), said=values)
    if name:
        return f"it names the tool {name!r}; say what is wanted in other words"
    missing = unsaid(f"{said}\n{text}", sources)
    if missing:
        return "it does not say " + ", ".join(f"{source.name}={source.value!r}" for source in missing)
    if (question := turn.told.question) and question not in text:
        return f"it does not ask: {question}"
    kept_back = [s.value for call in turn.calls for s in call.sources if left_out and s.name == left_out]
    others = f"{said} {' '.join(map(str, values))}"
    told = [value for value in kept_back if mentions(text, value) and not mentions(others, value)]
    return f"it says {left_out}={told[0]!r}, which is to be left out" if told else ""


def phrase_supply(source: ArgumentSource, turn: TurnCalls, *, rng: random.Random) -> str:
    """The later user turn that gives a value left out before: "The day is May 14."."""
    names = [tool.name for tool in turn.tools]
    value, label = shown_value(source.value), " ".join(parts_of(source.name)) or "value"
    label = unnamed(label, names, rng=rng) or "value"
    frames = (f"The {label} is {value}.", f"Sorry, the {label}: {value}.", f"It is {value}.", f"{value}.")
    plain = [frame for frame in frames if not leaks_tool_name(frame, names, said=[source.value])]
    if not plain:
        raise PhrasingError(f"no wording gives {source.name}={source.value!r} without a tool's name")
    return rng.choice(plain)


def _request(turn: TurnCalls, *, rng: random.Random, left_out: str) -> str:
    clauses = [(place, clause.filled()) for place, clause in _clauses(turn, rng=rng, left_out=left_out)]
    asked = [place for place, call in enumerate(turn.calls) if call.question]
    first = [clause for place, clause in clauses if clause.strip() and (not asked or place < asked[-1])]
    after = [clause for place, clause in clauses if clause.strip() and asked and place > asked[-1]]
    if not asked and not first:
        first = ["go on"]
    said = [_spread(first, turn, rng=rng)] if first else []
    return " ".join([*said, *(turn.calls[place].question for place in asked), *(f"Then {c}." for c in after)])


def _spread(spread: Sequence[str], turn: TurnCalls, *, rng: random.Random) -> str:
    """The clauses as one request."""
    long = any(": " in clause for clause in spread[:-1])
    frames = LATER_FRAMES + FRAMES if turn.seen else FRAMES
    # changes are not joined by a mere "and": in another order they may end in another state
    ordered = sum(call.executed.changes for call in turn.calls) > 1
    if long or (len(spread) > 2 and rng.random() < 0.5):
        first, *others = spread
        return " ".join([_framed(rng.choice(frames), first), *(f"Then {clause}." for clause in others)])
    return _framed(rng.choice(frames), _joined(spread, JOINS[1:] if ordered else JOINS, rng))


def _joined(clauses: Sequence[str], last: Sequence[str], rng: random.Random) -> str:
    """The clauses in a row; `last` are ways to join the last one."""
    text = clauses[0]
    for index, clause in enumerate(clauses[1:]):
        joins = last if index == len(clauses) - 2 else JOINS[1:2]
        text += rng.choice(joins) + clause
    return text


def _framed(frame: str, clause: str) -> str:
    text = frame.format(clause)
    return text[:1].upper() + text[1:]


def _clauses(turn: TurnCalls, *, rng: random.Random, left_out: str) -> Iterator[tuple[int, Clause]]:
    """One clause per mentioned call; what unmentioned ones need is said with the first clause that uses
    them."""
    names = [tool.name for tool in turn.tools]
    told: set[int] = set()
    for place, call in enumerate(turn.calls):
        if place in turn.unmentioned or call.question:
            continue
        slots = [
            _slot(source, turn, rng=rng, told=told, left_out=left_out)
            for source in call.sources
            if source.provenance in (Provenance.USER, Provenance.OUTPUT) and source.name != left_out
        ]
        yield place, clause_of(turn.tool(call), slots, names=names, rng=rng)
    rest = [place for place in turn.unmentioned if place not in told]
    tails = [_tail(place, turn, rng=rng, told=told, left_out=left_out) for place in rest]
    if any(tails):
        yield 0, Clause(f"mind that it is{' and'.join(tail for tail in tails if tail)}")


def _slot(
    source: ArgumentSource, turn: TurnCalls, *, rng: random.Random, told: set[int], left_out: str
) -> Slot:
    if source.provenance is Provenance.USER or source.of is None:
        return Slot(source.name, source.value, shown_value(source.value))
    place = source.of.call - turn.seen
    nested = place in turn.unmentioned
    tail = _tail(place, turn, rng=rng, told=told, left_out=left_out) if nested else ""
    noun = unnamed(noun_of(source.name), [tool.name for tool in turn.tools], rng=rng) or "one"
    text = refer(source, turn, noun=noun, rng=rng, tail=tail, nested=nested)
    return Slot(source.name, source.value, text, reference=text != shown_value(source.value))


def _tail(place: int, turn: TurnCalls, *, rng: random.Random, told: set[int], left_out: str) -> str:
    """What the user must say for an unmentioned call, once: " from Oslo to Rome"."""
    if place in told:
        return ""
    told.add(place)
    call = turn.calls[place]
    given = [source for source in call.of(Provenance.USER) if source.name != left_out]
    slots = [Slot(source.name, source.value, shown_value(source.value)) for source in given]
    clause = adjuncts_of(turn.tool(call), slots)
    clause.text = unnamed(clause.text, [tool.name for tool in turn.tools], rng=rng)
    return f" {clause.filled().strip()}" if slots else ""
