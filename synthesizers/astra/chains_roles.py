"""The LLM roles of ASTRA's chains: proposer, validator, reader, augmenter, scorer of tasks.

The writer of requests is the shared back-translator. A reply that is none raises StructuredReplyError, which
the planner turns into a reason for giving up: a judge that fails never agrees. Not covered: judges of
trajectories (`filters.astra_score`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from data.messages import ToolSpec
from synthesizers.astra.chains_graph import MAX_LENGTH, MIN_LENGTH
from synthesizers.roles import ChatRole, Exchange, shown_parameters

PER_ROUND = 4
"""Pairs asked for at once: more of them fill a short reply before it is closed. Ours."""
TASK_CRITERIA = {
    "quality": "is the request clear, complete and free of contradictions?",
    "realism": "would a real person using this service ask for this, in this way?",
    "tool_necessity": "can it only be answered by using the tools, not from general knowledge?",
    "selection_difficulty": "how hard is it to tell which of the tools are needed, and in which order?",
}
"""What tasks are rated on, 1 to 5. The first three are the paper's, the last is in its code."""


class ToolLine(Exchange):
    """A tool as roles see it; see `shown_parameters`."""

    name: str
    description: str
    parameters: str


class ChainAsk(Exchange):
    """`round` tells one asking from the next, whose replies should differ."""

    tool_set: str
    tools: tuple[ToolLine, ...]
    number: int
    shortest: int
    longest: int
    round: int


class ProposedChain(Exchange):
    """A task and the tools it takes, in order."""

    task: str = Field(min_length=1, max_length=200)
    chain: tuple[str, ...] = Field(min_length=MIN_LENGTH, max_length=MAX_LENGTH)


class ProposedChains(Exchange):
    """Several of them."""

    pairs: tuple[ProposedChain, ...] = Field(min_length=1, max_length=PER_ROUND)


class ChainVote(Exchange):
    """A chain to vote on; `voter` tells the voters apart."""

    chain: tuple[str, ...]
    tools: tuple[ToolLine, ...]
    voter: int


class ChainVerdict(Exchange):
    """A vote, the reason first."""

    reason: str = Field(max_length=240)
    is_valid: bool


class RequestToRead(Exchange):
    """A request and the tools there are; `reader` tells the readers apart."""

    request: str
    tools: tuple[ToolLine, ...]
    reader: int


class ReadChain(Exchange):
    """The tools that the request takes, in order."""

    reason: str = Field(max_length=240)
    chain: tuple[str, ...] = Field(max_length=8)


class TextToAugment(Exchange):
    """A request to say differently; `values` must stand in the new one as they are."""

    request: str
    how: str
    values: tuple[str, ...]
    do_not_write: tuple[str, ...]
    problem: str = ""


class AugmentedText(Exchange):
    """The request in other words."""

    request: str = Field(min_length=1, max_length=800)


class TaskToScore(Exchange):
    """A task and one criterion."""

    dialogue: str
    tools: tuple[ToolLine, ...]
    criterion: str
    question: str


class TaskScore(Exchange):
    """Reasoning before the rating, as in the paper."""

    reasoning: str = Field(min_length=1, max_length=300)
    rating: int = Field(ge=1, le=5)


PROPOSER = ChatRole[ChainAsk, ProposedChains]("astra/chain_proposer", reply=ProposedChains)
VALIDATOR = ChatRole[ChainVote, ChainVerdict]("astra/chain_validator", reply=ChainVerdict)
READER = ChatRole[RequestToRead, ReadChain]("astra/chain_reader", reply=ReadChain)
AUGMENTER = ChatRole[TextToAugment, AugmentedText]("astra/augmenter", reply=AugmentedText)
TASK_SCORER = ChatRole[TaskToScore, TaskScore]("astra/task_scorer", reply=TaskScore)


def tool_lines(tools: Iterable[ToolSpec]) -> tuple[ToolLine, ...]:
    """Tools as roles see them."""
    return tuple(
        ToolLine(name=tool.name, description=tool.description, parameters=shown_parameters(tool))
        for tool in tools
    )
