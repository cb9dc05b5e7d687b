"""A goal and its calls as an entry of a memory: values of one task become names, so that others can use it.

Without a chat the workflow is the calls themselves: "flights(src={src}, dst={dst}); book(flight=flights)": a
value of the user's by its parameter, one of an earlier answer by the tool that gave it. Not covered: which
entries a memory keeps (`pipeline.memory`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from synthesizers.grounding.calls import ArgumentSource, GroundedCall, Provenance
from synthesizers.phrasing.clauses import shown_value


def workflow_of(calls: Sequence[GroundedCall]) -> str:
    """The calls as a workflow, one step each."""
    return "; ".join(_step(call, calls) for call in calls)


def abstracted(text: str, calls: Sequence[GroundedCall]) -> str:
    """`text` with the values that only the user of this task would say as {parameter}, the longest first."""
    sources = [source for call in calls for source in call.of(Provenance.USER)]
    named = {shown_value(s.value): s.name for s in reversed(sources) if not isinstance(s.value, bool)}
    for value in sorted(named, key=lambda value: (-len(value), value)):
        bare = value.strip("'\"")
        for form in dict.fromkeys((value, bare)):
            if form.strip():
                left, right = _edge(form[0], r"(?<!\w)"), _edge(form[-1], r"(?!\w)")
                pattern = left + r"\s+".join(map(re.escape, form.split())) + right
                text = re.sub(pattern, f"{{{named[value]}}}", text, flags=re.IGNORECASE)
    return text


def _edge(character: str, pattern: str) -> str:
    return pattern if character.isalnum() else ""


def _step(call: GroundedCall, calls: Sequence[GroundedCall]) -> str:
    given = call.executed.arguments()
    told = [f"{source.name}={_origin(source, calls)}" for source in call.sources if source.name in given]
    return f"{call.executed.call.name}({', '.join(told)})"


def _origin(source: ArgumentSource, calls: Sequence[GroundedCall]) -> str:
    if source.of is not None:
        return calls[source.of.call].executed.call.name
    return f"{{{source.name}}}" if source.provenance is Provenance.USER else shown_value(source.value)
