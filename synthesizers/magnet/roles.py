"""The chats of Magnet's own roles: forward translator and error judge.

The edge judge is the graph's (`graph.judge`), the back-translator shared (`back_translation`). Not covered:
what replies are checked for (`translation`, `negatives`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from synthesizers.roles import ChatRole, Exchange

MAX_PARALLEL = 3
"""Calls that the forward translator may make at once. From the paper."""


class ForwardRequest(Exchange):
    """A request to be read."""

    dialogue: str
    request: str
    done: str = ""
    """Calls of this turn that were made, and their results."""
    tools: tuple[str, ...]


class ForwardCall(Exchange):
    """One call."""

    name: str = Field(max_length=200)
    arguments: dict[str, Any]


class ForwardReply(Exchange):
    """The calls to make next, in any order; whether others are left that wait for their results."""

    calls: tuple[ForwardCall, ...] = Field(max_length=MAX_PARALLEL)
    waiting: bool


class CallError(StrEnum):
    """What is wrong with an assistant's calls. The paper counts five kinds; their names are ours."""

    OK = "ok"
    """Nothing: redundant arguments and another order are no error."""
    WRONG_TOOL = "wrong_tool"
    WRONG_ARGUMENTS = "wrong_arguments"
    MISSING_CALL = "missing_call"
    EXTRA_CALL = "extra_call"
    SHOULD_NOT_CALL = "should_not_call"
    """It should have asked or refused."""


class JudgeRequest(Exchange):
    """What was wanted and what was done, calls as JSON."""

    request: str
    reference: tuple[str, ...]
    predicted: tuple[str, ...]


class JudgeReply(Exchange):
    """The verdict."""

    reason: str = Field(max_length=240)
    error: CallError


FORWARD_TRANSLATOR = ChatRole[ForwardRequest, ForwardReply]("magnet/forward_translator", reply=ForwardReply)
ERROR_JUDGE = ChatRole[JudgeRequest, JudgeReply]("magnet/error_judge", reply=JudgeReply)
EDGE_JUDGE = "edge_judge"
