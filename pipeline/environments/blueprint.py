"""Synthesised tasks of any environment: a base task's world, planned user turns, and what gold did in each.

A planner executes its plan in a session of a base task and writes down, turn by turn, what gold did: that is
a Blueprint, the private part of the Task made from it. Not covered: how plans are made (`synthesizers`), how
an episode of such a task runs and is judged (`blueprint_session`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from data import canonical
from data.messages import (
    Record,
    ToolResult,
    ToolStatus,
)
from data.messages import system as system_turn
from data.messages import user as user_turn
from data.tasks import Budget, Task
from pipeline.environments.direction import Direction, Review
from pipeline.errors import ConfigError

VERIFIER = "blueprint/turns/1"
MAX_MUST_SAY = 23
OUTAGE_METRIC = "fault/outage"
"""Stands in the metrics of a result that an Outage gave."""
SYSTEM = "Do what the user asks with the tools. Value missing: ASK its name. No tool for it: REFUSE tool."


class Expects(StrEnum):
    """What a user turn wants."""

    ACT = "act"
    """The planned calls, or others that do the same, and a reply."""
    ASK = "ask"
    """No call: the reply is `ASK name` of the value that is missing."""
    REFUSE = "refuse"
    """The reply is `REFUSE`: no tool shown can do it, or the planned calls found that it cannot be done.
    Without planned calls none may be made."""


def _set_apart(arguments: str) -> str:
    """Arguments as private text: not the text of an answer that happens to hold the same field and value."""
    return f" {arguments}"


class Source(Record):
    """Where an argument's value comes from.

    `of` names the earlier call and field: "flights#1:id" is of the first call of flights that was answered.
    """

    argument: str
    provenance: str
    """user | output | default | written (by the assistant)."""
    of: str = ""


class PlannedCall(Record):
    """A call that gold made, and what it answered."""

    name: str
    arguments: Annotated[str, BeforeValidator(str.strip), PlainSerializer(_set_apart)]
    result: str
    """Digest of the answer's text (`result_digest`): a private text must stand in no tool result."""
    status: ToolStatus = ToolStatus.OK
    changes: bool = False
    """Whether it changed the state; a look-up that did not must be made by the agent, too."""
    mentioned: bool = True
    """Whether the user's words ask for it; a nested call is never mentioned."""
    sources: tuple[Source, ...] = ()


class PlannedTurn(Record):
    """One user turn and gold's answer to it."""

    text: str
    calls: tuple[PlannedCall, ...] = ()
    reply: str
    """What gold says at the end of the turn."""
    expects: Expects = Expects.ACT
    must_say: tuple[Annotated[str, Field(min_length=1, max_length=MAX_MUST_SAY)], ...] = ()
    """Values that the reply must hold; short, because the leak check lets tools answer short ones only."""
    state: str
    """State digest after the turn."""
    tools: tuple[str, ...] | None = None
    """Tools shown from this turn on; None = as before."""
    text_by: str = "template"
    """Who wrote `text`: "template", "task" (the base task's words), or the name of a chat."""
    direction: Direction | None = None
    """How a director planned the turn."""


class Outage(Record):
    """A tool that is down once: its first call in a user turn answers `text` and is not executed.

    It belongs to the task's world, so every agent meets it, whatever it called before, and every replay.
    """

    turn: int
    name: str
    text: str = Field(max_length=MAX_MUST_SAY)
    """Short, because a tool answers it though it is private."""
    status: ToolStatus = ToolStatus.TOOL_ERROR
    """`ok` for a look-up that wrongly finds nothing."""


class Blueprint(Record):
    """The private part of a synthesised task."""

    base: Task
    seed: int = 0
    turns: tuple[PlannedTurn, ...] = Field(min_length=1)
    outages: tuple[Outage, ...] = ()
    persona: str = ""
    """Name of the persona whose wishes were planned."""
    reviews: tuple[Review, ...] = ()
    """What a strict review said."""


def result_digest(result: ToolResult) -> str:
    """16 hex digits of what a tool answered."""
    return canonical.digest(result.text, length=16)


def blueprint_task(
    blueprint: Blueprint,
    *,
    synthesizer: str,
    template: str,
    tags: Sequence[str] = (),
    system: str = SYSTEM,
    budget: Budget | None = None,
    parent: Task | None = None,
) -> Task:
    """The task that a blueprint makes. ConfigError where its turns make no task.

    `parent`: the task that was planned from, where the blueprint's base is that one shown with other tools.
    """
    first = blueprint.turns[0]
    if not any(turn.calls for turn in blueprint.turns) and first.expects is Expects.ACT:
        raise ConfigError("a blueprint without a call wants nothing; plan a call, or a turn that asks")
    steps = sum(len(turn.calls) + 2 for turn in blueprint.turns)
    return Task(
        environment=blueprint.base.environment,
        split=blueprint.base.split,
        template=template,
        tags=tuple(tags),
        prompt=(system_turn(system), user_turn(first.text)),
        tools=first.tools if first.tools is not None else blueprint.base.tools,
        state=blueprint.base.state,
        private=canonical.dumps(blueprint.model_dump(mode="json")),
        verifier=VERIFIER,
        budget=budget or Budget(max_turns=steps + 2, max_tokens=1024 + 256 * steps),
        synthesizer=synthesizer,
        parents=((parent or blueprint.base).task_id,),
    )


def is_blueprint(task: Task) -> bool:
    """Whether a task was made from a blueprint."""
    return task.verifier == VERIFIER


def read_blueprint(task: Task) -> Blueprint:
    """The blueprint of a task for which `is_blueprint` is true."""
    return Blueprint.model_validate(task.private_value())
