"""The benchmark's data as installed by `make bfcl-setup`: multi-turn tasks and the documents of their tools.

Decides what of a tool document a model is shown: the sentence every description of a class begins with is
cut, answers are not described, types get their JSON Schema names. Reads files, and imports
of the package one file of sentences. Not covered: single-turn rows (`single_rows`).
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from data import canonical
from data.messages import ToolSpec
from pipeline.errors import MissingExtraError

VERSION = "2026.3.23"
"""The release of bfcl-eval that is read; another one may hold other tasks."""

MULTI_TURN = ("base", "miss_func", "miss_param", "long_context")
"""Categories: as they are; tools that are missing until later; a value said later; worlds full of data."""

_DOCUMENTS = {
    "GorillaFileSystem": "gorilla_file_system.json",
    "MathAPI": "math_api.json",
    "MessageAPI": "message_api.json",
    "TicketAPI": "ticket_api.json",
    "TradingBot": "trading_bot.json",
    "TravelAPI": "travel_booking.json",
    "TwitterAPI": "posting_api.json",
    "VehicleControlAPI": "vehicle_control.json",
}
_TYPES = {"dict": "object", "float": "number"}
_WIDENED = {("close_ticket", "ticket_id"): ["integer", "string"]}
"""Where the benchmark's own gold breaks the documented type (multi_turn_base_173), shown with both."""


@dataclass(frozen=True, slots=True)
class Row:
    """One task of the benchmark. `gold` holds Python call expressions, one tuple per user turn.

    `held_back` names, by user turn from 0, the tools that are shown from that turn on only.
    """

    name: str
    classes: tuple[str, ...]
    config: dict[str, Any]
    users: tuple[str, ...]
    gold: tuple[tuple[str, ...], ...]
    held_back: dict[str, tuple[str, ...]]


def require_package() -> None:
    """Raise MissingExtraError unless the release VERSION is installed."""
    try:
        found = version("bfcl-eval")
    except PackageNotFoundError:
        found = "not installed"
    if found != VERSION:
        raise MissingExtraError(
            f"bfcl_multi_turn reads bfcl-eval {VERSION}, found: {found}; run: make bfcl-setup"
        )


@functools.cache
def rows(category: str = "base") -> tuple[Row, ...]:
    """All 200 tasks of one of MULTI_TURN, in the benchmark's order."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    answers = {line["id"]: line["ground_truth"] for line in read_lines(f"possible_answer/{name}")}
    return tuple(_row(line, answers[line["id"]]) for line in read_lines(name))


@functools.cache
def documented_tools(class_name: str) -> tuple[ToolSpec, ...]:
    """The tools of one class in the order of its document."""
    return tuple(_spec(line) for line in read_lines(f"multi_turn_func_doc/{_DOCUMENTS[class_name]}"))


@functools.cache
def documented_answers(class_name: str) -> dict[str, dict[str, Any]]:
    """JSON Schemas of what the tools of one class answer, by tool name; models are not shown them."""
    lines = read_lines(f"multi_turn_func_doc/{_DOCUMENTS[class_name]}")
    return {line["name"]: _schema(line["response"]) for line in lines if "response" in line}


def _row(line: dict[str, Any], gold: list[list[str]]) -> Row:
    sentences = importlib.import_module("bfcl_eval.constants.default_prompts")
    added = sentences.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC  # said where held-back tools appear
    users = [messages[0]["content"] if messages else added for messages in line["question"]]
    classes = tuple(line["involved_classes"])
    config = {name: line["initial_config"].get(name, {}) for name in classes}
    held_back = {turn: tuple(names) for turn, names in line.get("missed_function", {}).items()}
    return Row(line["id"], classes, config, tuple(users), tuple(map(tuple, gold)), held_back)


def _spec(document: dict[str, Any]) -> ToolSpec:
    name, blurb_and_text = document["name"], document["description"]
    _, mark, text = blurb_and_text.partition("Tool description:")
    parameters = _schema(document["parameters"])
    for (tool, parameter), types in _WIDENED.items():
        if tool == name:
            parameters["properties"][parameter]["type"] = types
    description = " ".join((text if mark else blurb_and_text).split())
    return ToolSpec(name=name, description=description, parameters=canonical.dumps(parameters))


def _schema(node: dict[str, Any]) -> dict[str, Any]:
    """`node` in JSON Schema's words; a default "None" stands for absence and is dropped."""
    shown: dict[str, Any] = {"type": _TYPES.get(node["type"], node["type"])}
    if node.get("description"):
        shown["description"] = " ".join(node["description"].split())
    if node.get("default", "None") != "None":
        shown["default"] = node["default"]
    if "items" in node:
        shown["items"] = _schema(node["items"])
    if "properties" in node:
        shown["properties"] = {name: _schema(value) for name, value in node["properties"].items()}
    if node.get("required"):
        shown["required"] = node["required"]
    return shown


def read_lines(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a data file of the package; most of its files are JSON lines despite their names."""
    with open(_data() / name, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def read_whole(name: str) -> Any:
    """A data file of the package that is one JSON value."""
    return json.loads((_data() / name).read_text(encoding="utf-8"))


def _data() -> Path:
    require_package()
    spec = find_spec("bfcl_eval")
    [directory] = spec.submodule_search_locations if spec and spec.submodule_search_locations else [""]
    return Path(directory) / "data"
