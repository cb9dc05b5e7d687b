"""What Magnet learns of an environment before it plans: its tools, and the signature graph of each tool set.

Learned from the gold of a fixed number of tasks, played in real sessions: which values flowed from a result
into a later argument, what results look like, which tools tasks are ever shown, and which of them end an
episode (those are in no path). The tasks are always the first of `train` (of the first split where none is
called so), so that a synthesis that grows or resumes learns the same. Not covered: values (`evidence`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from data import canonical
from data.messages import ToolSpec
from pipeline.chat.base import Chat
from pipeline.environments.base import Environment
from synthesizers.graph.build import build_graph, draw_candidates
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.graph.judge import judged_links
from synthesizers.graph.observations import Step, steps_of
from synthesizers.graph.signatures import signatures_of
from synthesizers.graph.words import words
from synthesizers.phrasing.twins import are_twins
from synthesizers.worlds import gold_turns, training_split, whole_world

_ALIKE = 0.4
"""Jaccard index of the words of two descriptions from which on one tool may do the other's work. Ours."""
_MAX_RESULTS = 50
"""Results per tool that are read for its return fields. Ours."""


@dataclass(kw_only=True)
class Knowledge:
    """Made by `learn`. `graph_of` gives the graph of a tool set, made once."""

    episodes: tuple[tuple[Step, ...], ...] = ()
    classes: dict[str, str] = field(default_factory=dict)
    """Tool -> the tool sets it occurs in: tools of one class are shown together."""
    unshown: frozenset[str] = frozenset()
    """Tools that a world has and no task was shown: duplicates, tools of the operator."""
    ending: frozenset[str] = frozenset()
    """Tools that end an episode."""
    judge: Chat | None = None
    _graphs: dict[tuple[str, ...], SignatureGraph] = field(default_factory=dict)

    def usable(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Of a world's tools those that may stand in a path."""
        return tuple(tool for tool in tools if tool.name not in self.ending | self.unshown)

    def closing(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Of a world's tools those that end an episode: they may stand at the very end of a path."""
        return tuple(tool for tool in tools if tool.name in self.ending - self.unshown)

    @property
    def graphs(self) -> tuple[SignatureGraph, ...]:
        """The graphs made so far, one per tool set."""
        return tuple(self._graphs.values())

    async def graph_of(self, tools: Sequence[ToolSpec]) -> SignatureGraph:
        """The signature graph of these tools: schemas, observed execution and, where there is one, judge."""
        key = tuple(tool.name for tool in tools)
        if key not in self._graphs:
            results: dict[str, list[str]] = defaultdict(list)
            for step in (step for episode in self.episodes for step in episode if step.ok):
                if len(results[step.name]) < _MAX_RESULTS:
                    results[step.name].append(step.result)
            signatures = [
                signature
                for tool in tools
                for signature in signatures_of(
                    [tool], category=self.classes.get(tool.name, ""), results=results
                )
            ]
            graph = build_graph(signatures, observations=self.episodes)
            if self.judge is not None:
                judged = await judged_links(draw_candidates(signatures), self.judge)
                graph = graph.with_links(judged.links)
            self._graphs[key] = graph
        return self._graphs[key]


async def learn(environment: Environment, *, observed: int, judge: Chat | None = None) -> Knowledge:
    """Play the gold of the first `observed` tasks. One without a gold that plays teaches nothing."""
    episodes: list[tuple[Step, ...]] = []
    shown: set[str] = set()
    ending: set[str] = set()
    sets: dict[str, set[str]] = defaultdict(set)
    for task in islice(environment.tasks(training_split(environment)), observed):
        session = await environment.open(whole_world(task))
        try:
            names = [tool.name for tool in session.tools]
            shown.update(names if task.tools is None else task.tools)
            turns = await gold_turns(environment, task, session)
            if turns and getattr(session, "finished", False):
                ending.update(turn.tool_calls[-1].name for turn in turns[-2:] if turn.tool_calls)
        finally:
            await session.close()
        episodes.append(tuple(steps_of(turns)))
        for name in names:
            sets[name].add(canonical.digest(sorted(names), length=12))
    classes = {name: canonical.digest(sorted(found), length=12) for name, found in sets.items()}
    return Knowledge(
        episodes=tuple(episodes),
        classes=classes,
        unshown=frozenset(sets) - shown,
        ending=frozenset(ending),
        judge=judge,
    )


def alike(one: ToolSpec, other: ToolSpec) -> bool:
    """Whether two tools may do each other's work, by the words of what they say of themselves."""
    if are_twins(one, other):
        return True
    first, second = _words(one), _words(other)
    return bool(first) and len(first & second) >= _ALIKE * len(first | second)


def _words(tool: ToolSpec) -> frozenset[str]:
    said = tool.description.split(". ")[0]
    return frozenset(words(said)) or frozenset(words(tool.name))
