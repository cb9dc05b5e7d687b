"""Back-and-forth translation: the user's words for calls that were already executed, and back again.

Without chats `phrasing` writes the request. With a back translator its request is checked by the same
program that checks templates; with a forward translator the request is read back, one dependent step at a
time, and the calls must be the planned ones, with none left after the last step. What fails is written once
more with the problem named, then given up. Not covered: executing (`enacting`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolSpec, Turn, assistant, tool
from pipeline.chat.base import Chat
from pipeline.chat.roles import one_call
from pipeline.checks.matching import same_value
from synthesizers.grounding.provenance import ArgumentSource, GroundedCall, Provenance
from synthesizers.magnet.roles import (
    FORWARD_TRANSLATOR,
    MAX_PARALLEL,
    ForwardCall,
    ForwardRequest,
)
from synthesizers.phrasing.back_translation import BACK_TRANSLATOR, translation_request
from synthesizers.phrasing.requests import PhrasingError, TurnCalls, phrase_request, request_problem
from synthesizers.phrasing.saying import with_question
from synthesizers.phrasing.wording import mentions
from synthesizers.roles import shown_dialogue, shown_parameters

TRIES = 2
"""The first try and one more, as a turn whose translations disagree is asked for once again."""


class Written(NamedTuple):
    """A request and who wrote it."""

    text: str
    by: str = "template"


class Unwritten(Exception):
    """No request passed; `reason` is a stable identifier."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(kw_only=True)
class Translator:
    """`back` and `forward` are chats or None."""

    back: Chat | None = None
    forward: Chat | None = None
    differed: int = field(default=0)
    """Requests that the forward translator read otherwise than planned."""

    async def request(
        self, turn: TurnCalls, *, dialogue: Sequence[Turn], rng: random.Random, left_out: str = ""
    ) -> Written:
        """The user's words for a turn after `dialogue`. Raises Unwritten; StructuredReplyError of chats."""
        earlier = [said.text for said in dialogue if said.role == "user"]
        if self.back is None or any(call.question for call in turn.calls):
            by = "task" if all(call.question for call in turn.mentioned) else "template"
            written = Written(_phrased(turn, earlier, rng=rng, left_out=left_out), by)
            problem = ""
            read = self.forward is not None and not any(call.question for call in turn.calls)
            if read and not left_out:
                problem = await self._misread(written.text, turn, dialogue)
            if problem:
                raise Unwritten("forward_differs", problem)
            return written
        reason = problem = ""
        asked = translation_request(turn, dialogue=dialogue, left_out=left_out, rng=rng)
        for _ in range(TRIES):
            text = with_question((await BACK_TRANSLATOR.ask(self.back, asked)).request, turn.told)
            reason, problem = "request_rejected", problem_of(text, turn, earlier, left_out=left_out)
            if not problem and self.forward is not None and not left_out:
                reason, problem = "forward_differs", await self._misread(text, turn, dialogue)
            if not problem:
                return Written(text, self.back.name)
            asked = asked.model_copy(update={"problem": problem, "last": text})
        raise Unwritten(reason, problem)

    async def _misread(self, text: str, turn: TurnCalls, dialogue: Sequence[Turn]) -> str:
        """What the forward translator reads otherwise than planned; "" where it reads the plan."""
        assert self.forward is not None
        done: list[Turn] = []
        possible = one_call({spec.name: spec.parameters for spec in turn.tools})
        waiting = False
        for stage in _stages(turn):
            asked = ForwardRequest(
                dialogue=shown_dialogue(dialogue),
                request=text,
                done=shown_dialogue(done),
                tools=tuple(map(_shown_tool, turn.tools)),
            )
            reply = await FORWARD_TRANSLATOR.ask(self.forward, asked, narrow={"calls": possible})
            read, waiting = reply.calls, reply.waiting
            if not _same(stage, read, turn.tools):
                self.differed += 1
                shown = "; ".join(f"{call.name} {canonical.dumps(call.arguments)}" for call in read)
                return f"a reader took it to mean: {shown or 'no call'}"
            done += [said for call in stage for said in played(call)]
        self.differed += waiting
        return "a reader took it to want more after that" if waiting else ""


def _shown_tool(tool: ToolSpec) -> str:
    return f"{tool.name}: {tool.description} Parameters: {shown_parameters(tool)}"


def problem_of(text: str, turn: TurnCalls, earlier: Sequence[str], *, left_out: str = "") -> str:
    """What is wrong with a request: the checks of `phrasing`, repeating, naming what nested calls find."""
    if text in earlier:
        return "it repeats an earlier request"
    said = "\n".join(earlier)
    return request_problem(text, turn, said=said, left_out=left_out) or _found_value(text, turn)


def played(call: GroundedCall) -> tuple[Turn, Turn]:
    """The assistant turn with the call, and the result."""
    return assistant("", call.executed.call), tool(call.executed.result)


def _phrased(turn: TurnCalls, earlier: Sequence[str], *, rng: random.Random, left_out: str) -> str:
    problem = ""
    for _ in range(TRIES * 4):
        try:
            text = phrase_request(turn, rng=rng, said="\n".join(earlier), left_out=left_out)
        except PhrasingError as error:
            raise Unwritten("unphrased", str(error)) from error
        problem = problem_of(text, turn, earlier, left_out=left_out)
        if not problem:
            return text
    raise Unwritten("request_rejected", problem)


def _found_value(text: str, turn: TurnCalls) -> str:
    """A request must not say what an unmentioned call has yet to find."""
    hidden = {turn.seen + place for place in turn.unmentioned}
    given = " ".join(str(source.value) for source in turn.sources() if source.provenance is Provenance.USER)
    for source in turn.sources():
        found = source.provenance is Provenance.OUTPUT and source.of is not None and source.of.call in hidden
        if found and mentions(text, source.value) and not mentions(given, source.value):
            return f"it says {source.value!r}, which is still to be found"
    return ""


def _stages(turn: TurnCalls) -> Iterator[list[GroundedCall]]:
    """The calls in steps: those that use nothing of this turn, then those that use only what is there, ...;
    at most MAX_PARALLEL at once."""
    stage: list[GroundedCall] = []
    start = 0
    for place, call in enumerate(turn.calls):
        needs = [s.of.call - turn.seen for s in call.sources if s.of is not None]
        changes = any(other.executed.changes for other in stage)
        if stage and (len(stage) == MAX_PARALLEL or changes or any(need >= start for need in needs)):
            yield stage
            stage, start = [], place
        stage.append(call)
    if stage:
        yield stage


def _same(planned: Sequence[GroundedCall], read: Sequence[ForwardCall], tools: Sequence[ToolSpec]) -> bool:
    """Whether both are the same calls in any order; a default may be written or left out."""
    rest = list(read)
    for call in planned:
        made = call.executed
        defaults = _defaults(call.sources)
        wanted = {**defaults, **made.arguments()}
        found = next(
            (
                one
                for one in rest
                if one.name == made.call.name and same_value(wanted, {**defaults, **one.arguments})
            ),
            None,
        )
        if found is None:
            return False
        rest.remove(found)
    return not rest


def _defaults(sources: Sequence[ArgumentSource]) -> dict[str, Any]:
    return {source.name: source.value for source in sources if source.provenance is Provenance.DEFAULT}
