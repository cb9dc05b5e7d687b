"""Who was right at a step, by chats (JGLV): a majority of at least two judges, or nothing is decided.

Consensus of one model is none: a single judge is a ConfigError (LoopTool's released configuration has one
judge and needs two votes, so that nothing ever passes). A reply that names two verdicts is rejected wherever
the second one stands (two parsers of the released code read such a reply differently). Not covered: the check
by execution that an adoption needs (`repairing`).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.chat.base import Chat
from pipeline.chat.roles import one_of
from pipeline.errors import ConfigError, StructuredReplyError
from synthesizers.looptool.records import LabelVerdict
from synthesizers.looptool.roles import FOUR, LABEL_JUDGE, LabelReply, LabelRequest

MIN_JUDGES = 2
_NAMED = re.compile(rf"\b(?:{'|'.join(FOUR)})\b", re.IGNORECASE)


class Judged(NamedTuple):
    """What the judges say together."""

    verdict: LabelVerdict
    reason: str
    """"no_majority" where they do not agree."""
    analysis: str
    """Of the first judge of the majority."""
    votes: tuple[str, ...]
    """One per judge; "" for a reply that was rejected."""


def check_judges(judges: Sequence[Chat]) -> None:
    """ConfigError for a single judge, or for two that are the same chat."""
    if judges:
        check_judge_names([judge.name for judge in judges])


def check_judge_names(names: Sequence[str]) -> None:
    """ConfigError for less than two names, or the same one twice."""
    if len(names) < MIN_JUDGES or len(set(names)) < len(names):
        raise ConfigError(
            f"labels are judged by at least {MIN_JUDGES} chats of different names, got {names}; name "
            f"label_judge_1, label_judge_2, ... in `chats`, or none: then execution decides"
        )


async def judge_label(judges: Sequence[Chat], request: LabelRequest) -> Judged:
    """The verdict of more than half of all judges, or UNDECIDED. ConfigError as `check_judges`."""
    check_judges(judges)
    replies = await asyncio.gather(*(_vote(judge, request) for judge in judges))
    votes = tuple(reply.verdict.value if reply is not None else "" for reply in replies)
    counts = Counter(filter(None, votes))
    verdict, number = counts.most_common(1)[0] if counts else ("", 0)
    if number < MIN_JUDGES or 2 * number <= len(judges):
        return Judged(LabelVerdict.UNDECIDED, "no_majority", "", votes)
    analysis = next(reply.analysis for reply in replies if reply is not None and reply.verdict == verdict)
    return Judged(LabelVerdict(verdict), "", analysis, votes)


async def _vote(judge: Chat, request: LabelRequest) -> LabelReply | None:
    """A judge's reply; None where it is no verdict, or two."""
    try:
        reply = await LABEL_JUDGE.ask(judge, request, narrow={"verdict": one_of(FOUR)})
    except StructuredReplyError:
        return None
    named = {found.upper() for found in _NAMED.findall(reply.analysis)} | {reply.verdict.value}
    return reply if len(named) == 1 else None
