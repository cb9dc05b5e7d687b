"""Gold policies written as generators: yield an assistant turn, receive the dialogue so far.

`def plan(): turns = yield call("search", city="Rome"); ...` reads like the dialogue it plays, and a later
call can use what an earlier one answered. Not covered: a gold script is driven once, in order, by one
episode.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from data import canonical
from data.messages import Role, ToolCall, ToolResult, Turn, assistant

Plan = Generator[Turn, Sequence[Turn], None]


class PlannedGold:
    """A GoldScript played by a plan; call ids are made unique within the episode."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._started = False
        self._num_calls = 0

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The plan's next turn, or None where it has ended."""
        try:
            turn = self._plan.send(turns) if self._started else next(self._plan)
        except StopIteration:
            return None
        self._started = True
        return turn.model_copy(update={"tool_calls": tuple(self._numbered(call) for call in turn.tool_calls)})

    def _numbered(self, call: ToolCall) -> ToolCall:
        self._num_calls += 1
        return call.model_copy(update={"call_id": f"gold_{self._num_calls - 1}"})


def call(name: str, /, **arguments: Any) -> Turn:
    """An assistant turn with one call."""
    return assistant("", ToolCall(call_id="gold", name=name, arguments=canonical.dumps(arguments)))


def last_result(turns: Sequence[Turn]) -> ToolResult:
    """The latest tool result. Raises LookupError where there is none."""
    for turn in reversed(turns):
        if turn.role is Role.TOOL and turn.result is not None:
            return turn.result
    raise LookupError("no tool result in the dialogue yet")
