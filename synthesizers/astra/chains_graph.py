"""Chains of tools: proposed or observed, their transitions as a weighted directed graph, candidates.

A chain stays inside one tool set. Candidates are drawn from the transitions of one set: length-bounded
weighted walks (the paper), or any of all paths without repeats found depth first (the code). Not covered:
whether a chain makes sense (`chains_sets`), what it is asked for in words (`chains_writing`).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, pairwise

from synthesizers.graph.observations import Step

Chain = tuple[str, ...]

MIN_LENGTH, MAX_LENGTH = 2, 5
"""Calls of a chain. From the code: depth-first paths of 2 to 5 tools."""
MAX_PATHS = 50_000
"""Depth-first paths kept of one tool set, the first ones in order of names. Ours."""
_DRAWS = 16
"""Walks drawn until one has MIN_LENGTH tools. Ours."""


@dataclass(slots=True)
class Transitions:
    """The weighted graph of one tool set: how often which tool followed which, over a multiset of chains."""

    followers: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    starts: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    _paths: list[Chain] | None = None

    def add(self, chain: Chain) -> None:
        """Count a chain; one of a single tool has no transition and adds nothing."""
        if len(chain) < MIN_LENGTH:
            return
        self.starts[chain[0]] += 1
        self.lengths[min(len(chain), MAX_LENGTH)] += 1
        for before, after in pairwise(chain):
            self.followers[before][after] += 1
        self._paths = None

    def seen(self, before: str, after: str) -> int:
        """How often `after` followed `before`."""
        return self.followers[before][after] if before in self.followers else 0

    def walk(self, rng: random.Random, *, length: int) -> Chain:
        """A walk of at most `length` tools, steps in proportion to their counts; () where none has two."""
        for _ in range(_DRAWS):
            walk = tuple(islice(self._steps(rng), length))
            if len(walk) >= MIN_LENGTH:
                return walk
        return ()

    def paths(self) -> Sequence[Chain]:
        """Every path of MIN_LENGTH to MAX_LENGTH tools without repeats, depth first, at most MAX_PATHS."""
        if self._paths is None:
            self._paths = list(islice(self._depth_first(), MAX_PATHS))
        return self._paths

    def drawn_length(self, rng: random.Random) -> int:
        """A length as often as it was seen. Raises IndexError where no chain was added."""
        sizes = sorted(self.lengths)
        return rng.choices(sizes, [self.lengths[size] for size in sizes])[0]

    def _steps(self, rng: random.Random) -> Iterator[str]:
        """A walk without repeats, as long as there is somewhere to go."""
        here, walked = _drawn(self.starts, rng), set[str]()
        while here:
            yield here
            walked.add(here)
            left = {name: count for name, count in self._after(here).items() if name not in walked}
            here = _drawn(left, rng)

    def _depth_first(self) -> Iterator[Chain]:
        stack: list[Chain] = [(name,) for name in sorted(self.followers, reverse=True)]
        while stack:
            path = stack.pop()
            if len(path) >= MIN_LENGTH:
                yield path
            if len(path) < MAX_LENGTH:
                stack += [
                    (*path, name) for name in sorted(self._after(path[-1]), reverse=True) if name not in path
                ]

    def _after(self, name: str) -> Mapping[str, int]:
        return self.followers.get(name, {})


def transitions_of(chains: Iterable[Chain]) -> Transitions:
    """The graph of a multiset of chains."""
    found = Transitions()
    for chain in chains:
        found.add(chain)
    return found


def random_chain(tools: Sequence[str], rng: random.Random, *, length: int) -> Chain:
    """Any `length` different tools in any order (the ablation): no edge is asked for."""
    return tuple(rng.sample(list(tools), min(length, len(tools))))


def observed_chains(steps: Sequence[Step], set_of: Mapping[str, str]) -> Iterator[tuple[str, Chain]]:
    """(tool set, chain) of one executed episode: calls that worked, cut where the tool set changes.

    A tool called several times in a row stands once: a chain says which tool follows which.
    """
    worked = [step.name for step in steps if step.ok and step.name in set_of]
    names = [name for name, _ in groupby(worked)]
    for tool_set, run in groupby(names, key=lambda name: set_of[name]):
        yield tool_set, tuple(run)


def _drawn(weights: Mapping[str, int], rng: random.Random) -> str:
    names = sorted(name for name in weights if weights[name])
    return rng.choices(names, [weights[name] for name in names])[0] if names else ""
