"""Argument sets worth trying for a tool, in order of evidence; at random for the ablation.

Each record proposes the values it has that fit (`scoring`), because values of one record belong together; the
rest is filled from the others. A little seeded noise makes two walks differ. Not covered: whether a proposal
works (`calls` executes it).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolSpec
from pipeline.checks.calls import argument_problems
from synthesizers.graph.shapes import Scalar
from synthesizers.grounding.evidence import Record, ValuePool, digest_of
from synthesizers.grounding.scoring import (
    ENOUGH,
    SAME_NAME,
    WANTED,
    Candidate,
    Parameters,
    candidates,
    of_schema,
    scored,
)

_NOISE = 0.7
_MAX_ANCHORS = 250
_RANDOM_DRAWS = 64


class Proposal(NamedTuple):
    """Arguments to try and the evidence for them, higher first."""

    arguments: dict[str, Any]
    score: float


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
    choices = {
        name: candidates(name, needs, records, pool, wanted.get(name, ())) for name in needs.properties
    }
    sought = {name for name, found in choices.items() if any(choice.score >= WANTED for choice in found)}
    anchors = [
        _anchored(record, needs, choices, sought, pool, rng) for record in _anchors(needs, records, rng)
    ]
    found: dict[str, Proposal] = {}
    for proposal in [*anchors, *(_free(needs, choices, sought, rng) for _ in range(4))]:
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
    allowed = {
        name: [value for value in values if needs.fits(name, value)] or list(of_schema(schema))
        for name, schema in needs.properties.items()
    }
    found = []
    for _ in range(_RANDOM_DRAWS):
        given = [name for name in allowed if name in needs.required or rng.random() < 0.5]
        arguments = {name: rng.choice(allowed[name]) for name in given if allowed[name]}
        if not argument_problems(arguments, needs.schema):
            found.append(Proposal(arguments, 0.0))
    return found


def _anchors(needs: Parameters, records: Sequence[Record], rng: random.Random) -> list[Record]:
    """Records that may propose: calls of this tool and rows that are no calls; the newest results first."""
    useful = [record for record in records if record.tool in ("", needs.tool)]
    rng.shuffle(useful)
    useful.sort(key=lambda record: (-record.call, record.tool != needs.tool, -record.affinity))
    return useful[:_MAX_ANCHORS]


def _anchored(
    record: Record,
    needs: Parameters,
    choices: Mapping[str, Sequence[Candidate]],
    sought: Collection[str],
    pool: ValuePool,
    rng: random.Random,
) -> Proposal | None:
    """The record's own values where it has them, the best of the others for the rest; None where it has
    none. `sought` are the parameters that a planner's value fits: theirs are never the record's."""
    arguments, scores = {}, []
    for name in needs.properties:
        own = max(scored(name, needs, record, pool), key=lambda choice: choice.score, default=None)
        strong = own is not None and own.score >= (ENOUGH if name in needs.required else SAME_NAME)
        if own is not None and strong and name not in sought:
            arguments[name] = own.value
            scores.append(own.score)
        elif name in sought or (name in needs.required and record.tool != needs.tool):
            picked = _noisy_best(choices[name], rng)
            if picked is None:
                return None
            arguments[name] = picked.value
            scores.append(picked.score - 0.5)
    if needs.properties and not scores and needs.required:
        return None
    return Proposal(arguments, _mean(scores) + rng.gauss(0.0, _NOISE))


def _free(
    needs: Parameters,
    choices: Mapping[str, Sequence[Candidate]],
    sought: Collection[str],
    rng: random.Random,
) -> Proposal | None:
    """Required parameters (and sought ones), each from its own best evidence."""
    arguments, scores = {}, []
    for name in needs.properties:
        if name in needs.required or name in sought:
            picked = _noisy_best(choices[name], rng)
            if picked is None:
                return None
            arguments[name] = picked.value
            scores.append(picked.score - 1.0)
    return Proposal(arguments, _mean(scores) + rng.gauss(0.0, _NOISE))


def _noisy_best(choices: Sequence[Candidate], rng: random.Random) -> Candidate | None:
    noisy: Callable[[Candidate], float] = lambda choice: choice.score + rng.gauss(0.0, _NOISE)  # noqa: E731
    return max(choices, key=noisy, default=None)


def _mean(scores: Sequence[float]) -> float:
    return sum(scores) / len(scores) if scores else 0.0
