"""What counts as the state of a session, for comparing two of them.

A session may offer `end_state()`, a JSON value without what does not matter (ids of new records,
logs). For one that does not, the calls that were answered stand for the state, as a multiset: without a
state to see, the order of calls is nobody's business. Not covered: how a world restores a state (`snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from data import canonical
from data.messages import ToolCall
from pipeline.environments.base import Session
from pipeline.errors import ConfigError, RecordError


def state_digest(session: Session, answered: Sequence[ToolCall]) -> str:
    """16 hex digits; equal for sessions that ended alike. `answered` are the calls that worked so far.

    Raises ConfigError where `end_state` gives no JSON.
    """
    visible = getattr(session, "end_state", None)
    if visible is not None:
        return canonical.digest("state", _as_json(visible), length=16)
    calls = sorted(canonical.dumps([call.name, call.parsed_arguments()], sort_keys=True) for call in answered)
    return canonical.digest("calls", calls, length=16)


def _as_json(visible: Callable[[], Any]) -> str:
    try:
        return canonical.dumps(visible(), sort_keys=True)
    except RecordError as error:
        raise ConfigError(
            f"end_state of a session gives no JSON ({error!r}); states are compared by it: write an "
            f"`end_state` that returns what matters of the state as plain values"
        ) from error
