"""The values in a tool's result: where each stands, what it is, and what it looks like.

Three readings, in this order: JSON; a table with a heading line (cells joined by `|`, tab or comma); lines
of text, in which `key: value`, `key=value` and tokens with a shape (ids, dates, prices, "3 nights") are
fields and the rest is not. Paths are dotted, `[]` marks a list; what has no name of its own is named by its
shape: "<date>", a quantity by its unit, an id by its pattern (F12 and F7 share "F#"). Results are hostile
text: at most MAX_CHARS are read, MAX_FIELDS given, every pattern is bounded. Not covered: what values mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from data import canonical
from synthesizers.graph.lines import shaped_fields, text_fields
from synthesizers.graph.shapes import Field, Shape, field, pattern_of, shape_of

__all__ = ["MAX_CHARS", "MAX_DEPTH", "MAX_FIELDS", "Field", "Shape", "fields_of", "leaves"]

MAX_CHARS = 100_000
"""Characters of a result that are read."""
MAX_FIELDS = 1_000
"""Fields given of one result."""
MAX_DEPTH = 12
"""Levels of nested JSON that are read."""


def fields_of(text: str) -> list[Field]:
    """The fields of a result in reading order, at most MAX_FIELDS; [] where it holds none."""
    return list(islice(_read(text[:MAX_CHARS].strip()), MAX_FIELDS))


def leaves(value: Any) -> Iterator[Any]:
    """What is neither object nor list in a JSON value, in no particular order."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            stack += node.values()
        elif isinstance(node, list):
            stack += node
        else:
            yield node


def _read(text: str) -> Iterator[Field]:
    value = _json(text)
    yield from text_fields(text) if value is None else _json_fields(value)


def _json(text: str) -> Any:
    """The JSON object or list, or None; a bare word or number is read as text."""
    if not text.startswith(("{", "[")):
        return None
    try:
        return canonical.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_fields(value: Any) -> Iterator[Field]:
    """Depth first, in order, without recursion; what lies deeper than MAX_DEPTH is not read."""
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    while stack:
        path, node, depth = stack.pop()
        if isinstance(node, dict):
            stack += reversed(list(_members(path, node, depth)))
        elif isinstance(node, list):
            inner = node[:MAX_FIELDS] if depth < MAX_DEPTH else []
            stack += [(f"{path}[]", item, depth + 1) for item in reversed(inner)]
        elif isinstance(node, str | int) or (isinstance(node, float) and math.isfinite(node)):
            yield field(path, node)
            if isinstance(node, str) and " " in node:
                yield from (found._replace(path=f"{path}.{found.path}") for found in shaped_fields(node))


def _members(path: str, node: dict[str, Any], depth: int) -> Iterator[tuple[str, Any, int]]:
    """An object's members with their paths. A key that is itself an id is data: its pattern is the path."""
    for key, item in islice(node.items(), MAX_FIELDS if depth < MAX_DEPTH else 0):
        name = pattern_of(key) if shape_of(key) is Shape.ID else key[:80]
        yield (f"{path}.{name}" if path else name), item, depth + 1
