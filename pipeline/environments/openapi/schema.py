"""A schema of an OpenAPI document as one self-contained JSON Schema, short enough for a prompt.

Decides: references are inlined, recursive ones become `$defs`; 3.0's `nullable` and boolean
`exclusiveMinimum` are translated; `allOf` is merged where its parts do not disagree; read-only properties are
left out of requests, write-only ones out of responses; what only documents (titles, examples, xml, x-...) is
dropped; enums, defaults and constraints are kept. Not covered: what `discriminator` adds to `oneOf`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from data import canonical
from pipeline.environments.openapi.document import Document
from pipeline.errors import ConfigError

_MAX_NODES = 20_000
_MAX_DESCRIPTION = 200
_KEPT = frozenset(
    (
        *("type", "enum", "const", "default", "required", "pattern", "multipleOf", "uniqueItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    )
)
_NESTED = frozenset(("items", "additionalProperties", "not", "contains", "propertyNames"))
_NESTED_LISTS = frozenset(("oneOf", "anyOf", "prefixItems"))
_WIDTHS = frozenset(("int32", "int64", "float", "double"))


class Side(StrEnum):
    """Who sends what the schema describes."""

    REQUEST = "request"
    RESPONSE = "response"


def plain_schema(document: Document, schema: Any, *, side: Side, where: str) -> dict[str, Any]:
    """The self-contained schema, `$defs` included where it is recursive. Raises ConfigError."""
    return Expansion(document, side, where).finish(schema)


class Expansion:
    """The inlining of one schema, bounded, because nested references can grow without end."""

    def __init__(self, document: Document, side: Side, where: str) -> None:
        self._document, self._side, self._where = document, side, where
        self._hidden = "readOnly" if side is Side.REQUEST else "writeOnly"
        self._num_nodes = 0
        self._recursive: set[str] = set()
        self._names: dict[str, str] = {}

    def finish(self, schema: Any) -> dict[str, Any]:
        """Inline `schema`, then what recurs."""
        result = self._expand(schema, ())
        definitions: dict[str, Any] = {}
        while missing := sorted(self._recursive - definitions.keys()):
            for reference in missing:
                definitions[reference] = self._expand({"$ref": reference}, (), keep=True)
        if not definitions:
            return result
        named = {self._names[key]: body for key, body in sorted(definitions.items())}
        if "$ref" in result:  # the top stays an object that can be read without following anything
            result = {**named[result["$ref"].rsplit("/", 1)[-1]]}
        return {**result, "$defs": named}

    def _expand(self, node: Any, open_refs: tuple[str, ...], *, keep: bool = False) -> dict[str, Any]:
        self._num_nodes += 1
        if self._num_nodes > _MAX_NODES:
            raise ConfigError(f"{self._where}: the schema has more than {_MAX_NODES} parts; cut it down")
        if isinstance(node, bool):
            return {} if node else {"not": {}}
        if not isinstance(node, dict):
            raise ConfigError(f"{self._where}: {node!r:.60} is no schema")
        if isinstance(node.get("$ref"), str):
            reference = node["$ref"]
            if reference in open_refs or (reference in self._recursive and not keep):
                return {"$ref": f"#/$defs/{self._name(reference)}"}
            target, last = self._document.resolve(node)
            body = self._expand(target, (*open_refs, reference, last))
            recurs = reference in self._recursive and not keep
            return {"$ref": f"#/$defs/{self._name(reference)}"} if recurs else body
        return self._translate(node, open_refs)

    def _name(self, reference: str) -> str:
        """A short name for a recurring reference, unique within this schema."""
        self._recursive.add(reference)
        if reference not in self._names:
            base = reference.rsplit("/", 1)[-1]
            taken = set(self._names.values())
            self._names[reference] = base if base not in taken else f"{base}_{len(taken)}"
        return self._names[reference]

    def _translate(self, node: dict[str, Any], open_refs: tuple[str, ...]) -> dict[str, Any]:
        made: dict[str, Any] = {key: node[key] for key in node if key in _KEPT}
        if not isinstance(made.get("required", []), list):
            del made["required"]
        if isinstance(node.get("description"), str):
            made["description"] = shortened(node["description"])
        if "format" in node and node["format"] not in _WIDTHS:
            made["format"] = node["format"]
        for key in _NESTED & node.keys():
            item = node[key]
            made[key] = item if isinstance(item, bool) else self._expand(item, open_refs)
        for key in _NESTED_LISTS & node.keys():
            made[key] = [self._expand(item, open_refs) for item in node[key]]
        if isinstance(node.get("properties"), dict):
            self._properties(made, node["properties"], open_refs)
        made = _translated_bounds(made)
        if isinstance(node.get("allOf"), list):
            made = merged(made, [self._expand(item, open_refs) for item in node["allOf"]])
        return _with_null(made) if node.get("nullable") is True else made

    def _properties(
        self, made: dict[str, Any], properties: dict[str, Any], open_refs: tuple[str, ...]
    ) -> None:
        hidden = {name for name, item in properties.items() if self._is_hidden(item)}
        made["properties"] = {
            name: self._expand(item, open_refs) for name, item in properties.items() if name not in hidden
        }
        required = [name for name in made.pop("required", ()) if name not in hidden]
        if required:
            made["required"] = required

    def _is_hidden(self, item: Any) -> bool:
        target, _ = self._document.resolve(item)
        return isinstance(target, dict) and target.get(self._hidden) is True


def merged(base: dict[str, Any], parts: list[dict[str, Any]]) -> dict[str, Any]:
    """`allOf` as one schema where the parts do not disagree, else kept beside `base`."""
    result: dict[str, Any] = canonical.loads(canonical.dumps(base))
    for part in parts:
        for key, value in part.items():
            if key == "required":
                result[key] = list(dict.fromkeys([*result.get(key, ()), *value]))
            elif key == "properties":
                known = result.setdefault(key, {})
                if any(known.get(name, item) != item for name, item in value.items()):
                    return {**base, "allOf": parts}
                known.update(value)
            elif key == "description":
                result.setdefault(key, value)
            elif key == "additionalProperties" or result.get(key, value) != value:
                return {**base, "allOf": parts}
            else:
                result[key] = value
    return result


def shortened(text: str, *, limit: int = _MAX_DESCRIPTION) -> str:
    """The first sentence or paragraph on one line, at most `limit` characters."""
    line = " ".join(text.strip().split("\n\n")[0].split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _translated_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """3.0 says `minimum: 3, exclusiveMinimum: true` where JSON Schema says `exclusiveMinimum: 3`."""
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool):
            strict = schema.pop(exclusive)
            if strict and bound in schema:
                schema[exclusive] = schema.pop(bound)
    return schema


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        return schema
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema
