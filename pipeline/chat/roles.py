"""LLM roles: a typed request and a typed reply over a Chat, one prompt file each.

A role decides how its request is worded (a Jinja file of a folder) and what counts as a reply: the JSON
schema of its pydantic model, narrowed to what one request leaves possible. What is no valid reply after the
chat's re-asks is an error of the caller's to handle, never replaced by a default. Not covered: caching,
budgets and retries (`pipeline.chat.core`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import jinja2
from pydantic import BaseModel, ConfigDict

from data import canonical
from data.messages import Turn, system, user
from pipeline.chat.base import Chat


class Exchange(BaseModel):
    """Base of requests and replies: immutable, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Request = TypeVar("Request", bound=Exchange)
Reply = TypeVar("Reply", bound=Exchange)


class FiledRole(Generic[Request, Reply]):
    """One role. `prompt` names its file in `folder` without the ending, e.g. "magnet/back_translator".

    The file's text before a line `---` is the system prompt, the rest the user turn; both see the request's
    fields by name, and `json` as a filter. Undefined names are errors.
    """

    def __init__(self, prompt: str, *, reply: type[Reply]) -> None:
        self.prompt, self.reply_type = prompt, reply
        self.schema: dict[str, Any] = _bare(reply.model_json_schema())

    @property
    def folder(self) -> Path:
        """Where prompt files lie; subclasses say."""
        raise NotImplementedError(f"{type(self).__name__} must say the folder of its prompts")

    @property
    def name(self) -> str:
        """The role's name: the last part of the prompt's."""
        return self.prompt.rsplit("/", maxsplit=1)[-1]

    def turns(self, request: Request) -> tuple[Turn, ...]:
        """The dialogue that is sent."""
        rendered = _template(self.folder, self.prompt).render(dict(request))
        head, _, body = rendered.partition("\n---\n")
        return system(head.strip()), user(body.strip())

    async def ask(
        self, chat: Chat, request: Request, *, narrow: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Reply:
        """The reply. Raises StructuredReplyError where the chat gives none that is valid.

        `narrow`: what this request leaves possible, such as names of tools there are; for a property of the
        reply, at any depth, the JSON Schema of its value, or of each item where it is an array.
        """
        said = await chat.reply(self.turns(request), schema=narrowed(self.schema, narrow or {}))
        return self.reply_type.model_validate(canonical.loads(said.text))


def narrowed(schema: dict[str, Any], narrow: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`schema` with some properties' schemas put in place of theirs; see `FiledRole.ask`.

    ValueError where it has no such property: then nothing would be narrowed.
    """
    found: set[str] = set()

    def inside(node: Any) -> Any:
        if isinstance(node, list):
            return [inside(item) for item in node]
        if not isinstance(node, dict):
            return node
        made = {key: inside(value) for key, value in node.items()}
        for name in narrow.keys() & made.get("properties", {}).keys():
            old, new = made["properties"][name], dict(narrow[name])
            made["properties"][name] = {**old, "items": new} if old.get("type") == "array" else new
            found.add(name)
        return made

    made: dict[str, Any] = inside(schema)
    if unknown := sorted(narrow.keys() - found):
        raise ValueError(f"the reply has no property {unknown[0]!r} to narrow; it has {_properties(schema)}")
    return made


def one_of(values: Iterable[Any]) -> dict[str, Any]:
    """The JSON Schema of one of `values`."""
    return {"enum": list(dict.fromkeys(values))}


def one_call(
    parameters: Mapping[str, str], *, name: str = "name", every_argument: bool = True
) -> dict[str, Any]:
    """The JSON Schema of a call {`name`, "arguments"} of one of the tools.

    `parameters`: tool to the JSON Schema of its arguments, as text. Without `every_argument` all may lack.
    """
    return {"anyOf": [_call(tool, text, name, every_argument) for tool, text in parameters.items()]}


def _call(tool: str, parameters: str, name: str, every_argument: bool) -> dict[str, Any]:
    arguments = {"type": "object", **_bare(canonical.loads(parameters))}
    if "$ref" in parameters:
        # a reference points from the root, which is another one here
        arguments = {"type": "object"}
    if not every_argument:
        arguments.pop("required", None)
    return {
        "type": "object",
        "properties": {name: {"enum": [tool]}, "arguments": arguments},
        "required": [name, "arguments"] if every_argument else [name],
        "additionalProperties": False,
    }


def _bare(node: Any, *, by_name: bool = False) -> Any:
    """A schema without what only costs tokens. `by_name`: the keys of `node` are names."""
    if isinstance(node, list):
        return [_bare(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _bare(value, by_name=not by_name and key in ("properties", "$defs"))
        for key, value in node.items()
        if by_name or key not in ("title", "description", "default")
    }


def _properties(schema: dict[str, Any]) -> str:
    nodes = (schema, *schema.get("$defs", {}).values())
    return ", ".join(sorted({name for node in nodes for name in node.get("properties", {})}))


def shown_dialogue(turns: Sequence[Turn]) -> str:
    """A dialogue as prompts show it: one line per turn, calls and results as JSON."""
    lines = []
    for turn in turns:
        if turn.text and turn.result is None:
            lines.append(f"{turn.role}: {turn.text}")
        lines += [f"call: {call.name} {call.arguments}" for call in turn.tool_calls]
        if turn.result is not None:
            lines.append(f"result of {turn.result.name}: {turn.text}")
    return "\n".join(lines)


@functools.cache
def _template(folder: Path, name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = canonical.dumps
    return environment.get_template(f"{name}.md")
