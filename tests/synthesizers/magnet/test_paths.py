"""Operations on paths: no call is lost, the order is kept, marks survive, and a planted bug shows."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import ConfigError
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.magnet import paths
from synthesizers.magnet.paths import (
    MERGE_SHARE,
    CallOrigin,
    Missing,
    Path,
    PathTurn,
    Stage,
    connect,
    draw_connection,
    insert,
    magnify,
    merge,
    split,
)
from tests.synthesizers.graph.signs import graph_of_edges

GRAPH = graph_of_edges(
    "a>b", "b>c", "c>d", "d>e", "e>f", "f>g", "a>h", "b>i", "c>j", "h>c", "i>d", "k>a", "l>k", "j>e", "g>m"
)
walks = st.sampled_from(GRAPH.walks(200, seed=5))
seeds = st.integers(0, 10_000)


def planned(walk: tuple[str, ...], seed: int, *, graph: SignatureGraph = GRAPH) -> tuple[Path, Path, Path]:
    rng = random.Random(seed)
    walked = Path.of(walk)
    merged = merge(walked, rng=rng)
    return walked, merged, insert(merged, graph, rng=rng)


@given(walks, seeds)
def test_merge_loses_no_call_and_never_joins_three(walk: tuple[str, ...], seed: int) -> None:
    walked, merged, _ = planned(walk, seed)
    assert merged.calls == walked.calls
    assert all(1 <= len(turn.calls) <= 2 for turn in merged.turns)


def test_merge_joins_pairs_with_its_share() -> None:
    walked = Path.of("abcdefg")
    rng = random.Random(0)
    assert len(merge(walked, rng=rng, share=0.0).turns) == 7
    assert [len(turn.calls) for turn in merge(walked, rng=rng, share=1.0).turns] == [2, 2, 2, 1]
    joined = sum(len(merge(Path.of("ab"), rng=rng).turns) == 1 for _ in range(3_000))
    assert abs(joined / 3_000 - MERGE_SHARE) < 0.03


@given(walks, seeds)
def test_insert_adds_fed_calls_and_changes_no_other(walk: tuple[str, ...], seed: int) -> None:
    _, merged, inserted = planned(walk, seed)
    added = [call for call in inserted.calls if call.origin is not CallOrigin.WALKED]
    assert [call for call in inserted.calls if call.origin is CallOrigin.WALKED] == list(merged.calls)
    assert len({call.key for call in inserted.calls}) == len(inserted.calls)
    assert max(Counter(inserted.names).values()) == 1, "no tool comes in twice"
    place = {call.key: number for number, turn in enumerate(inserted.turns) for call in turn.calls}
    for call in added:
        [feeder] = call.fed_by
        source = next(each for each in inserted.calls if each.key == feeder)
        assert GRAPH.edge(source.name, call.name) is not None
        assert source == merged.turns[place[feeder]].calls[-1], "the last signature of the turn as merged"
        if call.origin is CallOrigin.NESTED:
            assert place[call.key] == place[feeder]
            assert not call.mentioned
        else:
            assert place[call.key] > place[feeder]
            assert call.mentioned
    assert all(GRAPH.edge(source, target) is not None for source, target in inserted.fed)


def test_insert_into_a_last_turn_is_nested_and_may_be_switched_off() -> None:
    merged = merge(Path.of("gb"), rng=random.Random(0), share=0.0)
    late = insert(merged, GRAPH, rng=random.Random(1), nested_share=0.0)
    assert [(call.name, call.origin) for call in late.turns[1].calls[1:]] == [
        (late.turns[1].calls[1].name, CallOrigin.NESTED),
        ("m", CallOrigin.LONG),
    ]
    assert insert(merged, GRAPH, rng=random.Random(1), share=0.0).names == ("g", "b")


@given(walks, seeds, st.sampled_from([None, *Missing]))
def test_a_split_copy_differs_by_its_empty_turn_only(
    walk: tuple[str, ...], seed: int, missing: Missing | None
) -> None:
    *_, inserted = planned(walk, seed)
    before = replace(inserted)
    copy = split(inserted, GRAPH, rng=random.Random(seed), missing=missing)
    assert copy is not None
    [place] = [number for number, turn in enumerate(copy.turns) if turn.missing is not None]
    empty = copy.turns[place]
    assert not empty.calls
    assert copy.turns[:place] + copy.turns[place + 1 :] == inserted.turns == before.turns
    assert missing in (None, empty.missing)
    after = copy.turns[place + 1].calls
    if empty.missing is Missing.FUNC:
        assert empty.lacks == after[0].name
        assert all(copy.withheld(number) == {empty.lacks} for number in range(place + 1))
        assert all(empty.lacks not in [call.name for call in turn.calls] for turn in copy.turns[:place])
    else:
        assert empty.lacks == "what"
    assert copy.withheld(place + (empty.missing is Missing.FUNC)) == frozenset()


def test_a_withheld_tool_that_an_earlier_turn_calls_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    path = replace(Path.of("aba"), stage=Stage.INSERTED)

    def places() -> set[int]:
        copies = [split(path, GRAPH, rng=random.Random(n), missing=Missing.FUNC) for n in range(30)]
        return {copy.turns.index(_empty("a")) for copy in copies if copy and _empty("a") in copy.turns}

    assert places() == {0}
    every = [(place, turn.calls[0].name) for place, turn in enumerate(path.turns)]
    monkeypatch.setattr(paths, "_funcs", lambda path, graph: every)
    assert places() == {0, 2}, "the planted bug must show"


def _empty(name: str) -> PathTurn:
    return PathTurn(missing=Missing.FUNC, lacks=name)


def test_nothing_to_lack_gives_no_copy() -> None:
    graph = graph_of_edges("a>b", takes="")
    path = replace(Path.of("ab"), stage=Stage.INSERTED)
    assert split(path, graph, rng=random.Random(0), missing=Missing.PARAMS) is None
    assert split(path, graph, rng=random.Random(0)) is not None


def test_the_order_is_merge_insert_split() -> None:
    rng = random.Random(0)
    walked, merged, inserted = planned(("a", "b", "c"), 0)
    done = split(inserted, GRAPH, rng=rng)
    assert done is not None
    for path in (merged, inserted, done):
        with pytest.raises(ConfigError, match="the order is magnify or connect, merge, insert, split"):
            merge(path, rng=rng)
        with pytest.raises(ConfigError, match="magnify takes a path at stage walked"):
            magnify(path, GRAPH, key=0, rng=rng)
    for path in (walked, inserted, done):
        with pytest.raises(ConfigError, match="insert takes a path at stage merged"):
            insert(path, GRAPH, rng=rng)
    for path in (walked, merged, done):
        with pytest.raises(ConfigError, match="split takes a path at stage inserted"):
            split(path, GRAPH, rng=rng)


@given(walks, seeds)
def test_magnify_puts_a_chain_of_edges_before_a_call(walk: tuple[str, ...], seed: int) -> None:
    rng = random.Random(seed)
    path = Path.of(walk)
    key = rng.randrange(len(walk))
    made = magnify(path, GRAPH, key=key, rng=rng)
    new = [call for call in made.calls if call.origin is CallOrigin.MAGNIFIED]
    assert len(new) <= paths.MAX_CHAIN
    assert [call.name for call in made.calls if call not in new] == list(walk)
    assert all(not call.mentioned for call in new)
    assert all(GRAPH.edge(source, target) is not None for source, target in made.fed)
    if new:
        [turn] = [turn for turn in made.turns if new[0] in turn.calls]
        assert [call.key for call in turn.calls] == [*(call.key for call in new), key]
        assert turn.calls[-1].fed_by[-1] == new[-1].key
    inserted = insert(merge(made, rng=rng), GRAPH, rng=rng)
    assert [call for call in inserted.calls if call in made.calls] == list(made.calls)
    assert len({call.key for call in inserted.calls}) == len(inserted.calls)


def test_magnify_takes_up_to_three_predecessors() -> None:
    chains = {magnify(Path.of("c"), GRAPH, key=0, rng=random.Random(n)).names for n in range(60)}
    assert ("k", "a", "b", "c") in chains
    assert ("h", "c") in chains
    assert magnify(Path.of("l"), GRAPH, key=0, rng=random.Random(0)).names == ("l",)
    with pytest.raises(ConfigError, match="no call 4"):
        magnify(Path.of("ab"), GRAPH, key=4, rng=random.Random(0))


def test_connect_joins_tools_without_an_edge_by_a_shortest_path() -> None:
    found = [connect(GRAPH, "a", "c", rng=random.Random(n)) for n in range(20)]
    assert {path.names for path in found if path} == {("a", "b", "c"), ("a", "h", "c")}
    assert connect(GRAPH, "m", "a", rng=random.Random(0)) is None
    for source, target in (("a", "b"), ("a", "a"), ("a", "nowhere"), ("nowhere", "a")):
        with pytest.raises(ConfigError):
            connect(GRAPH, source, target, rng=random.Random(0))
    drawn = draw_connection(GRAPH, rng=random.Random(1))
    assert drawn is not None
    assert len(drawn.turns) >= 3
    assert GRAPH.edge(drawn.names[0], drawn.names[-1]) is None
    assert draw_connection(graph_of_edges("a>b"), rng=random.Random(0)) is None


@given(seeds)
def test_the_random_counterpart_is_the_same_operations_on_a_rewired_graph(seed: int) -> None:
    other = GRAPH.rewired(seed=seed)
    walk = other.walks(8, seed=seed)[seed % 8]
    walked, merged, inserted = planned(walk, seed, graph=other)
    assert merged.calls == walked.calls
    assert all(other.edge(source, target) is not None for source, target in inserted.fed)


def test_operations_follow_the_generator() -> None:
    walk = ("a", "b", "c", "d", "e")
    assert planned(walk, 3) == planned(walk, 3)
    assert len({planned(walk, seed)[2] for seed in range(20)}) > 5
