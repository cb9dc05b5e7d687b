"""The signature graph: an edge says that an answer of its source can feed an argument of its target.

Every edge names the ports and the evidence; without a link there is no edge. Graphs are not changed: added
links make a new one. Source: Magnet (arXiv 2503.07826), graph and local dependency graph. Not covered:
finding links (`matching`, `observations`, `judge`), drawing walks (`walks`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import networkx as nx
import numpy as np

from pipeline.errors import ConfigError
from synthesizers.graph.ports import Port, Signature
from synthesizers.graph.walks import Adjacency, draw_walks

WALK_LENGTH = 7
"""Nodes of a walk. From the paper: S = 7."""


class Evidence(StrEnum):
    """Why a port is believed to feed another."""

    SCHEMA = "schema"
    """Types fit and names, units or allowed values agree."""
    OBSERVED = "observed"
    """A value of the source's result was used as that argument later in an executed sequence of calls."""
    JUDGED = "judged"
    """A judge said so."""
    RANDOM = "random"
    """None: drawn for an ablation, see `SignatureGraph.rewired`."""


class Link(NamedTuple):
    """One port that can feed one parameter. `score` is in 0 to 1, comparable within one evidence only."""

    source: str
    target: str
    output: str
    input: str
    evidence: Evidence
    score: float
    whole: bool = True
    """False where the value is only a part of the argument, e.g. a table's name in a query."""
    times: int = 0
    """Distinct values this was observed with."""


@dataclass(frozen=True, slots=True)
class Edge:
    """All links from one tool to another, the best first."""

    source: str
    target: str
    links: tuple[Link, ...]

    @property
    def score(self) -> float:
        """The best link's."""
        return self.links[0].score

    @property
    def evidence(self) -> frozenset[Evidence]:
        """All kinds of evidence there are."""
        return frozenset(link.evidence for link in self.links)


class SignatureGraph:
    """Signatures and the edges between them. `digraph` has them as attributes `signature` and `edge`."""

    def __init__(self, signatures: Iterable[Signature], links: Iterable[Link]) -> None:
        """Raises ConfigError for two signatures of one name and for links between unknown ones."""
        self.signatures: dict[str, Signature] = {}
        for signature in signatures:
            if signature.name in self.signatures:
                raise ConfigError(f"two signatures are named {signature.name!r}; names are nodes: rename one")
            self.signatures[signature.name] = signature
        self.digraph: nx.DiGraph[str] = nx.DiGraph()
        for signature in self.signatures.values():
            self.digraph.add_node(signature.name, signature=signature)
        for edge in _edges(links, self.signatures):
            self.digraph.add_edge(edge.source, edge.target, edge=edge)

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.signatures)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, by source in the order of signatures."""
        return tuple(data["edge"] for _, _, data in self.digraph.edges(data=True))

    def edge(self, source: str, target: str) -> Edge | None:
        """The edge, or None."""
        found: dict[str, Edge] | None = self.digraph.get_edge_data(source, target)
        return found["edge"] if found else None

    def successors(self, name: str) -> tuple[str, ...]:
        """The tools `name` can feed, Magnet's local dependency graph. Raises ConfigError for other names."""
        return tuple(self.digraph.successors(self._known(name)))

    def predecessors(self, name: str) -> tuple[str, ...]:
        """The tools that can feed `name`. Raises ConfigError for an unknown name."""
        return tuple(self.digraph.predecessors(self._known(name)))

    def with_links(self, links: Iterable[Link]) -> SignatureGraph:
        """This graph and `links`, e.g. those a judge found or later executions showed."""
        return SignatureGraph(self.signatures.values(), [*self.links(), *links])

    def links(self) -> list[Link]:
        """The links of all edges."""
        return [link for edge in self.edges for link in edge.links]

    def rewired(self, *, seed: int = 0) -> SignatureGraph:
        """The random counterpart for ablations: an edge keeps source and score, target and ports are drawn.

        Targets come from all other tools, without repeats, so a true edge may be drawn by chance.
        """
        rng = random.Random(f"signature_graph/rewired/{seed}")
        names, drawn = list(self.signatures), []
        for place, (source, signature) in enumerate(self.signatures.items()):
            targets = self.successors(source)
            for old, index in zip(targets, rng.sample(range(len(names) - 1), len(targets)), strict=True):
                target = names[index + (index >= place)]
                ports = _port(signature.outputs, rng), _port(self.signatures[target].inputs, rng)
                score = self.digraph.edges[source, old]["edge"].score
                drawn.append(Link(source, target, *ports, Evidence.RANDOM, score))
        return SignatureGraph(self.signatures.values(), drawn)

    def walks(self, count: int, *, length: int = WALK_LENGTH, seed: int = 0) -> list[tuple[str, ...]]:
        """`count` walks of at most `length` nodes along edges, starting at each node in turn.

        Steps are uniform over the successors that were not visited; a walk never visits a node twice and ends
        early where none is left.
        """
        names = list(self.signatures)
        rows = draw_walks(self._adjacency, count, length=length, rng=np.random.default_rng(seed))
        return [tuple(names[node] for node in row if node >= 0) for row in rows.tolist()]

    def coverage(self, paths: Iterable[Sequence[str]]) -> float:
        """Share of edges that stand as neighbours in at least one path; 0 for a graph without edges."""
        edges = set(self.digraph.edges)
        walked = {pair for path in paths for pair in pairwise(path)}
        return len(edges & walked) / len(edges) if edges else 0.0

    @cached_property
    def _adjacency(self) -> Adjacency:
        number = {name: index for index, name in enumerate(self.signatures)}
        return Adjacency.of([[number[target] for target in self.digraph.successors(name)] for name in number])

    def _known(self, name: str) -> str:
        if name not in self.signatures:
            raise ConfigError(
                f"no tool {name!r} in the graph of {len(self)}: {', '.join(list(self.signatures)[:12])}"
            )
        return name


def _port(ports: Sequence[Port], rng: random.Random) -> str:
    return rng.choice(ports).path if ports else ""


def _edges(links: Iterable[Link], known: Mapping[str, Signature]) -> list[Edge]:
    """Links by pair; the same ports by the same evidence count once, with the better score."""
    pairs: dict[tuple[str, str], dict[tuple[str, str, Evidence], Link]] = {}
    for link in links:
        if link.source not in known or link.target not in known or link.source == link.target:
            raise ConfigError(
                f"a link needs two different tools of the graph, got {link.source} -> {link.target}"
            )
        ports = pairs.setdefault((link.source, link.target), {})
        key = (link.output, link.input, link.evidence)
        if key not in ports or ports[key].score < link.score:
            ports[key] = link
    return [
        Edge(source, target, tuple(sorted(ports.values(), key=lambda link: (-link.score, link))))
        for (source, target), ports in pairs.items()
    ]
