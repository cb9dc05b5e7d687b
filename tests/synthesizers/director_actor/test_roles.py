"""The prompt of every role, for one request, compared with a stored text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from synthesizers.director_actor.roles import (
    ACTOR,
    DIRECTOR,
    GOAL_CHECKER,
    JUDGE,
    REPLANNER,
    REPLY_CRITIC,
    USER_SIMULATOR,
    ActorRequest,
    CriticReply,
    CriticRequest,
    GoalReply,
    GoalRequest,
    JudgeReply,
    JudgeRequest,
    OutlineReply,
    OutlineRequest,
    ReplanRequest,
    ShownTool,
    UserReply,
    UserRequest,
)
from synthesizers.roles import ChatRole, Exchange

GOLDEN = Path(__file__).parent / "golden"
TOOLS = (ShownTool(name="book", description="Book a flight.", parameters='{"type":"object"}'),)
REQUESTS: list[tuple[ChatRole[Any, Any], Exchange]] = [
    (
        DIRECTOR,
        OutlineRequest(
            persona="Takes the cheapest.",
            tools=TOOLS,
            known=("flight: id=F12, price=90",),
            wish="Book F12.",
            max_goals=3,
            feedback=("nothing was booked",),
        ),
    ),
    (
        REPLANNER,
        ReplanRequest(
            persona="Takes the cheapest.",
            tools=TOOLS,
            known=("flight: id=F12, price=90",),
            dialogue="user: Book F12.",
            problem="book answered 'F12 is full'",
            remaining=(),
            max_goals=3,
        ),
    ),
    (GOAL_CHECKER, GoalRequest(goal="The user knows the price.", dialogue="assistant: It is $90.")),
    (
        USER_SIMULATOR,
        UserRequest(
            persona="Brief.",
            intent="A flight to Rome.",
            values=("Rome",),
            dialogue="",
            attempt=1,
            problem="too long",
        ),
    ),
    (
        REPLY_CRITIC,
        CriticRequest(
            persona="Brief.", intent="A flight to Rome.", dialogue="", candidates=("Rome.", "To Rome!")
        ),
    ),
    (
        JUDGE,
        JudgeRequest(
            criterion="satisfaction",
            meaning="what has changed is wanted",
            requests=("Book F12.",),
            calls=('book {"flight":"F12"} -> booked B1',),
            difference="+ bookings[]: F12",
        ),
    ),
    (ACTOR, ActorRequest(instruction="Book it.", manner="You are brief.", rule="Busy: try again.")),
]


@pytest.mark.parametrize(("role", "request_"), REQUESTS, ids=[role.name for role, _ in REQUESTS])
def test_prompts_are_golden(role: ChatRole[Any, Any], request_: Exchange) -> None:
    system, user = role.turns(request_)
    assert f"{system.text}\n---\n{user.text}\n" == (GOLDEN / f"{role.name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (OutlineReply, {"goals": [{"intent": "x", "instruction": "y"}]}),
        (OutlineReply, {"goals": [], "more": 1}),
        (GoalReply, {"completed": "perhaps", "reason": ""}),
        (UserReply, {"text": ""}),
        (CriticReply, {"best": -1, "reason": ""}),
        (JudgeReply, {"approve": True}),
    ],
)
def test_replies_are_typed(reply: type[Exchange], value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        reply.model_validate(value)
