"""Argument sets worth trying for a tool, in order of evidence; at random for the ablation.

A value is evidence for a parameter by name (field `src` for `src`, the id of a flight for `flight`), by shape
(written as this parameter's values were in calls that worked) and by where it was seen. Each record proposes
the values it has, the rest is filled from the others; a little seeded noise makes two walks differ. All
weights are ours. Not covered: whether a proposal works (`grounding` executes it).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolSpec
from pipeline.checks.calls import argument_problems
from synthesizers.evidence import Evidence, Record, ValuePool, digest_of
from synthesizers.reading import Scalar, parts_of, shape, singular

_SEEN = {
    Evidence.RESULT: 1.5,
    Evidence.GOLD: 1.0,
    Evidence.STATE: 0.8,
    Evidence.CORPUS: -3.0,
    Evidence.SCHEMA: 0.2,
}
_ALIKE = 4.0
"""What a corpus value gains where its world is just like this one; most values of others do not exist."""
_SAME_NAME, _PART_OF_NAME = 3.0, 1.0
_SAME_SHAPE, _OTHER_SHAPE = 2.0, -2.0
_WANTED = 20.0
"""A value at the port that the planner asked for goes before everything else."""
_NOISE = 0.7
_ENOUGH = 1.5
"""Evidence below this is no reason to try a value where there is better."""
_MAX_ANCHORS = 250
_IDENTITIES = ("id", "key", "name", "code", "number", "no")
"""Field names whose value stands for the whole record."""
_SORTS = ("type", "kind")
"""Field names whose value says what the record is: {"key": "a.txt", "type": "file"} is a file."""


class Proposal(NamedTuple):
    """Arguments to try and the evidence for them, higher first."""

    arguments: dict[str, Any]
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


def proposals(
    tool: ToolSpec,
    records: Sequence[Record],
    pool: ValuePool,
    *,
    rng: random.Random,
    wanted: Mapping[str, Sequence[Scalar]],
) -> list[Proposal]:
    """Distinct schema-valid argument sets, best first. `wanted` are values a planner wants for a
    parameter."""
    needs = Parameters.of(tool)
    choices = {name: _choices(name, needs, records, pool, wanted.get(name, ())) for name in needs.properties}
    found: dict[str, Proposal] = {}
    anchors = [_anchored(record, needs, choices, pool, rng) for record in _anchors(needs, records, rng)]
    for proposal in [*anchors, *(_free(needs, choices, rng) for _ in range(4))]:
        if proposal is not None and not argument_problems(proposal.arguments, needs.schema):
            key = digest_of(tool.name, proposal.arguments)
            if key not in found or found[key].score < proposal.score:
                found[key] = proposal
    return sorted(found.values(), key=lambda proposal: -proposal.score)


def random_proposals(tool: ToolSpec, records: Sequence[Record], *, rng: random.Random) -> list[Proposal]:
    """Schema-valid argument sets whatever the evidence: any value of the right type, each as likely."""
    needs = Parameters.of(tool)
    values = list(
        {canonical.dumps(value): value for record in records for _, value in record.values}.values()
    )
    found = []
    for _ in range(64):
        arguments = {}
        for name, schema in needs.properties.items():
            if name not in needs.required and rng.random() < 0.5:
                continue
            allowed = [value for value in values if needs.fits(name, value)] or list(_of_schema(schema))
            if allowed:
                arguments[name] = rng.choice(allowed)
        if not argument_problems(arguments, needs.schema):
            found.append(Proposal(arguments, 0.0))
    return found


class _Choice(NamedTuple):
    value: Any
    score: float


def _anchors(needs: Parameters, records: Sequence[Record], rng: random.Random) -> list[Record]:
    """Records that may propose: calls of this tool and rows that are no calls; the newest results first."""
    useful = [record for record in records if record.tool in ("", needs.tool)]
    rng.shuffle(useful)
    useful.sort(key=lambda record: (-record.call, record.tool != needs.tool, -record.affinity))
    return useful[:_MAX_ANCHORS]


def _anchored(
    record: Record,
    needs: Parameters,
    choices: Mapping[str, Sequence[_Choice]],
    pool: ValuePool,
    rng: random.Random,
) -> Proposal | None:
    """The record's own values where it has them, the best of the others for the rest; None where it has
    none."""
    arguments, scores = {}, []
    for name in needs.properties:
        own = max(_scored(name, needs, record, pool), key=lambda choice: choice.score, default=None)
        strong = own is not None and own.score >= (_ENOUGH if name in needs.required else _SAME_NAME)
        wanted = any(choice.score >= _WANTED for choice in choices[name])
        if own is not None and strong and not wanted:
            arguments[name] = own.value
            scores.append(own.score)
        elif wanted or (name in needs.required and record.tool != needs.tool):
            picked = _noisy_best(choices[name], rng)
            if picked is None:
                return None
            arguments[name] = picked.value
            scores.append(picked.score - 0.5)
    if needs.properties and not scores and needs.required:
        return None
    return Proposal(arguments, _mean(scores) + rng.gauss(0.0, _NOISE))


def _free(needs: Parameters, choices: Mapping[str, Sequence[_Choice]], rng: random.Random) -> Proposal | None:
    """Required parameters (and wanted ones), each from its own best evidence."""
    arguments, scores = {}, []
    for name in needs.properties:
        if name in needs.required or any(choice.score >= _WANTED for choice in choices[name]):
            picked = _noisy_best(choices[name], rng)
            if picked is None:
                return None
            arguments[name] = picked.value
            scores.append(picked.score - 1.0)
    return Proposal(arguments, _mean(scores) + rng.gauss(0.0, _NOISE))


def _choices(
    name: str,
    needs: Parameters,
    records: Sequence[Record],
    pool: ValuePool,
    wanted: Sequence[Scalar],
) -> list[_Choice]:
    """Every value worth a thought for one parameter, with its evidence; equal values once, best evidence
    kept."""
    found = [choice for record in records for choice in _scored(name, needs, record, pool)]
    found += [_Choice(value, _SEEN[Evidence.SCHEMA] + 2.0) for value in _of_schema(needs.properties[name])]
    for value in wanted:
        typed = needs.as_typed(name, value)
        if typed is not None:
            found.append(_Choice(typed, _WANTED + _shape_score(name, typed, needs, pool)))
    best: dict[str, _Choice] = {}
    for choice in found:
        key = canonical.dumps(choice.value)
        if key not in best or best[key].score < choice.score:
            best[key] = choice
    strong = [choice for choice in best.values() if choice.score >= _ENOUGH]
    return strong or list(best.values())


def _scored(name: str, needs: Parameters, record: Record, pool: ValuePool) -> Iterator[_Choice]:
    """The record's values as candidates for a parameter; those without a reason by name or shape are left
    out."""
    for field, value in record.values:
        by_name = _name_score(name, field, record)
        if record.tool == needs.tool:
            by_name = _SAME_NAME if field == name else 0.0
        by_shape = _shape_score(name, value, needs, pool)
        if by_name <= 0 and by_shape <= 0:
            continue
        typed = needs.as_typed(name, value)
        if typed is not None:
            alike = record.affinity * _ALIKE if record.evidence is Evidence.CORPUS else 0
            yield _Choice(typed, by_name + by_shape + _SEEN[record.evidence] + alike)


def _name_score(parameter: str, field: str, record: Record) -> float:
    wanted, given = _nouns(parameter), _nouns(field)
    if not field or not wanted:
        return 0.0
    kinds = [_nouns(record.kind), *(_nouns(str(value)) for key, value in record.values if key in _SORTS)]
    whole = {*kinds[0], *given}
    if wanted == given or (set(wanted) == whole and field in _IDENTITIES):
        return _SAME_NAME
    thing = set(wanted) - set(_IDENTITIES)
    if field in _IDENTITIES and any(thing == set(kind) for kind in kinds if kind):
        return _SAME_NAME
    return _PART_OF_NAME if set(wanted) & set(given) - set(_IDENTITIES) else 0.0


def _shape_score(name: str, value: Any, needs: Parameters, pool: ValuePool) -> float:
    shapes = pool.shapes.get((needs.tool, name))
    if not shapes:
        return 0.0
    if shape(value) not in shapes:
        return _OTHER_SHAPE
    telling = isinstance(value, str) and len(value) > 1
    return _SAME_SHAPE if telling else 0.5


def _nouns(name: str) -> tuple[str, ...]:
    return tuple(singular(word) for word in parts_of(name))


def _of_schema(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Values that the schema itself offers: enum, default, examples, bounds, booleans."""
    yield from schema.get("enum") or ()
    yield from schema.get("examples") or ()
    if schema.get("default") is not None:
        yield schema["default"]
    if schema.get("type") == "boolean":
        yield from (True, False)
    if schema.get("type") in ("integer", "number"):
        low = schema.get("minimum", 1)
        high = schema.get("maximum", low + 9)
        yield from {low, high, int(low + (high - low) // 2)}


def _noisy_best(choices: Sequence[_Choice], rng: random.Random) -> _Choice | None:
    noisy: Callable[[_Choice], float] = lambda choice: choice.score + rng.gauss(0.0, _NOISE)  # noqa: E731
    return max(choices, key=noisy, default=None)


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 0.0
