"""A call's arguments as one HTTP request, by the document's styles.

Decides every style of OpenAPI for arrays and objects, and what an agent must not be able to do with a value:
leave its path segment, or start a new header. Credentials are no part of it (`client`). Not covered: objects
inside arrays in a query (sent as JSON text).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from data import canonical
from pipeline.environments.openapi.operations import Body, Operation, Parameter
from pipeline.environments.tools import ToolError

_RESERVED = ":/?@!$'()*,;"
_DELIMITERS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}

FilePart = tuple[str, tuple[str | None, bytes, str]]


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request without host and credentials. `path` and `query` are encoded."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    files: tuple[FilePart, ...] = ()


def build_request(operation: Operation, arguments: Mapping[str, Any]) -> ApiRequest:
    """The request of a call whose arguments fit the schema. ToolError for a value that cannot be sent."""
    try:
        return _build(operation, arguments)
    except UnicodeEncodeError as error:
        raise ToolError(f"arguments hold a character that cannot be sent: {error.reason}") from None


def _build(operation: Operation, arguments: Mapping[str, Any]) -> ApiRequest:
    path, query, headers, cookies = operation.path, [], {"accept": "application/json"}, []
    for item in operation.parameters:
        if item.argument not in arguments:
            continue
        value = arguments[item.argument]
        if item.location == "path":
            path = path.replace(f"{{{item.name}}}", _path_value(item, value))
        elif item.location == "query":
            query += list(_pairs(item, value))
        elif item.location == "header":
            headers[item.name.lower()] = _header_value(item, value)
        else:
            cookies += list(_pairs(item, value))
    if cookies:
        headers["cookie"] = "; ".join(cookies)
    content, files = _content(operation.body, arguments, headers)
    return ApiRequest(operation.method.upper(), path, "&".join(query), headers, content, files)


def text_of(value: Any) -> str:
    """A scalar as it stands in a URL; anything else as JSON text."""
    if isinstance(value, str):
        return value
    return "" if value is None else canonical.dumps(value)


def _path_value(item: Parameter, value: Any) -> str:
    parts = _flat(item, value)
    if not "".join(parts) or any(part.strip(".") == "" and part for part in parts):
        raise ToolError(f"{item.argument}: {text_of(value)!r} cannot stand in a path")
    encoded = [quote(part, safe="=" if item.explode and isinstance(value, dict) else "") for part in parts]
    if item.style == "label":
        return "." + ("." if item.explode else ",").join(encoded)
    if item.style == "matrix":
        return _matrix(item, value, encoded)
    return ",".join(encoded)


def _matrix(item: Parameter, value: Any, encoded: list[str]) -> str:
    if item.explode and isinstance(value, dict):
        return "".join(f";{part}" for part in encoded)
    if item.explode and isinstance(value, list):
        return "".join(f";{item.name}={part}" for part in encoded)
    return f";{item.name}={','.join(encoded)}"


def _flat(item: Parameter, value: Any) -> list[str]:
    """The parts of a value: items of an array; k, v, ... or k=v, ... of an object."""
    if item.as_json:
        return [canonical.dumps(value)]
    if isinstance(value, list):
        return [text_of(part) for part in value]
    if isinstance(value, dict):
        if item.explode:
            return [f"{key}={text_of(part)}" for key, part in value.items()]
        return [text_of(part) for pair in value.items() for part in pair]
    return [text_of(value)]


def _header_value(item: Parameter, value: Any) -> str:
    text = ",".join(_flat(item, value))
    if not text.isprintable() or not text.isascii():
        raise ToolError(f"{item.argument}: a header takes printable ASCII only")
    return text


def _pairs(item: Parameter, value: Any) -> Iterator[str]:
    """`name=value` pairs of a query or cookie, encoded."""

    def encode(part: Any) -> str:
        return quote(text_of(part), safe=_RESERVED if item.reserved else "")

    name = quote(item.name, safe="[]")
    if item.as_json:
        yield f"{name}={encode(canonical.dumps(value))}"
    elif isinstance(value, dict) and item.style == "deepObject":
        yield from _deep(name, value, encode)
    elif isinstance(value, dict) and item.explode:
        yield from (f"{quote(key, safe='')}={encode(part)}" for key, part in value.items())
    elif isinstance(value, list) and item.explode and item.style == "form":
        yield from (f"{name}={encode(part)}" for part in value)
    elif isinstance(value, list | dict):
        mark = _DELIMITERS.get(item.style, ",")
        yield f"{name}={mark.join(encode(part) for part in _flat(item, value))}"
    else:
        yield f"{name}={encode(value)}"


def _deep(name: str, value: Mapping[str, Any], encode: Any) -> Iterator[str]:
    for key, part in value.items():
        inner = f"{name}[{quote(key, safe='')}]"
        if isinstance(part, dict):
            yield from _deep(inner, part, encode)
        elif isinstance(part, list):
            yield from (f"{inner}={encode(item)}" for item in part)
        else:
            yield f"{inner}={encode(part)}"


def _content(
    body: Body | None, arguments: Mapping[str, Any], headers: dict[str, str]
) -> tuple[bytes | None, tuple[FilePart, ...]]:
    """Content or file parts; the content type goes into `headers`."""
    if body is None:
        return None, ()
    if body.whole:
        if body.whole not in arguments:
            return None, ()
        value = arguments[body.whole]
    else:
        value = {name: arguments[key] for key, name in body.fields.items() if key in arguments}
        if not value and not body.required:
            return None, ()
    if body.kind == "multipart" and isinstance(value, dict):
        return None, tuple(_file_parts(body, value))
    headers["content-type"] = body.media_type
    if body.kind == "form" and isinstance(value, dict):
        pairs = [pair for key, part in value.items() for pair in _form_pairs(key, part)]
        return "&".join(pairs).encode("ascii"), ()
    text = text_of(value) if body.kind == "text" else canonical.dumps(value)
    return text.encode("utf-8"), ()


def _form_pairs(name: str, value: Any) -> Iterator[str]:
    for part in value if isinstance(value, list) else [value]:
        yield f"{quote(name, safe='')}={quote(text_of(part), safe='')}"


def _file_parts(body: Body, value: Mapping[str, Any]) -> Iterator[FilePart]:
    for name, item in value.items():
        for part in item if isinstance(item, list) else [item]:
            data = text_of(part).encode("utf-8")
            if name in body.binary:
                yield name, (name, data, "application/octet-stream")
            else:
                kind = "application/json" if isinstance(part, dict) else "text/plain"
                yield name, (None, data, kind)
