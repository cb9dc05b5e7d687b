"""Turns in which something is missing: Split's two kinds, and requests that no shown tool can serve.

- miss_params: the request leaves one required value out; right is `ASK name`; the next turn brings it.
- miss_func: the tool is not shown; right is `REFUSE`; it is shown from the next turn on.
- irrelevance: a request alone whose tool is never shown.

A tool that does much the same must not be shown in its stead, or refusing would be wrong. Each lacking turn
is one that was executed with nothing lacking. Not covered: executing (`enacting`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from data.messages import ToolSpec
from pipeline.environments.blueprint import Expects, PlannedTurn
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.grounding.calls import ArgumentSource, Provenance
from synthesizers.magnet.enacting import Enacted, dialogue_of, planned_turn
from synthesizers.magnet.knowledge import alike
from synthesizers.magnet.paths import Missing, Path, PathTurn, Stage, split
from synthesizers.magnet.translation import Translator, Written
from synthesizers.phrasing.requests import PhrasingError, phrase_supply
from synthesizers.phrasing.twins import twins_of
from synthesizers.phrasing.wording import leaks_tool_name, mentions

DRAWS = 8
"""Copies that Split draws until one can be executed. Ours."""
APPEARED = (
    "That is possible now. Please go on.",
    "You have what you need for that now. Please do it.",
    "That has just been made possible. Go ahead, please.",
    "Please try once more: it can be done now.",
)


@dataclass(frozen=True, slots=True)
class Lacking:
    """A turn that lacks something: what `at` is, in front of which turn the asking one goes."""

    missing: Missing
    at: int
    lacks: str


def draw_lacking(
    turns: Sequence[Enacted], graph: SignatureGraph, tools: Sequence[ToolSpec], *, rng: random.Random
) -> Lacking | None:
    """Split on the path that was executed, drawn again while what came out cannot be; None after DRAWS."""
    path = Path(tuple(PathTurn(turn.path.calls) for turn in turns), Stage.INSERTED)
    for _ in range(DRAWS):
        copy = split(path, graph, rng=rng)
        if copy is None:
            return None
        at = next(place for place, turn in enumerate(copy.turns) if turn.missing is not None)
        empty = copy.turns[at]
        assert empty.missing is not None
        lacking = Lacking(empty.missing, at, empty.lacks)
        if _is_possible(lacking, turns, tools):
            return lacking
    return None


async def with_lacking(
    lacking: Lacking, turns: Sequence[Enacted], *, translator: Translator, rng: random.Random
) -> list[PlannedTurn]:
    """The planned turns with the asking one in front of its own. Raises Unwritten, PhrasingError."""
    planned = [planned_turn(turn) for turn in turns]
    at, whole = lacking.at, turns[lacking.at]
    if lacking.missing is Missing.FUNC:
        asking = refused(whole)
        names = [tool.name for tool in whole.turn.tools]
        fitting = [text for text in APPEARED if not leaks_tool_name(text, names)]
        if not fitting:
            raise PhrasingError("every way to say that a tool appeared holds a tool's name")
        supplied = Written(rng.choice(fitting))
    else:
        before = dialogue_of(turns[:at])
        written = await translator.request(whole.turn, dialogue=before, rng=rng, left_out=lacking.lacks)
        asking = PlannedTurn(
            text=written.text,
            text_by=written.by,
            reply=f"ASK {lacking.lacks}",
            expects=Expects.ASK,
            state=whole.before,
        )
        source = _source(whole, lacking.lacks)
        assert source is not None
        supplied = Written(phrase_supply(source, whole.turn, rng=rng))
    return [*planned[:at], asking, planned_turn(whole, text=supplied), *planned[at + 1 :]]


def refused(enacted: Enacted) -> PlannedTurn:
    """The turn where its tool is not shown."""
    return PlannedTurn(
        text=enacted.written.text,
        text_by=enacted.written.by,
        reply="REFUSE tool",
        expects=Expects.REFUSE,
        state=enacted.before,
    )


def shown_tools(
    tools: Sequence[ToolSpec],
    *,
    used: Collection[str],
    without: Collection[str] = (),
    most: int,
    rng: random.Random,
) -> tuple[str, ...]:
    """Names to show, in the world's order: the used ones and others, `most` in all where the used are fewer.

    Tools in `without`, what is like them and not used, and twins of the used ones are left out.
    """
    twins = twins_of(used, tools)
    lacking = [tool for tool in tools if tool.name in without]
    others = [
        tool.name
        for tool in tools
        if tool.name not in used
        and tool.name not in {*without, *twins}
        and not any(alike(tool, lacked) for lacked in lacking)
    ]
    drawn = rng.sample(others, max(0, min(len(others), most - len(used))))
    chosen = {*(name for name in used if name not in without), *drawn}
    return tuple(tool.name for tool in tools if tool.name in chosen)


def _is_possible(lacking: Lacking, turns: Sequence[Enacted], tools: Sequence[ToolSpec]) -> bool:
    whole = turns[lacking.at]
    if not whole.is_single:
        return False
    if lacking.missing is Missing.FUNC:
        by_name = {tool.name: tool for tool in tools}
        lacked = by_name[lacking.lacks]
        used = {name for turn in turns for name in turn.names} - {lacking.lacks}
        earlier = {name for turn in turns[: lacking.at] for name in turn.names}
        return lacking.lacks not in earlier and not any(alike(by_name[name], lacked) for name in used)
    source = _source(whole, lacking.lacks)
    said = " ".join(turn.written.text for turn in turns[: lacking.at])
    return source is not None and not mentions(said, source.value)


def _source(whole: Enacted, name: str) -> ArgumentSource | None:
    """The one argument of that name that the user has to give; None where there is no such, or more."""
    found = [source for call in whole.turn.calls for source in call.sources if source.name == name]
    plain = re.fullmatch(r"\w+", name, re.ASCII) is not None
    missed = (
        len(found) == 1 and found[0].provenance is Provenance.USER and not isinstance(found[0].value, bool)
    )
    return found[0] if plain and missed else None
