"""Slips of a demonstrator: an argument replaced by another value that its schema allows.

Numbers, booleans and enums are drawn from the schema. A free string is replaced by another word of
the dialogue that is shaped alike ("F12" by "F7"), because a slip should be a plausible wrong choice;
where there is none, and for lists and objects, the value stays.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from data import canonical
from data.messages import ToolCall, ToolSpec, Turn
from pipeline.checks.calls import argument_problems

_WORD = re.compile(r"[A-Za-z0-9][\w.:-]*")
_SPREAD = 3
"""How far a number without bounds may slip."""


def other_arguments(
    call: ToolCall, tool: ToolSpec, turns: Sequence[Turn], *, share: float, rng: random.Random
) -> str:
    """The arguments of `call` as JSON text, each replaced with probability `share` where it can be."""
    schema = canonical.loads(tool.parameters)
    arguments = call.parsed_arguments()
    properties = schema.get("properties", {})
    for key in list(arguments):
        if rng.random() >= share:
            continue
        choices = _others(arguments[key], properties.get(key, {}), turns)
        valid = [value for value in choices if not argument_problems({**arguments, key: value}, schema)]
        if valid:
            arguments[key] = rng.choice(valid)
    return canonical.dumps(arguments)


def _others(value: Any, schema: dict[str, Any], turns: Sequence[Turn]) -> list[Any]:
    if "enum" in schema:
        return [other for other in schema["enum"] if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + step for step in range(-_SPREAD, _SPREAD + 1) if step]
    if isinstance(value, str):
        return _alike(value, turns)
    return []


def _alike(value: str, turns: Sequence[Turn]) -> list[str]:
    """Other words of the dialogue with the shape of `value`, in order of appearance."""
    words = (word for turn in turns for word in _WORD.findall(turn.text))
    return [word for word in dict.fromkeys(words) if word != value and _shape(word) == _shape(value)]


def _shape(word: str) -> str:
    return re.sub(r"\d+", "9", re.sub(r"[a-z]+", "a", re.sub(r"[A-Z]+", "A", word)))
