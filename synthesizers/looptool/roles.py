"""The chats of LoopTool: who judges a label, who writes new samples, who judges those.

Not covered: counting votes (`judging`), executing what is written (`writing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from data.messages import ToolSpec, Turn
from synthesizers.looptool.records import LabelVerdict
from synthesizers.roles import ChatRole, Exchange, shown_parameters

JUDGES = "label_judge_*"
"""Names of the judges in `chats`: label_judge_1, label_judge_2, ..."""


class LabelRequest(Exchange):
    """A step where label and prediction differ."""

    tools: tuple[str, ...]
    dialogue: str
    label: str
    prediction: str


class LabelReply(Exchange):
    """One of the four verdicts, what is wrong first."""

    analysis: str = Field(max_length=600)
    verdict: LabelVerdict


class SampleRequest(Exchange):
    """An error to write a new sample for."""

    tools: tuple[str, ...]
    values: str
    """Values that the world holds."""
    dialogue: str
    right: str
    wrong: str
    analysis: str
    constraint: str
    """What the new sample must vary."""
    problem: str = ""
    """What was wrong with the sample written before."""


class SampleCall(Exchange):
    """One call of a new sample."""

    name: str = Field(max_length=200)
    arguments: dict[str, Any]


class SampleReply(Exchange):
    """A complete new sample: what the user says and what is to be called."""

    request: str = Field(max_length=600)
    calls: tuple[SampleCall, ...] = Field(min_length=1, max_length=6)
    closing: str = Field(max_length=300)


class CheckRequest(Exchange):
    """A new sample, executed."""

    tools: tuple[str, ...]
    request: str
    calls: tuple[str, ...]
    """With what they answered."""


class CheckReply(Exchange):
    """Whether the calls are what the request asks for."""

    reason: str = Field(max_length=240)
    correct: bool


LABEL_JUDGE = ChatRole[LabelRequest, LabelReply]("looptool/label_judge", reply=LabelReply)
SAMPLE_WRITER = ChatRole[SampleRequest, SampleReply]("looptool/sample_writer", reply=SampleReply)
SAMPLE_JUDGE = ChatRole[CheckRequest, CheckReply]("looptool/sample_judge", reply=CheckReply)
FOUR = tuple(verdict.value for verdict in LabelVerdict if verdict is not LabelVerdict.UNDECIDED)
"""What a judge may say."""


def shown_tools(tools: Sequence[ToolSpec]) -> tuple[str, ...]:
    """One line per tool."""
    return tuple(f"{tool.name}({shown_parameters(tool)}): {tool.description}" for tool in tools)


def shown_turn(turn: Turn) -> str:
    """An assistant turn: its calls, one per line, or its words; of a broken call the text as written."""
    calls = [
        f"{call.name} {call.arguments}" if call.ok else call.raw or call.name for call in turn.tool_calls
    ]
    return "\n".join(calls) if calls else turn.text
