"""The back-translator: a chat writes the user request for a turn's calls, checked like every other request.

It is told what each call does (never the tool's name as such), what must be said, what may only be pointed
at, and what must not be written (Magnet, step 6, rules i-vi). A text that fails `request_problem` is asked
for once more with the problem; after that there is none, and the reason is returned: whether a template
stands in is the caller's decision, and the record says so. Not covered: requests without a model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import Field

from data.messages import Role, Turn
from pipeline.chat.base import Chat
from pipeline.errors import StructuredReplyError
from synthesizers.grounding.provenance import ArgumentSource, Provenance
from synthesizers.grounding.reading import words
from synthesizers.phrasing.clauses import noun_of
from synthesizers.phrasing.referring import refer
from synthesizers.phrasing.requests import TurnCalls, request_problem
from synthesizers.phrasing.saying import with_question
from synthesizers.phrasing.wording import secret_names
from synthesizers.roles import ChatRole, Exchange, shown_dialogue

MAX_ASKS = 2


class ValueToSay(Exchange):
    """A value and what it is: "the day"; `hint` is a way to point at it."""

    about: str
    value: Any
    hint: str = ""


class CallToAsk(Exchange):
    """One mentioned call as the writer sees it."""

    does: str
    say: tuple[ValueToSay, ...] = ()
    point_at: tuple[ValueToSay, ...] = ()


class BackTranslation(Exchange):
    """What the writer is told; `problem` and `last` on the second asking only."""

    dialogue: str = ""
    calls: tuple[CallToAsk, ...]
    also_say: tuple[ValueToSay, ...] = ()
    keep_back: str = ""
    do_not_write: tuple[str, ...] = ()
    problem: str = ""
    last: str = ""


class UserRequest(Exchange):
    """What the user says."""

    request: str = Field(min_length=1, max_length=800)


BACK_TRANSLATOR = ChatRole[BackTranslation, UserRequest]("shared/back_translator", reply=UserRequest)


class Translated(NamedTuple):
    """A request that passed every check, or None and why."""

    request: str | None
    reason: str = ""


async def back_translate(
    chat: Chat, turn: TurnCalls, *, dialogue: Sequence[Turn] = (), left_out: str = "", rng: random.Random
) -> Translated:
    """Ask the chat for the turn's request, at most twice; an unreadable reply is a reason for None."""
    asked = translation_request(turn, dialogue=dialogue, left_out=left_out, rng=rng)
    said = "\n".join(part.text for part in dialogue if part.role is Role.USER)
    problem = ""
    for _ in range(MAX_ASKS):
        try:
            reply = await BACK_TRANSLATOR.ask(chat, asked)
        except StructuredReplyError as error:
            return Translated(None, str(error))
        text = with_question(reply.request, turn.told)
        problem = request_problem(text, turn, said=said, left_out=left_out)
        if not problem:
            return Translated(text)
        asked = asked.model_copy(update={"problem": problem, "last": text})
    return Translated(None, f"after {MAX_ASKS} askings: {problem}")


def translation_request(
    turn: TurnCalls, *, dialogue: Sequence[Turn] = (), left_out: str = "", rng: random.Random
) -> BackTranslation:
    """What the writer is told about a turn."""
    nested = [call for place, call in enumerate(turn.calls) if place in turn.unmentioned]
    asked = tuple(
        CallToAsk(
            does=turn.tool(call).description or "(undocumented)",
            say=_to_say(call.of(Provenance.USER), left_out),
            point_at=tuple(
                _value(source, hint=_hint(source, turn, rng)) for source in call.of(Provenance.OUTPUT)
            ),
        )
        for call in turn.mentioned
    )
    return BackTranslation(
        dialogue=shown_dialogue(dialogue),
        calls=asked,
        also_say=tuple(value for call in nested for value in _to_say(call.of(Provenance.USER), left_out)),
        keep_back=" ".join(words(left_out)),
        do_not_write=tuple(secret_names(turn.tools)),
    )


def _to_say(sources: Sequence[ArgumentSource], left_out: str) -> tuple[ValueToSay, ...]:
    return tuple(_value(source) for source in sources if source.name != left_out)


def _value(source: ArgumentSource, *, hint: str = "") -> ValueToSay:
    return ValueToSay(about=" ".join(words(source.name)) or source.name, value=source.value, hint=hint)


def _hint(source: ArgumentSource, turn: TurnCalls, rng: random.Random) -> str:
    return refer(source, turn, noun=noun_of(source.name), rng=rng)
