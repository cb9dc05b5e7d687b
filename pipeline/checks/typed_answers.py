"""Final words that a program can read: `ANSWER $210`, `ASK day`, `REFUSE budget`; anything else is DONE.

A task whose right end is to ask, to refuse or to name a value passes on such words only, so that saying
nothing never does. Not covered: what the words should have been (each verifier's).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

_ANSWER = re.compile(r"^\s*(ANSWER|ASK|REFUSE)\b[\s:$]*([A-Za-z0-9_]*)")


class AnswerKind(StrEnum):
    """How an assistant turn without calls is read."""

    DONE = "DONE"
    """Any text that is none of the others."""
    ANSWER = "ANSWER"
    ASK = "ASK"
    REFUSE = "REFUSE"
    SILENT = "SILENT"
    """No text at all: never an answer."""


class Answer(NamedTuple):
    """A typed final answer; `value` is lower case."""

    kind: AnswerKind
    value: str


def read_answer(text: str) -> Answer:
    """`REFUSE budget`, `ASK day`, `ANSWER $210`; other text is DONE, no text SILENT."""
    match = _ANSWER.match(text)
    if match:
        return Answer(AnswerKind(match[1]), match[2].lower())
    return Answer(AnswerKind.DONE if text.strip() else AnswerKind.SILENT, "")
