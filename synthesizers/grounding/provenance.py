"""Where the arguments of an executed call come from: the user, an earlier result, the schema's default.

Provenance (the idea of SAP) is decided from what was answered before:

- output: the value stands in an earlier result of the dialogue and is telling (an identifier, a word, a
  number of three digits), or its field is named like the parameter, or the planner asked for that port; a
  small number of things ("5 nights") is none;
- user: everything else that is given, and what the user has said already even where a result holds it, too:
  the user wins only where the user's text says it;
- default: left out, or equal to the schema's default;
- written: the assistant makes it up, to answer the question of a GroundedCall (`calls` says so), or from what
  a base task's words ask for (`planned` says so).

Not covered: making the call (`calls`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from data.messages import ToolSpec
from pipeline.checks.matching import same_value
from synthesizers.execution import Executed
from synthesizers.graph.fields import Field, Shape, fields_of
from synthesizers.grounding.reading import singular, words
from synthesizers.grounding.scoring import Parameters
from synthesizers.phrasing.wording import mentions

_TELLING_DIGITS = 3


class Provenance(StrEnum):
    """Where an argument's value comes from."""

    USER = "user"
    """The user must say it."""
    OUTPUT = "output"
    """An earlier result holds it."""
    DEFAULT = "default"
    """Left out, or the schema's default."""
    WRITTEN = "written"
    """The assistant makes it up, e.g. a query or a sum."""


class OutputPort(NamedTuple):
    """A field of an earlier result: index into the trial's `executed`, and a path as `fields_of` writes it.

    "" is any field; in a source it says that the value stands somewhere in the text.
    """

    call: int
    path: str = ""


class ArgumentSource(NamedTuple):
    """One argument. `of` says which result holds it where the provenance is output."""

    name: str
    value: Any
    provenance: Provenance
    of: OutputPort | None = None


class GroundedCall(NamedTuple):
    """A call that works here and now, and where its arguments come from (defaults included)."""

    executed: Executed
    sources: tuple[ArgumentSource, ...]
    question: str = ""
    """The user's words for the call, where its arguments are written to answer them."""

    def of(self, provenance: Provenance) -> tuple[ArgumentSource, ...]:
        """The arguments of one provenance."""
        return tuple(source for source in self.sources if source.provenance is provenance)


def sources_of(
    executed: Executed,
    tool: ToolSpec,
    earlier: Sequence[Executed],
    *,
    prefer: Mapping[str, OutputPort] | None = None,
    said: str = "",
) -> tuple[ArgumentSource, ...]:
    """The provenance of every argument of a call, given the calls made `earlier`; see the module
    docstring."""
    given = executed.arguments()
    needs = Parameters.of(tool)
    answers = [Answer.of(done) for done in earlier]
    found = []
    for name, schema in needs.properties.items():
        default = schema.get("default")
        if name not in given:
            found.append(ArgumentSource(name, default, Provenance.DEFAULT))
        elif "default" in schema and same_value(given[name], default):
            found.append(ArgumentSource(name, given[name], Provenance.DEFAULT))
        else:
            port = _port_of(name, given[name], answers, (prefer or {}).get(name))
            is_said = bool(said) and mentions(said, given[name])
            if port is None or is_said:
                found.append(ArgumentSource(name, given[name], Provenance.USER))
            else:
                found.append(ArgumentSource(name, given[name], Provenance.OUTPUT, port))
    found += [
        ArgumentSource(name, value, Provenance.USER)
        for name, value in given.items()
        if name not in needs.properties
    ]
    return tuple(found)


class Answer(NamedTuple):
    """An earlier result as provenance looks at it."""

    text: str
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, executed: Executed) -> Answer:
        """The answer of an executed call."""
        return cls(executed.result.text, tuple(fields_of(executed.result.text)))


def _port_of(
    name: str, value: Any, answers: Sequence[Answer], wanted: OutputPort | None
) -> OutputPort | None:
    """The port that holds `value`: the one asked for, else of the latest result. Lists go item by item."""
    if isinstance(value, list | dict):
        items = list(value.values()) if isinstance(value, dict) else value
        ports = [_port_of(name, item, answers, wanted) for item in items]
        return ports[0] if ports and all(ports) else None
    order = list(reversed(range(len(answers))))
    if wanted is not None and wanted.call in order:
        order = [wanted.call, *(call for call in order if call != wanted.call)]
    for call in order:
        fields = [
            field
            for field in answers[call].fields
            if _holds(field, value) and (field.shape is not Shape.QUANTITY or _is_telling(value))
        ]
        for field in fields:
            asked = wanted is not None and wanted.call == call and wanted.path in ("", field.path)
            if asked or _is_telling(value) or _is_named(name, field):
                return OutputPort(call, field.path)
        if isinstance(value, str) and _is_telling(value) and mentions(answers[call].text, value):
            return OutputPort(call, "")
    return None


def _holds(field: Field, value: Any) -> bool:
    if isinstance(value, bool) or isinstance(field.value, bool):
        return value is field.value
    return bool(value == field.value) or str(value) == str(field.value)


def _is_telling(value: Any) -> bool:
    """Whether finding the value in a text is no accident."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return len(str(abs(value))) >= _TELLING_DIGITS
    text = str(value)
    return len(text) >= _TELLING_DIGITS or bool(re.search(r"[A-Za-z]\d|\d[A-Za-z]", text))


def _is_named(parameter: str, field: Field) -> bool:
    """Whether the field's path speaks of what the parameter is called."""
    wanted = {singular(word) for word in words(parameter)}
    return bool(wanted) and wanted <= {singular(word) for word in words(field.path)}
