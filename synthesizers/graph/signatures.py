"""Signatures read from tools: parameters from the JSON Schema, return fields from what is known of results.

Return fields are documented (a schema of the answer), else observed (fields that results held), else guessed
from the tool's name and description. Schemas and results are foreign: depth and number of ports are bounded.
Not covered: `$ref`, `anyOf` and the like, which read as type "any".
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data import canonical
from data.messages import ToolSpec
from pipeline.errors import ConfigError
from synthesizers.graph.fields import Field, Shape, fields_of
from synthesizers.graph.ports import ANY, Port, PortOrigin, Signature
from synthesizers.graph.words import PREPOSITIONS, SILENT, VERBS, parts, words

MAX_PORTS = 64
"""Return fields kept per tool, documented ones in order, observed ones by how many results hold them."""
_MAX_DEPTH = 5
_TYPES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "list": "array",
    "str": "string",
    "int": "integer",
}
_FORMATS = {
    "date": Shape.DATE,
    "date-time": Shape.DATE,
    "time": Shape.TIME,
    "email": Shape.EMAIL,
    "uri": Shape.URL,
    "uuid": Shape.ID,
}
_UNIT_WORDS = {
    **dict.fromkeys(("date", "day", "birthday", "deadline"), Shape.DATE),
    "time": Shape.TIME,
    "email": Shape.EMAIL,
    **dict.fromkeys(("url", "website", "link"), Shape.URL),
    **dict.fromkeys(("price", "cost", "fare", "budget", "balance", "fee", "salary"), Shape.MONEY),
    **dict.fromkeys(("file", "filename"), Shape.FILE),
}
"""Words at the end of a name that say the unit. Ours."""
_RETURNS = re.compile(r"\b[Rr]eturns? (?:the |a |an |all |list of )*((?:[a-z]+[ ]?){1,4})")


def signature_of(
    tool: ToolSpec,
    *,
    category: str = "",
    returns: Mapping[str, Any] | None = None,
    results: Iterable[str] = (),
) -> Signature:
    """The signature of one tool. `returns` is a JSON Schema of its answer, `results` texts it answered."""
    schema = canonical.loads(tool.parameters)
    outputs = {port.path: port for port in _documented(returns)} if returns else {}
    for port in _observed(results):
        outputs.setdefault(port.path, port)
    ports = tuple(outputs.values())[:MAX_PORTS] or tuple(_guessed(tool))
    return Signature(tool, category, tuple(_inputs(schema)), ports)


def signatures_of(
    tools: Iterable[ToolSpec],
    *,
    category: str = "",
    returns: Mapping[str, Mapping[str, Any]] | None = None,
    results: Mapping[str, Iterable[str]] | None = None,
) -> list[Signature]:
    """The signatures of one tool set; `returns` and `results` by tool name."""
    return [
        signature_of(
            tool,
            category=category,
            returns=(returns or {}).get(tool.name),
            results=(results or {}).get(tool.name, ()),
        )
        for tool in tools
    ]


def _inputs(schema: Any) -> Iterator[Port]:
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise ConfigError(
            f"tool parameters must be a JSON Schema object with properties, got {schema!r:.120}"
        )
    required = schema.get("required") or []
    for name, node in schema.get("properties", {}).items():
        yield _port(name, node if isinstance(node, dict) else {}, required=name in required)


def _documented(schema: Mapping[str, Any]) -> Iterator[Port]:
    """The leaves of a return schema, in order; an object without described members is a leaf."""
    stack: list[tuple[str, Any, int]] = [("", schema, 0)]
    while stack:
        path, node, depth = stack.pop()
        if not isinstance(node, dict):
            continue
        properties, items = node.get("properties"), node.get("items")
        if isinstance(properties, dict) and depth < _MAX_DEPTH:
            inner = [
                (f"{path}.{name}" if path else name, item, depth + 1) for name, item in properties.items()
            ]
            stack += reversed(inner[:MAX_PORTS])
        elif isinstance(items, dict) and items.get("properties") and depth < _MAX_DEPTH:
            stack.append((f"{path}[]", items, depth + 1))
        elif path:
            yield _port(path, node, required=False)


def _port(path: str, node: Mapping[str, Any], *, required: bool) -> Port:
    items, enum = node.get("items"), node.get("enum")
    return Port(
        path=path,
        type=_type(node),
        item=_type(items) if isinstance(items, dict) else "",
        format=str(node.get("format", "")),
        enum=tuple(map(canonical.dumps, enum[:200])) if isinstance(enum, list) else (),
        description=str(node.get("description", ""))[:500],
        required=required,
        default=canonical.dumps(node["default"]) if "default" in node else "",
        shape=_FORMATS.get(str(node.get("format", ""))) or _unit(path),
    )


def _type(node: Mapping[str, Any]) -> str:
    named = node.get("type", ANY)
    if isinstance(named, list):
        some = [kind for kind in named if kind != "null"]
        named = some[0] if len(some) == 1 else ANY
    return _TYPES.get(named, named) if isinstance(named, str) else ANY


def _unit(path: str) -> Shape | None:
    named = words(path.rsplit(".", maxsplit=1)[-1])
    return _UNIT_WORDS.get(named[-1]) if named else None


def _observed(results: Iterable[str]) -> Iterator[Port]:
    """The fields that results held, those of most results first."""
    held: Counter[str] = Counter()
    found: dict[str, list[Field]] = defaultdict(list)
    for text in results:
        fields = fields_of(text)
        held.update(dict.fromkeys(field.path for field in fields).keys())
        for field in fields:
            if len(found[field.path]) < MAX_PORTS:
                found[field.path].append(field)
    for path, _ in held.most_common(MAX_PORTS):
        types, shapes = ({field.type for field in found[path]}, {field.shape for field in found[path]})
        kind = "number" if types == {"integer", "number"} else types.pop() if len(types) == 1 else ANY
        shape = shapes.pop() if len(shapes) == 1 else None
        yield Port(path, kind, shape=shape, origin=PortOrigin.OBSERVED)


def _guessed(tool: ToolSpec) -> Iterator[Port]:
    """What a tool's name and description say it gives: `get_user_id_by_email` gives `user_id`."""
    named = parts(tool.name)
    if named and named[0] in SILENT:
        return
    verb = max((place for place, word in enumerate(named) if word in VERBS), default=-1)
    object_of_verb = _until_preposition(named[verb + 1 :]) or _until_preposition(named[: max(verb, 0)])
    said = _RETURNS.search(tool.description[:2_000])
    returned = _until_preposition(said[1].split()) if said else ()
    for path in dict.fromkeys(
        "_".join(found) for found in (object_of_verb, returned) if words("_".join(found))
    ):
        yield Port(path, shape=_unit(path), origin=PortOrigin.GUESSED)


def _until_preposition(named: Iterable[str]) -> tuple[str, ...]:
    taken: list[str] = []
    for word in named:
        if word in PREPOSITIONS:
            break
        taken.append(word)
    return tuple(taken[:5])
