"""LLM roles: a typed request and a typed reply over a Chat, one prompt file each.

A role decides how its request is worded (a Jinja file of a folder) and what counts as a reply (the JSON
schema of its pydantic model). What is no valid reply after the chat's re-asks is an error of the caller's
to handle, never replaced by a default. Not covered: caching, budgets and retries (`pipeline.chat.core`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
        self.schema: dict[str, Any] = reply.model_json_schema()

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

    async def ask(self, chat: Chat, request: Request) -> Reply:
        """The reply. Raises StructuredReplyError where the chat gives none that is valid."""
        said = await chat.reply(self.turns(request), schema=self.schema)
        return self.reply_type.model_validate(canonical.loads(said.text))


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
