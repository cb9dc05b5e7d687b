"""The live policy of a run: renderer, server and engine, opened and closed together.

Without a URL in the recipe a server is started for the run, once: later weights are pushed under it
in a fraction of a second. With a URL the server is the user's: it is checked, used and left running.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flows.stages.progress import Say, silent
from flows.stages.recipe import PolicySection
from pipeline.engines.base import Sampling
from pipeline.engines.vllm import VllmEngine
from pipeline.renderers.base import Renderer
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings
from pipeline.server import ModelServer, Progress, ServerSettings

_SAY_EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class LivePolicy:
    """A policy that can act now."""

    engine: VllmEngine
    renderer: Renderer
    sampling: Sampling
    settings: RolloutSettings
    max_in_flight: int

    def at(self, temperature: float) -> LivePolicy:
        """The same policy sampled at another temperature."""
        return replace(self, sampling=replace(self.sampling, temperature=temperature))

    async def load(self, model_dir: Path) -> str:
        """Put other weights under the policy; returns the digest the server computed of what it loaded."""
        return await self.engine.reload_weights(model_dir)


@asynccontextmanager
async def open_policy(
    section: PolicySection, *, model_dir: Path, label: str, log_path: Path | None = None, say: Say = silent
) -> AsyncIterator[LivePolicy]:
    """Start or reach the server of `model_dir`, check it, and close everything at the end.

    `label` is the name results show. Raises ConfigError or EngineError before any work is done.
    """
    server = None if section.url else _server(section, model_dir, log_path)
    try:
        if server is not None:
            await asyncio.to_thread(server.start, _starting(say))
        urls = section.url.split(",") if server is None else [server.url]
        name = section.served_name or ServerSettings().served_name
        engine = VllmEngine(urls, model=name, name=label)
        try:
            longest = await engine.check()
            engine.weights_version = await engine.served_weights_digest() if server is not None else name
            renderer = load_renderer(model_dir)
            yield LivePolicy(
                engine=engine,
                renderer=renderer,
                sampling=Sampling(
                    temperature=section.temperature,
                    max_tokens=section.max_turn_tokens,
                    stop_token_ids=renderer.stop_token_ids,
                ),
                settings=RolloutSettings(max_context_tokens=min(section.max_context_tokens, longest)),
                max_in_flight=section.max_in_flight,
            )
        finally:
            await engine.close()
    finally:
        if server is not None:
            await asyncio.to_thread(server.stop)


def _server(section: PolicySection, model_dir: Path, log_path: Path | None) -> ModelServer:
    """A server sized for the section; not started."""
    settings = ServerSettings(
        max_model_len=section.max_context_tokens,
        max_num_seqs=section.max_in_flight,
        extra_args=section.server_args,
    )
    return ModelServer(model_dir, settings=settings, log_path=log_path)


def _starting(say: Say) -> Progress:
    """A progress callback that says a line every few seconds while the server starts."""
    said = [0.0]

    def progress(waited: float, line: str) -> None:
        if waited - said[0] >= _SAY_EVERY_SECONDS:
            said[0] = waited
            say(f"model server starting, {waited:.0f} s: {line[-100:]}")

    return progress
