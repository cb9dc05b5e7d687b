"""From a signature graph to a path: where a plan starts, how it walks, and which operations change it.

A walk that ends before it has enough steps is followed by another one, preferably through tools that were
not visited yet, as a user comes to the next matter; only walked neighbours feed each other. All chances are
options of the synthesizer. Not covered: the operations themselves (`paths`), arguments (`enacting`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pipeline.errors import ConfigError
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.magnet.paths import (
    MERGE_SHARE,
    NESTED_SHARE,
    Path,
    PathCall,
    PathTurn,
    Stage,
    draw_connection,
    insert,
    magnify,
    merge,
)

STEPS = 5
"""Tools of the walked part of a path. Ours: the paper's 7 make dialogues too long for 1,024 tokens of
context."""
MAGNIFY_SHARE, CONNECT_SHARE, SPLIT_SHARE = 0.25, 0.25, 0.4
"""Chances per plan. Ours: the first two operations are not the paper's, and it copies all paths for Split."""

LEADING_SHARE = 0.8
"""Walks that start at a tool which feeds another one, while there is such a start. Ours: in most worlds few
tools feed others, and a start drawn from all of them mostly ends where it began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """Chances, each between 0 and 1. `merge` is per pair of turns, `insert` per turn, the others per plan."""

    merge: float = MERGE_SHARE
    insert: float = 1.0
    nested: float = NESTED_SHARE
    magnify: float = MAGNIFY_SHARE
    connect: float = CONNECT_SHARE
    split: float = SPLIT_SHARE

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is a chance between 0 and 1, got {getattr(self, name)}")


def draw_path(graph: SignatureGraph, operations: Operations, *, steps: int, rng: random.Random) -> Path:
    """A path that is inserted, not yet split. ConfigError for a graph without tools."""
    path = _walked(graph, steps=steps, connect=operations.connect, rng=rng)
    if rng.random() < operations.magnify:
        path = magnify(path, graph, key=rng.choice(path.calls).key, rng=rng)
    path = merge(path, rng=rng, share=operations.merge)
    return insert(path, graph, rng=rng, share=operations.insert, nested_share=operations.nested)


def renumbered(path: Path, first: int) -> Path:
    """The path with its keys counted from `first`, so that it can follow another one."""
    turns = tuple(
        PathTurn(
            tuple(
                replace(call, key=call.key + first, fed_by=tuple(key + first for key in call.fed_by))
                for call in turn.calls
            )
        )
        for turn in path.turns
    )
    return replace(path, turns=turns)


def without(graph: SignatureGraph, names: Collection[str]) -> SignatureGraph:
    """The graph without some tools."""
    if not names:
        return graph
    kept = [signature for signature in graph.signatures.values() if signature.name not in names]
    return SignatureGraph(
        kept, [link for link in graph.links() if not {link.source, link.target} & set(names)]
    )


def _walked(graph: SignatureGraph, *, steps: int, connect: float, rng: random.Random) -> Path:
    """Walks one after the other, the first one a connection where the dice say so."""
    walks: list[tuple[str, ...]] = []
    connection = draw_connection(graph, rng=rng) if rng.random() < connect else None
    if connection is not None:
        walks.append(connection.names[:steps])
    while (left := steps - sum(map(len, walks))) > 0:
        visited = {name for walk in walks for name in walk}
        walks.append(_fresh(_drawn(graph, visited, rng=rng), visited, left=left))
    return _joined(walks)


def _drawn(graph: SignatureGraph, visited: set[str], *, rng: random.Random) -> tuple[str, ...]:
    """A walk from a random start that was not visited yet, mostly one that leads somewhere."""
    walks = graph.walks(len(graph), length=len(graph), seed=rng.randrange(2**32))
    if not walks:
        raise ConfigError("a path needs a tool: no tool of this world may stand in one")
    fresh = [walk for walk in walks if walk[0] not in visited] or walks
    leading = [walk for walk in fresh if len(walk) > 1]
    lonely = [walk for walk in fresh if len(walk) == 1]
    if leading and (not lonely or rng.random() < LEADING_SHARE):
        return rng.choice(leading)
    return rng.choice(lonely)


def _fresh(walk: Sequence[str], visited: set[str], *, left: int) -> tuple[str, ...]:
    """The walk up to the first tool that an earlier one visited, its start aside; at most `left` long."""
    end = next((place for place, name in enumerate(walk) if place and name in visited), len(walk))
    return tuple(walk[: min(end, left)])


def _joined(walks: Sequence[Sequence[str]]) -> Path:
    turns: list[PathTurn] = []
    for walk in walks:
        for place, name in enumerate(walk):
            key = len(turns)
            turns.append(PathTurn((PathCall(name, key, fed_by=(key - 1,) if place else ()),)))
    return Path(tuple(turns), Stage.WALKED)
