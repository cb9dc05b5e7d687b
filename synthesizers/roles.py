"""The LLM roles of synthesizers: `pipeline.chat.roles` with their prompts under `synthesizers/prompts/`.

Not covered: which chat plays which role (`role_chats`).
"""

from __future__ import annotations

from pathlib import Path

from pipeline.chat.roles import Exchange, FiledRole, Reply, Request, shown_dialogue

__all__ = ["PROMPTS", "ChatRole", "Exchange", "shown_dialogue"]

PROMPTS = Path(__file__).parent / "prompts"


class ChatRole(FiledRole[Request, Reply]):
    """A role whose prompt lies under `prompts/<method>/`."""

    @property
    def folder(self) -> Path:
        """Where the prompt lies."""
        return PROMPTS
