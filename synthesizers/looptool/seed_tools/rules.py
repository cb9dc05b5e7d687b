"""The rules that a seed tool must keep: what is wrong with one, with a reason that can be counted.

A JSON Schema validator takes almost anything: `{"type": "object"}` without properties, an enum of one value,
a default of another type. A tool like that teaches nothing, or cannot be called. So every parameter has a
type and says what it is, `required` is written down, enums and limits leave a choice, a boolean is no
integer, and the example is a call that fits, asked for by somebody who says every value and names no tool.
Not covered: whether tool and topic make sense together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from data import canonical
from pipeline.checks.calls import argument_problems
from synthesizers.graph.fields import leaves
from synthesizers.looptool.seed_tools.demands import DEMANDS
from synthesizers.looptool.seed_tools.roles import ToolReply
from synthesizers.phrasing.wording import leaks_tool_name, mentions

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
_TYPES = ("string", "integer", "number", "boolean", "array", "object")
_NUMBERS = ("integer", "number")
_MANY = r"(?:[+*]|\{\d+,\d*\})"
_NESTED = re.compile(rf"\([^()]*{_MANY}[^()]*\){_MANY}")
"""A repeated group with a repetition in it: a string that nearly fits can take such a pattern forever."""


class Reason(StrEnum):
    """Why a tool is rejected."""

    BAD_NAME = "bad_name"
    DUPLICATE_NAME = "duplicate_name"
    BAD_TYPE = "bad_type"
    BAD_REQUIRED = "bad_required"
    BAD_LIMIT = "bad_limit"
    """An enum, default, pattern or range that leaves no choice or does not fit."""
    UNDESCRIBED = "undescribed"
    DEMAND_UNMET = "demand_unmet"
    BAD_EXAMPLE = "bad_example"
    INVALID_REPLY = "invalid_reply"
    """What was written is no tool at all."""


class Problem(NamedTuple):
    """The reason, and what is wrong in words for who wrote the tool."""

    reason: Reason
    detail: str


def tool_problem(
    tool: ToolReply, *, taken: Collection[str] = (), demands: Sequence[str] = ()
) -> Problem | None:
    """The first thing wrong with a tool, None where it is accepted.

    `taken`: names of the tools there are. `demands`: those it has to meet, by their words in `DEMANDS`.
    """
    # one after the other: later rules rely on earlier ones, and nothing is looked at behind the first problem
    return next(_problems(tool, taken, demands), None)


def _problems(tool: ToolReply, taken: Collection[str], demands: Sequence[str]) -> Iterator[Problem]:
    yield from _name_problems(tool, taken)
    yield from _parameter_problems(tool)
    yield from _answer_problems(tool)
    yield from _unmet(tool, demands)
    yield from _example_problems(tool)


def _name_problems(tool: ToolReply, taken: Collection[str]) -> Iterator[Problem]:
    if not _NAME.fullmatch(tool.name):
        yield Problem(
            Reason.BAD_NAME,
            f"name {tool.name!r} must be lower-case words joined by _, as find_room",
        )
    same = {name.replace("_", ""): name for name in taken}.get(tool.name.replace("_", ""))
    if same:
        yield Problem(Reason.DUPLICATE_NAME, f"there is a tool {same} already; invent another one")
    if not tool.description.strip():
        yield Problem(Reason.UNDESCRIBED, "description is empty")


def _parameter_problems(tool: ToolReply) -> Iterator[Problem]:
    if tool.parameters.get("type") != "object":
        yield Problem(Reason.BAD_TYPE, "parameters must have type object")
        return
    yield from _schema_problems(tool.parameters, "parameters", is_given=True)


def _answer_problems(tool: ToolReply) -> Iterator[Problem]:
    record = tool.returns.get("items") if tool.returns.get("type") == "array" else tool.returns
    if not isinstance(record, Mapping) or record.get("type") != "object":
        yield Problem(Reason.BAD_TYPE, "returns must be an object or an array of objects")
        return
    yield from _schema_problems(tool.returns, "returns", is_given=False)


def _schema_problems(schema: Any, where: str, *, is_given: bool) -> Iterator[Problem]:
    """What is wrong with a schema. `is_given`: of arguments, which must say more than answers."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        yield Problem(Reason.BAD_TYPE, f"{where}: type must be one of {', '.join(_TYPES)}, got {kind!r:.40}")
        return
    yield from _limit_problems(schema, kind, where)
    if kind == "array":
        yield from _schema_problems(schema.get("items"), f"{where}.items", is_given=is_given)
    elif kind == "object":
        yield from _object_problems(schema, where, is_given=is_given)


def _object_problems(schema: Mapping[str, Any], where: str, *, is_given: bool) -> Iterator[Problem]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping) or not properties:
        yield Problem(Reason.BAD_TYPE, f"{where}: an object needs properties")
        return
    if required is not None or is_given:
        yield from _required_problems(required, properties, where)
    for name, inner in properties.items():
        at = f"{where}.{name}"
        if is_given and not (isinstance(inner, Mapping) and str(inner.get("description") or "").strip()):
            yield Problem(Reason.UNDESCRIBED, f"{at} needs a description")
        yield from _schema_problems(inner, at, is_given=is_given)


def _required_problems(required: Any, properties: Collection[str], where: str) -> Iterator[Problem]:
    if not isinstance(required, list):
        yield Problem(Reason.BAD_REQUIRED, f"{where}: required must be a list of names ([] for none)")
        return
    unknown = [name for name in required if not isinstance(name, str) or name not in properties]
    if unknown:
        yield Problem(Reason.BAD_REQUIRED, f"{where}: required names {unknown[0]!r}, which is no property")
    elif len(set(required)) < len(required):
        yield Problem(Reason.BAD_REQUIRED, f"{where}: required names a property twice")


def _limit_problems(schema: Mapping[str, Any], kind: str, where: str) -> Iterator[Problem]:
    if "enum" in schema and (wrong := _enum_problem(schema["enum"], kind)):
        yield Problem(Reason.BAD_LIMIT, f"{where}: {wrong}")
    limits = [schema[name] for name in ("minimum", "maximum") if name in schema]
    if limits and (kind not in _NUMBERS or not all(_fits(limit, {"type": "number"}) for limit in limits)):
        yield Problem(Reason.BAD_LIMIT, f"{where}: minimum and maximum are numbers, of a number")
    elif len(limits) > 1 and limits[0] >= limits[1]:
        yield Problem(Reason.BAD_LIMIT, f"{where}: minimum {limits[0]} must be below maximum {limits[1]}")
    if "pattern" in schema and (kind != "string" or not _compiles(schema["pattern"])):
        yield Problem(Reason.BAD_LIMIT, f"{where}: pattern is a regular expression, of a string")
    elif "pattern" in schema and _NESTED.search(schema["pattern"]):
        yield Problem(Reason.BAD_LIMIT, f"{where}: pattern repeats a group that repeats; write it plainly")
    elif "default" in schema and not _fits(schema["default"], schema):
        yield Problem(Reason.BAD_LIMIT, f"{where}: default {schema['default']!r:.40} does not fit")


def _enum_problem(choices: Any, kind: str) -> str:
    if not isinstance(choices, list) or len({canonical.dumps(value) for value in choices}) < 2:
        return "an enum needs two different values or more"
    bad = [value for value in choices if not _fits(value, {"type": kind})]
    return f"{bad[0]!r:.40} in enum is no {kind}" if bad else ""


def _unmet(tool: ToolReply, demands: Sequence[str]) -> Iterator[Problem]:
    for word in demands:
        if not DEMANDS[word].met(tool):
            yield Problem(Reason.DEMAND_UNMET, f"this is not met: {DEMANDS[word].told}")


def _example_problems(tool: ToolReply) -> Iterator[Problem]:
    request, arguments = tool.example.request, tool.example.arguments
    for problem in argument_problems(arguments, tool.parameters):
        yield Problem(Reason.BAD_EXAMPLE, f"the example's arguments do not fit: {problem}")
    for value in leaves(arguments):
        said = value.replace("_", " ") if isinstance(value, str) else value
        if not (mentions(request, value) or mentions(request, said)):
            yield Problem(Reason.BAD_EXAMPLE, f"the example's request does not say {value!r:.60}")
    if not request.strip() or leaks_tool_name(request, [tool.name]):
        yield Problem(Reason.BAD_EXAMPLE, "the example's request must ask for something and name no tool")


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    return not argument_problems({"value": value}, {"properties": {"value": dict(schema)}})


def _compiles(pattern: Any) -> bool:
    try:
        re.compile(pattern)
    except (re.error, TypeError):
        return False
    return True
