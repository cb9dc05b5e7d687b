"""Which candidates of a pool go on, and with which weight, so that training can correct for the choice.

A search replaces draws of the policy by chosen ones, so the mean over its trajectories is no mean over the
policy's. `soft` choices keep an exact account of it. Every branch b carries a weight W_b, the root 1. One
step goes:

1. Each branch b draws M_b steps independently from the policy; a candidate j of it gets w_j = W_b / M_b.
   For any f, E[sum_j w_j f(j)] = sum_b W_b E_pi[f | b]: a mean over independent draws is unbiased.
2. Candidate j gets the potential v_j = floor + (1 - floor) * exp((S_j - max S) / temperature), and `floor`
   where it cannot be parsed. Of n candidates B are kept, j with the inclusion probability
   c_j = min(1, lambda * w_j * v_j), lambda such that the c_j sum to B.
3. A kept candidate gets W_j = w_j / c_j (Horvitz and Thompson): E[sum_{j kept} W_j f(j)] = sum_j w_j f(j),
   whatever the scores are and whatever they look at, because every c_j is above 0.

By induction over the steps, E[sum_{i kept at the end} W_i f(trajectory_i)] = E_pi[f(trajectory)], exactly:
the weighted gradient of the kept trajectories is an unbiased estimate of the policy's, which the tests check
by enumerating every draw. Where c_j < 1 the new weight is 1 / (lambda * v_j): weights do not multiply up
along an episode while other branches carry the rest, and those of one step differ by 1 / floor at most. With
one branch and width 1 it is the importance weight 1 / (M * p_j) of a step chosen with probability p_j.

`top` choices have c_j = 0 or 1 and no such weight: they are what the method published, and biased. Not
covered: broken candidates, which leave the pool before it is counted (their share is a bias, too).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from synthesizers.tree_search.settings import Pick, SearchSettings


class Standing(NamedTuple):
    """A candidate in a pool."""

    score: float
    weight: float
    """w_j: its branch's weight over the number of candidates the branch drew."""
    parsable: bool = True
    over: bool = False
    """Whether its episode has ended."""


class Kept(NamedTuple):
    """A candidate that goes on."""

    place: int
    """Index in the pool."""
    rank: int
    weight: float
    """W_j; w_j with `top`, which means nothing."""
    probability: float | None
    """c_j; None with `top`."""


def choose(
    pool: Sequence[Standing], ranks: Sequence[int], settings: SearchSettings, rng: random.Random
) -> list[Kept]:
    """At most `width` of the pool, the better ranked (`ranking`) first."""
    by_rank = sorted(range(len(pool)), key=lambda index: ranks[index])
    if settings.pick is Pick.TOP:
        kept = by_rank[: settings.width]
        return [Kept(index, ranks[index], pool[index].weight, None) for index in kept]
    chances = inclusion_probabilities(
        [each.weight * potential for each, potential in zip(pool, potentials(pool, settings), strict=True)],
        settings.width,
    )
    drawn = set(systematic(chances, rng.random()))
    return [
        Kept(index, ranks[index], pool[index].weight / chances[index], chances[index])
        for index in by_rank
        if index in drawn
    ]


def ranking(pool: Sequence[Standing], rng: random.Random) -> list[int]:
    """Rank of each, from 1: what cannot be parsed is below everything else, then by score. Of equal ones
    those that go on come first, since what has ended gets no better; the rest is a draw.
    """
    keys = [(not each.parsable, -each.score, each.over, rng.random()) for each in pool]
    order = sorted(range(len(pool)), key=lambda index: keys[index])
    ranks = [0] * len(pool)
    for rank, index in enumerate(order, start=1):
        ranks[index] = rank
    return ranks


def potentials(pool: Sequence[Standing], settings: SearchSettings) -> list[float]:
    """v_j of each: see the module docstring."""
    best = max((each.score for each in pool if each.parsable), default=0.0)
    floor, scale = settings.floor, settings.temperature
    return [
        floor + (1 - floor) * math.exp((each.score - best) / scale) if each.parsable else floor
        for each in pool
    ]


def inclusion_probabilities(sizes: Sequence[float], count: int) -> list[float]:
    """min(1, lambda * size) for each, with lambda such that they sum to `count`; all 1 for fewer than that.

    Every size must be above 0.
    """
    chances, certain = [0.0] * len(sizes), set[int]()
    if count >= len(sizes):
        return [1.0] * len(sizes)
    while True:
        free = [index for index in range(len(sizes)) if index not in certain]
        scale = (count - len(certain)) / math.fsum(sizes[index] for index in free)
        for index in free:
            chances[index] = scale * sizes[index]
        reached = {index for index in free if chances[index] >= 1.0}
        for index in reached:
            chances[index] = 1.0
        if not reached:
            return chances
        certain |= reached


def systematic(chances: Sequence[float], u: float) -> list[int]:
    """Indices of a systematic sample: `round(sum)` of them, each with its chance for u uniform in [0, 1)."""
    ends = list(accumulate(chances))
    count = round(ends[-1])
    drawn: list[int] = []
    index = 0
    for number in range(count):
        while index < len(ends) - 1 and ends[index] <= u + number:
            index += 1
        drawn.append(index)
        index += 1
    return drawn
