"""Turns of a dialogue: what was said, which tools were called, what they answered.

A turn is the readable side of the record; the tokens are in `data.trajectories.Segment`. Arguments
and schemas are JSON *strings* (see `data.canonical`): an Arrow struct would fill absent keys with
None. Media are kept by hash, never inline.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from data import canonical


class Record(BaseModel):
    """Base of every stored record: immutable, unknown fields refused, floats must be finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Role(StrEnum):
    """Who speaks in a turn."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class PartType(StrEnum):
    """Kind of a content part."""

    TEXT = "text"
    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    FILE = "file"


class ParseStatus(StrEnum):
    """What the strict parser made of a call the model wrote."""

    OK = "ok"
    """Parsed; the schema check (pipeline.checks) may still fail it."""
    NOT_JSON = "not_json"
    """The text between the tags is no JSON value."""
    NOT_A_CALL = "not_a_call"
    """JSON, but not an object with a string `name` and an object `arguments`."""
    TRUNCATED = "truncated"
    """Generation ended inside the call."""
    SALVAGEABLE = "salvageable"
    """Only a lenient parser reads a call here (missing tag, code fence, trailing brace)."""
    UNKNOWN_TOOL = "unknown_tool"
    """Well formed, but no tool of that name was shown."""
    BAD_ARGUMENTS = "bad_arguments"
    """Well formed, but missing, extra or ill-typed arguments; `ToolCall.error` names them."""


class ToolStatus(StrEnum):
    """Outcome of executing a call. `tool_error` may cost reward; `infra_error` never may."""

    OK = "ok"
    TOOL_ERROR = "tool_error"
    INFRA_ERROR = "infra_error"


class Part(Record):
    """One piece of content: text, or a medium named by the SHA-256 of its bytes."""

    type: PartType = PartType.TEXT
    text: str = ""
    media_sha256: str = ""
    media_type: str = ""

    @property
    def shown(self) -> str:
        """What a text-only reader sees: the text, or a placeholder that names the medium by its hash."""
        if self.type is PartType.TEXT:
            return self.text
        label = f"[{self.type} {self.media_sha256[:12]}" + (
            f" {self.media_type}]" if self.media_type else "]"
        )
        return f"{self.text} {label}" if self.text else label


class NamedValue(Record):
    """A name and a number; lists of these stand where others put an open map."""

    name: str
    value: float


class ToolSpec(Record):
    """A tool as the model is shown it. `parameters` is a JSON Schema object as JSON text, in prompt order."""

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'

    def openai(self) -> dict[str, Any]:
        """The tool in the OpenAI wire form."""
        parameters = canonical.loads(self.parameters)
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


class ToolCall(Record):
    """One call the assistant wrote. `arguments` is JSON text of an object, "" where none was parsed."""

    call_id: str
    name: str = ""
    arguments: str = "{}"
    raw: str = ""
    """The exact text the call was parsed from, tags included; "" for calls that were rendered by us."""
    status: ParseStatus = ParseStatus.OK
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the call may be executed."""
        return self.status is ParseStatus.OK

    def parsed_arguments(self) -> dict[str, Any]:
        """The arguments as a dict. Raises RecordError or ValueError where `status` is not OK."""
        value = canonical.loads(self.arguments)
        if not isinstance(value, dict):
            raise ValueError(f"arguments of call {self.call_id} are {type(value).__name__}, not an object")
        return value


class ToolResult(Record):
    """What a call answered. The parts are what the model sees; reward and metrics are for training only."""

    call_id: str
    name: str
    parts: tuple[Part, ...] = ()
    status: ToolStatus = ToolStatus.OK
    reward: float | None = None
    metrics: tuple[NamedValue, ...] = ()
    truncated: bool = False

    @property
    def text(self) -> str:
        """All parts as a text-only reader sees them, joined."""
        return "".join(part.shown for part in self.parts)


class Turn(Record):
    """One message. A tool turn carries exactly one `result` and no parts of its own."""

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    result: ToolResult | None = None
    weight: float = Field(default=1.0, ge=0.0)
    """0 = in context but not trained, 1 = normal. Meaningful on what the agent wrote: assistant turns, and
    the system turn that holds its summary (`Trajectory.summaries`)."""
    tools_changed: tuple[ToolSpec, ...] | None = None
    """The new tool set, where it changed before this turn; None where it did not."""
    started_at: float = 0.0
    """Unix seconds; a clock, not content."""
    seconds: float = 0.0
    """Wall time the turn took; a clock, not content."""

    @property
    def content(self) -> tuple[Part, ...]:
        """The parts the model sees: the result's for a tool turn, the turn's own otherwise."""
        return self.result.parts if self.result is not None else self.parts

    @property
    def text(self) -> str:
        """All of `content` as a text-only reader sees it, joined."""
        return "".join(part.shown for part in self.content)


def text_parts(text: str) -> tuple[Part, ...]:
    """`text` as content: one part, or none for the empty string."""
    return (Part(text=text),) if text else ()


def system(text: str) -> Turn:
    """A system turn."""
    return Turn(role=Role.SYSTEM, parts=text_parts(text))


def user(text: str) -> Turn:
    """A user turn."""
    return Turn(role=Role.USER, parts=text_parts(text))


def assistant(text: str = "", *calls: ToolCall, reasoning: str = "", weight: float = 1.0) -> Turn:
    """An assistant turn."""
    return Turn(
        role=Role.ASSISTANT, parts=text_parts(text), tool_calls=calls, reasoning=reasoning, weight=weight
    )


def tool(result: ToolResult) -> Turn:
    """A tool turn answering `result.call_id`."""
    return Turn(role=Role.TOOL, result=result)
