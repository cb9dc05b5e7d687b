"""What a filter says of a trajectory, and preference pairs."""

from __future__ import annotations

from data.messages import Record, ToolSpec, Turn
from data.tasks import SCHEMA_VERSION


class Verdict(Record):
    """One filter's word on one trajectory. `reason` is a stable identifier, e.g. "ok", "unknown_tool"."""

    schema_version: int = SCHEMA_VERSION
    trajectory_id: str
    filter: str
    keep: bool
    reason: str
    score: float | None = None
    detail: str = ""


class Pair(Record):
    """Preference data: two continuations of one prompt; chosen is preferred."""

    schema_version: int = SCHEMA_VERSION
    pair_id: str
    prompt: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    chosen: tuple[Turn, ...]
    rejected: tuple[Turn, ...]
    parents: tuple[str, ...]
    """Trajectory ids the two sides come from."""
    synthesizer: str = ""
