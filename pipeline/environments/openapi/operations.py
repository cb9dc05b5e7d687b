"""The operations of a document as tools: one argument object for path, query, header, cookie and body.

Decides: a tool is named by its operationId, else by method and path, made unique in document order; an
argument by its parameter, with its place in front where two parameters share a name; the properties of an
object body stand beside the parameters, any other body is the argument `body`. Parameters that carry
credentials are not shown. Not covered: callbacks, webhooks, links, `matrix` and `label` bodies, XML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data import canonical
from data.messages import ToolSpec
from pipeline.environments.openapi.document import Document
from pipeline.environments.openapi.schema import Side, plain_schema, shortened
from pipeline.errors import ConfigError

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_LOCATIONS = ("path", "query", "header", "cookie")
_NOT_PARAMETERS = frozenset(("accept", "content-type", "authorization"))
_DEFAULT_STYLE = {"path": "simple", "query": "form", "header": "simple", "cookie": "form"}
_BODY_KINDS = {
    "application/json": "json",
    "application/x-www-form-urlencoded": "form",
    "multipart/form-data": "multipart",
    "text/plain": "text",
}
_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter on the wire (`name`, `location`) and the argument it is filled from."""

    name: str
    location: str
    argument: str
    style: str = "form"
    explode: bool = True
    as_json: bool = False
    """Declared by `content`: the value travels as JSON text."""
    reserved: bool = False
    """`allowReserved`: characters such as / and : are sent as they are."""


@dataclass(frozen=True, slots=True)
class Body:
    """A request body: `fields` maps arguments to properties, or the argument `whole` is all of it."""

    kind: str
    media_type: str
    whole: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    required: bool = False
    binary: frozenset[str] = frozenset()
    """Properties sent as files."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: what is shown (`spec`) and how it is asked."""

    spec: ToolSpec
    method: str
    path: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    security: tuple[tuple[str, ...], ...]
    """Alternatives of schemes that must all be used; () for none."""
    response: str
    """JSON Schema of a successful answer as text; "{}" where the document says nothing."""

    @property
    def reads(self) -> bool:
        """Whether HTTP says that the call changes nothing."""
        return self.method in ("get", "head", "options")


def read_operations(document: Document, *, chosen: Sequence[str] = ()) -> dict[str, Operation]:
    """The operations by tool name, in document order, or those of `chosen` in its order. ConfigError."""
    listed = list(_listed(document))
    names = _unique([_name(item, method, path) for path, method, item, _ in listed])
    wanted = list(chosen or names)
    unknown = [name for name in wanted if name not in names]
    if unknown or not listed:
        raise ConfigError(f"{document.where} has no operation {unknown or ''}; it has: {', '.join(names)}")
    found = dict(zip(names, listed, strict=True))
    return {name: _operation(document, name, *found[name]) for name in wanted}


def _listed(document: Document) -> Iterator[tuple[str, str, dict[str, Any], list[Any]]]:
    """Path, method, operation, and the parameters its path gives to all of its operations."""
    for path, reference in document.value.get("paths", {}).items():
        item, _ = document.resolve(reference)
        if not isinstance(item, dict) or not path.startswith("/"):
            raise ConfigError(f"{document.where}: paths[{path!r}] is no path item; paths start with /")
        for method in METHODS:
            if isinstance(item.get(method), dict):
                yield path, method, item[method], item.get("parameters", [])


def _name(item: dict[str, Any], method: str, path: str) -> str:
    text = str(item.get("operationId") or f"{method}{path}")
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:_MAX_NAME] or method


def _unique(names: Sequence[str]) -> list[str]:
    """The names; a repeated one gets the first free number, and no number takes a name that is written."""
    taken, result = set(names), []
    seen: set[str] = set()
    for name in names:
        if name in seen:
            number = 2
            while f"{name[: _MAX_NAME - 4]}_{number}" in taken:
                number += 1
            name = f"{name[: _MAX_NAME - 4]}_{number}"
            taken.add(name)
        seen.add(name)
        result.append(name)
    return result


def _operation(
    document: Document, name: str, path: str, method: str, item: dict[str, Any], shared: list[Any]
) -> Operation:
    where = f"{document.where}: operation {name}"
    raw = _raw_parameters(document, [*shared, *item.get("parameters", [])], where)
    body, body_schema = _body(document, item, where)
    counts = _argument_counts(raw, body, body_schema)
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    parameters = []
    for node in raw:
        argument = _argument(node["name"], node["in"], counts)
        parameters.append(_parameter(node, argument))
        part = _parameter_schema(document, node, f"{where}, parameter {node['name']}")
        _add(schema, argument, part, required=node["in"] == "path" or node.get("required") is True)
    if body is not None:
        body = _add_body(schema, body, body_schema, counts)
    _refuse_unfilled_path(path, parameters, where)
    return Operation(
        spec=ToolSpec(name=name, description=_description(item), parameters=_dumps(schema, where)),
        method=method,
        path=path,
        parameters=tuple(parameters),
        body=body,
        security=_security(document, item),
        response=canonical.dumps(_response(document, item, where)),
    )


def _raw_parameters(document: Document, nodes: list[Any], where: str) -> list[dict[str, Any]]:
    """The resolved parameters an agent fills in; an operation's own replace those of its path."""
    credentials = {
        (scheme.get("in"), scheme.get("name"))
        for scheme in security_schemes(document).values()
        if scheme.get("type") == "apiKey"
    }
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for node in nodes:
        item, _ = document.resolve(node)
        key = (str(item.get("in")), str(item.get("name")))
        if key[0] not in _LOCATIONS or not item.get("name"):
            raise ConfigError(f"{where}: parameter {key[1]!r} is in {key[0]!r}; in: {', '.join(_LOCATIONS)}")
        if key not in credentials and not (key[0] == "header" and key[1].lower() in _NOT_PARAMETERS):
            found[key] = item
    return list(found.values())


def security_schemes(document: Document) -> dict[str, dict[str, Any]]:
    """The document's security schemes by name."""
    schemes = document.value.get("components", {}).get("securitySchemes", {})
    return {name: document.resolve(scheme)[0] for name, scheme in schemes.items()}


def _argument_counts(raw: list[dict[str, Any]], body: Body | None, schema: dict[str, Any]) -> dict[str, int]:
    names = [_clean(node["name"]) for node in raw]
    if body is not None:
        names += [body.whole] if body.whole else [_clean(name) for name in schema["properties"]]
    return {name: names.count(name) for name in names}


def _argument(name: str, place: str, counts: Mapping[str, int]) -> str:
    clean = _clean(name)
    return clean if counts[clean] == 1 else f"{place}_{clean}"


def _clean(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_") or "value"


def _parameter(node: dict[str, Any], argument: str) -> Parameter:
    style = node.get("style", _DEFAULT_STYLE[node["in"]])
    return Parameter(
        name=node["name"],
        location=node["in"],
        argument=argument,
        style=style,
        explode=bool(node.get("explode", style == "form")),
        as_json="content" in node,
        reserved=node.get("allowReserved") is True,
    )


def _parameter_schema(document: Document, node: dict[str, Any], where: str) -> dict[str, Any]:
    content: dict[str, Any] = next(iter(node.get("content", {}).values()), {})
    schema = node.get("schema", content.get("schema", {}))
    part = plain_schema(document, schema, side=Side.REQUEST, where=where)
    if isinstance(node.get("description"), str):
        part["description"] = shortened(node["description"])
    return part


def _add(schema: dict[str, Any], argument: str, part: dict[str, Any], *, required: bool) -> None:
    schema.setdefault("$defs", {}).update(part.pop("$defs", {}))
    schema["properties"][argument] = part
    if required:
        schema.setdefault("required", []).append(argument)


def _body(document: Document, item: dict[str, Any], where: str) -> tuple[Body | None, dict[str, Any]]:
    node, _ = document.resolve(item.get("requestBody"))
    if not isinstance(node, dict):
        return None, {}
    offered = node.get("content", {})
    media = next((one for one in sorted(offered, key=_preference) if _body_kind(one)), None)
    if media is None:
        if node.get("required") is not True:
            return None, {}
        raise ConfigError(f"{where}: its body is {', '.join(offered)}; read are {', '.join(_BODY_KINDS)}")
    source = offered[media].get("schema", {})
    schema = plain_schema(document, source, side=Side.REQUEST, where=f"{where}, body")
    body = Body(
        kind=_body_kind(media),
        media_type=media,
        required=node.get("required") is True,
        whole="" if _is_flat_object(schema) and _body_kind(media) != "text" else "body",
        binary=frozenset(name for name, part in schema.get("properties", {}).items() if _is_binary(part)),
    )
    return body, schema


def _preference(media: str) -> int:
    kinds = list(_BODY_KINDS.values())
    return kinds.index(_body_kind(media)) if _body_kind(media) else len(kinds)


def _body_kind(media: str) -> str:
    plain = media.split(";")[0].strip().lower()
    return _BODY_KINDS.get(plain, "json" if plain.endswith("+json") else "")


def _is_flat_object(schema: dict[str, Any]) -> bool:
    composed = {"oneOf", "anyOf", "allOf", "not", "$ref", "minProperties"} & schema.keys()
    return bool(schema.get("properties")) and not composed and not schema.get("additionalProperties")


def _is_binary(part: dict[str, Any]) -> bool:
    both = (part, part.get("items"))
    return any(isinstance(one, dict) and one.get("format") in ("binary", "byte") for one in both)


def _add_body(schema: dict[str, Any], body: Body, part: dict[str, Any], counts: Mapping[str, int]) -> Body:
    if body.whole:
        argument = _argument(body.whole, "request", counts)
        _add(schema, argument, part, required=body.required)
        return Body(body.kind, body.media_type, argument, {}, body.required, body.binary)
    schema.setdefault("$defs", {}).update(part.pop("$defs", {}))
    names = {name: _argument(name, "body", counts) for name in part["properties"]}
    for name, item in part["properties"].items():
        needed = body.required and name in part.get("required", ())
        _add(schema, names[name], item, required=needed)
    fields = {argument: name for name, argument in names.items()}
    return Body(body.kind, body.media_type, "", fields, body.required, body.binary)


def _refuse_unfilled_path(path: str, parameters: Sequence[Parameter], where: str) -> None:
    filled = {item.name for item in parameters if item.location == "path"}
    missing = sorted(set(re.findall(r"{([^}]+)}", path)) ^ filled)
    if missing:
        raise ConfigError(f"{where}: {missing} are not both in the path {path} and path parameters")


def _security(document: Document, item: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    asked = item.get("security", document.value.get("security"))
    return tuple(tuple(option) for option in asked or () if option)


def _description(item: dict[str, Any]) -> str:
    return shortened(str(item.get("summary") or item.get("description") or ""))


def _dumps(schema: dict[str, Any], where: str) -> str:
    """The argument schema as text, checked to be one. Raises ConfigError."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not schema.get("$defs"):
        schema.pop("$defs", None)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(f"{where}: no JSON Schema: {error.message}") from error
    return canonical.dumps(schema)


def _response(document: Document, item: dict[str, Any], where: str) -> dict[str, Any]:
    responses = item.get("responses", {})
    key = next((one for one in sorted(responses) if str(one).startswith("2")), "default")
    node, _ = document.resolve(responses.get(key, {}))
    for media, content in (node or {}).get("content", {}).items():
        if _body_kind(media) == "json" and "schema" in content:
            return plain_schema(
                document, content["schema"], side=Side.RESPONSE, where=f"{where}, answer {key}"
            )
    return {}
