"""State prerequisites, learned once from the gold of all worlds of an environment.

Candidates are pairs of gold's calls, the first of which changes the state. Gold is played again without that
change: where the later call then fails, and the tool works with no other arguments either (else it lacked the
file, not the login), the prerequisite is confirmed. Worlds of one environment may show other tools: what is
seen of two tools in one of them counts wherever both are. Not covered: which prerequisites a graph keeps
(`refinement`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from data.messages import ToolSpec
from data.tasks import Task
from pipeline.environments.base import Environment
from synthesizers.execution import Executed, Trial
from synthesizers.graph.observations import Step
from synthesizers.grounding.calls import ground, worked
from synthesizers.grounding.evidence import ValuePool, make_pool
from synthesizers.hardgen.api_graph import Need, Prerequisite
from synthesizers.magnet.enacting import has_failed

MAX_PLAYED = 6
"""Times that gold is played with a call left out to see what it does to one other tool. Ours."""
MAX_STEPS = 12
"""Gold of more calls is not played with calls left out. Ours."""


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Gold of a task, executed, and the usable tools of its world."""

    task: Task
    steps: tuple[Step, ...]
    tools: tuple[ToolSpec, ...]

    @property
    def names(self) -> frozenset[str]:
        """Of the tools."""
        return frozenset(tool.name for tool in self.tools)


@dataclass(kw_only=True)
class Pools:
    """The values of worlds, read once each."""

    environment: Environment
    num_corpus: int
    _known: dict[str, ValuePool] = field(default_factory=dict)

    async def of(self, world: Task) -> ValuePool:
        """The values of a world."""
        if world.task_id not in self._known:
            pool = await make_pool(self.environment, world, num_corpus=self.num_corpus)
            self._known[world.task_id] = pool
        return self._known[world.task_id]


async def state_needs(
    environment: Environment, episodes: Sequence[Episode], *, pools: Pools, seed: int = 0
) -> tuple[Prerequisite, ...]:
    """Every pair (change, later call) of gold, with how often the tool failed without the change."""
    tried: Counter[tuple[str, str]] = Counter()
    failed: Counter[tuple[str, str]] = Counter()
    for episode in episodes:
        steps = [step for step in episode.steps if step.ok]
        if not 1 < len(steps) <= MAX_STEPS or len(steps) != len(episode.steps):
            continue
        whole = await replayed(environment, episode.task, steps)
        for left_out, change in enumerate(whole):
            if not change.changes or not works(change):
                continue
            rest = steps[left_out + 1 :]
            again = await replayed(environment, episode.task, [*steps[:left_out], *rest])
            for place, step in enumerate(rest, start=left_out):
                pair = steps[left_out].name, step.name
                if pair[0] == pair[1] or not set(pair) <= episode.names or not works(whole[place + 1]):
                    continue
                if tried[pair] == MAX_PLAYED:
                    continue
                tried[pair] += 1
                before = [*steps[:left_out], *steps[left_out + 1 : place + 1]]
                failed[pair] += not works(again[place]) and not await _works_otherwise(
                    environment, step.name, before, episode, pools=pools, seed=seed
                )
    return tuple(
        Prerequisite(source, target, Need.STATE, tried=count, confirmed=failed[source, target])
        for (source, target), count in sorted(tried.items())
    )


async def _works_otherwise(
    environment: Environment,
    name: str,
    before: Sequence[Step],
    episode: Episode,
    *,
    pools: Pools,
    seed: int,
) -> bool:
    """Whether the tool works with any arguments after these calls."""
    rng = random.Random(f"hardgen/{seed}/{name}/{episode.task.task_id}")
    async with await Trial.open(environment, episode.task, seed=seed) as trial:
        for step in before:
            await trial.attempt(step.name, dict(step.arguments))
        spec = next(tool for tool in episode.tools if tool.name == name)
        pool = await pools.of(episode.task)
        return await ground(trial, spec, pool, rng=rng, may_finish=False) is not None


async def replayed(environment: Environment, task: Task, steps: Sequence[Step]) -> list[Executed]:
    """The calls made anew, one after the other, whatever they answer."""
    async with await Trial.open(environment, task) as trial:
        return [await trial.attempt(step.name, dict(step.arguments)) for step in steps]


def works(made: Executed) -> bool:
    """Whether a call did its work, by status, answer and the words of the answer."""
    return worked(made, shows_state=True) and not has_failed(made)
