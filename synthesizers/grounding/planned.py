"""Grounded calls as a blueprint holds them.

Not covered: which of them the user's words mention (the methods).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.environments.blueprint import PlannedCall, Source, result_digest
from synthesizers.grounding.provenance import GroundedCall, OutputPort


def port_name(port: OutputPort, *, names: Sequence[str]) -> str:
    """ "flights#1:id": the first call of flights, its field id. `names`: the tools called, in order."""
    name = names[port.call]
    return f"{name}#{names[: port.call + 1].count(name)}:{port.path}"


def planned_call(call: GroundedCall, *, mentioned: bool, named: Callable[[OutputPort], str]) -> PlannedCall:
    """The call with its answer and sources; `named` names the earlier answer that a value stands in."""
    made = call.executed
    return PlannedCall(
        name=made.call.name,
        arguments=made.call.arguments,
        result=result_digest(made.result),
        status=made.result.status,
        changes=made.changes,
        mentioned=mentioned,
        sources=tuple(
            Source(
                argument=source.name,
                provenance=source.provenance,
                of=named(source.of) if source.of is not None else "",
            )
            for source in call.sources
        ),
    )
