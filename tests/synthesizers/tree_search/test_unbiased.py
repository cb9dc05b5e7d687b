"""Whole searches over a toy policy: the weighted mean of what they keep is the policy's own mean."""

from __future__ import annotations

import asyncio
import copy
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from synthesizers.tree_search.records import search_weight
from synthesizers.tree_search.search import Search
from synthesizers.tree_search.settings import SearchSettings
from tests.rl.builders import trajectory
from tests.synthesizers.tree_search.test_choosing import POLICY, SCORES, TRUTH, VALUE

SEARCHES = 500


class ToyBranch:
    """The toy policy of two steps in place of an episode."""

    broken, parsable, replay, last = False, True, False, 0

    def __init__(self, seed: int) -> None:
        self.rng, self.path = random.Random(seed), tuple[str, ...]()
        self.turns: list[Any] = []
        self.task = SimpleNamespace(task_id="toy")
        self.identity = SimpleNamespace(group_id="g", rollout_index=seed, attempt=0, seed=0)
        self.cost = SimpleNamespace(tokens=0, engine_calls=0, tool_calls=0)
        self.author = SimpleNamespace(logprobs=[])

    @property
    def over(self) -> bool:
        return len(self.path) == 2

    async def begin(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def forks(self, count: int) -> list[ToyBranch]:
        return [self, *(copy.copy(self) for _ in range(count - 1))]

    async def ahead(self, depth: int) -> ToyBranch:
        twin = copy.copy(self)
        await twin.advance()
        return twin

    async def advance(self, *, to_the_end: bool = False) -> None:
        while not self.over:
            options = POLICY[self.path]
            self.path = (*self.path, *self.rng.choices([*options], [*options.values()]))
            if not to_the_end:
                break

    async def finished(self) -> Any:
        return trajectory().model_copy(update={"error": "".join(self.path)})

    def so_far(self) -> Any:
        return trajectory()

    def sampled_ids(self) -> list[int]:
        return []


class ToyScores:
    async def parts(self, branch: ToyBranch) -> dict[str, float]:
        return {"toy": SCORES.get(branch.path, 0.0)}

    def total(self, parts: dict[str, float]) -> float:
        return parts["toy"]


def estimates(**options: Any) -> list[float]:
    """Of every search: the mean of weight times value over what it keeps."""
    settings = SearchSettings(temperature=0.5, floor=0.2, **options)

    async def run() -> list[float]:
        found = []
        for seed in range(SEARCHES):
            made = await Search(ToyBranch(seed), settings=settings, scores=ToyScores()).run()  # type: ignore[arg-type]
            values = [VALUE[tuple(one.error)] * (search_weight(one) or 1.0) for one in made.trajectories]
            found.append(sum(values) / len(values))
        return found

    return asyncio.run(run())


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "beam", "candidates": 3, "width": 2},
        {"kind": "lookahead", "candidates": 3, "width": 1},
        {"kind": "best_of_n", "candidates": 4, "width": 2},
    ],
)
def test_soft_searches_are_unbiased_and_top_ones_are_not(options: dict[str, Any]) -> None:
    soft, top = estimates(pick="soft", **options), estimates(pick="top", **options)
    mean = sum(soft) / SEARCHES
    error = math.sqrt(sum((value - mean) ** 2 for value in soft) / SEARCHES / SEARCHES)
    assert abs(mean - TRUTH) < 3.3 * error < 1.2, (mean, TRUTH, error)
    assert abs(sum(top) / SEARCHES - TRUTH) > 0.1
