"""Tree search as a synthesizer: `k` trajectories per task, found by searches of the policy alone.

Nothing but the policy is sampled, so every trajectory is its own words, token by token with log-probs, and
data for supervised training or, with `pick: soft`, for GRPO. Every candidate stays as a verdict. Source: TSR
(arXiv 2602.11767). Not covered: other data than the policy could have made itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.renderers.base import Renderer
from pipeline.rollout import RolloutSettings
from synthesizers.tree_search.batch import Searcher, pending_searches
from synthesizers.tree_search.scores import StepScores
from synthesizers.tree_search.settings import SearchSettings


@dataclass(kw_only=True)
class TreeSearch:
    """`k / width` searches per task; `search` holds the fields of `SearchSettings`."""

    environment: Environment
    engine: Engine
    renderer: Renderer
    sampling: Sampling = field(default_factory=Sampling)
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    k: int = 2
    search: SearchSettings | Mapping[str, Any] = field(default_factory=SearchSettings)
    seed: int = 0
    run_id: str = ""
    max_in_flight: int = 64
    infra_retries: int = 1
    name: str = "tree_search"

    def __post_init__(self) -> None:
        self.search = SearchSettings.of(self.search)
        if self.k < 1 or self.k % self.search.width:
            raise ConfigError(
                f"k must be a multiple of search.width {self.search.width}, since a search gives that many "
                f"trajectories; got {self.k}"
            )
        if self.sampling.temperature == 0 and self.search.candidates > 1:
            raise ConfigError(
                "a search at temperature 0 compares equal candidates; set a temperature above 0"
            )
        StepScores(self.environment, self.search.scores)

    async def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Trajectory | Verdict]:
        """See `Synthesizer`."""
        search = SearchSettings.of(self.search)
        searcher = Searcher(
            environment=self.environment,
            engine=self.engine,
            renderer=self.renderer,
            sampling=self.sampling,
            settings=self.settings,
            search=search,
            seed=self.seed,
            synthesizer=self.name,
            run_id=self.run_id,
        )
        jobs = pending_searches(searcher, tasks, searches=self.k // search.width, done=done, failed=failed)
        made = searcher.searches(
            jobs,
            is_done=lambda trajectory_id: trajectory_id in done,
            max_in_flight=self.max_in_flight,
            infra_retries=self.infra_retries,
        )
        async with aclosing(made) as records:
            async for record in records:
                yield record
