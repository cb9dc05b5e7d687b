"""A tool's schema from its Python signature and docstring, and the check of a call's arguments against it.

Decides how annotations become JSON Schema: enums and Literals become `enum`, `X | None = None` becomes an
optional X, unions stay `anyOf`, nested pydantic models are inlined; titles and null defaults are dropped,
because every key of a schema is paid for in prompt tokens. Arguments are checked in strict JSON mode ("3" and
true are not integers, unknown names are refused) and arrive as the annotated Python objects: enum members,
models, dataclasses, tuples, dates. Which parameters a tool may have: `annotations`; texts: `docstrings`.
Not covered: types that JSON Schema cannot describe (one clear error).
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning

from data import canonical
from data.messages import ToolSpec
from pipeline.checks.calls import argument_problems
from pipeline.environments.annotations import Parameter, parameters_of
from pipeline.environments.docstrings import parse_docstring
from pipeline.errors import ConfigError


class ArgumentsError(ValueError):
    """A call's arguments break the tool's schema; the text is short and names the argument."""


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool shows (`spec`) and how it reads its arguments (`bind`)."""

    spec: ToolSpec
    model: type[BaseModel]
    fields: tuple[tuple[str, str], ...]
    """(field of `model`, parameter of the function), in order."""
    always: frozenset[str] = frozenset()
    """Fields whose default is passed where the call leaves them out."""

    def bind(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Keyword arguments for the function, typed. Raises ArgumentsError."""
        text = canonical.dumps(arguments)
        try:
            values = self.model.__pydantic_validator__.validate_json(text, strict=True)
        except ValidationError as error:
            raise ArgumentsError(_first_problems(error)) from None
        if ("true" in text or "false" in text) and '"enum"' in self.spec.parameters:
            # pydantic looks members up by equality, and to Python true is 1: an enumeration takes it.
            problems = argument_problems(arguments, canonical.loads(self.spec.parameters))
            if problems:
                raise ArgumentsError(problems[0].partition(": ")[2])
        given = values.model_fields_set | self.always
        return {name: getattr(values, field) for field, name in self.fields if field in given}


def signature_of(function: Callable[..., Any], *, name: str = "", description: str = "") -> Signature:
    """The signature of `function`; a leading `self` is skipped. Raises ConfigError."""
    shown = name or function.__name__
    summary, argument_texts = parse_docstring(inspect.getdoc(function) or "")
    if not (description or summary):
        raise ConfigError(
            f"tool {shown} has no docstring; its first paragraph is what the model is told, write one"
        )
    # Fields are numbered so that no parameter name can collide with an attribute of BaseModel.
    parameters = parameters_of(function, shown, argument_texts)
    numbered = [(f"p{index}", item) for index, item in enumerate(parameters)]
    model = _model(shown, numbered)
    spec = ToolSpec(
        name=shown, description=description or summary, parameters=canonical.dumps(_compact(shown, model))
    )
    names = tuple((field, item.name) for field, item in numbered)
    return Signature(spec, model, names, frozenset(field for field, item in numbered if item.always))


def _model(shown: str, numbered: list[tuple[str, Parameter]]) -> type[BaseModel]:
    """A model with these fields. Raises ConfigError naming the parameter pydantic refuses."""
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    fields: dict[str, Any] = {field: (item.annotation, item.field) for field, item in numbered}
    try:
        return create_model(shown, __config__=config, **fields)
    except (PydanticUserError, TypeError) as error:
        refused = [item for field, item in numbered if _is_refused(field, item, config)]
        where = f"parameter {refused[0].name}" if refused else "a parameter"
        raise ConfigError(f"{where} of tool {shown} has a type that cannot be read: {error}") from error


def _is_refused(field: str, item: Parameter, config: ConfigDict) -> bool:
    alone: dict[str, Any] = {field: (item.annotation, item.field)}
    try:
        create_model("Alone", __config__=config, **alone)
    except (PydanticUserError, TypeError):
        return True
    return False


def _compact(shown: str, model: type[BaseModel]) -> dict[str, Any]:
    """JSON Schema of the parameters without titles, references and null defaults. Raises ConfigError."""
    try:
        with warnings.catch_warnings():
            # A default that is no JSON value is not shown; the parameter is optional all the same.
            warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
            schema = model.model_json_schema(by_alias=True)
    except PydanticUserError as error:
        raise ConfigError(
            f"tool {shown} has a parameter that JSON Schema cannot describe: {error}"
        ) from error
    return compact(schema)


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameters schema without what only costs tokens: titles, null defaults, references.

    Unknown names at the top are refused by whoever runs the tool, so the key that says so is dropped, too. A
    schema with references to other places than its own `$defs` is returned as it is.
    """
    definitions = schema.get("$defs", {})
    if any(not name.startswith("#/$defs/") for name in _references(schema)):
        return schema
    top = {key: value for key, value in schema.items() if key not in ("$defs", "additionalProperties")}
    clean = _clean(top, definitions, ())
    result = {"type": "object", "properties": clean.get("properties", {}), **clean}
    result.pop("description", None)
    recursive = _referenced(result, definitions)
    return result | ({"$defs": recursive} if recursive else {})


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [name for item in node for name in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [name for item in node.values() for name in _references(item)]


def _referenced(node: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The definitions that a cleaned schema still refers to, cleaned."""
    found: dict[str, Any] = {}
    waiting = [node]
    while waiting:
        text = canonical.dumps(waiting.pop())
        for name in sorted(definitions.keys() - found.keys()):
            if f'"#/$defs/{name}"' in text:
                found[name] = _clean(definitions[name], definitions, (name,))
                waiting.append(found[name])
    return found


def _clean(node: Any, definitions: dict[str, Any], open_names: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_clean(item, definitions, open_names) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("default", ...) is None:
        node = _without_null(node)
    if "$ref" in node:
        return _inline(node, definitions, open_names)
    cleaned: dict[str, Any] = {}
    for key, value in node.items():
        if (key == "title" and isinstance(value, str)) or key == "discriminator":
            continue  # a discriminator's mapping names definitions that are inlined
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
        pair = (text, where) if item["type"] in ("missing", "extra_forbidden") else (where, text)
        problems.append(": ".join(filter(None, pair)))
    return "; ".join(problems)
