"""Grounded calls as a blueprint holds them.

Not covered: which of them the user's words mention (the methods).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.environments.blueprint import PlannedCall, Source, result_digest
from synthesizers.execution import Executed
from synthesizers.grounding.provenance import ArgumentSource, GroundedCall, OutputPort, Provenance
from synthesizers.phrasing.wording import mentions


def port_name(port: OutputPort, *, names: Sequence[str]) -> str:
    """ "flights#1:id": the field id of the first call of flights that was answered; see `answered_names`."""
    name = names[port.call]
    return f"{name}#{names[: port.call + 1].count(name)}:{port.path}"


def answered_names(made: Sequence[Executed]) -> list[str]:
    """Names of the calls in order, "" for those that failed: no value comes from them."""
    return [each.call.name if each.ok else "" for each in made]


def planned_call(
    call: GroundedCall, *, mentioned: bool, named: Callable[[OutputPort], str], said: str | None = None
) -> PlannedCall:
    """The call with its answer and sources; `named` names the earlier answer that a value stands in.

    `said`: all user words so far, where they may leave values out. The assistant makes those up: a sum, the
    new text of a file.
    """
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
                provenance=_provenance(source, said),
                of=named(source.of) if source.of is not None else "",
            )
            for source in call.sources
        ),
    )


def _provenance(source: ArgumentSource, said: str | None) -> Provenance:
    unsaid = said is not None and not mentions(said, source.value)
    return Provenance.WRITTEN if unsaid and source.provenance is Provenance.USER else source.provenance
