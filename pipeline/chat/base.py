"""The Chat contract: messages in, one message out. Teachers, judges and simulated users are Chats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from data.messages import ToolSpec, Turn


class Chat(Protocol):
    """Implementations: `openai` (any compatible endpoint), `scripted`, `engine` (Engine + Renderer)."""

    name: str

    async def reply(
        self, turns: Sequence[Turn], *, tools: Sequence[ToolSpec] = (), schema: dict[str, Any] | None = None
    ) -> Turn:
        """The assistant's next turn.

        With `schema` (JSON Schema) the turn's text is JSON valid under it, or StructuredReplyError is
        raised after repair and re-asking; a fallback is never invented.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
