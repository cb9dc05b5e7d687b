"""The optional edge judge: a chat says whether one tool's answer can feed another's parameter.

A yes counts only with a parameter the target has; the value's name may be free where nothing documents what
the source returns. Replies that are never valid make no edge and are counted: nothing is invented. Not
covered: which pairs to ask about (`build.draw_candidates`; the paper asks about all candidates).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from pipeline.chat.base import Chat
from pipeline.chat.roles import one_of
from pipeline.errors import StructuredReplyError
from synthesizers.graph.dependency import Evidence, Link
from synthesizers.graph.ports import Port, PortOrigin, Signature
from synthesizers.roles import ChatRole, Exchange

JUDGED_SCORE = 0.5
"""Score of a judged link, whose judge says only yes. Ours."""


class EdgeQuestion(Exchange):
    """Two signatures, ports as one line each."""

    source_name: str
    source_description: str
    source_returns: tuple[str, ...]
    target_name: str
    target_description: str
    target_takes: tuple[str, ...]


class EdgeVerdict(Exchange):
    """Whether a value feeds a parameter, and which."""

    reason: str = Field(max_length=240)
    feeds: bool
    value: str = Field(max_length=200)
    parameter: str = Field(max_length=200)


EDGE_JUDGE = ChatRole[EdgeQuestion, EdgeVerdict]("graph/edge_judge", reply=EdgeVerdict)


@dataclass(slots=True)
class JudgedLinks:
    """What a judge said about some pairs."""

    links: list[Link] = field(default_factory=list)
    asked: int = 0
    unreadable: int = 0
    """Pairs whose reply never fitted the schema."""
    refused: int = 0
    """Yeses that named a port which does not exist."""


async def judged_links(
    pairs: Iterable[tuple[Signature, Signature]], chat: Chat, *, max_in_flight: int = 16
) -> JudgedLinks:
    """Ask about every pair (source, target), `max_in_flight` at a time; links come in the order of pairs."""
    judged, gate = JudgedLinks(), asyncio.Semaphore(max_in_flight)

    async def ask(source: Signature, target: Signature) -> EdgeVerdict | None:
        async with gate:
            try:
                return await EDGE_JUDGE.ask(
                    chat, edge_question(source, target), narrow=_names(source, target)
                )
            except StructuredReplyError:
                return None

    asked = [(source, target) for source, target in pairs if target.inputs]
    running = [asyncio.create_task(ask(source, target)) for source, target in asked]
    try:
        verdicts = await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()
    for (source, target), verdict in zip(asked, verdicts, strict=True):
        judged.asked += 1
        judged.unreadable += verdict is None
        if verdict is not None and verdict.feeds:
            link = _link(source, target, verdict)
            judged.refused += link is None
            judged.links += [link] if link else []
    return judged


def edge_question(source: Signature, target: Signature) -> EdgeQuestion:
    """The question about a pair."""
    known = [port for port in source.outputs if port.origin is not PortOrigin.GUESSED]
    return EdgeQuestion(
        source_name=source.name,
        source_description=source.description,
        source_returns=tuple(map(_shown, known)),
        target_name=target.name,
        target_description=target.description,
        target_takes=tuple(map(_shown, target.inputs)),
    )


def _names(source: Signature, target: Signature) -> dict[str, dict[str, Any]]:
    """The names a verdict may hold; "" for none. What nothing documents may have any name."""
    parameters = one_of(["", *(port.path for port in target.inputs)])
    values = one_of(["", *(port.path for port in source.outputs)])
    return {"parameter": parameters, "value": values} if _documented(source) else {"parameter": parameters}


def _documented(source: Signature) -> bool:
    return any(port.origin is not PortOrigin.GUESSED for port in source.outputs)


def _link(source: Signature, target: Signature, verdict: EdgeVerdict) -> Link | None:
    if target.input(verdict.parameter) is None or not verdict.value:
        return None
    if _documented(source) and source.output(verdict.value) is None:
        return None
    ports = verdict.value, verdict.parameter
    return Link(source.name, target.name, *ports, Evidence.JUDGED, JUDGED_SCORE)


def _shown(port: Port) -> str:
    shown = f"{port.path} ({port.type})"
    return f"{shown}: {port.description}" if port.description else shown
