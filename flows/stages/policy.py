"""The live policy of a run: model directory, renderer, server and engine, opened and closed together.

Without a URL in the recipe a server is started on a private copy of the model, so that later weights
can be put under it and reloaded in a fraction of a second instead of a new start. With a URL the
server is the user's: it is checked, used and left alone.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from data.trajectories import Policy
from flows.stages.recipe import PolicySection
from pipeline.engines.base import Engine, Sampling
from pipeline.renderers.base import Renderer
from pipeline.rollout import RolloutSettings


@dataclass(frozen=True)
class LivePolicy:
    """A policy that can act now."""

    label: str
    """How results name the model."""
    engine: Engine
    renderer: Renderer
    sampling: Sampling
    settings: RolloutSettings
    max_in_flight: int
    serving_dir: Path | None = None
    """Directory the server reads weights from; None where the server is the user's own."""

    def at(self, *, temperature: float) -> LivePolicy:
        """The same policy sampled at another temperature."""
        return replace(self, sampling=replace(self.sampling, temperature=temperature))

    def record(self) -> Policy:
        """The policy as trajectories store it."""
        from data import canonical

        return Policy(
            name=self.label,
            weights=self.engine.weights_version,
            renderer=self.renderer.digest,
            harness=self.settings.digest,
            sampling=canonical.dumps(self.sampling.identity()),
            logprobs_of="processed",
        )
