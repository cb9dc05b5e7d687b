"""What a made environment consists of: tools with code and data, and an item that asks a question of them.

Items come from files and tasks that somebody else may have written, so everything is checked when it is read:
types, sizes, names, schemas, the graph's rules, calls against schemas. Code and data are never looked into
here: they run in the sandbox. A line of a file of items is the JSON of one Item. Not covered: whether the
code gives the answers (`synthesizers.astra` made sure when it wrote the item, `trajsmith env check` does
again).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from data import canonical
from data.files import numbered_lines
from data.messages import ToolSpec
from pipeline.checks.calls import argument_problems
from pipeline.environments.question_dag.dag import QuestionDag, Strict, dag_problems
from pipeline.errors import ConfigError, TrajsmithError

MAX_CODE = 20_000
MAX_DATA = 200_000
MAX_TOOLS = 64
_REFUSED = frozenset({"pattern", "patternProperties", "$ref", "$dynamicRef", "format"})
"""Keys of a schema that cost time without end, or look elsewhere."""
_VALUES = frozenset({"default", "enum", "const", "examples"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class MadeTool(Strict):
    """A generated tool: `code` defines a function `name`, which sees `data` as the global `DATA`."""

    name: str
    description: str = Field(min_length=1, max_length=2000)
    parameters: dict[str, Any]
    """JSON Schema of an object."""
    code: str = Field(min_length=1, max_length=MAX_CODE)
    data: dict[str, Any] = Field(default_factory=dict)
    domain: str = Field(default="", max_length=100)
    """Distractors never come from the same."""
    exact: bool = False
    """Whether only a call with the very arguments solves a sub-question; else one that says the answer."""
    symmetric: bool = False
    """Whether the order of its arguments' values does not matter."""

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is no name of a tool: letters, digits and _, 64 at most")
        return name

    @model_validator(mode="after")
    def _small(self) -> MadeTool:
        if len(canonical.dumps(self.data)) > MAX_DATA:
            raise ValueError(f"data of {self.name} is longer than {MAX_DATA:,} characters as JSON")
        if refused := sorted(_refused(self.parameters)):
            raise ValueError(f"parameters of {self.name} use {', '.join(refused)}; leave that out")
        argument_problems({}, self.parameters)  # ConfigError where this is no schema
        properties = self.parameters.get("properties", {})
        if self.parameters.get("type") != "object" or not isinstance(properties, dict):
            raise ValueError(f"parameters of {self.name} must be a JSON Schema of type object")
        return self

    @property
    def spec(self) -> ToolSpec:
        """What the agent is shown."""
        return ToolSpec(
            name=self.name, description=self.description, parameters=canonical.dumps(self.parameters)
        )


class MadeCall(Strict):
    """The call that answers a sub-question."""

    tool: str
    arguments: dict[str, Any]


class Item(Strict):
    """A question, its graph, the call of each sub-question that needs a tool, and the tools."""

    dag: QuestionDag
    calls: tuple[MadeCall | None, ...]
    """One for each sub-question, None where it needs no tool."""
    tools: tuple[MadeTool, ...] = Field(min_length=1, max_length=MAX_TOOLS)
    domain: str = Field(default="", max_length=100)
    split: str = Field(default="train", pattern=r"^[a-z][a-z0-9_]{0,40}$")
    template: str = Field(default="item", max_length=100)
    tags: tuple[str, ...] = ()
    made_by: str = Field(default="", max_length=100)
    """`rules`, or the chats that had a part in it."""

    @model_validator(mode="after")
    def _consistent(self) -> Item:
        problems = dag_problems(self.dag) or [*self._call_problems()]
        if problems:
            raise ValueError("; ".join(problems[:3]))
        return self

    def _call_problems(self) -> list[str]:
        tools = {tool.name: tool for tool in self.tools}
        if len(tools) < len(self.tools):
            return ["two tools have one name"]
        if len(self.calls) != len(self.dag.steps):
            return [f"{len(self.calls)} calls for {len(self.dag.steps)} sub-questions"]
        problems = []
        for index, (step, call) in enumerate(zip(self.dag.steps, self.calls, strict=True)):
            if step.needs_tool != (call is not None):
                problems.append(
                    f"sub-question {index}: a call belongs to those that need a tool, to no other"
                )
            elif call is not None and call.tool not in tools:
                problems.append(
                    f"sub-question {index} calls {call.tool[:80]!r}, which is no tool of the item"
                )
            elif call is not None:
                problems += argument_problems(call.arguments, tools[call.tool].parameters)
        return problems


def _refused(schema: Any) -> set[str]:
    """The keys of `_REFUSED` that a schema uses; names of parameters are no keys."""
    if isinstance(schema, list):
        return set().union(*map(_refused, schema))
    if not isinstance(schema, dict):
        return set()
    found = set(schema.keys() & _REFUSED)
    for key, value in schema.items():
        inner = list(value.values()) if key == "properties" and isinstance(value, dict) else value
        found |= set() if key in _VALUES else _refused(inner)
    return found


def read_items(path: Path) -> tuple[Item, ...]:
    """The items of a JSONL file. Raises ConfigError naming the file, the line and what is wrong."""
    try:
        lines = numbered_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"items {path}: {error}; give a JSONL file of items") from error
    items = [read_item(line, where=f"{path}, line {number}") for number, line in lines]
    if not items:
        raise ConfigError(f"items {path}: there are none; a line is the JSON of one item")
    return tuple(items)


def read_item(text: str, *, where: str) -> Item:
    """One item from its JSON text. Raises ConfigError."""
    try:
        return Item.model_validate_json(canonical.dumps(canonical.loads(text)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {at + ': ' if at else ''}{first['msg'][:300]}") from None
    except (TrajsmithError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: {str(error)[:300]}") from None
