"""The prompt of every role, for one request, compared with a stored text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from synthesizers.hardgen.roles import (
    QUERY_WRITER,
    REASONER,
    TOOL_MAKER,
    VERIFIER,
    ChainCall,
    MacroValue,
    QueryRequest,
    ReasonerReply,
    ReasonerRequest,
    ToolReply,
    ToolRequest,
    VerifierReply,
    VerifierRequest,
)
from synthesizers.roles import ChatRole, Exchange

GOLDEN = Path(__file__).parent / "golden"
REQUESTS: list[tuple[ChatRole[Any, Any], Exchange]] = [
    (
        TOOL_MAKER,
        ToolRequest(
            calls=(
                ChainCall(does="List flights.", given=("src", "dst", "day")),
                ChainCall(does="Book a flight.", found=("flight",)),
            ),
            parameters=("the cheapest flight", "src", "dst", "day"),
            do_not_write=("flights",),
            problem="it names 'flights'",
        ),
    ),
    (
        QUERY_WRITER,
        QueryRequest(
            name="book_adv",
            description="Book a flight.",
            say=(MacroValue(name="src", value="Oslo"), MacroValue(name="day", value="May 7")),
            point_at=("the cheapest flight",),
            problem="it does not say day='May 7'",
            last="Book the cheapest flight from Oslo.",
        ),
    ),
    (
        REASONER,
        ReasonerRequest(
            tools=("flights: List flights. Parameters: src, dst, day",),
            rule="Value missing: ASK its name.",
            dialogue="user: Book the cheapest flight from Oslo to Rome on May 7.",
            hint="See first what there is.",
        ),
    ),
    (
        VERIFIER,
        VerifierRequest(
            request="Book the cheapest flight from Oslo to Rome on May 7.",
            reference=('flights {"src":"Oslo","dst":"Rome","day":"May 7"}', 'book {"flight":"F7"}'),
            predicted=(),
            problem="it says 'F7'",
        ),
    ),
]


@pytest.mark.parametrize(("role", "request_"), REQUESTS, ids=[role.name for role, _ in REQUESTS])
def test_the_prompt_is_the_stored_one(role: ChatRole[Any, Any], request_: Exchange) -> None:
    shown = "\n---\n".join(turn.text for turn in role.turns(request_)) + "\n"
    assert shown == (GOLDEN / f"{role.name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("reply", "values"),
    [
        (ToolReply, {"name": "Book it", "description": "Book a flight."}),
        (ToolReply, {"name": "book_it", "description": ""}),
        (ReasonerReply, {"thought": "", "calls": [], "reply": "Done."}),
        (ReasonerReply, {"thought": "x", "calls": [{"name": "a", "arguments": {}}] * 4, "reply": ""}),
        (VerifierReply, {"hint": "x" * 301}),
        (VerifierReply, {"hint": "Look again.", "verdict": "ok"}),
    ],
)
def test_what_is_no_reply(reply: type[Exchange], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        reply.model_validate(values)
