"""Requests for executed chains, the round trip back, and augmentation.

A request passes where reading it gives exactly the chain back: by the majority of three readers that are
chats, else by the program reader, and the record says which. Augmentation says the same otherwise
(diversity), or as somebody in particular (persona); whatever wrote the new text, it passes the checks of the
old one, is in its language, and makes the round trip again. Complexity is another request, executed: the
planner adds it. Not covered: requests of which a part is not mentioned (Magnet's).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

from data.messages import Turn
from pipeline.chat.base import Chat
from pipeline.chat.roles import one_of
from pipeline.checks.language import same_language
from pipeline.errors import StructuredReplyError
from synthesizers.astra.chains_graph import Chain
from synthesizers.astra.chains_reading import ProgramReader
from synthesizers.astra.chains_roles import AUGMENTER, READER, RequestToRead, TextToAugment, tool_lines
from synthesizers.grounding.calls import Provenance
from synthesizers.phrasing.back_translation import back_translate
from synthesizers.phrasing.requests import PhrasingError, TurnCalls, phrase_request, request_problem
from synthesizers.phrasing.saying import with_question, without_question
from synthesizers.phrasing.wording import secret_names

READERS = 3
"""Readers of a request, whose majority decides. From the paper: 3 models."""
PROGRAM, TEMPLATE = "program", "template"
_WORDINGS = 4
"""Wordings of which the one least like the plain one is taken. Ours."""
_ASKS = 2
PERSONAS = (
    ("Hi there, hope you are well! {} Thanks a lot!", "somebody warm and talkative"),
    ("{} Quick, I am in a hurry.", "somebody in a hurry, in as few words as possible"),
    ("Hello. {} With kind regards.", "somebody formal, as in a letter"),
    ("hey, {} cheers", "somebody casual, without capitals"),
    ("I am new here, so bear with me. {}", "somebody who is new to this"),
)
"""(frame, description): the frame without a chat, the description for one. Ours."""


class Wording(NamedTuple):
    """A request and who wrote it, or why there is none (`reason` is a stable identifier)."""

    text: str = ""
    by: str = TEMPLATE
    reason: str = ""
    detail: str = ""


async def write_request(
    turn: TurnCalls, *, rng: random.Random, chat: Chat | None, dialogue: Sequence[Turn] = (), said: str = ""
) -> Wording:
    """A request for a turn's calls by the chat, or by template where there is none."""
    if chat is not None and not any(call.question for call in turn.calls):
        made = await back_translate(chat, turn, dialogue=dialogue, rng=rng)
        if made.request is None:
            return Wording(reason="no_request", detail=made.reason)
        return Wording(made.request, chat.name)
    try:
        return Wording(phrase_request(turn, rng=rng, said=said))
    except PhrasingError as error:
        return Wording(reason="no_wording", detail=str(error))


async def round_trip(request: str, chain: Chain, turn: TurnCalls, readers: Sequence[Chat]) -> str:
    """ "" where the request reads back as exactly `chain`, else what it was read as.

    A reader whose reply is none has not read the chain. Without readers the program reads, but for questions:
    that a call answers one is known from gold.
    """
    if not readers:
        request = without_question(request, turn.told)
        questions = [call for call in turn.calls if call.question]
        for call in questions:
            request = request.replace(call.question, " ")
        answering = {call.executed.call.name for call in questions}
        chain = tuple(name for name in chain if name not in answering)
        reading = ProgramReader(turn.tools).read(request)
        if reading.unclear:
            return f"unclear {reading.unclear}"
        return "" if reading.chain == chain else f"read {_shown(reading.chain)}, meant {_shown(chain)}"
    read: list[str] = []
    names = one_of(tool.name for tool in turn.tools)
    for number, chat in enumerate(readers, 1):
        asked = RequestToRead(request=request, tools=tool_lines(turn.tools), reader=number)
        try:
            read.append(_shown((await READER.ask(chat, asked, narrow={"chain": names})).chain))
        except StructuredReplyError:
            read.append("nothing valid")
    agree = read.count(_shown(chain))
    return "" if 2 * agree > len(readers) else f"read {'; '.join(read)}, meant {_shown(chain)}"


async def augmented(
    wording: Wording,
    turn: TurnCalls,
    how: Literal["diversity", "persona"],
    *,
    rng: random.Random,
    chat: Chat | None,
    said: str = "",
) -> Wording:
    """The request in other words that pass the checks; `reason` says why not."""
    frame, persona = rng.choice(PERSONAS)
    if chat is not None:
        asked = persona if how == "persona" else "other words and another sentence structure"
        return await _rewritten(wording, turn, asked, chat=chat, said=said)
    text = _framed(frame, wording.text) if how == "persona" else _least_alike(wording.text, turn, rng, said)
    problem = request_problem(text, turn, said=said) or _other_language(wording.text, text)
    return Wording(text) if not problem else Wording(reason="augmentation", detail=problem)


async def _rewritten(wording: Wording, turn: TurnCalls, how: str, *, chat: Chat, said: str) -> Wording:
    values = tuple(str(source.value) for source in turn.sources() if source.provenance is Provenance.USER)
    names = tuple(secret_names(turn.tools))
    request = without_question(wording.text, turn.told)
    asked = TextToAugment(request=request, how=how, values=values, do_not_write=names)
    problem = ""
    for _ in range(_ASKS):
        text = with_question((await AUGMENTER.ask(chat, asked)).request, turn.told)
        problem = request_problem(text, turn, said=said) or _other_language(wording.text, text)
        if not problem:
            return Wording(text, chat.name)
        asked = asked.model_copy(update={"problem": problem})
    return Wording(reason="augmentation", detail=problem)


def _least_alike(plain: str, turn: TurnCalls, rng: random.Random, said: str) -> str:
    """Of several wordings the one that shares the fewest words with the plain one."""
    wordings = [phrase_request(turn, rng=rng, said=said) for _ in range(_WORDINGS)]
    known = set(plain.lower().split())
    return min(wordings, key=lambda text: len(known & set(text.lower().split())) / len(text.split()))


def _other_language(before: str, after: str) -> str:
    return "" if same_language(before, after) else "it is in another language than the request"


def _framed(frame: str, text: str) -> str:
    goes_on = frame.startswith("hey, ") and not text.startswith(("I ", "I'"))
    return frame.format(text[:1].lower() + text[1:] if goes_on else text)


def _shown(chain: Sequence[str]) -> str:
    return " > ".join(chain) or "nothing"
