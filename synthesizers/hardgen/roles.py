"""The chats of HardGen: tool maker, query writer, reasoner, verifier.

What replies are checked for is decided where they are asked for (`making`, `requests`, `reasoning`).
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from synthesizers.roles import ChatRole, Exchange

MAX_PARALLEL = 3
"""Calls that the reasoner may make at once. Ours."""


class ChainCall(Exchange):
    """A call of the chain: which values the user gave, and which earlier answers it used."""

    does: str
    given: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


class ToolRequest(Exchange):
    """A chain to be folded into one tool; `parameters` are the tool's, fixed."""

    calls: tuple[ChainCall, ...]
    parameters: tuple[str, ...]
    do_not_write: tuple[str, ...] = ()
    problem: str = ""


class ToolReply(Exchange):
    """Name and description of the tool."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{2,60}$")
    description: str = Field(min_length=8, max_length=240)


class MacroValue(Exchange):
    """A value and what it is."""

    name: str
    value: Any


class QueryRequest(Exchange):
    """The macro tool and the arguments it is to be called with."""

    name: str
    description: str
    say: tuple[MacroValue, ...] = ()
    point_at: tuple[str, ...] = ()
    problem: str = ""
    last: str = ""


class QueryReply(Exchange):
    """What the user says."""

    request: str = Field(min_length=1, max_length=800)


class ReasonerRequest(Exchange):
    """A dialogue to go on with; `hint` is what a verifier said of the last try."""

    tools: tuple[str, ...]
    rule: str
    dialogue: str
    hint: str = ""


class ReasonedCall(Exchange):
    """One call."""

    name: str = Field(max_length=200)
    arguments: dict[str, Any]


class ReasonerReply(Exchange):
    """A thought, and the calls to make now or the words that end the turn."""

    thought: str = Field(min_length=1, max_length=1_200)
    calls: tuple[ReasonedCall, ...] = Field(max_length=MAX_PARALLEL)
    reply: str = Field(max_length=800)


class VerifierRequest(Exchange):
    """What was wanted and what was done, calls as JSON."""

    request: str
    reference: tuple[str, ...]
    predicted: tuple[str, ...]
    problem: str = ""


class VerifierReply(Exchange):
    """What went wrong, in words that give nothing away."""

    hint: str = Field(min_length=1, max_length=300)


TOOL_MAKER = ChatRole[ToolRequest, ToolReply]("hardgen/tool_maker", reply=ToolReply)
QUERY_WRITER = ChatRole[QueryRequest, QueryReply]("hardgen/query_writer", reply=QueryReply)
REASONER = ChatRole[ReasonerRequest, ReasonerReply]("hardgen/reasoner", reply=ReasonerReply)
VERIFIER = ChatRole[VerifierRequest, VerifierReply]("hardgen/verifier", reply=VerifierReply)
