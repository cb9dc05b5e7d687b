"""Questions cut into a graph of sub-questions by a chat, checked by rules, then by four judges.

Source: ASTRA (arXiv 2601.21558). Its code scores a judge that fails with 1.0 and a wrong dependency index
with -100; here either is a rejection with its reason, so that no average can hide it. Leaves are the
sub-questions that no other builds on (our reading); only such a one may do without a tool. Not covered:
answers that the document does not hold: the tools made later only repeat them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from pydantic import Field, ValidationError

from pipeline.chat.base import Chat
from pipeline.environments.question_dag.dag import QuestionDag, SubQuestion, dag_problems
from pipeline.errors import ConfigError, JudgeError, StructuredReplyError
from synthesizers.roles import ChatRole, Exchange

RoleOf = Callable[[str], Chat | None]
"""Which chat plays a role; None = nobody. `synthesizers.role_chats.RoleChats.of` is one."""
KEPT_SHARE = 0.1
"""[paper] P90 and above of the judged graphs are kept."""
HOPS = 5
"""[ours] Most sub-questions of a question."""


class Refused(Exception):
    """A stage gave up on an item; `reason` is a stable identifier, the text says more."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class Source(Exchange):
    """What a question is made from. With `question` and `answer` it is cut up, else one is written."""

    document: str = Field(min_length=1)
    question: str = ""
    answer: str = ""
    domain: str = ""
    """Distractors of its tasks never come from the same."""


class Decompose(Exchange):
    """The decomposer's request."""

    document: str
    question: str
    answer: str
    hops: int


class Step(Exchange):
    """One sub-question as the decomposer writes it."""

    text: str
    answer: str
    depends_on: list[int]
    needs_tool: bool


class Decomposition(Exchange):
    """The decomposer's reply."""

    question: str
    answer: str
    steps: list[Step]


class Judge(Exchange):
    """A judge's request: the whole plan in words."""

    plan: str


class Judged(Exchange):
    """A judge's reply: reasoning before the score, which is 0, 0.5 or 1."""

    reason: str
    score: float = Field(ge=0, le=1, json_schema_extra={"enum": [0, 0.5, 1]})


DECOMPOSER: ChatRole[Decompose, Decomposition] = ChatRole("astra_env/decomposer", reply=Decomposition)
JUDGES: tuple[ChatRole[Judge, Judged], ...] = tuple(
    ChatRole(f"astra_env/{name}_judge", reply=Judged)
    for name in ("dependency", "atomicity", "order", "completeness")
)
"""[paper] Dependency consistency, atomicity, sequential rationality, completeness."""


async def decompose(chat: Chat, source: Source, *, hops: int = HOPS) -> QuestionDag:
    """The source's question as a graph that keeps the rules. Raises Refused."""
    if bool(source.question) != bool(source.answer):
        raise ConfigError("a source has both question and answer, or neither (then one is written)")
    request = Decompose(document=source.document, question=source.question, answer=source.answer, hops=hops)
    try:
        reply = await DECOMPOSER.ask(chat, request)
        dag = QuestionDag(
            question=source.question or reply.question,
            answer=source.answer or reply.answer,
            steps=tuple(
                SubQuestion(
                    text=step.text,
                    answer=step.answer,
                    depends_on=tuple(step.depends_on),
                    needs_tool=step.needs_tool,
                )
                for step in reply.steps
            ),
        )
    except StructuredReplyError as error:
        raise Refused("invalid_reply", str(error)) from error
    except ValidationError as error:
        raise Refused("graph_unreadable", str(error)) from error
    require_rules(dag, hops=hops)
    return dag


def require_rules(dag: QuestionDag, *, hops: int = HOPS) -> None:
    """Raises Refused where a graph breaks a rule."""
    problems = dag_problems(dag, hops=hops)
    if problems:
        raise Refused("graph_rule", "; ".join(problems))


async def judge(dag: QuestionDag, roles: RoleOf) -> float | None:
    """Mean score in [0, 1] of the judges that somebody plays; None where nobody plays one.

    Raises Refused where a judge scores 0 or fails: never a score in its place.
    """
    request = Judge(plan=shown_plan(dag))
    played = [(role, chat) for role in JUDGES if (chat := roles(role.name)) is not None]
    scores = await asyncio.gather(*(_score(role, chat, request) for role, chat in played))
    return sum(scores) / len(scores) if scores else None


async def _score(role: ChatRole[Judge, Judged], chat: Chat, request: Judge) -> float:
    try:
        reply = await role.ask(chat, request)
    except (StructuredReplyError, JudgeError) as error:
        raise Refused("judge_failed", f"{role.name}: {error}") from error
    if reply.score == 0:
        raise Refused(role.name, reply.reason)
    return reply.score


def keep_top(scores: Sequence[float], *, share: float = KEPT_SHARE) -> list[int]:
    """Indices of the scores at or above the quantile 1 - share; ties are kept, so it may be more.

    Raises ConfigError unless 0 < share <= 1.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"the kept share must be above 0 and at most 1, got {share}")
    if not scores:
        return []
    least = np.quantile(np.asarray(scores, dtype=float), 1 - share)
    return [index for index, score in enumerate(scores) if score >= least]


def shown_plan(dag: QuestionDag) -> str:
    """A graph as prompts show it."""
    lines = [f"Question: {dag.question}", f"Answer: {dag.answer}"]
    for index, step in enumerate(dag.steps):
        after = f" (after {', '.join(f'#{parent}' for parent in step.depends_on)})" if step.depends_on else ""
        tool = "" if step.needs_tool else " [no tool]"
        lines.append(f"#{index}{after}{tool}: {step.text} -> {step.answer}")
    return "\n".join(lines)
