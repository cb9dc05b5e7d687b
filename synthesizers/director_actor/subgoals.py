"""What the director plans with: steps, sub-goals and outlines.

A step is a call the director means to see made; where an argument is read from an earlier answer, the step
says where it stands, so that whoever plays it reads it there. Not covered: where steps come from (`groups`,
`outline`), playing them (`stage`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolStatus
from synthesizers.execution import Executed
from synthesizers.grounding.calls import worked
from synthesizers.grounding.reading import rows_of


class Read(NamedTuple):
    """An argument that is read from the answer to a step: its row and field (`reading.rows_of`)."""

    step: str
    row: int
    field: int


class Step(NamedTuple):
    """A call that is meant. `uid` is unique in an outline; `arguments` are what the director expects."""

    uid: str
    tool: str
    arguments: Mapping[str, Any]
    reads: Mapping[str, Read] = {}
    fallback: Mapping[str, Any] | None = None
    """Arguments that are known to work where these fail."""

    @property
    def key(self) -> str:
        """Equal for steps that mean the same call."""
        return call_key(self.tool, self.arguments)


class SubGoal(NamedTuple):
    """One user turn's worth of work."""

    name: str
    steps: tuple[Step, ...]
    needs: frozenset[str] = frozenset()
    """Names of sub-goals that come before."""
    text: str = ""
    """The user's words, where a task gives them; else they are written."""
    text_by: str = "template"
    says: tuple[str, ...] = ()
    """Values the reply must hold, besides what the answers ask for."""
    instruction: str = ""
    """The actor's instruction, where a chat wrote it."""
    instruction_by: str = "template"
    judged: bool = False
    """Whether only a judge can tell that it is reached."""
    replanned: bool = False
    finishes: bool = False
    combined: int = 1

    @property
    def goal(self) -> str:
        """The tools meant, in short."""
        return " > ".join(step.tool for step in self.steps) or "say"


def call_key(name: str, arguments: Mapping[str, Any]) -> str:
    """Equal for calls of one tool with equal arguments, whatever their order."""
    return canonical.dumps([name, dict(arguments)], sort_keys=True)


def executed_key(executed: Executed) -> str:
    """The key of an executed call."""
    return call_key(executed.call.name, executed.arguments())


def read_value(text: str, read: Read) -> Any:
    """The value a read means in an answer's text. Raises LookupError where it is not there."""
    rows = rows_of(text)
    if read.row >= len(rows) or read.field >= len(rows[read.row].fields):
        raise LookupError(f"no row {read.row}, field {read.field} among {len(rows)} rows")
    return rows[read.row].fields[read.field].value


def place_of(text: str, value: Any) -> tuple[int, int] | None:
    """(row, field) where an answer holds exactly this scalar, or None."""
    if isinstance(value, bool | list | dict) or value is None:
        return None
    for row, found in enumerate(rows_of(text)):
        for place, field in enumerate(found.fields):
            if not isinstance(field.value, bool) and str(field.value) == str(value):
                return row, place
    return None


def reads_of(executed: Executed, earlier: Sequence[tuple[str, Executed]]) -> dict[str, Read]:
    """Where the latest of `earlier` answers, (uid of its step, call), hold the arguments of a call.

    One character found again is chance.
    """
    reads: dict[str, Read] = {}
    for name, value in executed.arguments().items():
        for uid, source in reversed(earlier) if len(str(value)) > 1 else ():
            if (place := place_of(source.result.text, value)) is not None:
                reads[name] = Read(uid, *place)
                break
    return reads


def is_empty(executed: Executed) -> bool:
    """Whether a look-up answered without finding anything."""
    return executed.ok and not executed.changes and not worked(executed, shows_state=True)


def resolved(step: Step, answers: Mapping[str, Executed]) -> dict[str, Any]:
    """The step's arguments, read from `answers` (by uid). LookupError where they are not there."""
    arguments = dict(step.arguments)
    for name, read in step.reads.items():
        source = answers.get(read.step)
        if source is None or source.result.status is not ToolStatus.OK:
            raise LookupError(f"{name} is read from {read.step}, which was not answered")
        value = read_value(source.result.text, read)
        arguments[name] = type(arguments[name])(value) if isinstance(arguments.get(name), str) else value
    return arguments


def dependents(goals: Sequence[SubGoal], name: str) -> set[str]:
    """Names of the sub-goals that need `name`, directly or not, itself included."""
    found = {name}
    for goal in goals:
        if goal.needs & found:
            found.add(goal.name)
    return found
