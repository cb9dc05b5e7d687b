"""An Engine and a Renderer as a Chat: any served model as teacher, judge or simulated user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.messages import ToolSpec, Turn
from pipeline.chat.core import CachedChat, ChatBudget
from pipeline.engines.base import Engine, Sampling
from pipeline.renderers.base import Renderer


class EngineChat(CachedChat):
    """Renders the dialogue, samples one turn, parses it."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        *,
        sampling: Sampling | None = None,
        cache: Path | None = None,
        budget: ChatBudget | None = None,
        max_asks: int = 3,
    ) -> None:
        super().__init__(name=engine.name, cache=cache, budget=budget, max_asks=max_asks)
        self.engine, self.renderer = engine, renderer
        chosen = sampling or Sampling()
        self.sampling = replace(chosen, stop_token_ids=chosen.stop_token_ids or renderer.stop_token_ids)

    def identity(self) -> dict[str, Any]:
        """Model, weights, renderer and sampling, seed included."""
        sampling = self.sampling.identity() | {"seed": self.sampling.seed}
        return {
            "model": self.engine.name,
            "weights": self.engine.weights_version,
            "renderer": self.renderer.digest,
            "sampling": sampling,
        }

    async def close(self) -> None:
        """Release the engine's connections."""
        await self.engine.close()

    async def _ask(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec], schema: dict[str, Any] | None
    ) -> tuple[Turn, int]:
        prompt = self.renderer.render(turns, tools).token_ids
        completion = (await self.engine.generate(prompt, self.sampling))[0]
        return self.renderer.parse(completion.token_ids), len(prompt) + len(completion.token_ids)
