"""Random walks without repeats over an adjacency in arrays, all at once.

Each round draws a successor for every walk that goes on; a draw that was visited before is drawn again, and
after a few rounds the rest choose among their unvisited successors exactly. Both are the same distribution.
Not covered: names (`dependency.SignatureGraph.walks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConfigError

Ints = npt.NDArray[np.int64]
_REDRAWS = 4
"""Rounds of drawing again before the exact choice."""


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Successors of node i are targets[starts[i]:starts[i + 1]]."""

    starts: Ints
    targets: Ints

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> Adjacency:
        """From successor lists."""
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(starts, np.fromiter(chain.from_iterable(rows), dtype=np.int64))

    def draw(self, nodes: Ints, rng: np.random.Generator) -> Ints:
        """One successor of each of `nodes`, all of which have some."""
        low = self.starts[nodes]
        drawn: Ints = self.targets[rng.integers(low, self.starts[nodes + 1])]
        return drawn

    def draw_unvisited(self, node: int, visited: set[int], rng: np.random.Generator) -> int:
        """A successor that is not in `visited`, or -1."""
        successors = self.targets[self.starts[node] : self.starts[node + 1]].tolist()
        left = [other for other in successors if other not in visited]
        return int(left[rng.integers(len(left))]) if left else -1


def draw_walks(adjacency: Adjacency, count: int, *, length: int, rng: np.random.Generator) -> Ints:
    """Walks as rows of node numbers, filled with -1 after their end; walk i starts at node i mod n.

    Shape (count, length). Raises ConfigError for a length below 1 or a negative count.
    """
    if length < 1 or count < 0:
        raise ConfigError(f"walks need length >= 1 and count >= 0, got length {length}, count {count}")
    size = len(adjacency.starts) - 1
    walks: Any = np.full((count, length), -1, dtype=np.int64)
    if size == 0 or count == 0:
        return np.full((0, length), -1, dtype=np.int64)
    walks[:, 0] = np.arange(count) % size
    alive = np.arange(count)
    for step in range(1, length):
        nodes = walks[alive, step - 1]
        alive = alive[adjacency.starts[nodes + 1] > adjacency.starts[nodes]]
        _step(adjacency, walks, alive, step, rng)
        alive = alive[walks[alive, step] >= 0]
    result: Ints = walks
    return result


def _step(adjacency: Adjacency, walks: Ints, alive: Ints, step: int, rng: np.random.Generator) -> None:
    """Write column `step` of the walks in `alive`; -1 where no successor is unvisited."""
    todo = alive
    for _ in range(_REDRAWS):
        if not len(todo):
            return
        drawn = adjacency.draw(walks[todo, step - 1], rng)
        repeated = (walks[todo, :step] == drawn[:, None]).any(axis=1)
        walks[todo[~repeated], step] = drawn[~repeated]
        todo = todo[repeated]
    for row in todo.tolist():
        visited = set(walks[row, :step].tolist())
        walks[row, step] = adjacency.draw_unvisited(int(walks[row, step - 1]), visited, rng)
