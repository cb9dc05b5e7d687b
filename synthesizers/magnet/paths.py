"""Paths: which tools a planned dialogue calls in which user turn, and the operations on them.

Magnet's operations come in its order, Merge, Insert, Split, and another order is an error: Insert looks at
turns as merged, and nothing may change after Split, or its copy would differ from the path by more than the
empty turn. MAGNIFY and CONNECT make walked paths and come before. All are pure: the same path, graph and
generator state give the same new path. The random counterpart of every operation is the operation on
`SignatureGraph.rewired`. Not covered: arguments, wording, execution.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

import networkx as nx

from pipeline.errors import ConfigError
from synthesizers.graph.dependency import SignatureGraph

MERGE_SHARE = 0.3
"""Chance that two neighbouring turns become one. From the paper: p = 0.3."""
NESTED_SHARE = 0.5
"""Share of inserted calls that go into the same turn rather than a later one. Ours: the paper gives none."""
MAX_CHAIN = 3
"""Calls that MAGNIFY may put before a call. Ours."""
_SHORTEST_PATHS = 32
"""Shortest paths that CONNECT chooses among. Ours."""
_DRAWS = 64
"""Pairs that `draw_connection` tries. Ours."""


class Stage(StrEnum):
    """How far a path is; see the module docstring."""

    WALKED = "walked"
    MERGED = "merged"
    INSERTED = "inserted"
    SPLIT = "split"


class CallOrigin(StrEnum):
    """Which operation put a call into a path."""

    WALKED = "walked"
    NESTED = "nested"
    """Insert, same turn: the request must never mention it."""
    LONG = "long"
    """Insert, later turn: it needs what an earlier turn found."""
    MAGNIFIED = "magnified"
    """MAGNIFY: a step towards the call after it; the request does not mention it either."""


class Missing(StrEnum):
    """What a request lacks, so that nothing may be called yet."""

    PARAMS = "miss_params"
    """A required value that the next request brings: ask for it."""
    FUNC = "miss_func"
    """The tool, which is shown from the next turn on: say that it is missing."""


@dataclass(frozen=True, slots=True)
class PathCall:
    """A call to come. `key` is its number within the path, `fed_by` keys of calls whose answers it uses."""

    name: str
    key: int
    origin: CallOrigin = CallOrigin.WALKED
    fed_by: tuple[int, ...] = ()

    @property
    def mentioned(self) -> bool:
        """Whether the user's request may speak of it."""
        return self.origin not in (CallOrigin.NESTED, CallOrigin.MAGNIFIED)


@dataclass(frozen=True, slots=True)
class PathTurn:
    """The calls of one user turn. One with `missing` has none, and `lacks` is the parameter or the tool."""

    calls: tuple[PathCall, ...] = ()
    missing: Missing | None = None
    lacks: str = ""


@dataclass(frozen=True, slots=True)
class Path:
    """User turns in order."""

    turns: tuple[PathTurn, ...]
    stage: Stage = Stage.WALKED

    @classmethod
    def of(cls, walk: Sequence[str]) -> Path:
        """A walk as a path: one call a turn, each fed by the one before."""
        if not walk:
            raise ConfigError("a path needs at least one tool, got an empty walk")
        calls = (PathCall(name, key, fed_by=(key - 1,) if key else ()) for key, name in enumerate(walk))
        return cls(tuple(PathTurn((call,)) for call in calls))

    @property
    def calls(self) -> tuple[PathCall, ...]:
        """All calls in order."""
        return tuple(call for turn in self.turns for call in turn.calls)

    @property
    def names(self) -> tuple[str, ...]:
        """The tools in order of their calls."""
        return tuple(call.name for call in self.calls)

    @property
    def fed(self) -> tuple[tuple[str, str], ...]:
        """(feeding tool, fed tool) of every dependency: the edges this path uses."""
        names = {call.key: call.name for call in self.calls}
        return tuple((names[key], call.name) for call in self.calls for key in call.fed_by)

    def withheld(self, turn: int) -> frozenset[str]:
        """The tools not shown in that turn: those whose absence this turn or a later one is about."""
        later = self.turns[turn:]
        return frozenset(each.lacks for each in later if each.missing is Missing.FUNC)


def merge(path: Path, *, rng: random.Random, share: float = MERGE_SHARE) -> Path:
    """Merge: going over the turns, a turn and its next become one with chance `share`; never three.

    The calls are related; whether they are nested is Insert's matter. Raises ConfigError out of order.
    """
    _require(path, Stage.WALKED, operation="merge")
    turns: list[PathTurn] = []
    joined = True
    for turn in path.turns:
        joined = not joined and rng.random() < share
        if joined:
            turns[-1] = PathTurn(turns[-1].calls + turn.calls)
        else:
            turns.append(turn)
    return Path(tuple(turns), Stage.MERGED)


def insert(
    path: Path,
    graph: SignatureGraph,
    *,
    rng: random.Random,
    share: float = 1.0,
    nested_share: float = NESTED_SHARE,
) -> Path:
    """Insert: for each turn's last call, one tool that an edge says it can feed and that the path has not.

    It joins the same turn unmentioned, or a random later turn. `share` is how many turns are tried (the paper
    tries all). Raises ConfigError out of order.
    """
    _require(path, Stage.MERGED, operation="insert")
    nested: dict[int, list[PathCall]] = defaultdict(list)
    later: dict[int, list[PathCall]] = defaultdict(list)
    used, key = set(path.names), len(path.calls)
    for place, turn in enumerate(path.turns):
        last = turn.calls[-1]
        choices = [name for name in graph.successors(last.name) if name not in used]
        if not choices or rng.random() >= share:
            continue
        name, followers = rng.choice(choices), range(place + 1, len(path.turns))
        if not followers or rng.random() < nested_share:
            nested[place].append(PathCall(name, key, CallOrigin.NESTED, (last.key,)))
        else:
            later[rng.choice(followers)].append(PathCall(name, key, CallOrigin.LONG, (last.key,)))
        used.add(name)
        key += 1
    turns = (PathTurn((*turn.calls, *nested[place], *later[place])) for place, turn in enumerate(path.turns))
    return Path(tuple(turns), Stage.INSERTED)


def split(
    path: Path, graph: SignatureGraph, *, rng: random.Random, missing: Missing | None = None
) -> Path | None:
    """Split: a copy with an empty turn before a random turn, which lacks what that turn's first call needs.

    The first call, because then nothing of the turn can be done yet. Lacked is a required parameter that no
    earlier call answers, or a tool that no earlier turn calls; of both kinds one is drawn unless `missing`
    says which. None where there is nothing to lack. The paper puts the turn after a random one; that it may
    be the first is ours. Raises ConfigError out of order.
    """
    _require(path, Stage.INSERTED, operation="split")
    kinds = [missing] if missing else rng.sample([Missing.PARAMS, Missing.FUNC], 2)
    for kind in kinds:
        lacking = list((_params if kind is Missing.PARAMS else _funcs)(path, graph))
        if lacking:
            place, lacks = rng.choice(lacking)
            empty = PathTurn(missing=kind, lacks=lacks)
            return Path((*path.turns[:place], empty, *path.turns[place:]), Stage.SPLIT)
    return None


def magnify(path: Path, graph: SignatureGraph, *, key: int, rng: random.Random) -> Path:
    """MAGNIFY: a chain of edges that ends at the call `key` goes before it, into the same turn.

    The chain takes tools that the path has not, one to MAX_CHAIN of them; where there is none, the path comes
    back as it is. Raises ConfigError out of order and for a key that is not in the path.
    """
    _require(path, Stage.WALKED, operation="magnify")
    found = next((call for call in path.calls if call.key == key), None)
    if found is None:
        raise ConfigError(f"the path has no call {key}; its keys are 0 to {len(path.calls) - 1}")
    chain = _chain_before(found.name, graph, set(path.names), rng=rng)
    if not chain:
        return path
    keys = range(len(path.calls), len(path.calls) + len(chain))
    steps = [
        PathCall(name, number, CallOrigin.MAGNIFIED, (number - 1,) if number > keys[0] else ())
        for number, name in zip(keys, chain, strict=True)
    ]
    fed = replace(found, fed_by=(*found.fed_by, keys[-1]))
    turns = tuple(
        PathTurn(tuple(each for call in turn.calls for each in ((*steps, fed) if call is found else (call,))))
        for turn in path.turns
    )
    return replace(path, turns=turns)


def connect(graph: SignatureGraph, source: str, target: str, *, rng: random.Random) -> Path | None:
    """CONNECT: a shortest path from `source` to `target`, which no edge joins; None where there is none.

    Raises ConfigError for tools that are not in the graph or are joined by an edge.
    """
    if target in graph.successors(source) or source == target or target not in graph.signatures:
        raise ConfigError(f"connect needs two tools of the graph without an edge, got {source} -> {target}")
    if not nx.has_path(graph.digraph, source, target):
        return None
    found = list(islice(nx.all_shortest_paths(graph.digraph, source, target), _SHORTEST_PATHS))
    return Path.of(rng.choice(found))


def draw_connection(graph: SignatureGraph, *, rng: random.Random) -> Path | None:
    """CONNECT on two tools drawn at random; None where no pair of _DRAWS can be connected."""
    names = list(graph.signatures)
    for _ in range(_DRAWS if len(names) > 1 else 0):
        source, target = rng.sample(names, 2)
        path = connect(graph, source, target, rng=rng) if graph.edge(source, target) is None else None
        if path is not None:
            return path
    return None


def _chain_before(name: str, graph: SignatureGraph, used: set[str], *, rng: random.Random) -> list[str]:
    """Tools that feed each other and finally `name`, in order of calling."""
    chain: list[str] = []
    for _ in range(rng.randint(1, MAX_CHAIN)):
        choices = [other for other in graph.predecessors(name) if other not in used]
        if not choices:
            break
        name = rng.choice(choices)
        used.add(name)
        chain.append(name)
    return chain[::-1]


def _params(path: Path, graph: SignatureGraph) -> Iterator[tuple[int, str]]:
    """(turn, required parameter of its first call that no feeding call can bring)."""
    names = {call.key: call.name for call in path.calls}
    for place, turn in enumerate(path.turns):
        first = turn.calls[0]
        edges = [graph.edge(names[key], first.name) for key in first.fed_by]
        brought = {link.input for edge in edges if edge is not None for link in edge.links}
        for port in graph.signatures[first.name].inputs:
            if port.required and port.path not in brought:
                yield place, port.path


def _funcs(path: Path, graph: SignatureGraph) -> Iterator[tuple[int, str]]:
    """(turn, tool of its first call) where no earlier turn calls that tool."""
    called: set[str] = set()
    for place, turn in enumerate(path.turns):
        if turn.calls[0].name not in called:
            yield place, turn.calls[0].name
        called.update(call.name for call in turn.calls)


def _require(path: Path, stage: Stage, *, operation: str) -> None:
    if path.stage is not stage:
        raise ConfigError(
            f"{operation} takes a path at stage {stage}, got one at stage {path.stage};"
            " the order is magnify or connect, merge, insert, split"
        )
