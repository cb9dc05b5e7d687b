"""The chat that invents a seed tool: request and reply.

Not covered: which topic and demands (`trees`), what is a tool (`rules`).
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from synthesizers.roles import ChatRole, Exchange


class ToolRequest(Exchange):
    """One tool to invent."""

    topic: tuple[str, ...]
    """A path of the context tree."""
    demands: tuple[str, ...]
    """What a path of the constraint tree demands, in words."""
    tools: tuple[str, ...] = ()
    """The tools of the same world that there are, one line each."""
    problem: str = ""
    """Why the tool written before was rejected."""


class Example(Exchange):
    """A use of the tool."""

    request: str = Field(max_length=400)
    arguments: dict[str, Any]


class ToolReply(Exchange):
    """A tool as a document gives it, and an example of its use."""

    name: str = Field(max_length=64)
    description: str = Field(max_length=300)
    reads: bool
    parameters: dict[str, Any]
    returns: dict[str, Any]
    example: Example


TOOL_WRITER = ChatRole[ToolRequest, ToolReply]("looptool/tool_writer", reply=ToolReply)
_OBJECT = {"type": "object", "minProperties": 1}
SHAPES: dict[str, dict[str, Any]] = {
    "parameters": {
        "type": "object",
        "properties": {
            "type": {"enum": ["object"]},
            "properties": _OBJECT,
            "required": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["type", "properties", "required"],
    },
    "returns": {
        "type": "object",
        "properties": {"type": {"enum": ["object", "array"]}, "properties": _OBJECT, "items": _OBJECT},
        "required": ["type"],
    },
}
"""What a server that constrains replies can know of the two schemas."""
