"""The macro tool: a chain folded into one abstract tool, which the request is written against (step 4).

`flights(src, dst, day) -> book(flight)` becomes one tool that takes where from, where to, which day and
"the cheapest flight". Its parameters are what only the user knows: values of any call of the chain, and for
a value that an inner call finds the way to point at it. Nothing else of the chain is in it. A value is said
once where two calls share it. Not covered: naming it by a chat (`roles`), the request (`requests`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolSpec
from pipeline.checks.matching import same_value
from synthesizers.graph.fields import fields_of, leaves
from synthesizers.grounding.calls import ArgumentSource, GroundedCall, Provenance
from synthesizers.grounding.reading import rows_of
from synthesizers.grounding.scoring import Parameters
from synthesizers.hardgen.api_graph import ApiGraph
from synthesizers.hardgen.chains import Chain, Unmade, is_positional, reference
from synthesizers.phrasing.clauses import noun_of, shown_value
from synthesizers.phrasing.referring import goes_unsaid
from synthesizers.phrasing.wording import mentions

SUFFIX = "adv"
"""How the macro tool of a target is called, as in the paper: buy -> buy_adv."""
_QUESTION = "question"


class MacroArgument(NamedTuple):
    """A parameter with its value. `text` is how a person writes it; a reference is a way to point."""

    name: str
    value: Any
    text: str
    reference: bool = False
    schema: dict[str, Any] | None = None
    """Its JSON Schema; None for a reference, which is a text."""
    inner: bool = False
    """Whether only an inner call takes it."""


class Macro(NamedTuple):
    """The abstract tool and the arguments that the chain was made with."""

    name: str
    description: str
    arguments: tuple[MacroArgument, ...]
    question: str = ""
    """The user's own words, where the target answers a question."""

    @property
    def spec(self) -> ToolSpec:
        """As a tool."""
        properties = {one.name: one.schema or {"type": "string"} for one in self.arguments}
        schema = {"type": "object", "properties": properties, "required": [*properties]}
        return ToolSpec(name=self.name, description=self.description, parameters=canonical.dumps(schema))

    @property
    def said(self) -> tuple[ArgumentSource, ...]:
        """The values that the request must say."""
        return tuple(
            ArgumentSource(one.name, one.value, Provenance.USER)
            for one in self.arguments
            if not one.reference
        )


def fold(chain: Chain, graph: ApiGraph) -> Macro:
    """The macro tool of a chain, by template. Raises Unmade where the user could not ask for it."""
    target = graph.specs[chain.names[-1]]
    question = chain.target.question
    name = f"{target.name}_{SUFFIX}"
    if question:
        asked = MacroArgument(_QUESTION, question, question, schema={"type": "string"})
        return Macro(name, "Answer a question.", (asked,), question)
    _refuse_unasked_changes(chain)
    _refuse_groundless(chain, graph)
    arguments: list[MacroArgument] = list(_pointed_at(chain, graph))
    for place in (len(chain.calls) - 1, *range(len(chain.calls) - 1)):
        call = chain.calls[place]
        schemas = Parameters.of(graph.specs[call.executed.call.name]).properties
        for source in call.of(Provenance.USER):
            _add(arguments, source, schemas.get(source.name) or {}, inner=call is not chain.target)
    return Macro(name, target.description, tuple(arguments))


def _refuse_unasked_changes(chain: Chain) -> None:
    """Nobody wants a change that he does not ask for, but where what he asks for cannot be done without.

    A call that makes the very thing which a later one works on is no such means: a tweet is not posted to
    comment on it.
    """
    for place, call in enumerate(chain.calls[:-1]):
        if not call.executed.changes:
            continue
        later = {
            str(value)
            for other in chain.calls[place + 1 :]
            for value in leaves(other.executed.arguments())
            if not isinstance(value, bool)
        }
        named = {str(field.value) for field in fields_of(call.executed.result.text)}
        named |= {str(value) for value in leaves(call.executed.arguments())}
        if place not in chain.needed_for_state or later & named:
            raise Unmade("unasked_change", call.executed.call.name)


def _refuse_groundless(chain: Chain, graph: ApiGraph) -> None:
    """A look-up that nobody mentions needs something to go by: what the user says, or that it shows what is
    his. "My destination" is no way to ask for the nearest tire shop."""
    grounded: set[int] = set()
    for place, call in enumerate(chain.calls[:-1]):
        sources = {source.of.call for source in call.sources if source.of is not None}
        own = goes_unsaid(call, graph.specs[call.executed.call.name])
        if own or place in chain.needed_for_state or (sources and sources <= grounded):
            grounded.add(place)
        else:
            raise Unmade("nothing_to_go_by", call.executed.call.name)


def _pointed_at(chain: Chain, graph: ApiGraph) -> Iterator[MacroArgument]:
    """Ways to point at what the target takes from answers.

    An inner call may take something only from an answer that the target takes something of, too, in the same
    row, or what no user would say: else the request would leave open what is meant.
    """
    rows: dict[int, set[int]] = {}
    last = len(chain.calls) - 1
    for place in reversed(range(len(chain.calls))):
        call = chain.calls[place]
        for source in call.of(Provenance.OUTPUT):
            if source.of is None:
                continue
            held = _rows_of(chain.calls[source.of.call], source.value)
            anchored = source.of.call in rows
            common = held & rows.get(source.of.call, held)
            if not common:
                raise Unmade("two_rows", f"{call.executed.call.name}.{source.name}")
            rows[source.of.call] = common
            if place == last:
                yield _reference(source, chain, graph)
            elif not anchored and (call.executed.call.name, source.name) not in graph.binding:
                raise Unmade("dangling_reference", f"{call.executed.call.name}.{source.name}")


def _reference(source: ArgumentSource, chain: Chain, graph: ApiGraph) -> MacroArgument:
    """The way to point. Raises Unmade where there is none, or two things of a kind would be told apart by
    nothing: "between the city and 83214"."""
    phrase, noun = reference(source, chain.calls, graph), noun_of(source.name)
    given = [one for one in chain.target.sources if one.provenance is not Provenance.DEFAULT]
    others = [noun_of(one.name) for one in given if one.name != source.name]
    if is_positional(phrase) or mentions(phrase, source.value) or noun in others:
        raise Unmade("no_way_to_ask", f"{chain.names[-1]}.{source.name}")
    return MacroArgument(source.name, phrase, phrase, reference=True)


def _rows_of(call: GroundedCall, value: Any) -> set[int]:
    """Rows of an answer that hold a value; -1 where it stands in no row of its own."""
    rows = rows_of(call.executed.result.text)
    held = {
        place
        for place, row in enumerate(rows)
        if any(str(field.value) == str(value) or _within(field.value, value) for field in row.fields)
    }
    return held or {-1}


def _within(field: Any, value: Any) -> bool:
    return isinstance(field, str) and isinstance(value, str) and mentions(field, value)


def _add(
    arguments: list[MacroArgument], source: ArgumentSource, schema: dict[str, Any], *, inner: bool
) -> None:
    """Add a value that the user says, unless it is there; a name that is taken gets a number."""
    same = [one for one in arguments if not one.reference and same_value(one.value, source.value)]
    if any(one.name == source.name for one in same):
        return
    names = [one.name for one in arguments]
    name, number = source.name, 1
    while name in names:
        number += 1
        name = f"{source.name}_{number}"
    text = shown_value(source.value)
    arguments.append(MacroArgument(name, source.value, text, schema=_plain(schema), inner=inner))


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without words, which could speak of the inner tool."""
    return {key: value for key, value in schema.items() if key not in ("description", "title", "examples")}


def inner_names(chain: Chain) -> Sequence[str]:
    """The tools of the inner calls."""
    return chain.names[:-1]
