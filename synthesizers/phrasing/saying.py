"""Which values a reply must hold so that a user who asked for them was told.

Only of look-ups that the user asked for, only where the answer is one short row (or a heading and its one
value), and never what the user said: that is no news. Not covered: the words around them (`closings`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pipeline.checks.answers import says
from pipeline.environments.blueprint import MAX_MUST_SAY
from synthesizers.execution import Executed
from synthesizers.graph.fields import fields_of
from synthesizers.grounding.reading import rows_of
from synthesizers.phrasing.wording import mentions

MOST_TOLD = 8
"""Cells of a table that a reply repeats. Ours."""
_FEW = 2
"""Telling values of an answer that are all repeated; of more, the first one. Ours."""
_TELLING = re.compile(r"[A-Z0-9$#@]")


def values_to_say(asked: Sequence[Executed], reply: str) -> tuple[str, ...]:
    """The values that `reply`, gold's own, must hold; `asked` are the calls that the user asked for."""
    found = [value for executed in asked for value in _values(executed) if says(reply, value)]
    return tuple(dict.fromkeys(found))


def answer_cells(text: str) -> tuple[str, ...]:
    """The cells of a table, where they are few and short enough to be told; () for any other answer."""
    fields = fields_of(text)
    cells = list(dict.fromkeys(str(field.value) for field in fields))
    told = all(len(cell) <= MAX_MUST_SAY and cell[-1:].isalnum() and cell[:1].isalnum() for cell in cells)
    table = all(field.path.startswith("[].") for field in fields)
    return tuple(cells) if table and told and len(cells) <= MOST_TOLD else ()


def _values(executed: Executed) -> Iterator[str]:
    rows = rows_of(executed.result.text)
    table = len(rows) == 2 and all(len(row.fields) == 1 for row in rows)
    if executed.changes or not executed.ok or not (len(rows) == 1 or table):
        return
    fields = [field for field in rows[-1].fields if not isinstance(field.value, bool)]
    telling = [str(field.value) for field in fields if field.name or _TELLING.search(str(field.value))]
    given = executed.call.arguments
    for value in telling if len(telling) <= _FEW else telling[:1]:
        new = re.search(r"\w", value) and not mentions(given, value)
        if new and len(value) <= MAX_MUST_SAY:
            yield value
