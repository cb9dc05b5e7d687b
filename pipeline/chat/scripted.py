"""A deterministic chat that ships: a function or a list of replies answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from data.messages import ToolSpec, Turn, assistant
from pipeline.chat.core import CachedChat, ChatBudget
from pipeline.errors import EngineError

Answer = Callable[[Sequence[Turn], Sequence[ToolSpec]], Turn | str]


class ScriptedChat(CachedChat):
    """Answers by function, or by the listed replies in order (EngineError once they are used up)."""

    def __init__(
        self,
        answers: Answer | Sequence[Turn | str],
        *,
        name: str = "scripted",
        cache: Path | None = None,
        budget: ChatBudget | None = None,
        max_asks: int = 3,
    ) -> None:
        super().__init__(name=name, cache=cache, budget=budget, max_asks=max_asks)
        self._answers = answers
        self.asked: list[list[Turn]] = []
        """The turns of every call, for tests."""

    def identity(self) -> dict[str, Any]:
        """The name."""
        return {"scripted": self.name}

    async def _ask(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec], schema: dict[str, Any] | None
    ) -> tuple[Turn, int]:
        self.asked.append(list(turns))
        answer = self._answers(turns, tools) if callable(self._answers) else self._next()
        return (assistant(answer) if isinstance(answer, str) else answer), 0

    def _next(self) -> Turn | str:
        assert not callable(self._answers)
        if len(self.asked) > len(self._answers):
            raise EngineError(
                f"scripted chat {self.name!r} has only {len(self._answers)} replies; script more"
            )
        return self._answers[len(self.asked) - 1]
