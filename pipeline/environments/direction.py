"""How a blueprint's turn came about where a director planned it: what surveys and ablations read.

Part of the private blueprint, never shown to an agent. Not covered: the verdict, which looks at none of this.
"""

from __future__ import annotations

from enum import StrEnum

from data.messages import Record


class Contradiction(StrEnum):
    """Why the director re-planned what was left."""

    TOOL_ERROR = "tool_error"
    """A planned call failed."""
    EMPTY = "empty"
    """A planned look-up found nothing."""


class Direction(Record):
    """One user turn's direction."""

    goal: str
    """The sub-goal in short: the tools that the outline meant, joined by " > "."""
    check: str
    """What says that the goal is reached: state | calls | said | judge, joined by "+"."""
    actor: str = "script"
    """Who acted: "script", or the name of a chat."""
    instruction_by: str = "template"
    """Who wrote the actor's instruction: "template", or the name of a chat."""
    lines: int = 1
    """Lines the actor needed, those that were cut included."""
    cut: int = 0
    """Lines that were taken back because the goal was not reached and the actor had stopped."""
    differs: bool = False
    """Whether the actor's calls are not the outline's."""
    contradiction: Contradiction | None = None
    """What interrupted this turn."""
    replanned: bool = False
    """Whether the turn was planned in place of one that was contradicted."""
    combined: int = 1
    """Validated requests that were put together in this turn."""


class Review(Record):
    """One criterion of a strict review. `votes` counts all judges, also those whose reply was none."""

    criterion: str
    by: str
    """`program`, or the names of the chats."""
    approved: int
    votes: int
