"""Walks: along edges, without repeats, seeded, uniform; coverage."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import ConfigError
from synthesizers.graph import walks as walks_module
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.graph.walks import Adjacency, draw_walks
from tests.synthesizers.graph.signs import graph_of_edges


def test_walks_go_along_edges_and_never_twice_through_a_node() -> None:
    digraph = nx.gnp_random_graph(40, 0.15, seed=1, directed=True)
    adjacency = Adjacency.of([sorted(digraph.successors(node)) for node in range(40)])
    rows = draw_walks(adjacency, 2_000, length=7, rng=np.random.default_rng(0)).tolist()
    assert [row[0] for row in rows] == [number % 40 for number in range(2_000)]
    for row in rows:
        walk = [node for node in row if node >= 0]
        assert row == walk + [-1] * (7 - len(walk)), "nothing after the end"
        assert all(digraph.has_edge(a, b) for a, b in pairwise(walk))
        assert len(set(walk)) == len(walk)
        if len(walk) < 7:
            assert not set(digraph.successors(walk[-1])) - set(walk), "it ends early only where it must"


@settings(max_examples=60)
@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=25), st.integers(0, 5))
def test_walks_of_any_graph_end_only_where_they_must(edges: set[tuple[int, int]], seed: int) -> None:
    rows = [sorted(b for a, b in edges if a == node != b) for node in range(7)]
    for row in draw_walks(Adjacency.of(rows), 20, length=5, rng=np.random.default_rng(seed)).tolist():
        walk = [node for node in row if node >= 0]
        assert all(b in rows[a] for a, b in pairwise(walk))
        assert len(set(walk)) == len(walk)
        assert len(walk) == 5 or not set(rows[walk[-1]]) - set(walk)


def test_walks_follow_the_seed() -> None:
    graph = graph_of_edges("a>b", "a>c", "b>c", "c>a", "c>d", "d>b", "b>d")
    assert graph.walks(50, seed=1) == graph.walks(50, seed=1) != graph.walks(50, seed=2)
    assert {walk[0] for walk in graph.walks(4)} == set("abcd"), "from every node in turn"


def test_dead_ends_and_walks_of_one_node() -> None:
    graph = graph_of_edges("a>b", extra="c")
    assert graph.walks(3) == [("a", "b"), ("b",), ("c",)]
    assert SignatureGraph([], []).walks(3) == []
    with pytest.raises(ConfigError, match="length >= 1"):
        graph.walks(1, length=0)


@pytest.mark.parametrize("redraws", [0, 4])
def test_steps_are_uniform_over_what_is_left(redraws: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks_module, "_REDRAWS", redraws)
    adjacency = Adjacency.of([[1], [0, 2, 3, 4], [], [], []])
    rows = draw_walks(adjacency, 6_000, length=3, rng=np.random.default_rng(0))
    ends = Counter(rows[rows[:, 0] == 0][:, 2].tolist())
    assert set(ends) == {2, 3, 4}
    assert all(abs(count / 1_200 - 1 / 3) < 0.06 for count in ends.values())


def test_coverage_counts_neighbours_that_are_edges() -> None:
    graph = graph_of_edges("a>b", "b>c", "c>d", "d>a")
    assert graph.coverage([]) == 0.0
    assert graph.coverage([("a", "b", "c"), ("b", "c"), ("a", "c")]) == 0.5
    assert graph.coverage(graph.walks(4)) == 1.0
