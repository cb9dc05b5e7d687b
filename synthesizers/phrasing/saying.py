"""What a user who asked for a look-up is to be told: values the reply must hold, or a question for one.

An answer that is one short row, or a few rows with a name each, is told as it is. Of a longer one the request
asks for one thing in so many words: a field, the last row, how many there are, how a text begins. Nothing is
told that the user said himself, and where nothing is left (a text printed, a login) words are not judged: the
call is. Not covered: the words around the values (`closings`), how answers are read (`telling`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.checks.answers import says
from pipeline.environments.blueprint import MAX_MUST_SAY
from synthesizers.execution import Executed
from synthesizers.graph.fields import fields_of
from synthesizers.phrasing.telling import Answer, Question, read_telling, value_below

MOST_TOLD = 8
"""Cells or rows of a table that a reply repeats. Ours."""


class Told(NamedTuple):
    """What a turn's look-ups have to tell. `values` stand in a reply to the request as it is; `question` is
    what the request ends with, "" for nothing, and `answer` what it asks for."""

    values: tuple[str, ...] = ()
    question: str = ""
    answer: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        """Everything that gold says."""
        return tuple(dict.fromkeys([*self.values, *filter(None, [self.answer])]))


def told_of(asked: Sequence[Executed]) -> Told:
    """What is to be told of the calls that the user asked for, in order.

    Only the last of them is asked about: of which one a question is would else not be clear.
    """
    values: list[str] = []
    question = Question()
    for place, executed in enumerate(asked):
        if executed.changes or not executed.ok:
            continue
        answer = _read(executed)
        is_last = place == len(asked) - 1
        values += answer.values or (() if is_last else answer.first)
        if is_last and not answer.values:
            question = answer.question
    return Told(tuple(dict.fromkeys(values)), question.text, question.answer)


def values_to_say(asked: Sequence[Executed], reply: str, *, request: str = "") -> tuple[str, ...]:
    """The values that `reply`, gold's own, must hold; `asked` are the calls that the user asked for.

    What only a question asks for is among them where the user's words, `request`, hold the question.
    """
    told = told_of(asked)
    wanted = told.all if told.question and told.question in request else told.values
    return tuple(value for value in wanted if says(reply, value))


def with_question(text: str, told: Told) -> str:
    """A request that ends with the question, where there is one to be asked."""
    return f"{text.strip()} {told.question}" if told.question and told.question not in text else text


def without_question(text: str, told: Told) -> str:
    """The request without the question: what it asks to be done."""
    return text.replace(told.question, " ").strip() if told.question else text


def answer_cells(text: str) -> tuple[str, ...]:
    """The cells of a table, where they are few and short enough to be told; () for any other answer."""
    alone = value_below(text)
    fields = fields_of(text)
    cells = [alone] if alone else list(dict.fromkeys(str(field.value) for field in fields))
    told = all(len(cell) <= MAX_MUST_SAY and cell[-1:].isalnum() and cell[:1].isalnum() for cell in cells)
    table = bool(alone) or all(field.path.startswith("[].") for field in fields)
    return tuple(cells) if table and told and len(cells) <= MOST_TOLD else ()


def _read(executed: Executed) -> Answer:
    return read_telling(
        executed.result.text, given=executed.call.arguments, tool=executed.call.name, most=MOST_TOLD
    )
