"""The task that a performance makes: its blueprint, system prompt, tags and lineage.

Tags: `multi_turn`, `recover` (an interruption), `replanned` (a turn in place of one that failed),
`refuse`, `recombined`, `strict`; what a survey counts stands in the turns' `direction`. Not covered: the
performance (`stage`), its review (`strict`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from data.tasks import Task
from pipeline.environments.blueprint import SYSTEM, Blueprint, Expects, PlannedTurn, blueprint_task
from pipeline.environments.direction import Review
from pipeline.errors import ConfigError
from synthesizers.director_actor.actors import RULE_OF_STAGE
from synthesizers.director_actor.personas import Persona
from synthesizers.director_actor.stage import Played
from synthesizers.execution import Executed
from synthesizers.planning import Planned, given_up
from synthesizers.worlds import whole_world


class Performance(NamedTuple):
    """A performance and what a review needs to know of it."""

    played: Played
    executed: tuple[Executed, ...]
    shown: tuple[str, ...]
    difference: str
    combined: bool = False


def written(
    base: Task,
    persona: Persona,
    performance: Performance,
    *,
    reviews: Sequence[Review],
    strict: bool,
    synthesizer: str,
) -> Planned:
    """The plan's task, or why there is none."""
    played = performance.played
    first, *others = played.turns
    turns = (first.model_copy(update={"tools": performance.shown}), *others)
    blueprint = Blueprint(
        base=whole_world(base),
        turns=turns,
        outages=played.outages,
        persona=persona.name,
        reviews=tuple(reviews),
    )
    try:
        task = blueprint_task(
            blueprint,
            synthesizer=synthesizer,
            template=base.template,
            tags=_tags(turns, combined=performance.combined, strict=strict),
            system=system_prompt(base, (turn.text_by for turn in turns)),
            parent=base,
        )
    except ConfigError as error:
        return given_up("no_task", str(error))
    return Planned(task, hints=played.hints)


def system_prompt(base: Task, authors: Iterable[str]) -> str:
    """The base task's where its words are used (an author is "task"), else ours; and the stage's rule."""
    own = "task" in authors and base.prompt[0].role == "system"
    return f"{base.prompt[0].text if own else SYSTEM} {RULE_OF_STAGE}"


def _tags(turns: Sequence[PlannedTurn], *, combined: bool, strict: bool) -> tuple[str, ...]:
    marks = {
        "multi_turn": len(turns) > 1,
        "recover": any(turn.direction and turn.direction.contradiction for turn in turns),
        "replanned": any(turn.direction and turn.direction.replanned for turn in turns),
        "refuse": any(turn.expects is Expects.REFUSE for turn in turns),
        "recombined": combined,
        "strict": strict,
    }
    return tuple(name for name, holds in marks.items() if holds)
