"""A tool's schema from its Python signature and docstring, and the check of a call's arguments against it.

Decides how annotations become JSON Schema: enums and Literals become `enum`, `X | None = None` becomes an
optional X, unions stay `anyOf`, nested pydantic models are inlined; titles and null defaults are dropped,
because every key of a schema is paid for in prompt tokens. Arguments are checked in strict JSON mode: "3" and
true are not integers, unknown names are refused. Not covered: `*args`, `**kwargs`, positional-only
parameters.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from data import canonical
from data.messages import ToolSpec
from pipeline.errors import ConfigError

_ARGUMENT_LINE = re.compile(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


class ArgumentsError(ValueError):
    """A call's arguments break the tool's schema; the text is short and names the argument."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool shows (`spec`) and how it reads its arguments (`bind`)."""

    spec: ToolSpec
    model: type[BaseModel]
    fields: tuple[tuple[str, str], ...]
    """(field of `model`, parameter of the function), in order."""

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function, typed. Raises ArgumentsError."""
        try:
            values = self.model.__pydantic_validator__.validate_json(canonical.dumps(arguments), strict=True)
        except ValidationError as error:
            raise ArgumentsError(_first_problems(error)) from None
        return {
            name: getattr(values, field) for field, name in self.fields if field in values.model_fields_set
        }


def signature_of(function: Callable[..., Any], *, name: str = "", description: str = "") -> Signature:
    """The signature of `function`; a leading `self` is skipped. Raises ConfigError."""
    shown = name or function.__name__
    summary, argument_texts = parse_docstring(inspect.getdoc(function) or "")
    if not (description or summary):
        raise ConfigError(
            f"tool {shown} has no docstring; its first paragraph is what the model is told, write one"
        )
    fields: dict[str, Any] = {}
    names: list[tuple[str, str]] = []
    hints = get_type_hints(function, include_extras=True)
    for parameter in _parameters(function, shown):
        if parameter.name not in hints:
            raise ConfigError(
                f"parameter {parameter.name} of tool {shown} has no annotation; add one, e.g. `: str`"
            )
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        text = argument_texts.get(parameter.name)
        # Fields are numbered so that no parameter name can collide with an attribute of BaseModel.
        field = f"p{len(names)}"
        fields[field] = (hints[parameter.name], Field(default, alias=parameter.name, description=text))
        names.append((field, parameter.name))
    model = create_model(shown, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)
    spec = ToolSpec(
        name=shown, description=description or summary, parameters=canonical.dumps(_compact(model))
    )
    return Signature(spec=spec, model=model, fields=tuple(names))


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The first paragraph on one line, and the texts under `Args:` by parameter name."""
    head, _, rest = text.partition("Args:")
    summary = " ".join(head.split("\n\n")[0].split())
    arguments: dict[str, str] = {}
    current = ""
    for line in rest.splitlines()[1:]:
        if line and not line[0].isspace():
            break
        match = _ARGUMENT_LINE.match(line)
        if match:
            current = match[1]
            arguments[current] = match[2].strip()
        elif current and line.strip():
            arguments[current] = f"{arguments[current]} {line.strip()}".strip()
    return summary, arguments


def _parameters(function: Callable[..., Any], shown: str) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        del parameters[0]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                f"parameter {parameter.name} of tool {shown} is {parameter.kind.description}; "
                "a tool takes named parameters only"
            )
    return parameters


def _compact(model: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema of the parameters without titles, references and null defaults."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.pop("$defs", {})
    schema.pop(
        "additionalProperties", None
    )  # unknown names are refused anyway; the key costs tokens in each tool
    clean = _clean(schema, definitions, ())
    result = {"type": "object", "properties": clean.get("properties", {})}
    if clean.get("required"):
        result["required"] = clean["required"]
    if definitions and "$ref" in canonical.dumps(result):
        result["$defs"] = {name: _clean(body, definitions, (name,)) for name, body in definitions.items()}
    return result


def _clean(node: Any, definitions: dict[str, Any], open_names: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_clean(item, definitions, open_names) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(node, definitions, open_names)
    if node.get("default", ...) is None:
        node = _without_null(node)
    cleaned: dict[str, Any] = {}
    for key, value in node.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "properties":
            cleaned[key] = {name: _clean(body, definitions, open_names) for name, body in value.items()}
        elif key in ("default", "enum", "const", "examples", "required"):
            cleaned[key] = value
        else:
            cleaned[key] = _clean(value, definitions, open_names)
    return cleaned


def _inline(node: dict[str, Any], definitions: dict[str, Any], open_names: tuple[str, ...]) -> dict[str, Any]:
    name = node["$ref"].rsplit("/", 1)[-1]
    beside = {key: value for key, value in node.items() if key not in ("$ref", "title")}
    if name in open_names:  # recursive models keep their reference
        return {"$ref": node["$ref"], **beside}
    body = _clean(definitions[name], definitions, (*open_names, name))
    return {**body, **beside}


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """`X | None = None` shown as an optional X."""
    rest = {key: value for key, value in node.items() if key not in ("default", "anyOf")}
    options = [option for option in node.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        return {**options[0], **rest}
    return {"anyOf": options, **rest} if options else rest


def _first_problems(error: ValidationError, *, limit: int = 3) -> str:
    problems = []
    for item in error.errors(include_url=False, include_context=False)[:limit]:
        where = ".".join(str(step) for step in item["loc"])
        text = {"missing": "missing argument", "extra_forbidden": "unknown argument"}.get(
            item["type"], item["msg"]
        )
        problems.append(
            f"{text}: {where}" if item["type"] in ("missing", "extra_forbidden") else f"{where}: {text}"
        )
    return "; ".join(problems)
