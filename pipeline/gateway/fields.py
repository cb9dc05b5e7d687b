"""Reading a request body strictly: what is not understood is refused by name, never dropped in silence."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data import canonical
from data.errors import RecordError
from data.messages import ParseStatus, ToolCall, ToolSpec, Turn, text_parts
from data.messages import ToolResult as Result
from data.messages import tool as tool_turn
from pipeline.checks.calls import argument_problems
from pipeline.engines.base import Sampling
from pipeline.errors import ConfigError
from pipeline.gateway.asks import RequestError

MAX_STOPS = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What this gateway lets a request ask for."""

    defaults: Sampling
    """For fields that a request leaves out."""
    max_choices: int = 16
    allow_truncated: bool = True
    """Whether top_p < 1, top_k and min_p are taken; GRPO refuses trajectories sampled with them."""


class Fields:
    """One JSON object whose fields are taken one by one; null counts as absent."""

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, Mapping):
            raise RequestError(
                f"{where or 'the body'} must be a JSON object, got {_kind(value)}", param=where
            )
        self._left = {name: item for name, item in value.items() if item is not None}
        self._where = where

    def path(self, name: str) -> str:
        """`name` as errors call it."""
        return f"{self._where}.{name}" if self._where else name

    def take(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value of a field, of one of the JSON types `kind`; `default` where it is absent."""
        if name not in self._left:
            return default
        value = self._left.pop(name)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if float in kinds and is_number:
            return self._finite(name, value)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(_NAMES[one] for one in kinds)
            raise RequestError(
                f"{self.path(name)} must be {names}, got {_kind(value)}", param=self.path(name)
            )
        return value

    def _finite(self, name: str, value: int | float) -> float:
        try:
            if math.isfinite(number := float(value)):
                return number
        except OverflowError:
            pass  # an integer beyond every float
        raise RequestError(f"{self.path(name)} must be a finite number", param=self.path(name))

    def need(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """Like `take`, but the field must be there."""
        value = self.take(name, kind)
        if value is None:
            raise RequestError(f"{self.path(name)} is missing", param=self.path(name))
        return value

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """A number within bounds."""
        value = float(self.take(name, float, default))
        if not least <= value <= most:
            raise RequestError(
                f"{self.path(name)} must be {least:g} to {most:g}, got {value:g}", param=self.path(name)
            )
        return value

    def count(self, name: str, default: int, *, least: int = 1, most: int = 2**31 - 1) -> int:
        """An integer within bounds."""
        value = int(self.take(name, int, default))
        if not least <= value <= most:
            raise RequestError(
                f"{self.path(name)} must be {least} to {most}, got {value}", param=self.path(name)
            )
        return value

    def limit(self, name: str) -> int | None:
        """A positive integer, None where the field is absent."""
        value = self.take(name, int)
        if value is not None and value < 1:
            raise RequestError(f"{self.path(name)} must be at least 1, got {value}", param=self.path(name))
        return None if value is None else int(value)

    def only(self, name: str, allowed: Collection[Any], why: str) -> None:
        """Take a field that may only have values without effect here (empty ones always may)."""
        value = self._left.pop(name, None)
        if value in ("", [], {}) or value is None or any(value == one for one in allowed):
            return
        shown = json.dumps(value)[:80]
        raise RequestError(f"{self.path(name)}={shown} cannot be honoured: {why}", param=self.path(name))

    def ignore(self, *names: str) -> None:
        """Take fields that change nothing about the reply."""
        for name in names:
            self._left.pop(name, None)

    def end(self) -> None:
        """Refuse what was not taken."""
        if self._left:
            name = self.path(next(iter(self._left)))
            raise RequestError(f"{name} is not supported by this gateway; leave it out", param=name)


def read_sampling(fields: Fields, limits: Limits, *, max_tokens: int | None) -> Sampling:
    """temperature, top_p, top_k, min_p and seed, and `max_tokens` where the request names it."""
    base = limits.defaults
    sampling = replace(
        base,
        temperature=fields.number("temperature", base.temperature, least=0.0, most=2.0),
        top_p=fields.number("top_p", base.top_p, least=1e-6, most=1.0),
        top_k=max(0, fields.count("top_k", base.top_k, least=-1)),
        min_p=fields.number("min_p", base.min_p, least=0.0, most=1.0),
        seed=fields.count("seed", -1, least=-(2**63), most=2**63 - 1),
        max_tokens=max_tokens or base.max_tokens,
    )
    if sampling.truncated and not limits.allow_truncated:
        name = "top_p" if sampling.top_p < 1.0 else "top_k" if sampling.top_k else "min_p"
        raise RequestError(
            f"{name} truncates the distribution, which this gateway refuses because such replies cannot be "
            "trained on by GRPO; leave it out",
            param=name,
        )
    seed = None if sampling.seed == -1 else (sampling.seed or 0) % 2**31
    return replace(sampling, seed=seed)


def read_stops(value: Any, param: str) -> tuple[str, ...]:
    """Stop strings, given as one or as a list."""
    stops = [value] if isinstance(value, str) else value or []
    if len(stops) > MAX_STOPS or not all(isinstance(one, str) and one for one in stops):
        raise RequestError(f"{param} must be up to {MAX_STOPS} non-empty strings", param=param)
    return tuple(stops)


def read_text(content: Any, kinds: Collection[str], param: str) -> str:
    """Text given as a string or as a list of text parts. Other media are refused."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{param} must be a string or a list of parts, got {_kind(content)}", param=param)
    return "".join(_part_text(Fields(part, f"{param}.{i}"), kinds) for i, part in enumerate(content))


def _part_text(part: Fields, kinds: Collection[str]) -> str:
    kind = part.need("type", str)
    if kind not in kinds:
        raise RequestError(
            f"{part.path('type')}: {kind!r} parts cannot be shown to this model, only text",
            param=part.path("type"),
        )
    text = str(part.take("text", str, ""))
    part.ignore("annotations", "logprobs", "cache_control", "citations")
    part.end()
    return text


def read_tool(fields: Fields, schema: str) -> ToolSpec:
    """A tool from its name, description and the field `schema`."""
    name = fields.need("name", str)
    parameters = fields.take(schema, dict, {"type": "object", "properties": {}})
    fields.ignore("cache_control")
    fields.only("strict", [False, True], "")  # shown alike; arguments are checked, never constrained
    description = fields.take("description", str, "")
    fields.end()
    try:
        argument_problems({}, parameters)
    except (ConfigError, AttributeError, TypeError, RecursionError) as error:
        raise RequestError(
            f"{fields.path(schema)} is no JSON Schema of an object: {error}", param=fields.path(schema)
        ) from error
    return ToolSpec(name=name, description=description, parameters=canonical.dumps(parameters))


def read_call(call_id: str, name: str, arguments: Any) -> ToolCall:
    """A call in the history: arguments as JSON text or as an object."""
    text = arguments if isinstance(arguments, str) else canonical.dumps(arguments)
    try:
        value = canonical.loads(text or "{}")
    except (ValueError, RecordError, RecursionError) as error:
        return ToolCall(
            call_id=call_id, name=name, arguments="", raw=text, status=ParseStatus.NOT_JSON, error=str(error)
        )
    if not isinstance(value, dict):
        wrong = f"arguments are {_kind(value)}, not an object"
        return ToolCall(
            call_id=call_id, name=name, arguments="", raw=text, status=ParseStatus.NOT_A_CALL, error=wrong
        )
    return ToolCall(call_id=call_id, name=name, arguments=canonical.dumps(value))


def result_turn(call_id: str, text: str, turns: Sequence[Turn], param: str) -> Turn:
    """A tool turn that answers a call made in `turns`. RequestError where no such call was made."""
    for turn in reversed(turns):
        for call in turn.tool_calls:
            if call.call_id == call_id:
                return tool_turn(Result(call_id=call_id, name=call.name, parts=text_parts(text)))
    raise RequestError(f"{param} answers call {call_id!r}, which no message before it makes", param=param)


_NAMES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _kind(value: Any) -> str:
    return "null" if value is None else _NAMES.get(type(value), type(value).__name__)
