"""What every parser shares: its result, strict JSON, and the lenient second look.

A strict parser decides what may be executed. The lenient one only tells a lost call (SALVAGEABLE) from
no call; it never turns a call into an executable one. Schemas are not checked here (`pipeline.checks.calls`).
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from data import canonical
from data.errors import RecordError
from data.messages import ParseStatus, ToolCall, ToolSpec, Turn, assistant

CUT = "cut off inside the call"


@dataclass(frozen=True, slots=True)
class Parsed:
    """An assistant turn's text taken apart. `text` is what stands outside calls and reasoning, stripped."""

    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    def turn(self) -> Turn:
        """The assistant turn these parts make."""
        return assistant(self.text, *self.calls, reasoning=self.reasoning)


class Parser(Protocol):
    """One format's strict parser."""

    def __call__(self, text: str, *, ended: bool, call_prefix: str, tools: Sequence[ToolSpec] = ()) -> Parsed:
        """Take `text` (stop token removed) apart; `ended` is False where generation was cut off."""
        ...


class AmbiguousJsonError(ValueError):
    """JSON that different readers read differently (duplicate keys, NaN): never salvaged."""


class Call(NamedTuple):
    """A name and arguments read from a JSON value."""

    name: str
    arguments: dict[str, Any]


_DECODER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: _unique(pairs),
    parse_constant=lambda name: _refuse(f"{name} is not JSON"),
)


def read_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value at `start` and where it ends. Raises ValueError with a short reason.

    Strict: no duplicate keys, no NaN or Infinity, nothing nested too deep to read.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg.lower()} at character {error.pos - start}") from error
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def as_call(value: Any) -> Call:
    """`value` as a call. Raises ValueError naming what is wrong."""
    if not isinstance(value, dict):
        raise ValueError(f"a call is an object, not {_kind(value)}")
    if not isinstance(value.get("name"), str) or not value["name"]:
        raise ValueError('no "name" string')
    if "arguments" not in value:
        raise ValueError('no "arguments" object')
    if not isinstance(value["arguments"], dict):
        raise ValueError(f'"arguments" is {_kind(value["arguments"])}, not an object')
    return Call(value["name"], value["arguments"])


def make_call(call_id: str, raw: str, call: Call) -> ToolCall:
    """An executable call, or NOT_JSON where the arguments cannot be stored as JSON (an integer too long)."""
    try:
        return ToolCall(call_id=call_id, name=call.name, arguments=canonical.dumps(call.arguments), raw=raw)
    except (RecordError, RecursionError):
        return bad_call(call_id, raw, ParseStatus.NOT_JSON, "arguments cannot be written as JSON")


def bad_call(call_id: str, raw: str, status: ParseStatus, error: str, call: Call | None = None) -> ToolCall:
    """A call that must not run; `call` is what the lenient parser reads in it."""
    if call is not None:
        good = make_call(call_id, raw, call)
        return (
            good.model_copy(update={"status": ParseStatus.SALVAGEABLE, "error": error}) if good.ok else good
        )
    return ToolCall(call_id=call_id, arguments="", raw=raw, status=status, error=error)


def salvage(text: str) -> Call | None:
    """The call a lenient reader sees in `text`: code fence, trailing text, lost braces, Python quotes,
    arguments given as a string or under "parameters". None where even that fails, or where reading would
    mean choosing (duplicate keys, NaN)."""
    body = _unfenced(text.strip())
    if not body.startswith("{"):
        return None
    for candidate in (body, body + "}", body + "}}"):
        try:
            return _loose_call(read_json(candidate)[0])
        except AmbiguousJsonError:
            return None
        except ValueError:
            continue
    return _python_call(body)


def _python_call(text: str) -> Call | None:
    """A call written as a Python dict."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler warns of odd escapes in what a model wrote
            value = ast.literal_eval(text)
        return _loose_call(read_json(canonical.dumps(value))[0])
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def take_reasoning(text: str) -> tuple[str, str]:
    """Reasoning in a leading `<think>` block, and the rest; an unclosed block swallows everything."""
    opening, closing = "<think>", "</think>"
    body = text.lstrip()
    if not body.startswith(opening):
        return "", text
    reasoning, _, rest = body.removeprefix(opening).partition(closing)
    return reasoning.strip(), rest


def _loose_call(value: Any) -> Call:
    if isinstance(value, dict) and "arguments" not in value and "parameters" in value:
        value = {**value, "arguments": value["parameters"]}
    if isinstance(value, dict) and isinstance(value.get("arguments"), str):
        value = {**value, "arguments": read_json(value["arguments"])[0]}
    return as_call(value)


def _unfenced(text: str) -> str:
    if not text.startswith("```"):
        return text
    first_line, _, rest = text.partition("\n")
    return rest.split("```", 1)[0].strip() if len(first_line) <= 12 else text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [key for key, _ in pairs]
        _refuse(f"duplicate key: {next(key for key in names if names.count(key) > 1)}")
    return value


def _refuse(reason: str) -> Any:
    raise AmbiguousJsonError(reason)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
