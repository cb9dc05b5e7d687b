"""The calls of one user turn, and what the assistant says when they are made.

Not covered: what the user says (`requests`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import NamedTuple

from data.messages import ToolSpec
from pipeline.checks.answers import says
from synthesizers.execution import Executed
from synthesizers.graph.fields import fields_of
from synthesizers.grounding.provenance import ArgumentSource, GroundedCall
from synthesizers.grounding.reading import decoded, words
from synthesizers.phrasing.clauses import shown_value
from synthesizers.phrasing.saying import Told, told_of

DONE = ("Done.", "That is done.", "It is done.", "All set.")
FOUND = ("Here is what I found:", "I found this:", "This is the result:")
_SHOWN = 160
"""Characters of a result that a closing repeats."""


class TurnCalls(NamedTuple):
    """The calls of one user turn. `unmentioned` are positions in `calls` of nested ones; `history` is all
    that was executed so far, these calls last; `tools` are documents of every tool shown or called."""

    calls: Sequence[GroundedCall]
    tools: Sequence[ToolSpec]
    history: Sequence[Executed]
    unmentioned: Collection[int] = ()

    @property
    def seen(self) -> int:
        """How many executed calls were answered before this turn."""
        return len(self.history) - len(self.calls)

    @property
    def told(self) -> Told:
        """What the look-ups that the user asks for have to tell; an answer to a question of gold's is not
        among it."""
        return told_of([call.executed for call in self.mentioned if not call.question])

    @property
    def mentioned(self) -> list[GroundedCall]:
        """The calls that the user asks for."""
        return [call for place, call in enumerate(self.calls) if place not in self.unmentioned]

    def tool(self, call: GroundedCall) -> ToolSpec:
        """The document of a call's tool. Raises LookupError where it is not among `tools`."""
        for tool in self.tools:
            if tool.name == call.executed.call.name:
                return tool
        raise LookupError(f"no document of {call.executed.call.name!r} among {[t.name for t in self.tools]}")

    def sources(self, *, left_out: str = "") -> tuple[ArgumentSource, ...]:
        """Arguments of all calls but the parameter `left_out`."""
        return tuple(source for call in self.calls for source in call.sources if source.name != left_out)


def phrase_closing(turn: TurnCalls, *, rng: random.Random, must_say: Sequence[str] = ()) -> str:
    """What the assistant says at the end of a turn: that it is done, and what look-ups found.

    `must_say` are values that the text holds in any case, besides those that the turn has to tell.
    """
    asked = [call.executed for call in turn.mentioned]
    told = [text for text in map(_found, asked) if text]
    changed = any(executed.changes for executed in asked)
    opening = rng.choice(DONE if changed or not told else FOUND)
    text = f"{opening} {'; '.join(told)}".strip()
    left = [value for value in dict.fromkeys([*turn.told.all, *must_say]) if not says(text, value)]
    return f"{text} ({', '.join(left)})" if left else text


def _found(executed: Executed) -> str:
    """What was answered where it is short, else its first values and how many rows there are."""
    value = decoded(executed.result.text)
    if isinstance(value, dict | list):
        text = ", ".join(f"{' '.join(words(key))} {shown_value(item)}" for key, item in _pairs(value))
    else:
        text = _first_row(executed.result.text)
    return text if len(text) <= _SHOWN else text[:_SHOWN].rsplit(" ", 1)[0] + " ..."


def _first_row(text: str) -> str:
    """The first line; of a table with a heading, the first row with its headings."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or text.strip() in ("None", "null"):
        return ""
    fields = fields_of(text)
    if len(lines) > 1 and fields and all(field.path.startswith("[].") for field in fields):
        columns = len({field.path for field in fields})
        first = ", ".join(f"{field.path[3:]} {field.value}" for field in fields[:columns])
        rows = len(lines) - 1
    else:
        first, rows = lines[0], len(lines)
    whole = "; ".join(lines)
    if rows == 1 or first != lines[0] or len(whole) > _SHOWN:
        return first if rows == 1 else f"{rows} of them, first {first}"
    return whole


def _pairs(value: object) -> list[tuple[str, object]]:
    inner = value[0] if isinstance(value, list) and value else value
    if not isinstance(inner, dict):
        return [("", value)]
    return [(key, item) for key, item in inner.items() if not isinstance(item, dict)][:3]
