"""Tool sets and what is known of them: which tools belong together, their graphs, chains seen in gold.

A set is what an environment says (`tool_sets(task)`: BFCL's classes), or all tools of the environment. What
is known comes from playing the gold of a fixed number of tasks, never from reading it. Not covered: chains
proposed by a model (`chains_roles`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from data.messages import ToolSpec
from data.tasks import Task
from pipeline.environments.base import Environment
from synthesizers.astra.chains_graph import Chain, Transitions, observed_chains
from synthesizers.graph.build import build_graph
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.graph.observations import Step, steps_of
from synthesizers.graph.signatures import signatures_of
from synthesizers.worlds import gold_turns, training_split, whole_world

MIN_SEEN = 2
"""How often a transition must have been seen to be taken for sensible without a port. Ours."""
OBSERVED = 100
"""Tasks whose gold is played: always the first of a split, so that a synthesis that grows learns the same.
Ours."""
_RESULTS = 24
"""Results read per tool for its signature. Ours."""


@dataclass(slots=True, kw_only=True)
class ToolSet:
    """One tool set: its tools, the graph of their signatures, the transitions of its chains."""

    name: str
    tools: dict[str, ToolSpec]
    graph: SignatureGraph
    transitions: Transitions = field(default_factory=Transitions)

    def unlinked(self, chain: Chain) -> str:
        """The first step that nothing speaks for, "" where all have evidence.

        A step is linked where an earlier tool of the chain can feed it by a port of the graph, or where it
        followed the tool before it at least MIN_SEEN times.
        """
        for place, name in enumerate(chain[1:], 1):
            fed = any(self.graph.edge(earlier, name) for earlier in chain[:place])
            if not fed and self.transitions.seen(chain[place - 1], name) < MIN_SEEN:
                return f"{chain[place - 1]} > {name}"
        return ""

    def signature_walk(self, rng: random.Random, *, length: int) -> Chain:
        """A walk along the edges of the signature graph, without repeats; () where there is no edge."""
        starts = [name for name in self.tools if self.graph.successors(name)]
        here, walked = (rng.choice(starts) if starts else ""), list[str]()
        while here and len(walked) < length:
            walked.append(here)
            left = [name for name in self.graph.successors(here) if name not in walked]
            here = rng.choice(left) if left else ""
        return tuple(walked)


def sets_of(environment: Environment, task: Task, tools: Sequence[ToolSpec]) -> dict[str, list[ToolSpec]]:
    """All tools of a task's world by tool set; the environment itself is the only set where it says none."""
    said = getattr(environment, "tool_sets", None)
    if said is None:
        return {environment.name: list(tools)}
    named: Mapping[str, Sequence[str]] = said(task)
    known = {tool.name: tool for tool in tools}
    return {name: [known[tool] for tool in names if tool in known] for name, names in named.items()}


async def learn_sets(environment: Environment, *, observed: int = OBSERVED) -> dict[str, ToolSet]:
    """The tool sets of an environment, with the chains of `observed` golds; one that does not play adds none.

    A tool that no observed task is shown is in no set.
    """
    tools: dict[str, dict[str, ToolSpec]] = defaultdict(dict)
    episodes: list[list[Step]] = []
    shown: set[str] = set()
    for task in islice(environment.tasks(training_split(environment)), observed):
        there, steps = await _played(environment, task)
        shown.update([tool.name for tool in there] if task.tools is None else task.tools)
        for name, members in sets_of(environment, task, there).items():
            tools[name].update({tool.name: tool for tool in members})
        episodes.append(steps)
    used = {
        name: {tool: spec for tool, spec in members.items() if tool in shown}
        for name, members in tools.items()
    }
    sets = {name: _tool_set(name, members, episodes) for name, members in used.items()}
    for name, chain in _observed(episodes, used):
        sets[name].transitions.add(chain)
    return sets


def _observed(
    episodes: Iterable[Sequence[Step]], tools: Mapping[str, Mapping[str, ToolSpec]]
) -> Iterator[tuple[str, Chain]]:
    set_of = {tool: name for name, members in tools.items() for tool in members}
    for steps in episodes:
        yield from observed_chains(steps, set_of)


async def _played(environment: Environment, task: Task) -> tuple[tuple[ToolSpec, ...], list[Step]]:
    """The tools of a task's world, and the calls of its gold."""
    session = await environment.open(whole_world(task))
    try:
        tools = session.tools
        turns = await gold_turns(environment, task, session)
    finally:
        await session.close()
    return tools, steps_of(turns)


def _tool_set(name: str, tools: dict[str, ToolSpec], episodes: Sequence[Sequence[Step]]) -> ToolSet:
    results: dict[str, list[str]] = defaultdict(list)
    for steps in episodes:
        for step in steps:
            if step.ok and step.name in tools and len(results[step.name]) < _RESULTS:
                results[step.name].append(step.result)
    signatures = signatures_of(tools.values(), category=name, results=results)
    return ToolSet(name=name, tools=tools, graph=build_graph(signatures, observations=episodes))
