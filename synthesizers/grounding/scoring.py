"""How good a reason there is to use a value for a parameter.

A value is evidence by name (field `src` for `src`, the id of a flight for `flight`), by shape (written as
this parameter's values were in calls that worked) and by where it was seen. All weights are ours. Not
covered: sets of arguments (`proposals`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolSpec
from pipeline.checks.calls import argument_problems
from synthesizers.graph.shapes import Scalar
from synthesizers.grounding.evidence import Evidence, Record, ValuePool
from synthesizers.grounding.reading import parts_of, shape, singular

_SEEN = {
    Evidence.RESULT: 1.5,
    Evidence.GOLD: 1.0,
    Evidence.STATE: 0.8,
    Evidence.CORPUS: -3.0,
    Evidence.SCHEMA: 0.2,
}
_ALIKE = 4.0
"""What a corpus value gains where its world is just like this one; most values of others do not exist."""
SAME_NAME, PART_OF_NAME = 3.0, 1.0
_SAME_SHAPE, _OTHER_SHAPE = 2.0, -2.0
WANTED = 20.0
"""A value at the port that the planner asked for goes before everything else."""
ENOUGH = 1.5
"""Evidence below this is no reason to try a value where there is better."""
_IDENTITIES = frozenset({"id", "key", "name", "code", "number", "no"})
"""Field names whose value stands for the whole record."""
_QUOTED = re.compile(r"'([^'\n]{1,40})'|\"([^\"\n]{1,40})\"")
_SOUGHT = frozenset({"keyword", "query", "term", "pattern", "search", "text"})
_PLAIN_WORD = re.compile(r"\b[A-Za-z]{4,}\b")
_CODE_WORD = re.compile(r"[a-z][A-Z]|_|^\W")
_SORTS = ("type", "kind")
"""Field names whose value says what the record is: {"key": "a.txt", "type": "file"} is a file."""


class Candidate(NamedTuple):
    """A value for a parameter and the evidence for it."""

    value: Any
    score: float


@dataclass(frozen=True, slots=True)
class Parameters:
    """A tool's parameters, decoded once."""

    tool: str
    schema: dict[str, Any]

    @classmethod
    def of(cls, tool: ToolSpec) -> Parameters:
        """The parameters of a tool."""
        return cls(tool.name, canonical.loads(tool.parameters))

    @property
    def properties(self) -> dict[str, Any]:
        """Schema by parameter."""
        return self.schema.get("properties") or {}

    @property
    def required(self) -> tuple[str, ...]:
        """Names that must be given."""
        return tuple(self.schema.get("required") or ())

    def fits(self, name: str, value: Any) -> bool:
        """Whether the schema allows this value for this parameter."""
        one = {"type": "object", "properties": {name: self.properties[name]}}
        return not argument_problems({name: value}, one)

    def as_typed(self, name: str, value: Any) -> Any:
        """`value` as the schema wants it written where that is plain ("3" for an integer), else None."""
        if self.fits(name, value):
            return value
        for change in (str, int, float, lambda item: [item]):
            try:
                changed: Any = change(value.lstrip("$#") if isinstance(value, str) else value)
            except (TypeError, ValueError):
                continue
            if not isinstance(value, bool) and self.fits(name, changed):
                return changed
        return None


def candidates(
    name: str,
    needs: Parameters,
    records: Sequence[Record],
    pool: ValuePool,
    wanted: Sequence[Scalar],
) -> list[Candidate]:
    """Every value worth a thought for one parameter, with its evidence; equal values once, best evidence
    kept."""
    found = [choice for record in records for choice in scored(name, needs, record, pool)]
    found += [Candidate(value, _SEEN[Evidence.SCHEMA] + 2.0) for value in of_schema(needs.properties[name])]
    for value in wanted:
        typed = needs.as_typed(name, value)
        if typed is not None:
            found.append(Candidate(typed, WANTED + _shape_score(name, typed, needs, pool)))
    best: dict[str, Candidate] = {}
    for choice in found:
        key = canonical.dumps(choice.value)
        if key not in best or best[key].score < choice.score:
            best[key] = choice
    strong = [choice for choice in best.values() if choice.score >= ENOUGH]
    return strong or list(best.values()) or list(_of_type(name, needs, records))


def _of_type(name: str, needs: Parameters, records: Sequence[Record]) -> Iterator[Candidate]:
    """Values that nothing but their type speaks for, the last resort: no code words, no single letters.

    For what is searched for, a word of a longer text.
    """
    known = (value for record in records for _, value in record.values)
    values = list({canonical.dumps(value): value for value in known}.values())
    if set(parts_of(name)) & _SOUGHT:
        texts = [value for value in values if isinstance(value, str) and " " in value]
        found = sorted({word for text in texts for word in _PLAIN_WORD.findall(text)})
        values = [word for word in found if needs.fits(name, word)] or values
    for value in values:
        if needs.fits(name, value) and (not isinstance(value, str) or _is_plain(value)):
            yield Candidate(value, 0.0)


def _is_plain(text: str) -> bool:
    return bool(_PLAIN_WORD.search(text)) and not _CODE_WORD.search(text)


def scored(name: str, needs: Parameters, record: Record, pool: ValuePool) -> Iterator[Candidate]:
    """The record's values as candidates for a parameter; those without a reason by name or shape are left
    out."""
    for field, value in record.values:
        by_name = _name_score(name, field, record)
        if record.tool == needs.tool:
            by_name = SAME_NAME if field == name else 0.0
        by_shape = _shape_score(name, value, needs, pool)
        if by_name >= SAME_NAME and record.evidence is not Evidence.CORPUS:
            by_shape = max(by_shape, 0.0)  # the world's own password need not look like another world's
        if by_name <= 0 and by_shape <= 0:
            continue
        typed = needs.as_typed(name, value)
        if typed is not None:
            alike = record.affinity * _ALIKE if record.evidence is Evidence.CORPUS else 0
            yield Candidate(typed, by_name + by_shape + _SEEN[record.evidence] + alike)


def _name_score(parameter: str, field: str, record: Record) -> float:
    wanted, given = _nouns(parameter), _nouns(field)
    if not field or not wanted:
        return 0.0
    if wanted == given or (field in _IDENTITIES and _identifies(set(wanted), set(given), record)):
        return SAME_NAME
    return PART_OF_NAME if set(wanted) & set(given) - _IDENTITIES else 0.0


def _identifies(wanted: set[str], given: set[str], record: Record) -> bool:
    """Whether a field that stands for its record stands for the thing that a parameter is named after."""
    kind = _nouns(record.kind)
    sorts = (_nouns(str(value)) for key, value in record.values if key in _SORTS)
    things = (set(named) for named in (kind, *sorts) if named)
    return wanted == {*kind, *given} or any(thing == wanted - _IDENTITIES for thing in things)


def _shape_score(name: str, value: Any, needs: Parameters, pool: ValuePool) -> float:
    shapes = pool.shapes.get((needs.tool, name))
    if not shapes:
        return 0.0
    if shape(value) not in shapes:
        return _OTHER_SHAPE
    telling = isinstance(value, str) and len(value) > 1
    return _SAME_SHAPE if telling else 0.5


@functools.lru_cache(maxsize=20_000)
def _nouns(name: str) -> tuple[str, ...]:
    return tuple(singular(word) for word in parts_of(name))


def of_schema(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Values that the schema itself offers: enum, default, examples (in its description, too), bounds."""
    yield from schema.get("enum") or ()
    yield from schema.get("examples") or ()
    yield from (first or second for first, second in _QUOTED.findall(str(schema.get("description", ""))))
    if schema.get("default") is not None:
        yield schema["default"]
    if schema.get("type") == "boolean":
        yield from (True, False)
    if schema.get("type") in ("integer", "number"):
        low = schema.get("minimum", 1)
        high = schema.get("maximum", low + 9)
        yield from {low, high, int(low + (high - low) // 2)}
