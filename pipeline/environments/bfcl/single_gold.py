"""Calls that solve a single-turn row, made of the benchmark's possible answers.

A possible answer lists, per parameter, the values that are accepted; "" among them means it may be left out.
Gold takes the first value that fits the shown schema (the first of all where none does and the parameter may
not be left out), and for Java and JavaScript the first way of writing it
that upstream's converter reads back as that value. A row to refuse has the typed answer, `live_relevance`,
which has no answers, a made-up call of the first tool. Whether gold is right is never assumed: the
benchmark's checker says so (`benchmarks.bfcl_gold`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from data import canonical
from data.messages import ToolSpec
from pipeline.checks.calls import argument_problems
from pipeline.environments.bfcl.single_check import convert_source
from pipeline.environments.bfcl.single_rows import CALLING, SingleRow, shown_name, single_tools

_SUFFIXES = {"long": "L", "float": "f"}
_MOST_VALUES = 64
"""Ways of choosing inside one nested value that are tried."""


def gold_calls(row: SingleRow) -> list[tuple[str, dict[str, Any]]]:
    """Name and arguments of each call, in the answers' order."""
    tools = {tool.name: tool for tool in single_tools(row)}
    if row.category == CALLING:
        return [_made_up(next(iter(tools.values())))]
    documents = {document["name"]: document for document in row.functions}
    calls = []
    for answer in row.answers:
        [(name, accepted)] = answer.items()
        schema = canonical.loads(tools[shown_name(name)].parameters)
        described = documents[name]["parameters"]["properties"]
        arguments = {}
        for parameter, values in accepted.items():
            choices = list(_choices(values, described.get(parameter, {}), row.category))
            shown = schema["properties"].get(parameter)
            fitting = [value for value in choices if _fits(value, shown)]
            if fitting or (choices and "" not in values):
                arguments[parameter] = (fitting or choices)[0]
        calls.append((shown_name(name), arguments))
    return calls


def _choices(values: Sequence[Any], described: dict[str, Any], category: str) -> Iterator[Any]:
    for value in values:
        if value != "":
            for plain in itertools.islice(_plain(value), _MOST_VALUES):
                yield _source(plain, described, category) if category.startswith("simple_java") else plain


def _plain(value: Any) -> Iterator[Any]:
    """A possible answer with one value chosen for each key of the dictionaries in it."""
    if isinstance(value, dict):
        keys = [key for key, options in value.items() if options != [""]]
        ways = [[plain for option in _options(value[key]) for plain in _plain(option)] for key in keys]
        yield from (dict(zip(keys, chosen, strict=True)) for chosen in itertools.product(*ways))
    elif isinstance(value, list):
        yield from (list(chosen) for chosen in itertools.product(*(list(_plain(item)) for item in value)))
    else:
        yield value


def _options(options: Any) -> list[Any]:
    """A nested dictionary lists its values bare where there is one, and the first stands for absence last."""
    if not isinstance(options, list):
        return [options]
    return [option for option in options if option != ""] or [""]


def _fits(value: Any, schema: dict[str, Any] | None) -> bool:
    if schema is None:
        return True
    return not argument_problems({"value": value}, {"type": "object", "properties": {"value": schema}})


def _source(value: Any, described: dict[str, Any], category: str) -> str:
    kind = described.get("type", "any")
    inner = (described.get("items") or {}).get("type")
    java = category == "simple_java"
    for text in (_java if java else _javascript)(value, kind, inner):
        if convert_source(text, kind, inner, category) == value:
            return text
    return str(value)


def _java(value: Any, kind: str, inner: str | None) -> Iterator[str]:
    if isinstance(value, list):
        for quote in (json.dumps, str):
            parts = ", ".join(_literal(item, _SUFFIXES.get(inner or "", ""), quote) for item in value)
            whole = f"new ArrayList<>(Arrays.asList({parts}))"
            yield whole if kind == "ArrayList" else f"new Object[]{{{parts}}}"
    elif isinstance(value, dict):
        puts = (f"put({json.dumps(key)}, {_literal(item, '', json.dumps)});" for key, item in value.items())
        yield f"new HashMap<String, Object>() {{{{ {' '.join(puts)} }}}}"
    yield _literal(value, _SUFFIXES.get(kind, ""), str)


def _javascript(value: Any, kind: str, inner: str | None) -> Iterator[str]:
    if isinstance(value, list | dict):
        yield json.dumps(value)
        yield str(value)
    yield _literal(value, "n" if kind == "Bigint" else "", str)


def _literal(value: Any, suffix: str, quote: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value}{suffix}" if isinstance(value, int | float) else str(quote(value))


def _made_up(tool: ToolSpec) -> tuple[str, dict[str, Any]]:
    """A call that fits the schema: required parameters with the plainest value of their type."""
    schema = canonical.loads(tool.parameters)
    return tool.name, _plainest(schema)


def _plainest(schema: dict[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    simple: dict[str, Any] = {"integer": 0, "number": 0, "boolean": True, "array": [], "string": "text"}
    if schema["type"] == "object":
        return {name: _plainest(schema["properties"][name]) for name in schema.get("required", [])}
    return simple[schema["type"]]
