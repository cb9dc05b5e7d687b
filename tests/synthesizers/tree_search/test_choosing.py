"""Choices by exact enumeration: every draw of a toy policy, every choice, and the sums they must give."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import pytest

from synthesizers.tree_search.choosing import (
    Kept,
    Standing,
    choose,
    inclusion_probabilities,
    potentials,
    ranking,
    systematic,
)
from synthesizers.tree_search.settings import SearchSettings

Path = tuple[str, ...]
POLICY = {(): {"a": 0.7, "b": 0.2, "c": 0.1}, ("a",): {"x": 0.9, "y": 0.1}, ("b",): {"x": 0.5, "y": 0.5},
          ("c",): {"x": 0.25, "y": 0.75}}  # fmt: skip
"""What the toy policy does in two steps."""
SCORES = {("a",): 0.0, ("b",): 1.0, ("c",): 0.4, ("a", "y"): 2.0, ("c", "y"): 1.5, ("b", "x"): -1.0}
VALUE: dict[Path, float] = {
    ("a", "x"): 1.0,
    ("a", "y"): 3.0,
    ("b", "x"): -2.0,
    ("b", "y"): 5.0,
    ("c", "x"): 7.0,
    ("c", "y"): 0.5,
}
TRUTH = sum(
    POLICY[()][first] * p * VALUE[first, second]
    for first in POLICY[()]
    for second, p in POLICY[first,].items()
)


class Fixed(random.Random):
    """A generator whose every draw is `u`."""

    def __init__(self, u: float) -> None:
        super().__init__(0)
        self.u = u

    def random(self) -> float:
        return self.u


def outcomes(pool: Sequence[Standing], settings: SearchSettings) -> Iterator[tuple[float, list[Kept]]]:
    """Every choice that can come out, with its probability: the draw is one u, and the choice is constant
    between the points where a cumulated inclusion probability passes a whole number."""
    if settings.pick == "top":
        yield 1.0, choose(pool, ranking(pool, Fixed(0.5)), settings, Fixed(0.5))
        return
    sizes = [one.weight * v for one, v in zip(pool, potentials(pool, settings), strict=True)]
    ends = accumulate(inclusion_probabilities(sizes, settings.width))
    points = sorted({0.0, 1.0, *(end % 1.0 for end in ends)})
    for low, high in itertools.pairwise(points):
        if high - low > 1e-12:
            rng = Fixed((low + high) / 2)
            yield high - low, choose(pool, ranking(pool, rng), settings, rng)


def expectation(settings: SearchSettings, f: Callable[[Path], float], *, weighted: bool = True) -> float:
    """E of the sum of weight times f over what a beam of two steps keeps, by enumeration."""
    beams: list[tuple[float, list[tuple[Path, float]]]] = [(1.0, [((), 1.0)])]
    for _ in range(2):
        following = []
        for probability, beam in beams:
            draws = [list(POLICY[path].items()) for path, _ in beam for _ in range(settings.candidates)]
            owners = [entry for entry in beam for _ in range(settings.candidates)]
            for drawn in itertools.product(*draws):
                chance = probability * math.prod(p for _, p in drawn)
                paths = [(*path, step) for (path, _), (step, _) in zip(owners, drawn, strict=True)]
                pool = [
                    Standing(SCORES.get(path, 0.0), weight / settings.candidates, parsable=path[-1] != "c")
                    for path, (_, weight) in zip(paths, owners, strict=True)
                ]
                for share, kept in outcomes(pool, settings):
                    following.append((chance * share, [(paths[one.place], one.weight) for one in kept]))
        beams = following
    return sum(
        chance * sum((weight if weighted else 1 / len(beam)) * f(path) for path, weight in beam)
        for chance, beam in beams
    )


@pytest.mark.parametrize(
    ("candidates", "width", "floor"), [(2, 1, 0.1), (3, 1, 0.3), (2, 2, 0.1), (1, 1, 0.1)]
)
def test_soft_choices_with_their_weights_are_unbiased(candidates: int, width: int, floor: float) -> None:
    settings = SearchSettings(candidates=candidates, width=width, pick="soft", floor=floor, temperature=0.4)
    assert expectation(settings, VALUE.__getitem__) == pytest.approx(TRUTH, abs=1e-9)
    assert expectation(settings, lambda path: 1.0) == pytest.approx(1.0, abs=1e-9)


def test_the_weights_carry_the_policy_gradient() -> None:
    """The derivative of log pi of step a in a softmax at the root is 1[a] - pi(a); here times the value."""
    settings = SearchSettings(candidates=2, width=1, pick="soft")

    def score_function(path: Path) -> float:
        return ((path[0] == "a") - POLICY[()]["a"]) * VALUE[path]

    truth = sum(
        POLICY[()][first] * p * score_function((first, second))
        for first in POLICY[()]
        for second, p in POLICY[first,].items()
    )
    assert expectation(settings, score_function) == pytest.approx(truth, abs=1e-9)
    assert abs(expectation(settings, score_function, weighted=False) - truth) > 0.1


def test_top_choices_are_biased_and_have_no_probability() -> None:
    settings = SearchSettings(candidates=3, width=1, pick="top")
    assert abs(expectation(settings, VALUE.__getitem__, weighted=False) - TRUTH) > 0.5
    pool = [Standing(score, 1 / 3) for score in (0.0, 2.0, 1.0)]
    kept = choose(pool, ranking(pool, Fixed(0.5)), settings, Fixed(0.5))
    assert [(one.place, one.rank, one.probability) for one in kept] == [(1, 1, None)]


def test_with_one_branch_the_weight_is_one_over_m_p() -> None:
    settings = SearchSettings(candidates=3, width=1, pick="soft", temperature=0.5, floor=0.2)
    pool = [Standing(score, 1 / 3) for score in (0.0, 1.0, 0.5)]
    v = [0.2 + 0.8 * math.exp((score - 1.0) / 0.5) for score in (0.0, 1.0, 0.5)]
    chances = inclusion_probabilities([one.weight * each for one, each in zip(pool, v, strict=True)], 1)
    assert chances == pytest.approx([each / sum(v) for each in v])
    for _, kept in outcomes(pool, settings):
        (one,) = kept
        assert one.weight == pytest.approx(1 / (3 * chances[one.place]))


def test_what_cannot_be_parsed_is_below_everything_and_still_in_the_draw() -> None:
    pool = [Standing(9.0, 0.25, parsable=False), *(Standing(score, 0.25) for score in (-5.0, 0.0, 0.5))]
    assert ranking(pool, random.Random(0)) == [4, 3, 2, 1]
    top = SearchSettings(candidates=4, width=3, pick="top")
    assert 0 not in [one.place for one in choose(pool, ranking(pool, Fixed(0.5)), top, Fixed(0.5))]
    soft = SearchSettings(candidates=4, width=1, pick="soft", floor=0.1)
    share = sum(p for p, kept in outcomes(pool, soft) if kept[0].place == 0)
    assert 0 < share < 0.1
    unreadable = [Standing(0.0, 0.5, parsable=False)] * 2
    assert len(choose(unreadable, ranking(unreadable, Fixed(0.5)), top, Fixed(0.5))) == 2


def test_of_equal_candidates_those_that_go_on_come_first_and_the_rest_is_a_draw() -> None:
    pool = [Standing(1.0, 0.5, over=True), Standing(1.0, 0.5), Standing(1.0, 0.5)]
    seen = {tuple(ranking(pool, random.Random(seed))) for seed in range(20)}
    assert seen == {(3, 1, 2), (3, 2, 1)}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_inclusion_probabilities_sum_up_and_a_systematic_sample_has_them(count: int) -> None:
    rng = random.Random(count)
    for _ in range(50):
        sizes = [rng.expovariate(1.0) ** 3 + 1e-6 for _ in range(rng.randint(count, 9))]
        chances = inclusion_probabilities(sizes, count)
        assert sum(chances) == pytest.approx(count) and all(0 < chance <= 1 for chance in chances)
        points = sorted({0.0, 1.0, *(end % 1.0 for end in accumulate(chances))})
        found = [0.0] * len(sizes)
        for low, high in itertools.pairwise(points):
            drawn = systematic(chances, (low + high) / 2) if high - low > 1e-12 else []
            assert len(set(drawn)) == len(drawn) and (not drawn or len(drawn) == count)
            for index in drawn:
                found[index] += high - low
        assert found == pytest.approx(chances, abs=1e-9)
