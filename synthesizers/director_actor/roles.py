"""The roles a chat can play: typed requests and replies, one prompt file each.

Not covered: when they are asked (`directing`, `users`, `stage`, `strict`), the actor, which speaks with tools
(`actors`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from synthesizers.roles import ChatRole, Exchange


class ShownTool(Exchange):
    """A tool as the director sees it; see `shown_parameters`."""

    name: str
    description: str
    parameters: str


class OutlineCall(Exchange):
    """A call the director means; arguments that an earlier answer gives are left out."""

    tool: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class OutlineGoal(Exchange):
    """A sub-goal as a director writes it."""

    intent: str = Field(min_length=3, max_length=240)
    """What the user wants, in the user's words."""
    calls: tuple[OutlineCall, ...] = Field(default=(), max_length=6)
    instruction: str = Field(min_length=3, max_length=160)
    """For the actor alone: the gist, never the line."""


class OutlineRequest(Exchange):
    """What the director knows. `feedback`: why its last outline was turned down."""

    persona: str
    tools: tuple[ShownTool, ...]
    known: tuple[str, ...]
    wish: str
    max_goals: int
    feedback: tuple[str, ...] = ()


class ReplanRequest(Exchange):
    """An interruption: what was played, what contradicts the outline, what was still to come."""

    persona: str
    tools: tuple[ShownTool, ...]
    known: tuple[str, ...]
    dialogue: str
    problem: str
    remaining: tuple[str, ...]
    max_goals: int


class OutlineReply(Exchange):
    """The sub-goals, in order; none when re-planning ends the dialogue."""

    goals: tuple[OutlineGoal, ...] = Field(max_length=6)


class GoalRequest(Exchange):
    """Is a sub-goal reached?"""

    goal: str
    dialogue: str


class GoalReply(Exchange):
    """The checker's word, the reason first."""

    reason: str = Field(max_length=240)
    completed: bool


class UserRequest(Exchange):
    """What the simulated user knows. `values` must be said; `attempt` tells candidates apart."""

    persona: str
    intent: str
    values: tuple[str, ...]
    dialogue: str
    attempt: int
    problem: str = ""


class UserReply(Exchange):
    """The user's next message."""

    text: str = Field(min_length=1, max_length=300)


class CriticRequest(Exchange):
    """Candidates for the user's next message."""

    persona: str
    intent: str
    dialogue: str
    candidates: tuple[str, ...]


class CriticReply(Exchange):
    """The number of the best candidate, from 0, the reason first."""

    reason: str = Field(max_length=240)
    best: int = Field(ge=0, le=15)


class JudgeRequest(Exchange):
    """One criterion of a strict review."""

    criterion: Literal["correctness", "completeness", "satisfaction", "creativity"]
    meaning: str
    requests: tuple[str, ...]
    calls: tuple[str, ...]
    difference: str


class JudgeReply(Exchange):
    """A judge's word on one criterion, the reason first."""

    reason: str = Field(max_length=240)
    approve: bool


class ActorRequest(Exchange):
    """What an actor is told besides the dialogue."""

    instruction: str
    manner: str
    rule: str


DIRECTOR = ChatRole[OutlineRequest, OutlineReply]("director_actor/director", reply=OutlineReply)
REPLANNER = ChatRole[ReplanRequest, OutlineReply]("director_actor/replanner", reply=OutlineReply)
GOAL_CHECKER = ChatRole[GoalRequest, GoalReply]("director_actor/goal_checker", reply=GoalReply)
USER_SIMULATOR = ChatRole[UserRequest, UserReply]("director_actor/user_simulator", reply=UserReply)
REPLY_CRITIC = ChatRole[CriticRequest, CriticReply]("director_actor/reply_critic", reply=CriticReply)
JUDGE = ChatRole[JudgeRequest, JudgeReply]("director_actor/judge", reply=JudgeReply)
ACTOR = ChatRole[ActorRequest, UserReply]("director_actor/actor", reply=UserReply)
"""Only its prompt is used: an actor replies with words or calls, not with JSON."""
