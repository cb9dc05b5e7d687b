"""From "call this tool next" to a call that was really made, with the provenance of every argument.

`ground` proposes arguments in order of evidence (`proposals`), tries them in the trial, keeps the first call
that works and takes back the others. Provenance (the idea of SAP) is decided from what was answered before:

- output: the value stands in an earlier result of the dialogue and is telling (an identifier, a word, a
  number of three digits), or its field is named like the parameter, or the planner asked for that port;
- user: everything else that is given, and what the user has said already even where a result holds it, too:
  the user wins only where the user's text says it;
- default: left out, or equal to the schema's default.

Not covered: which tool comes next (the methods), the sentences (`phrasing`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from data.messages import ToolSpec
from pipeline.checks.matching import same_value
from synthesizers.evidence import Evidence, Record, ValuePool, digest_of, make_pool
from synthesizers.execution import Executed, Trial
from synthesizers.graph.fields import Field, fields_of
from synthesizers.proposals import Parameters, Proposal, proposals, random_proposals
from synthesizers.reading import Row, Scalar, decoded, rows_of, singular, words
from synthesizers.wording import mentions

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
_NOTHING = re.compile(
    r"\W*(none|null|nothing|no (?:\w+ ){0,3}(?:found|rows|results?|matches)|empty|n/a)?\W*"
    r"(?:found|to show)?\W*",
    re.IGNORECASE,
)
_TELLING_DIGITS = 3


class Provenance(StrEnum):
    """Where an argument's value comes from."""

    USER = "user"
    """The user must say it."""
    OUTPUT = "output"
    """An earlier result holds it."""
    DEFAULT = "default"
    """Left out, or the schema's default."""


class Choice(StrEnum):
    """How arguments are chosen."""

    EVIDENCE = "evidence"
    RANDOM = "random"
    """Any schema-valid values, with the same number of tries: the ablation."""


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

    def of(self, provenance: Provenance) -> tuple[ArgumentSource, ...]:
        """The arguments of one provenance."""
        return tuple(source for source in self.sources if source.provenance is provenance)


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
    max_tries: int = MAX_TRIES,
) -> GroundedCall | None:
    """Make a call of `tool` that works, kept as the last of `trial.executed`; None where no try does.

    `prefer` names the port a parameter should come from; the sources say whether it did. `said` is what the
    user has said in the dialogue so far. `may_finish=False` refuses a call that ends the episode. Raises
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
        if digest_of(tool.name, proposal.arguments) in made:
            continue
        tried += 1
        executed = await trial.attempt(tool.name, proposal.arguments)
        if worked(executed, shows_state=_shows_state(trial)) and (may_finish or not trial.finished):
            sources = sources_of(executed, tool, trial.executed[:before], prefer=prefer or {}, said=said)
            return GroundedCall(executed, sources)
        trial.undo()
    return None


def worked(executed: Executed, *, shows_state: bool) -> bool:
    """Whether a call did its work: no error in status or text, and it says something or changes something.

    `shows_state`: whether the session has a state to see. Without one, a bare null is taken for the silence
    of a call that did what it was told, an empty list for finding nothing.
    """
    text = executed.result.text
    if not executed.ok or _fails(text):
        return False
    if _says_something(text, asked=bool(executed.arguments())):
        return True
    return executed.changes if shows_state else text.strip() in ("None", "null", "{}")


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
    records = [*_result_records(results), *pool.records]
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
        fields = [field for field in answers[call].fields if _holds(field, value)]
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


def _shows_state(trial: Trial) -> bool:
    return hasattr(trial.session, "end_state")


def _fails(text: str) -> bool:
    value = decoded(text)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict):
        status = str(value.get("status", "")).lower()
        told = any(value.get(key) for key in ("error", "errors", "exception"))
        return told or status in ("error", "failed", "failure") or value.get("success") is False
    return isinstance(value, str) and bool(_FAILURE.match(text))


def _says_something(text: str, *, asked: bool) -> bool:
    """Whether there is anything in an answer. A lone "no" to a call with arguments says they were wrong."""
    value = decoded(text)
    if isinstance(value, dict | list):
        leaves = list(_leaves(value))
        return bool(leaves) and not (asked and all(leaf is False for leaf in leaves))
    if isinstance(value, str):
        return not _NOTHING.fullmatch(text)
    return value is not None and not (asked and value is False)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif value is not None and value != "":
        yield value
