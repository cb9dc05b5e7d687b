"""Whether a parsed call fits the tools that were shown; used by the loop, the filters and the rewards.

Follows JSON Schema, so a boolean is no integer; two habits of tool schemas are stricter than the
standard: a parameter not listed is an error, unless the schema says additionalProperties, and 1.0 is no
integer, because that is what was written. Flat schemas take a fast path; others go through jsonschema.
Problems are short and name the parameter: they are what a small model reads next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from data import canonical
from data.errors import ConfigError, RecordError
from data.messages import ParseStatus, ToolCall, ToolSpec

_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_NOTES = frozenset({"description", "title", "default", "examples", "format"})
_FLAT = _NOTES | {"type", "enum", "minimum", "maximum"}
_FLAT_OBJECT = _NOTES | {"type", "properties", "required", "additionalProperties"}


def check_call(call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCall:
    """`call` with status UNKNOWN_TOOL or BAD_ARGUMENTS and an error where it does not fit `tools`.

    A call that already failed to parse is returned as it is.
    """
    if not call.ok:
        return call
    spec = next((tool for tool in tools if tool.name == call.name), None)
    if spec is None:
        shown = ", ".join(tool.name for tool in tools) or "none"
        return _failed(call, ParseStatus.UNKNOWN_TOOL, f"no tool {call.name!r}; tools: {shown}")
    try:
        arguments = call.parsed_arguments()
    except (ValueError, RecordError) as error:
        return _failed(call, ParseStatus.BAD_ARGUMENTS, f"arguments unreadable: {error}")
    problems = argument_problems(arguments, canonical.loads(spec.parameters))
    return _failed(call, ParseStatus.BAD_ARGUMENTS, "; ".join(problems)) if problems else call


def argument_problems(arguments: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """What is wrong with `arguments` under `schema`, one short line each; empty where they fit.

    Raises ConfigError where `schema` itself is no JSON Schema.
    """
    properties: dict[str, Any] = schema.get("properties") or {}
    missing = [f"missing argument: {name}" for name in schema.get("required") or [] if name not in arguments]
    extra = list(_extra(arguments, properties, schema))
    flat = not schema.keys() - _FLAT_OBJECT and not isinstance(schema.get("additionalProperties"), dict)
    if flat and all(_is_flat(value) for value in properties.values()):
        wrong = [
            problem
            for name, value in arguments.items()
            if name in properties and (problem := _flat_problem(name, value, properties[name]))
        ]
    else:
        wrong = list(_schema_problems(arguments, schema))
    return missing + extra + wrong


def _failed(call: ToolCall, status: ParseStatus, error: str) -> ToolCall:
    return call.model_copy(update={"status": status, "error": error})


def _extra(arguments: dict[str, Any], properties: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    composed = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"}
    if composed & schema.keys() and schema.get("additionalProperties") is not False:
        return
    patterns = schema.get("patternProperties")
    for name in arguments:
        if name not in properties and not patterns:
            known = ", ".join(properties) or "none"
            yield f"unknown argument: {name}; arguments: {known}"


def _is_flat(schema: Any) -> bool:
    return isinstance(schema, dict) and not schema.keys() - _FLAT and _flat_type(schema.get("type", "string"))


def _flat_type(name: Any) -> bool:
    return isinstance(name, str) and name in _TYPES


def _flat_problem(name: str, value: Any, schema: dict[str, Any]) -> str:
    wanted = schema.get("type")
    if wanted is not None and not _TYPES[wanted](value):
        return f"wrong type: {name} must be {wanted}, got {_shown(value)}"
    if "enum" in schema and not any(_same(value, allowed) for allowed in schema["enum"]):
        choices = ", ".join(_shown(allowed) for allowed in schema["enum"])
        return f"wrong value: {name} must be one of {choices}; got {_shown(value)}"
    if not _TYPES["number"](value):
        return ""
    if "minimum" in schema and value < schema["minimum"]:
        return f"wrong value: {name} must be at least {schema['minimum']}, got {_shown(value)}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"wrong value: {name} must be at most {schema['maximum']}, got {_shown(value)}"
    return ""


def _schema_problems(arguments: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    from referencing.exceptions import Unresolvable

    try:
        errors = list(_validator(canonical.dumps(schema)).iter_errors(arguments))
    except Unresolvable as error:
        raise ConfigError(
            f"tool schema refers to {error.ref}, which is not in it; inline the reference"
        ) from error
    for found in sorted(errors, key=lambda item: [str(step) for step in item.path]):
        if not found.path and found.validator in ("required", "additionalProperties"):
            continue
        where = ".".join(str(step) for step in found.path) or "arguments"
        yield f"wrong value: {where}: {found.message[:160]}"


@lru_cache(maxsize=1024)
def _validator(schema_text: str) -> Any:
    """A validator that never fetches a reference from the network."""
    from jsonschema import Draft202012Validator, validators
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    schema = canonical.loads(schema_text)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(
            f"tool schema is no JSON Schema: {error.message}; fix the tool's parameters"
        ) from error
    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: _TYPES["integer"](value))
    extend: Any = validators.extend
    strict = extend(Draft202012Validator, type_checker=checker)
    return strict(schema, registry=Registry())


def _same(value: Any, allowed: Any) -> bool:
    return bool(value == allowed) and isinstance(value, bool) == isinstance(allowed, bool)


def _shown(value: Any) -> str:
    text = canonical.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
