"""What chats decide about chains and tasks: proposals, votes, ratings. Every failure counts against.

A proposer's replies that are none, and chains with unknown or repeated tools, add nothing. A voter that gives
no vote votes no. A scorer that gives no rating fails the task. Not covered: reading requests back
(`chains_writing`).
"""

from __future__ import annotations

from pipeline.chat.base import Chat
from pipeline.chat.roles import one_of
from pipeline.errors import StructuredReplyError
from synthesizers.astra.chains_graph import MAX_LENGTH, MIN_LENGTH, Chain
from synthesizers.astra.chains_plan import Dialogue, Unplanned
from synthesizers.astra.chains_roles import (
    PER_ROUND,
    PROPOSER,
    TASK_CRITERIA,
    TASK_SCORER,
    VALIDATOR,
    ChainAsk,
    ChainVote,
    TaskToScore,
    tool_lines,
)
from synthesizers.astra.chains_sets import ToolSet

VOTERS = 3
"""Votes per chain, of which most must say yes. Ours; the paper samples votes."""


async def proposed_chains(proposer: Chat, tool_set: ToolSet, *, number: int) -> list[Chain]:
    """The chains of about `number` proposed pairs of task and chain."""
    chains: list[Chain] = []
    for place in range(0, number, PER_ROUND):
        ask = ChainAsk(
            tool_set=tool_set.name,
            tools=tool_lines(tool_set.tools.values()),
            number=min(PER_ROUND, number - place),
            shortest=MIN_LENGTH,
            longest=MAX_LENGTH,
            round=place // PER_ROUND + 1,
        )
        try:
            reply = await PROPOSER.ask(proposer, ask, narrow={"chain": one_of(tool_set.tools)})
        except StructuredReplyError:
            continue
        chains += [pair.chain for pair in reply.pairs if _is_chain(pair.chain, tool_set)]
    return chains


async def votes_down(validator: Chat, chain: Chain, tool_set: ToolSet) -> str:
    """Why a chain is voted down; "" where most voters find it valid."""
    against: list[str] = []
    tools = tool_lines(tool_set.tools[name] for name in chain)
    for voter in range(1, VOTERS + 1):
        try:
            verdict = await VALIDATOR.ask(validator, ChainVote(chain=chain, tools=tools, voter=voter))
        except StructuredReplyError:
            against.append("no vote")
            continue
        if not verdict.is_valid:
            against.append(verdict.reason)
    return "; ".join(against) if 2 * len(against) >= VOTERS else ""


async def task_ratings(scorer: Chat, dialogue: Dialogue) -> dict[str, int]:
    """Every criterion's rating, 1 to 5. Unplanned where one fails: there is no default rating."""
    said = "\n".join(turn.text for turn in dialogue.turns)
    ratings = {}
    for criterion, question in TASK_CRITERIA.items():
        asked = TaskToScore(
            dialogue=said, tools=tool_lines(dialogue.shown), criterion=criterion, question=question
        )
        try:
            ratings[criterion] = (await TASK_SCORER.ask(scorer, asked)).rating
        except StructuredReplyError as error:
            raise Unplanned("judge_failed", f"{criterion}: {error}") from error
    return ratings


def _is_chain(chain: Chain, tool_set: ToolSet) -> bool:
    return all(name in tool_set.tools for name in chain) and len(set(chain)) == len(chain)
