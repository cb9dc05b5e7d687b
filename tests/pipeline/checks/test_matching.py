"""Matching of calls against the published formulas."""

from __future__ import annotations

import itertools
import random

import pytest

from data.messages import ParseStatus, assistant
from pipeline.checks.matching import (
    Call,
    best_assignment,
    call_f1,
    graded_match,
    made_calls,
    num_matched,
    read_calls,
    same_calls,
    same_value,
)
from tests.samples import call

F1, G2 = Call("f", {"a": 1}), Call("g", {"a": 2})


def test_looptool_match_ignores_order_and_counts_repetitions() -> None:
    assert same_calls([F1, G2], [G2, F1])
    assert not same_calls([F1, F1], [F1]) and not same_calls([F1], [F1, F1])
    assert num_matched([F1, F1, G2], [F1, G2, G2]) == 2


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": 1, "b": [1, {"c": 2.0}]}, {"b": [1.0, {"c": 2}], "a": 1}, True),
        (True, 1, False),
        (False, 0, False),
        ([1, 2], [2, 1], False),
        ("1", 1, False),
        (None, "", False),
        (1.5, 1.5, True),
    ],
)
def test_values_are_compared_as_json(one: object, other: object, equal: bool) -> None:
    assert same_value(one, other) is equal


def test_a_call_that_did_not_parse_is_made_and_equals_nothing() -> None:
    broken = call("f", status=ParseStatus.NOT_JSON, raw="<tool_call>")
    made = made_calls([assistant("", broken, call("f", a=1))])
    assert [item.arguments for item in made] == [None, {"a": 1}]
    assert not same_calls([F1], made) and num_matched([F1], made) == 1
    assert not same_calls(made[:1], [*made[:1], *made[:1]])


def test_toolrl_oracles() -> None:
    gold = [Call("f", {"a": 1, "b": 2})]
    graded = graded_match(gold, [Call("f", {"a": 1})])
    assert (graded.name, graded.parameters, graded.values, graded.maximum) == (1.0, 0.5, 1.0, 4.0)
    assert graded.score == pytest.approx(0.75)
    assert graded_match(gold, gold).score == 3.0
    assert graded_match(gold, []).score == -3.0 == graded_match(gold, [Call("h", {"a": 1})]).score
    with pytest.raises(ValueError, match="at least one gold call"):
        graded_match([], gold)


def test_the_graded_match_pairs_calls_for_the_best_sum_where_greedy_does_not() -> None:
    """Greedy gives the first gold call the made call that the second needs more."""
    gold = [Call("f", {"a": 1, "b": 2}), Call("f", {"a": 1, "b": 3, "c": 4})]
    made = [Call("f", {"a": 1, "b": 3, "c": 4}), Call("f", {"a": 1})]
    graded = graded_match(gold, made)
    assert graded.values == 4.0 and graded.parameters == pytest.approx(1.5)


def test_best_assignment_equals_brute_force() -> None:
    generator = random.Random(0)
    for _ in range(60):
        rows, columns = generator.randint(1, 5), generator.randint(1, 5)
        scores = [[generator.randint(0, 6) / 2 for _ in range(columns)] for _ in range(rows)]
        chosen = best_assignment(scores)
        assert len({row for row, _ in chosen}) == len({column for _, column in chosen}) == min(rows, columns)
        wide = scores if rows <= columns else [list(column) for column in zip(*scores, strict=True)]
        best = max(
            sum(wide[row][column] for row, column in enumerate(order))
            for order in itertools.permutations(range(len(wide[0])), len(wide))
        )
        assert sum(scores[row][column] for row, column in chosen) == pytest.approx(best)
    assert best_assignment([]) == [] == best_assignment([[]])


@pytest.mark.parametrize(
    ("solved", "made", "expected"), [(3, 3, 1.0), (3, 9, 0.5), (1, 1, 0.5), (2, 4, 4 / 7), (0, 9, 0.0)]
)
def test_astra_f1_oracles(solved: int, made: int, expected: float) -> None:
    assert call_f1(solved, 3, made) == pytest.approx(expected)


def test_calls_are_read_from_json_in_both_forms() -> None:
    assert read_calls([{"name": "f", "arguments": {"a": 1}}, ["g", {"a": 2}]]) == (F1, G2)
    wrongs: tuple[object, ...] = ({}, [["f"]], [{"name": 1}], [["f", [1]]])
    for wrong in wrongs:
        with pytest.raises(ValueError, match="call"):
            read_calls(wrong)
