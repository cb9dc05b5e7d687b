"""What HardGen learns of an environment, and its API graph for a failure set: made anew for another set.

Learned from the gold of a fixed number of tasks, as Magnet does, so that a synthesis that grows or resumes
learns the same. Worlds of one environment may have different tools: all of them teach what their tools share.
A graph is kept for the process under environment, tools and the digest of the failure set; where failures
move, the next synthesis has another digest and builds another graph. Not covered: refining it (`refinement`,
`states`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from data.messages import ToolSpec
from data.tasks import Task
from pipeline.chat.base import Chat
from pipeline.environments.base import Environment
from synthesizers.execution import Trial
from synthesizers.grounding.evidence import NUM_CORPUS
from synthesizers.hardgen.api_graph import ApiGraph, Prerequisite
from synthesizers.hardgen.failures import FailureSet
from synthesizers.hardgen.refinement import Refiner
from synthesizers.hardgen.states import Episode, Pools, state_needs
from synthesizers.magnet.knowledge import Knowledge, learn
from synthesizers.worlds import training_split, whole_world

_GRAPHS: dict[tuple[str, ...], ApiGraph] = {}


@dataclass(kw_only=True)
class Graphs:
    """The graphs of an environment. `observed` tasks are learned from; `judge` may add edges to be tried."""

    environment: Environment
    observed: int
    seed: int = 0
    knowledge: Knowledge = field(default_factory=Knowledge)
    _episodes: list[Episode] = field(default_factory=list)
    _pools: Pools | None = None
    _states: tuple[Prerequisite, ...] | None = None
    _judged: dict[tuple[str, ...], ApiGraph] = field(default_factory=dict)
    """Graphs with a judge's edges are kept here alone: another judge says otherwise."""
    _building: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def learn(self, judge: Chat | None) -> None:
        """Play gold, and note which tools its worlds have."""
        self.knowledge = await learn(self.environment, observed=self.observed, judge=judge)
        tasks = islice(self.environment.tasks(training_split(self.environment)), self.observed)
        worlds = [whole_world(task) for task in tasks]
        self._episodes = [
            Episode(task=world, steps=steps, tools=await self.tools(world))
            for world, steps in zip(worlds, self.knowledge.episodes, strict=True)
        ]
        corpus = min(self.observed, NUM_CORPUS)
        self._pools = Pools(environment=self.environment, num_corpus=corpus)
        self._states = None

    async def tools(self, world: Task) -> tuple[ToolSpec, ...]:
        """The tools of a world that may stand in a chain."""
        async with await Trial.open(self.environment, world, seed=self.seed) as trial:
            return self.knowledge.usable(trial.tools)

    async def of(self, tools: Sequence[ToolSpec], failures: FailureSet | None) -> ApiGraph:
        """The refined graph toward the failure tools among `tools`; toward all without a failure set."""
        names = tuple(tool.name for tool in tools)
        digest = failures.digest if failures is not None else ""
        world = self.environment.name, self.environment.version, str(self.observed), str(self.seed)
        key = (*world, digest, *names)
        known = _GRAPHS if self.knowledge.judge is None else self._judged
        async with self._building:
            if key not in known:
                assert self._pools is not None, "learned before"
                if self._states is None:
                    self._states = await state_needs(
                        self.environment, self._episodes, pools=self._pools, seed=self.seed
                    )
                refiner = Refiner(
                    environment=self.environment,
                    tools=tuple(tools),
                    links=await self.knowledge.graph_of(tools),
                    episodes=self._episodes,
                    states=self._states,
                    pools=self._pools,
                    seed=self.seed,
                )
                targets = names if failures is None else failures.names
                known[key] = await refiner.graph(targets, failures=digest)
        return known[key]
