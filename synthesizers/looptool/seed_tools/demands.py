"""What can be demanded of a seed tool's structure: told to who writes it, checked by a program.

Not covered: rules that every tool keeps (`rules`), and whether a tool makes sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from synthesizers.looptool.seed_tools.roles import ToolReply

Schema = Mapping[str, Any]
FEW, MANY = range(2, 4), range(4, 9)
"""Parameters. Ours."""


class Demand(NamedTuple):
    """One demand: in words, and whether a tool meets it. The tool keeps the rules already."""

    told: str
    met: Callable[[ToolReply], bool]


class Node(NamedTuple):
    """A value that may be given: its name (that of the list, for an item), schema, and whether it must be."""

    name: str
    schema: Schema
    is_needed: bool


def parameters_of(tool: ToolReply) -> dict[str, Schema]:
    """The tool's parameters by name."""
    found: dict[str, Schema] = tool.parameters["properties"]
    return found


def nodes_of(schema: Schema, name: str = "", *, is_needed: bool = True) -> Iterator[Node]:
    """Every value that may be given below a schema, at any depth."""
    for key, inner in schema.get("properties", {}).items():
        node = Node(key, inner, key in schema.get("required", ()))
        yield node
        yield from nodes_of(inner, key, is_needed=node.is_needed)
    if schema.get("type") == "array":
        yield Node(name, schema["items"], is_needed)
        yield from nodes_of(schema["items"], name, is_needed=is_needed)


def _has(met: Callable[[Node], bool]) -> Callable[[ToolReply], bool]:
    return lambda tool: any(map(met, nodes_of(tool.parameters)))


def _has_parameter(met: Callable[[Schema], bool]) -> Callable[[ToolReply], bool]:
    return lambda tool: any(map(met, parameters_of(tool).values()))


def _count(allowed: range) -> Callable[[ToolReply], bool]:
    return lambda tool: len(parameters_of(tool)) in allowed


def _is_list_of(schema: Schema, *, records: bool) -> bool:
    return schema.get("type") == "array" and (schema["items"].get("type") == "object") is records


DEMANDS: Mapping[str, Demand] = {
    "looks_up": Demand("It only looks something up: reads is true.", lambda tool: tool.reads),
    "changes": Demand("It changes something: reads is false.", lambda tool: not tool.reads),
    "answers_list": Demand(
        "It answers with a list of objects.", lambda tool: tool.returns.get("type") == "array"
    ),
    "answers_record": Demand(
        "It answers with one object.", lambda tool: tool.returns.get("type") == "object"
    ),
    "one_parameter": Demand("It has exactly one parameter.", _count(range(1, 2))),
    "few_parameters": Demand(f"It has {FEW[0]} or {FEW[-1]} parameters.", _count(FEW)),
    "many_parameters": Demand(f"It has {MANY[0]} to {MANY[-1]} parameters.", _count(MANY)),
    "flat": Demand(
        "Every parameter is a single value: no object, no list.",
        lambda tool: not any(s.get("type") in ("object", "array") for s in parameters_of(tool).values()),
    ),
    "nested": Demand(
        "One parameter is an object with at least two fields.",
        _has_parameter(lambda schema: len(schema.get("properties", ())) > 1),
    ),
    "list_of_values": Demand(
        "One parameter is a list of single values.",
        _has_parameter(lambda schema: _is_list_of(schema, records=False)),
    ),
    "list_of_records": Demand(
        "One parameter is a list of objects.",
        _has_parameter(lambda schema: _is_list_of(schema, records=True)),
    ),
    "closed_choice": Demand(
        "One value to give is a closed choice: an enum.", _has(lambda node: "enum" in node.schema)
    ),
    "number_range": Demand(
        "One value to give is a number with a minimum and a maximum.",
        _has(lambda node: {"minimum", "maximum"} <= node.schema.keys()),
    ),
    "written_form": Demand(
        "One value to give is a string of a fixed form: it has a pattern.",
        _has(lambda node: "pattern" in node.schema),
    ),
    "optional_default": Demand(
        "One value may be left out and has a default.",
        _has(lambda node: "default" in node.schema and not node.is_needed),
    ),
    "flag": Demand(
        "One value to give is a boolean.", _has(lambda node: node.schema.get("type") == "boolean")
    ),
    "takes_id": Demand(
        "One value that must be given is the id of something: its name ends in _id.",
        _has(lambda node: node.is_needed and f"_{node.name}".endswith("_id")),
    ),
}
"""By the word that the constraint tree has for it. Ours: the paper gives no list."""
