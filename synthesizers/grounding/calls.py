"""From "call this tool next" to a call that was really made, with the provenance of every argument.

`ground` proposes arguments in order of evidence (`proposals`), tries them in the trial, keeps the first call
that works and takes back the others. Where arguments come from is decided in `provenance`. Not covered: which
tool comes next (the methods), the sentences (`phrasing`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from data.messages import ToolSpec
from synthesizers.execution import Executed, Trial
from synthesizers.graph.fields import fields_of, leaves
from synthesizers.graph.shapes import Scalar
from synthesizers.grounding.evidence import Evidence, Record, ValuePool, digest_of, make_pool
from synthesizers.grounding.proposals import Proposal, proposals, random_proposals
from synthesizers.grounding.provenance import (
    ArgumentSource,
    GroundedCall,
    OutputPort,
    Provenance,
    sources_of,
)
from synthesizers.grounding.reading import Row, decoded, rows_of
from synthesizers.phrasing.saying import answer_cells
from synthesizers.phrasing.wording import mentions

__all__ = [
    "ArgumentSource",
    "Choice",
    "GroundedCall",
    "OutputPort",
    "Provenance",
    "ground",
    "make_pool",
    "sources_of",
    "worked",
]

MAX_TRIES = 12

_FAILURE = re.compile(
    r"\W*(bad request|errors?|exception|traceback|failed|failure|invalid|unauthori[sz]ed|forbidden|denied|"
    r"(?:\w+ ){0,3}(?:not found|does not exist|not available|not allowed))\b",
    re.IGNORECASE,
)
_SHORT = 80
"""Characters within which an answer says that it failed or found nothing."""
_NOTHING = re.compile(
    r"\W*(none|null|nothing|no (?:\w+ ){0,3}(?:found|rows|results?|matches)|empty|n/a)?\W*"
    r"(?:found|to show)?\W*",
    re.IGNORECASE,
)


class Choice(StrEnum):
    """How arguments are chosen."""

    EVIDENCE = "evidence"
    PORTS = "ports"
    """By evidence, but of earlier answers only what `prefer` names: the ablation of who feeds whom."""
    RANDOM = "random"
    """Any schema-valid values, with the same number of tries: the ablation."""


async def ground(
    trial: Trial,
    tool: ToolSpec,
    pool: ValuePool,
    *,
    rng: random.Random,
    prefer: Mapping[str, OutputPort] | None = None,
    said: str = "",
    choice: Choice = Choice.EVIDENCE,
    may_finish: bool = True,
    may_ask: bool = False,
    max_tries: int = MAX_TRIES,
) -> GroundedCall | None:
    """Make a call of `tool` that works, kept as the last of `trial.executed`; None where no try does.

    `prefer` names the port a parameter should come from; the sources say whether it did. `said` is what the
    user has said in the dialogue so far. `may_finish=False` refuses a call that ends the episode. A call
    whose arguments the assistant writes needs `may_ask`, a question, and an answer that can be told. Raises
    EnvironmentFailure where the world breaks.
    """
    if trial.finished:
        return None
    made = {digest_of(done.call.name, done.arguments()) for done in trial.executed}
    before = len(trial.executed)
    tried = 0
    for proposal in _proposed(trial, tool, pool, rng=rng, prefer=prefer or {}, choice=choice):
        if tried == max_tries:
            break
        digest = digest_of(tool.name, proposal.arguments)
        question = pool.questions.get(digest)
        unasked = tool.name in pool.written and not (question and may_ask)
        if digest in made or (unasked and not _repeats_written(proposal, trial, pool)):
            continue
        tried += 1
        executed = await trial.attempt(tool.name, proposal.arguments)
        if worked(executed, shows_state=trial.shows_state) and (may_finish or not trial.finished):
            sources = sources_of(executed, tool, trial.executed[:before], prefer=prefer or {}, said=said)
            if question is None:
                return GroundedCall(executed, _passed_on(sources, trial, pool))
            if answer_cells(executed.result.text):
                return _answering(executed, sources, question.text)
        trial.undo()
    return None


def _written_before(trial: Trial, pool: ValuePool) -> set[str]:
    """What the assistant has written to answer questions so far."""
    asked = [done for done in trial.executed if digest_of(done.call.name, done.arguments()) in pool.questions]
    return {value for done in asked for value in done.arguments().values() if isinstance(value, str)}


def _repeats_written(proposal: Proposal, trial: Trial, pool: ValuePool) -> bool:
    texts = [value for value in proposal.arguments.values() if isinstance(value, str)]
    return bool(texts) and set(texts) <= _written_before(trial, pool)


def _passed_on(
    sources: tuple[ArgumentSource, ...], trial: Trial, pool: ValuePool
) -> tuple[ArgumentSource, ...]:
    """The sources; what the assistant has written for an earlier call is the assistant's here, too."""
    written = _written_before(trial, pool)
    return tuple(
        source._replace(provenance=Provenance.WRITTEN)
        if isinstance(source.value, str) and source.value in written
        else source
        for source in sources
    )


def _answering(executed: Executed, sources: Sequence[ArgumentSource], question: str) -> GroundedCall:
    """The call with its arguments as written by the assistant."""
    written = tuple(
        source if source.provenance is Provenance.DEFAULT else source._replace(provenance=Provenance.WRITTEN)
        for source in sources
    )
    return GroundedCall(executed, written, question)


def worked(executed: Executed, *, shows_state: bool) -> bool:
    """Whether a call did its work: no error in status or text, and it says something or changes something.

    What it was told is not something that it says.

    `shows_state`: whether the session has a state to see. Without one, a bare null is taken for the silence
    of a call that did what it was told, an empty list for finding nothing.
    """
    text = executed.result.text
    if not executed.ok or _fails(text) or _only_repeats(executed):
        return False
    if _says_something(text, asked=bool(executed.arguments())):
        return True
    return executed.changes if shows_state else text.strip() in ("None", "null", "{}")


def _only_repeats(executed: Executed) -> bool:
    """Whether a call changed nothing and tells nothing but its own arguments: a booking moved to the flight
    it is on, a text printed."""
    if executed.changes or not executed.arguments():
        return False
    telling = [str(found.value) for found in fields_of(executed.result.text)]
    given = executed.call.arguments
    return bool(telling) and all(mentions(given, value) for value in telling)


def _proposed(
    trial: Trial,
    tool: ToolSpec,
    pool: ValuePool,
    *,
    rng: random.Random,
    prefer: Mapping[str, OutputPort],
    choice: Choice,
) -> list[Proposal]:
    results = [rows_of(done.result.text) for done in trial.executed]
    seen = () if choice is Choice.PORTS else _result_records(results)
    records = [*seen, *pool.records]
    if choice is Choice.RANDOM:
        return random_proposals(tool, records, rng=rng)
    wanted: dict[str, list[Scalar]] = {}
    for name, port in prefer.items():
        fields = fields_of(trial.executed[port.call].result.text)
        matching = [field.value for field in fields if not port.path or field.path == port.path]
        wanted[name] = matching or [field.value for row in results[port.call] for field in row.fields]
    return proposals(tool, records, pool, rng=rng, wanted=wanted)


def _result_records(results: Sequence[Sequence[Row]]) -> Iterator[Record]:
    for call, rows in enumerate(results):
        for row in rows:
            values = tuple((field.name, field.value) for field in row.fields)
            yield Record(row.kind, values, Evidence.RESULT, call=call)


def _fails(text: str) -> bool:
    value = decoded(text)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict):
        status = str(value.get("status", "")).lower()
        told = any(value.get(key) for key in ("error", "errors", "exception"))
        return told or status in ("error", "failed", "failure") or _denies(value)
    return isinstance(value, str) and bool(_FAILURE.match(text.strip()[:_SHORT]))


def _denies(value: Mapping[str, Any]) -> bool:
    """Whether an answer says no and more: {"login_status": false, "message": "User 5 not found."}."""
    noes = [key.lower() for key, item in value.items() if item is False]
    return "success" in noes or (len(value) > 1 and any(key.endswith(("status", "success")) for key in noes))


def _says_something(text: str, *, asked: bool) -> bool:
    """Whether there is anything in an answer. A lone "no" to a call with arguments says they were wrong."""
    value = decoded(text)
    if isinstance(value, dict | list):
        said = [leaf for leaf in leaves(value) if leaf is not None and leaf != ""]
        return bool(said) and not (asked and all(leaf is False for leaf in said))
    if isinstance(value, str):
        return len(text.strip()) > _SHORT or not _NOTHING.fullmatch(text.strip())
    return value is not None and not (asked and value is False)
