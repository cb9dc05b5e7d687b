"""A goal that was reached, as a task of its own: request, calls, what they answered, the state after them.

Calls that only find what a later one uses are left unmentioned where a user would not ask for them. Nothing
of what was asked before is used: the request is phrased from the calls, the world has another request and no
private part, the reply at the end is a template's. A chat that writes the request sees no more, and what it
writes is refused where it says a value of the old request that the calls have no need of. Not covered: which
calls (`trimming`), the trajectory (`synthesizer`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from data.messages import ToolSpec
from data.tasks import Task
from pipeline.chat.base import Chat
from pipeline.environments.blueprint import Blueprint, PlannedTurn, blueprint_task
from synthesizers.execution import Executed
from synthesizers.grounding.calls import GroundedCall, Provenance
from synthesizers.grounding.evidence import ValuePool, digest_of
from synthesizers.grounding.planned import answered_names, planned_call, port_name
from synthesizers.hindsight.past import bare_world
from synthesizers.phrasing.back_translation import back_translate
from synthesizers.phrasing.referring import goes_unsaid
from synthesizers.phrasing.requests import PhrasingError, TurnCalls, phrase_closing, phrase_request
from synthesizers.phrasing.saying import answer_cells, values_to_say, without_question
from synthesizers.phrasing.twins import twins_of
from synthesizers.phrasing.wording import mentions
from synthesizers.planning import Planned, given_up

NAME = "hindsight"
_TELLING = re.compile(r"[\w$#@]*\d[\w.:/-]*\w|\d|(?<=[a-z,] )[A-Z][\w-]+")
"""What a request would not say by chance: numbers, identifiers, names within a sentence."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What a task is written with. `chat` writes requests, None leaves them to templates."""

    tools: tuple[ToolSpec, ...]
    pool: ValuePool
    state: str
    """Digest of the state after the calls."""
    rng: random.Random
    chat: Chat | None = None


class Relabelled(NamedTuple):
    """A goal as a task, or why there is none, and what the goal is apart from questions about answers."""

    planned: Planned
    goal: str = ""


async def relabelled(
    calls: Sequence[GroundedCall],
    targets: Collection[int],
    source: Task,
    writing: Writing,
    *,
    seed: int,
    old: str,
) -> Relabelled:
    """The task that asks for the calls, or why there is none.

    `targets`: places of the goal's own calls. `source` was the episode's task, `old` what its user said.
    """
    asked = _asked(calls, writing.pool)
    if asked is None:
        return _none("written_argument", "nobody would dictate such an argument, and no question is known")
    if any(call.question and call.question in old for call in asked):
        return _none("old_goal", "it is what was asked for")
    if any(call.question and not answer_cells(call.executed.result.text) for call in asked):
        return _none("untellable", "the answer to a question is too long to be told")
    history = tuple(call.executed for call in asked)
    turn = TurnCalls(asked, writing.tools, history, _unmentioned(asked, targets, writing.tools))
    try:
        request, by = await _request(turn, writing)
    except PhrasingError as error:
        return _none("unphrased", str(error))
    told = [
        value for value in _TELLING.findall(old) if mentions(request, value) and not _known(value, history)
    ]
    if told and (by != "template" or any(call.question for call in asked)):
        return _none("old_goal_said", told[0])
    planned = _planned_turn(turn, request, by, writing)
    task = blueprint_task(
        Blueprint(base=bare_world(source, request=request), seed=seed, turns=(planned,)),
        synthesizer=NAME,
        template=f"{NAME}/{'+'.join(call.executed.call.name for call in turn.mentioned)}",
        tags=(NAME,),
        parent=source,
    )
    return Relabelled(Planned(task=task), without_question(request, turn.told))


def _none(reason: str, detail: str) -> Relabelled:
    return Relabelled(given_up(reason, detail))


def _asked(calls: Sequence[GroundedCall], pool: ValuePool) -> list[GroundedCall] | None:
    """The calls, those with an argument that an assistant writes with the question they answer; None where
    there is no such question."""
    found = []
    for call in calls:
        name, arguments = call.executed.call.name, call.executed.arguments()
        question = pool.questions.get(digest_of(name, arguments))
        if question is not None:
            written = tuple(
                s if s.provenance is Provenance.DEFAULT else s._replace(provenance=Provenance.WRITTEN)
                for s in call.sources
            )
            found.append(GroundedCall(call.executed, written, question.text))
        elif name in pool.written and arguments:
            return None
        else:
            found.append(call)
    return found


def _unmentioned(
    calls: Sequence[GroundedCall], targets: Collection[int], tools: Sequence[ToolSpec]
) -> frozenset[int]:
    """Places of look-ups that feed a later call and that a user would not ask for; nobody who asks a question
    asks for what has to be read first."""
    specs = {tool.name: tool for tool in tools}
    used = {source.of.call for call in calls for source in call.sources if source.of is not None}
    hidden: set[int] = set()
    for place, call in enumerate(calls):
        needs = {source.of.call for source in call.sources if source.of is not None}
        if place in targets or call.executed.changes:
            continue
        read_first = any(later.question for later in calls[place + 1 :])
        step = place in used and needs <= hidden and goes_unsaid(call, specs[call.executed.call.name])
        if read_first or step:
            hidden.add(place)
    return frozenset(hidden)


async def _request(turn: TurnCalls, writing: Writing) -> tuple[str, str]:
    """The request and who wrote it; a chat that finds none leaves it to the templates."""
    if writing.chat is not None:
        written = await back_translate(writing.chat, turn, rng=writing.rng)
        if written.request is not None:
            return written.request, writing.chat.name
    return phrase_request(turn, rng=writing.rng), "template"


def _known(value: str, history: Sequence[Executed]) -> bool:
    return any(mentions(f"{made.call.arguments} {made.result.text}", value) for made in history)


def _planned_turn(turn: TurnCalls, request: str, by: str, writing: Writing) -> PlannedTurn:
    cells = [cell for call in turn.calls if call.question for cell in answer_cells(call.executed.result.text)]
    reply = phrase_closing(turn, rng=writing.rng, must_say=cells)
    asked = [call.executed for call in turn.mentioned if not call.question]
    names = [call.executed.call.name for call in turn.calls]
    twins = twins_of(names, writing.tools) - set(names)
    shown = tuple(tool.name for tool in writing.tools if tool.name not in twins)
    named = partial(port_name, names=answered_names(turn.history))
    return PlannedTurn(
        text=request,
        text_by=by,
        calls=tuple(
            planned_call(call, mentioned=place not in turn.unmentioned and not call.question, named=named)
            for place, call in enumerate(turn.calls)
        ),
        reply=reply,
        must_say=tuple(dict.fromkeys([*values_to_say(asked, reply, request=request), *cells])),
        state=writing.state,
        tools=shown if twins else None,
    )
