"""The evolving rubrics of a task: which are active, which are retired for good, and what they add up to.

Kept in one small file per task where a directory is given, so a resumed run goes on with what it had. Not
covered: who writes and judges them (`pipeline.rewards.rubrics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import pstdev
from typing import NamedTuple

from data import canonical
from data.files import write_atomically
from data.summaries import damaged, read_object
from pipeline.checks.answers import normalised


class Rubric(NamedTuple):
    """A trait and what showing it is worth: +1 or -1."""

    weight: float
    trait: str


@dataclass(slots=True)
class RubricBook:
    """The rubrics of one task that came out of its groups."""

    active: list[Rubric] = field(default_factory=list)
    retired: list[Rubric] = field(default_factory=list)
    """Told no rollouts apart once, or were pushed out; never come back."""

    def add(self, rubrics: Sequence[Rubric], *, persistent: Sequence[Rubric]) -> list[Rubric]:
        """Append what is not known yet (by its words); the ones that were new."""
        known = {normalised(rubric.trait) for rubric in (*persistent, *self.active, *self.retired)}
        new: list[Rubric] = []
        for rubric in rubrics:
            words = normalised(rubric.trait)
            if words and words not in known:
                known.add(words)
                new.append(rubric)
        self.active += new
        return new

    def prune(self, scores: Mapping[str, Sequence[float]], *, most: int) -> None:
        """Retire active rubrics without spread over a group, then all but the `most` of largest spread.

        `scores`: trait to the group's scores, persistent rubrics included. Where no rubric at all tells the
        rollouts apart the group was unanimous and says nothing of any rubric, so none is retired for it.
        """
        spread = {trait: pstdev(values) for trait, values in scores.items()}
        told_apart = any(value > 0 for value in spread.values())
        kept = [rubric for rubric in self.active if spread[rubric.trait] > 0 or not told_apart]
        kept = sorted(kept, key=lambda rubric: -spread[rubric.trait])[:most]
        self.retired += [rubric for rubric in self.active if rubric not in kept]
        self.active = [rubric for rubric in self.active if rubric in kept]

    def save(self, path: Path) -> None:
        """Write the book, aside and renamed. StoreError where the disk does not take it."""
        write_atomically(path, canonical.dumps({"active": self.active, "retired": self.retired}))

    @classmethod
    def load(cls, path: Path) -> RubricBook:
        """The stored book, an empty one where there is none. StoreError where it is damaged."""
        if not path.is_file():
            return cls()
        told = {"of": "a task's rubrics", "again": "delete it to start that task's rubrics anew"}
        value = read_object(path, needs=("active", "retired"), **told)
        try:
            return cls(*([Rubric(*rubric) for rubric in value[name]] for name in ("active", "retired")))
        except TypeError as error:
            raise damaged(path, str(error), **told) from error


def rubric_reward(scored: Sequence[tuple[float, float]]) -> float:
    """Sum of weight * score over (weight, score), divided by the sum of the positive weights.

    Source: DR Tulu (arXiv 2511.19399). At most 1, negative where bad traits outweigh. ValueError without a
    positive weight: such a list has no scale.
    """
    scale = sum(weight for weight, _ in scored if weight > 0)
    if scale <= 0:
        raise ValueError("rubrics need at least one of positive weight")
    return sum(weight * score for weight, score in scored) / scale


def agreement(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Share of pairs that both order the same way among those that both order; None where there are none."""
    same = [
        (one[i] - one[j]) * (other[i] - other[j]) > 0
        for i in range(len(one))
        for j in range(i)
        if one[i] != one[j] and other[i] != other[j]
    ]
    return sum(same) / len(same) if same else None
