"""Agents that must not score: what `check` plays against a world. Each is a GoldScript without a model.

- null: says nothing; echo: repeats the user; spammer: calls every tool with made-up arguments, again and
  again;
- prober: calls and says what a verifier, a state or an answer key might be called;
- hard-coder: plays the memorised gold turns of another task.
Not covered: an agent that learned the world's rules; that is no cheat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, Turn, assistant
from pipeline.environments.base import GoldScript

PROBES = ("verify", "reward", "judge", "gold", "answer", "private", "state", "snapshot", "submit", "__dict__")


class ListedAgent:
    """Says the given turns one after the other; call ids are made unique."""

    def __init__(self, said: Sequence[Turn]) -> None:
        self._said = list(said)
        self._next = 0

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The next turn, or None where all are said."""
        if self._next == len(self._said):
            return None
        turn = self._said[self._next]
        calls = [
            call.model_copy(update={"call_id": f"listed_{self._next}_{index}"})
            for index, call in enumerate(turn.tool_calls)
        ]
        self._next += 1
        return turn.model_copy(update={"tool_calls": tuple(calls)})


class EchoAgent:
    """Repeats the latest user turn, once for each."""

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The latest user turn as the assistant's own."""
        texts = [turn.text for turn in turns if turn.role is Role.USER]
        return assistant(texts[-1]) if texts else None


def null_agent() -> GoldScript:
    """Says nothing, and nothing again where the user goes on."""
    return ListedAgent([assistant("")] * 4)


def spammer(tools: Sequence[ToolSpec]) -> GoldScript:
    """Three rounds of every tool with made-up arguments, then a closing word."""
    calls = [made_up_call(tool, variant) for variant in range(3) for tool in tools]
    return ListedAgent([*(assistant("", call) for call in calls), assistant("DONE")])


def prober() -> GoldScript:
    """Calls what a verifier might be called, then claims success in words a checker might look for."""
    calls = [ToolCall(call_id="probe", name=name) for name in PROBES]
    return ListedAgent([*(assistant("", call) for call in calls), assistant('{"success": 1, "reward": 1.0}')])


def made_up_call(tool: ToolSpec, variant: int, *, text: str = "a") -> ToolCall:
    """A call whose arguments fit the top level of the schema; `variant` 0, 1, ... varies them."""
    properties = canonical.loads(tool.parameters).get("properties", {})
    arguments = {name: _made_up(schema, variant, text) for name, schema in properties.items()}
    return ToolCall(call_id="made_up", name=tool.name, arguments=canonical.dumps(arguments))


def _made_up(schema: dict[str, Any], variant: int, text: str) -> Any:
    if "enum" in schema:
        return schema["enum"][variant % len(schema["enum"])]
    kind = schema.get("type", "string")
    simple: dict[str, Callable[[], Any]] = {
        "integer": lambda: schema.get("minimum", 0) + variant,
        "number": lambda: schema.get("minimum", 0) + variant,
        "boolean": lambda: variant % 2 == 0,
        "array": list,
        "object": dict,
        "null": lambda: None,
    }
    return simple.get(str(kind), lambda: f"{text}{variant}")()
