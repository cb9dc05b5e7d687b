"""The judges of ASTRA's trajectory score: query, later rounds, final answer. Two grades per reply.

Grades are words, no | partly | yes = 0, 0.5, 1, given after the reasoning. The paper asks one judge per part;
ours give the two parts that look at the same text in one reply. A reply that is none raises
StructuredReplyError: no part is ever assumed. Not covered: parts that a program counts (`astra_parts`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from pydantic import Field

from data.messages import Role, ToolSpec
from data.trajectories import Trajectory
from filters.astra_parts import (
    final_answer,
    has_calls,
    in_other_language,
    mean,
    rounds,
    strange_urls,
)
from pipeline.chat.base import Chat
from pipeline.chat.roles import Exchange, FiledRole, Reply, Request, shown_dialogue

JUDGES = ("query_judge", "round_judge", "answer_judge")
ChatOf = Callable[[str], Chat | None]
"""Role to the chat that plays it."""
_LONGEST = 24_000
"""Characters of a dialogue shown to a judge, from its end: what it judges stands there. Ours."""


class Grade(StrEnum):
    """How far something holds."""

    NO = "no"
    PARTLY = "partly"
    YES = "yes"

    @property
    def score(self) -> float:
        """0, 0.5 or 1."""
        return {"no": 0.0, "partly": 0.5, "yes": 1.0}[self.value]


class RoundToJudge(Exchange):
    """The dialogue up to an assistant turn, and that turn."""

    tools: tuple[str, ...]
    dialogue: str
    turn: str


class RoundGrades(Exchange):
    """Reasoning first, then whether what came before was understood and the right thing is done next."""

    reasoning: str = Field(min_length=1, max_length=300)
    understanding: Grade
    planning: Grade


class AnswerToJudge(Exchange):
    """The dialogue and its final answer; `strange_urls` are addresses that stand nowhere before it."""

    dialogue: str
    answer: str
    strange_urls: tuple[str, ...]


class AnswerGrades(Exchange):
    """Whether the answer is right by what tools said and sums it up; whether strange addresses are known."""

    reasoning: str = Field(min_length=1, max_length=300)
    correctness: Grade
    summary: Grade
    urls_fit: bool


class FilterRole(FiledRole[Request, Reply]):
    """A role whose prompt lies under `filters/prompts/`."""

    @property
    def folder(self) -> Path:
        """Where the prompt lies."""
        return Path(__file__).parent / "prompts"


QUERY_JUDGE = FilterRole[RoundToJudge, RoundGrades]("astra/query_judge", reply=RoundGrades)
ROUND_JUDGE = FilterRole[RoundToJudge, RoundGrades]("astra/round_judge", reply=RoundGrades)
ANSWER_JUDGE = FilterRole[AnswerToJudge, AnswerGrades]("astra/answer_judge", reply=AnswerGrades)


async def judged_parts(trajectory: Trajectory, chat_of: ChatOf) -> dict[str, float]:
    """The parts whose judge is played by a chat. Raises StructuredReplyError where a judge fails."""
    asked = [_query(trajectory, chat_of), _context(trajectory, chat_of), _answer(trajectory, chat_of)]
    return {name: value for parts in await asyncio.gather(*asked) for name, value in parts.items()}


async def _query(trajectory: Trajectory, chat_of: ChatOf) -> dict[str, float]:
    chat, turns = chat_of("query_judge"), rounds(trajectory)
    if chat is None or not turns:
        return {}
    grades = await QUERY_JUDGE.ask(chat, _round(trajectory, turns[0]))
    return {
        "query_understanding": grades.understanding.score,
        "query_planning": grades.planning.score,
    }


async def _context(trajectory: Trajectory, chat_of: ChatOf) -> dict[str, float]:
    chat = chat_of("round_judge")
    if chat is None:
        return {}
    later = rounds(trajectory)[1:] if has_calls(trajectory) else []
    grades = [await ROUND_JUDGE.ask(chat, _round(trajectory, index)) for index in later]
    return {
        "context_understanding": mean([grade.understanding.score for grade in grades]),
        "context_planning": mean([grade.planning.score for grade in grades]),
    }


async def _answer(trajectory: Trajectory, chat_of: ChatOf) -> dict[str, float]:
    """The judge's grades. Without a judge the part is 0 where the answer is worthless, else absent."""
    answer = final_answer(trajectory)
    if answer is None:
        return {}
    strange = strange_urls(trajectory)
    chat = chat_of("answer_judge")
    if not answer.strip() or in_other_language(trajectory) or (strange and chat is None):
        return {"final_answer": 0.0}
    if chat is None:
        return {}
    dialogue = shown_dialogue(trajectory.turns[:-1])[-_LONGEST:]
    grades = await ANSWER_JUDGE.ask(
        chat, AnswerToJudge(dialogue=dialogue, answer=answer, strange_urls=tuple(strange))
    )
    if strange and not grades.urls_fit:
        return {"final_answer": 0.0}
    return {"final_answer": (grades.correctness.score + grades.summary.score) / 2}


def _round(trajectory: Trajectory, index: int) -> RoundToJudge:
    before = [turn for turn in trajectory.turns[:index] if turn.role is not Role.SYSTEM]
    return RoundToJudge(
        tools=tuple(_tool(tool) for tool in trajectory.first_tools),
        dialogue=shown_dialogue(before)[-_LONGEST:],
        turn=shown_dialogue([trajectory.turns[index]]) or "(nothing)",
    )


def _tool(tool: ToolSpec) -> str:
    return f"{tool.name}: {tool.description}"
