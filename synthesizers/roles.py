"""The LLM roles of synthesizers: `pipeline.chat.roles` with their prompts under `synthesizers/prompts/`.

Not covered: which chat plays which role (`role_chats`).
"""

from __future__ import annotations

from pathlib import Path

from data import canonical
from data.messages import ToolSpec
from pipeline.chat.roles import Exchange, FiledRole, Reply, Request, shown_dialogue

__all__ = ["PROMPTS", "ChatRole", "Exchange", "shown_dialogue", "shown_parameters"]

PROMPTS = Path(__file__).parent / "prompts"


class ChatRole(FiledRole[Request, Reply]):
    """A role whose prompt lies under `prompts/<method>/`."""

    @property
    def folder(self) -> Path:
        """Where the prompt lies."""
        return PROMPTS


def shown_parameters(tool: ToolSpec) -> str:
    """A tool's parameters as prompts show them: names, in brackets what is told of them; "none" for none.

    Types are left to the schema of the reply: a small model reads it anyway.
    """
    found = canonical.loads(tool.parameters).get("properties", {}) if tool.parameters else {}
    shown = [
        f"{name} ({told})" if (told := isinstance(schema, dict) and schema.get("description")) else name
        for name, schema in found.items()
    ]
    return ", ".join(shown) or "none"
