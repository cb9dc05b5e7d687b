"""Tools that are only documented: from a list of JSON schemas, or from an OpenAPI document.

A list (JSON or YAML) holds `{name, description, parameters, returns, reads}`, or the OpenAI form
`{type: function, function: {...}}`; `returns` is the JSON Schema of an answer, `reads` says that a call
changes nothing. Not covered: anything that runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from data import canonical
from data.messages import ToolSpec
from pipeline.environments.plain_yaml import parse_document, read_text
from pipeline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DocumentedTool:
    """What is known of a tool."""

    spec: ToolSpec
    returns: str = "{}"
    """JSON Schema of a successful answer, as text."""
    reads: bool = False


class ToolRow(BaseModel):
    """One tool as written in a list."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str = Field(min_length=1)
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    returns: dict[str, Any] = Field(default_factory=dict)
    reads: bool = False


def listed_tools(path: Path) -> dict[str, DocumentedTool]:
    """The tools of a list by name, in its order. Raises ConfigError naming the file and the tool."""
    rows = parse_document(read_text(path), where=str(path))
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"{path}: expected a list of tools; the docstring of {__name__} says how")
    tools = [_tool(row, f"{path}, tool {number}") for number, row in enumerate(rows, 1)]
    named = {tool.spec.name: tool for tool in tools}
    if len(named) < len(tools):
        raise ConfigError(f"{path}: two tools of one name among {[tool.spec.name for tool in tools]}")
    return named


def openapi_tools(
    path: Path, *, operations: Sequence[str] = (), refs: Mapping[str, str] | None = None
) -> dict[str, DocumentedTool]:
    """The operations of an OpenAPI document by tool name. Raises ConfigError."""
    from pipeline.environments.openapi.document import load_document
    from pipeline.environments.openapi.operations import read_operations

    found = read_operations(load_document(path, refs=refs), chosen=operations)
    return {name: DocumentedTool(item.spec, item.response, item.reads) for name, item in found.items()}


def _tool(row: Any, where: str) -> DocumentedTool:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if isinstance(row, dict) and isinstance(row.get("function"), dict):
        row = {**row["function"], **{key: row[key] for key in ("returns", "reads") if key in row}}
    try:
        read = ToolRow.model_validate(row)
        for schema in (read.parameters, read.returns):
            Draft202012Validator.check_schema(schema)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except SchemaError as error:
        raise ConfigError(f"{where}: no JSON Schema: {error.message}") from error
    spec = ToolSpec(name=read.name, description=read.description, parameters=canonical.dumps(read.parameters))
    return DocumentedTool(spec, canonical.dumps(read.returns), read.reads)
