"""Links by schema: types that fit, and names, units or allowed values that agree.

A type alone proves nothing: nearly everything is a string. What agrees must be, in this order,
- the name: the same thing and the same aspect of it (`flight_id` fits `flight`, not `flight_status`); a bare
  `id` is named after the object it lies in or the tool that answers or takes it, unless it was found in plain
  text beside ids of another kind;
- the allowed values: two enums that share at least two;
- the unit: both dates, prices, mail addresses, ..., and their descriptions share a rare word.
The same name at another type is no link, nor is a truth value. Names are read in English. Not covered: what
names mean (a judge's work).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from synthesizers.graph.dependency import Evidence, Link
from synthesizers.graph.ports import ANY, Port, PortOrigin, Signature
from synthesizers.graph.shapes import Shape
from synthesizers.graph.words import KINDS, nouns, parts, port_words, words

_SAME_THING = 0.5
"""Least weighted Jaccard of the words that name two things. Ours."""
_RARE = 0.05
"""A word is rare where at most this share of tools uses it. Ours."""
_GUESSED, _BORROWED, _UNIT = 0.7, 0.8, 0.3
"""Factors on the score of a guessed port and of a borrowed name; score of a unit alone. Ours."""
_NAMING = frozenset({"id", "name", "number", "code"})
"""Aspects by which a thing is called: `flight_id` for `flight`."""
_UNITS = frozenset({Shape.DATE, Shape.TIME, Shape.MONEY, Shape.EMAIL, Shape.URL, Shape.FILE})


class _Named(NamedTuple):
    """A port's words. `kind` is the aspect (KINDS) or "", `head` the last word of `things`."""

    port: Port
    things: frozenset[str]
    head: str
    kind: str
    borrowed: bool
    context: frozenset[str]
    """Words of its name and description, for units."""


class _Node(NamedTuple):
    outputs: tuple[_Named, ...]
    inputs: tuple[_Named, ...]
    gives: frozenset[str]
    takes: frozenset[str]
    """Things and units: two tools that share none have no link, which is found without looking at ports."""


class Matcher:
    """Finds links among `signatures`, which also say how rare a word is. Everything is split once."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._nodes = {signature.name: _node(signature) for signature in signatures}
        used = Counter(word for node in self._nodes.values() for word in _vocabulary(node))
        self._weight = {word: math.log1p(len(signatures) / count) for word, count in used.items()}
        most = max(2.0, _RARE * len(signatures))
        self._rare = frozenset(word for word, count in used.items() if count <= most)

    def links(self, source: Signature, target: Signature) -> Iterator[Link]:
        """The links from `source` to `target`, both among the signatures given at the start."""
        giver, taker = self._nodes[source.name], self._nodes[target.name]
        if giver.gives.isdisjoint(taker.takes) or source.name == target.name:
            return
        for output in giver.outputs:
            for wanted in taker.inputs:
                score = self._score(output, wanted)
                if score:
                    ports = (output.port.path, wanted.port.path)
                    yield Link(source.name, target.name, *ports, Evidence.SCHEMA, score)

    def _score(self, output: _Named, wanted: _Named) -> float:
        if not fits(output.port, wanted.port):
            return 0.0
        score = self._name_score(output, wanted) or _enum_score(output.port, wanted.port)
        score = score or self._unit_score(output, wanted)
        return round(score * (_GUESSED if output.port.origin is PortOrigin.GUESSED else 1.0), 4)

    def _name_score(self, output: _Named, wanted: _Named) -> float:
        shared = output.things & wanted.things
        two_guesses = output.port.origin is PortOrigin.GUESSED and wanted.borrowed
        if not shared or two_guesses or not _same_aspect(output, wanted, shared):
            return 0.0
        union = sum(self._weight[word] for word in output.things | wanted.things)
        same = round(sum(self._weight[word] for word in shared) / union, 6)  # sets are summed in any order
        borrowed = _BORROWED if output.borrowed or wanted.borrowed else 1.0
        return same * borrowed if same >= _SAME_THING else 0.0

    def _unit_score(self, output: _Named, wanted: _Named) -> float:
        unit = output.port.shape
        if unit not in _UNITS or unit is not wanted.port.shape:
            return 0.0
        shared = (output.context & wanted.context & self._rare) - {unit.value}
        return _UNIT if shared else 0.0


def fits(output: Port, wanted: Port) -> bool:
    """Whether a value of `output` may stand as `wanted`: an integer as a number, an element of a list as one.

    Truth values fit nothing, because they carry no reference; an unknown type fits all but those and objects.
    """
    given, taken = output.type, wanted.type
    if "boolean" in (given, taken):
        return False
    if given == "array":
        return _one_fits(output.item or ANY, wanted.item or ANY if taken == "array" else taken)
    return _one_fits(given, (wanted.item or ANY) if taken == "array" else taken)


def _one_fits(given: str, taken: str) -> bool:
    if "boolean" in (given, taken):
        return False
    if ANY in (given, taken):
        return "object" not in (given, taken)
    return given == taken or (given, taken) == ("integer", "number")


def _same_aspect(output: _Named, wanted: _Named, shared: frozenset[str]) -> bool:
    """An id fits the thing it is the id of; two aspects of one thing do not fit each other."""
    if output.kind and wanted.kind:
        return output.kind == wanted.kind
    if output.kind or wanted.kind:
        plain = wanted if output.kind else output
        return (output.kind or wanted.kind) in _NAMING and plain.head in shared
    return output.head == wanted.head


def _enum_score(output: Port, wanted: Port) -> float:
    shared = set(output.enum) & set(wanted.enum)
    return 0.5 + 0.5 * len(shared) / len(output.enum) if len(shared) > 1 else 0.0


def _node(signature: Signature) -> _Node:
    unnamed = sum(port.shape is Shape.ID and not _things(port.name) for port in signature.outputs)
    outputs = tuple(_named(port, signature, borrow=unnamed < 2) for port in signature.outputs)
    by_another = "by" in parts(signature.name)  # get_user_by_id is named after what it gives
    inputs = tuple(_named(port, signature, borrow=not by_another) for port in signature.inputs)
    return _Node(outputs, inputs, frozenset(_keys(outputs)), frozenset(_keys(inputs)))


def _named(port: Port, signature: Signature, *, borrow: bool) -> _Named:
    """A port's words; where its name names no thing: those of the object around it, else of the tool."""
    own = port_words(port.name)
    kind = KINDS.get(own[-1], "") if own else "id" if port.shape is Shape.ID else ""
    things, parents = _things(port.name), port.path.replace("[]", "").split(".")[:-1]
    borrowed = not things
    if not things:
        things = next(filter(None, map(_things, reversed(parents))), ())
    if not things and borrow and not port.path.endswith(">"):
        things = nouns(signature.name)
    context = frozenset((*own, *things, *words(port.description)))
    return _Named(port, frozenset(things), things[-1] if things else "", kind, borrowed, context)


def _things(name: str) -> tuple[str, ...]:
    return tuple(word for word in port_words(name) if word not in KINDS)


def _keys(ports: Iterable[_Named]) -> Iterator[str]:
    for named in ports:
        yield from named.things
        yield from (f"unit:{named.port.shape}" for _ in range(named.port.shape in _UNITS))
        yield from (f"enum:{value}" for value in named.port.enum)


def _vocabulary(node: _Node) -> set[str]:
    return {word for named in (*node.outputs, *node.inputs) for word in named.context}
