"""The benchmark's single-turn categories as installed: rows, shown tools, and which half a row belongs to.

Decides how a function document becomes a tool: upstream's own mapping of type names, upstream's sentences for
Java and JavaScript (whose arguments are written as source text, so every type is shown as a string), "." in
names as "_", as upstream shows them to every model with a tool API. Not covered: `format_sensitivity`, whose
200 rows are rows of these categories (`prompted`); `web_search`, which needs the network.
"""

from __future__ import annotations

import copy
import functools
import importlib
import json
from dataclasses import dataclass
from typing import Any

from data import canonical
from data.messages import ToolSpec, Turn, assistant, system, user
from pipeline.environments.bfcl.dataset import read_lines
from pipeline.errors import ConfigError

REFUSING = ("irrelevance", "live_irrelevance")
"""Nothing may be called."""
CALLING = "live_relevance"
"""Something must be called; the benchmark has no answers for it."""
CATEGORIES = (
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    *REFUSING,
    CALLING,
)
HALVES = ("train", "heldout")

UNSOLVABLE = {
    "simple_java_36": "a list of any is compared as texts, and the answer holds a number",
    "simple_java_64": "a value of the answer is no list, so it is compared letter by letter",
    "simple_java_65": "a list of any is compared as texts, and the answer holds a truth value",
    "parallel_multiple_12": "the answer demands permeability, which its function does not have",
    "parallel_multiple_26": "the answer demands type, which its function does not have",
    "live_simple_106-63-0": "the answer lacks the required auto_loan_payment_start",
    "live_simple_112-68-0": "the answer lacks the required acc_routing_start",
    "live_multiple_507-149-4": "the answer lacks the required origin_airport",
    "live_multiple_862-181-3": "the answer demands journey_start_time, which its function does not have",
    "live_multiple_964-207-0": "the answer lacks the required statement",
}
"""Rows whose answers the benchmark's own checker refuses whatever is called: no task is made of them."""

_HINTS = {"simple_java": "Java", "simple_javascript": "JavaScript"}
_SOURCES = {"simple_java": "Java 8 SDK syntax", "simple_javascript": "JavaScript syntax"}
_KEPT = ("description", "enum", "default", "minimum", "maximum", "minItems", "maxItems")


@dataclass(frozen=True, slots=True)
class SingleRow:
    """One row. `functions` are the documents as they stand, `answers` the possible answers, if any."""

    name: str
    category: str
    half: str
    prompt: tuple[Turn, ...]
    functions: tuple[dict[str, Any], ...]
    answers: tuple[dict[str, Any], ...]


@functools.cache
def single_rows(category: str) -> tuple[SingleRow, ...]:
    """All rows of a category, in the benchmark's order. Raises ConfigError for a category we do not have."""
    if category not in CATEGORIES:
        raise ConfigError(f"there is no category {category!r}; there are {', '.join(CATEGORIES)}")
    name = f"BFCL_v4_{category}.json"
    known = category not in (*REFUSING, CALLING)
    solutions = read_lines(f"possible_answer/{name}") if known else ()
    answers = {line["id"]: line["ground_truth"] for line in solutions}
    return tuple(
        SingleRow(
            name=line["id"],
            category=category,
            half=_half(line["id"], category),
            prompt=tuple(_turn(message) for message in line["question"][0]),
            functions=tuple(line["function"]),
            answers=tuple(answers.get(line["id"], ())),
        )
        for line in read_lines(name)
    )


def shown_name(name: str) -> str:
    """A function's name as a model sees it."""
    return name.replace(".", "_")


def single_tools(row: SingleRow) -> tuple[ToolSpec, ...]:
    """The tools of a row, in its order."""
    return tuple(_spec(document, row.category) for document in row.functions)


def _half(name: str, category: str) -> str:
    """By place in the list; live rows by the number of their set of functions, which many prompts share."""
    number = name.rsplit("_", 1)[1]
    return HALVES[int(number.split("-")[1] if category.startswith("live") else number) % 2]


def _turn(message: dict[str, Any]) -> Turn:
    role, text = message["role"], message["content"]
    if role == "assistant":
        return assistant(text, weight=0.0)
    return system(text) if role == "system" else user(text)


def _spec(document: dict[str, Any], category: str) -> ToolSpec:
    parameters = copy.deepcopy(document["parameters"])
    description = document["description"]
    if category in _HINTS:
        description += f" Note that the provided function is in {_SOURCES[category]}."
        for schema in parameters["properties"].values():
            _as_source(schema, _HINTS[category])
    shown = canonical.dumps(_schema(parameters) | {"type": "object"})
    return ToolSpec(name=shown_name(document["name"]), description=description, parameters=shown)


def _as_source(schema: dict[str, Any], language: str) -> None:
    """Upstream's wording of an argument that is source text of `language`."""
    kind, text = schema["type"], schema.get("description", "")
    if kind == "any":
        text += f" This parameter can be of any type of {language} object in string representation."
    else:
        text += f" This is {language} {kind} type parameter in string representation."
    if kind in ("ArrayList", "Array", "array"):
        inner = schema.pop("items")["type"]
        text += f" The list elements are of type {inner}; they are not in string representation."
    if kind == "dict" and "properties" in schema:
        entries = json.dumps(schema.pop("properties"))
        text += (
            " The dictionary entries have the following schema; they are not in string representation. "
            f"{entries}"
        )
    for constraint in ("enum", "default"):
        if constraint in schema:
            schema[constraint] = _written(schema[constraint])
    schema.update(type="string", description=text)


def _written(value: Any) -> Any:
    if isinstance(value, list):
        return [_written(item) for item in value]
    return value if isinstance(value, str) or value is None else json.dumps(value)


def _schema(node: dict[str, Any]) -> dict[str, Any]:
    """`node` as JSON Schema. A default of null stands for absence and is dropped."""
    mapping = importlib.import_module("bfcl_eval.constants.type_mappings").GORILLA_TO_OPENAPI
    shown: dict[str, Any] = {"type": mapping.get(node.get("type", "string"), "string")}
    shown |= {key: node[key] for key in _KEPT if node.get(key) is not None and node.get(key) != ""}
    if isinstance(node.get("items"), dict):
        shown["items"] = _schema(node["items"])
    if "properties" in node:
        shown["properties"] = {name: _schema(value) for name, value in node["properties"].items()}
    if node.get("required"):
        shown["required"] = node["required"]
    return shown
