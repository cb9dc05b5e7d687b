"""The two views of a trajectory that others train on: messages with tools, and tokens.

- **messages**: one row per trajectory in the OpenAI form, arguments as JSON strings, tools as one JSON
  string. Text, calls, results, reasoning, media hashes, weights and changes of the tool set read back
  equal; statuses, per-result rewards, raw texts and clocks are in the records only. A call that did not
  parse has no OpenAI form: its raw text stands in the content, and it does not read back as a call.
- **tokens**: one row per segment; reads back equal. `labels` and `loss_weights` are derived for
  trainers, `logprobs` has one value per generated token as in the record.

Text columns are escaped as in `data.schema`. Not covered: importing other people's files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from data import canonical, schema
from data.errors import RecordError
from data.messages import ParseStatus, Part, PartType, Role, ToolCall, ToolResult, ToolSpec, Turn, text_parts
from data.schema import Kind, Row
from data.trajectories import Segment, Span, Trajectory

IGNORED_LABEL = -100
"""Label of a token that is not trained, as torch's cross entropy expects it."""

_UNPARSED = frozenset(
    {ParseStatus.NOT_JSON, ParseStatus.NOT_A_CALL, ParseStatus.TRUNCATED, ParseStatus.SALVAGEABLE}
)

_FUNCTION = pa.struct([("name", pa.string()), ("arguments", pa.string())])
_CALL = pa.struct([("id", pa.string()), ("type", pa.string()), ("function", _FUNCTION)])
_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("reasoning_content", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", pa.string()),
        ("name", pa.string()),
        (
            "media",
            pa.list_(
                pa.struct([("type", pa.string()), ("sha256", pa.string()), ("media_type", pa.string())])
            ),
        ),
        ("tools_changed", pa.string()),
    ]
)
_IDENTITY: list[tuple[str, pa.DataType]] = [
    ("trajectory_id", pa.string()),
    ("task_id", pa.string()),
    ("group_id", pa.string()),
    ("template", pa.string()),
    ("synthesizer", pa.string()),
    ("policy", pa.string()),
    ("environment", pa.string()),
    ("termination", pa.string()),
    ("reward", pa.float64()),
    ("weight", pa.float64()),
]
MESSAGES_SCHEMA = pa.schema(
    [
        ("messages", pa.list_(_MESSAGE)),
        ("tools", pa.string()),
        ("weights", pa.list_(pa.float64())),
        *_IDENTITY,
    ]
)
_SPANS = schema.arrow_schema(Kind.TRAJECTORIES).field("segments").type.value_type.field("spans").type
TOKENS_SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("loss_weights", pa.list_(pa.float64())),
        ("logprobs", pa.list_(pa.float64())),
        ("spans", _SPANS),
        ("origin", pa.string()),
        ("tools", pa.string()),
        ("segment", pa.int32()),
        ("logprobs_of", pa.string()),
        *_IDENTITY,
    ]
)


def messages_row(trajectory: Trajectory) -> Row:
    """The messages view of a trajectory; `weights` has one value per message."""
    row = {
        "messages": [to_message(turn) for turn in trajectory.turns],
        "tools": tools_json(trajectory.first_tools),
        "weights": [turn.weight for turn in trajectory.turns],
        **_identity(trajectory),
    }
    escaped: Row = schema.map_text(row, schema.escape)
    return escaped


def token_rows(trajectory: Trajectory) -> Iterator[Row]:
    """The token view: one row per segment, in order."""
    for number, segment in enumerate(trajectory.segments):
        weights = segment.loss_mask(trajectory.turns)
        pairs = zip(segment.token_ids, weights, strict=True)
        spans = [{**span._asdict(), "kind": span.kind.value} for span in segment.spans]
        text = {"tools": tools_json(segment.tools), "spans": spans, **_identity(trajectory)}
        yield {
            **schema.map_text(text, schema.escape),
            "input_ids": list(segment.token_ids),
            "labels": [token if weight else IGNORED_LABEL for token, weight in pairs],
            "loss_weights": weights,
            "logprobs": list(segment.logprobs),
            "origin": segment.origin.value,
            "segment": number,
            "logprobs_of": trajectory.policy.logprobs_of,
        }


def segment_from_row(row: Row) -> Segment:
    """The segment a row of the token view was made from, equal to it."""
    row = {**row, **schema.map_text({"tools": row["tools"], "spans": row["spans"]}, schema.unescape)}
    return Segment(
        origin=row["origin"],
        tools=tools_from_json(row["tools"]),
        token_ids=tuple(row["input_ids"]),
        spans=tuple(Span(**span) for span in row["spans"]),
        logprobs=tuple(row["logprobs"]),
    )


def turns_from_row(row: Row) -> tuple[Turn, ...]:
    """The turns of a row of the messages view, as far as that view holds them."""
    row = schema.map_text({"messages": row["messages"], "weights": row["weights"]}, schema.unescape)
    pairs = zip(row["messages"], row["weights"], strict=True)
    return tuple(from_message(message).model_copy(update={"weight": weight}) for message, weight in pairs)


def to_message(turn: Turn) -> Row:
    """One turn in the OpenAI form; keys that do not apply are None."""
    unparsed = "".join(call.raw for call in turn.tool_calls if call.status in _UNPARSED)
    calls = [_to_call(call) for call in turn.tool_calls if call.status not in _UNPARSED]
    media = [
        {"type": part.type.value, "sha256": part.media_sha256, "media_type": part.media_type}
        for part in turn.content
        if part.type is not PartType.TEXT
    ]
    return {
        "role": turn.role.value,
        "content": "".join(part.text for part in turn.content) + unparsed,
        "reasoning_content": turn.reasoning or None,
        "tool_calls": calls or None,
        "tool_call_id": turn.result.call_id if turn.result else None,
        "name": turn.result.name if turn.result else None,
        "media": media or None,
        "tools_changed": None if turn.tools_changed is None else tools_json(turn.tools_changed),
    }


def from_message(message: Row) -> Turn:
    """A turn from the OpenAI form. RecordError for an unknown role."""
    if message["role"] not in list(Role):
        raise RecordError(f"message role {message['role']!r}; allowed are {', '.join(Role)}")
    role, changed = Role(message["role"]), message.get("tools_changed")
    media = [
        Part(type=PartType(item["type"]), media_sha256=item["sha256"], media_type=item["media_type"])
        for item in message.get("media") or ()
    ]
    parts = (*text_parts(message.get("content") or ""), *media)
    result = None
    if role is Role.TOOL:
        result = ToolResult(
            call_id=message.get("tool_call_id") or "", name=message.get("name") or "", parts=parts
        )
    return Turn(
        role=role,
        parts=() if result else parts,
        reasoning=message.get("reasoning_content") or "",
        tool_calls=tuple(_from_call(call) for call in message.get("tool_calls") or ()),
        result=result,
        tools_changed=None if changed is None else tools_from_json(changed),
    )


def tools_json(tools: Sequence[ToolSpec]) -> str:
    """Tools as the JSON text of a list in the OpenAI form, its strings escaped as those of a text column."""
    return canonical.dumps(schema.map_text([tool.openai() for tool in tools], schema.escape))


def tools_from_json(text: str) -> tuple[ToolSpec, ...]:
    """Inverse of `tools_json`, for parameters in the canonical form."""
    functions = [tool["function"] for tool in schema.map_text(canonical.loads(text), schema.unescape)]
    return tuple(
        ToolSpec(name=f["name"], description=f["description"], parameters=canonical.dumps(f["parameters"]))
        for f in functions
    )


def _to_call(call: ToolCall) -> Row:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _from_call(call: dict[str, Any]) -> ToolCall:
    return ToolCall(
        call_id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"]
    )


def _identity(trajectory: Trajectory) -> Row:
    return {
        "trajectory_id": trajectory.trajectory_id,
        "task_id": trajectory.task_id,
        "group_id": trajectory.group_id,
        "template": trajectory.template,
        "synthesizer": trajectory.synthesizer,
        "policy": trajectory.policy.name,
        "environment": f"{trajectory.environment.name}@{trajectory.environment.version}",
        "termination": trajectory.termination.value,
        "reward": None if trajectory.reward is None else trajectory.reward.total,
        "weight": trajectory.weight,
    }
