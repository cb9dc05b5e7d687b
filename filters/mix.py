"""Brings the pool to 30 % easy, 50 % medium, 20 % hard: by weights, or by sampling on request.

Reads the labels of `difficulty`. By default nothing is dropped: each bin's trajectories are weighted so
that the bin's mass is its share, no weight above `max_weight` (a lone hard example must not drown the
rest). `solved` counts as easy and `unsolved` as hard unless told otherwise, `unmeasured` stays outside
the mix at its own weight. By sampling, ids are drawn by a seeded hash, so the choice depends on the
pool and the seed alone. What the pool could not give is in `report()`, and never filled up from
another bin. Reasons: `ok`, `outside_mix` (kept), `dropped_bin`, `not_sampled`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from data.errors import ConfigError
from data.messages import Record
from data.trajectories import Trajectory
from filters.base import Judged, Judgement, judged, label_of
from filters.difficulty import Bin

BINS = (Bin.EASY, Bin.MEDIUM, Bin.HARD)
TARGET = {"easy": 0.3, "medium": 0.5, "hard": 0.2}
_POLICIES = {
    Bin.SOLVED: ("easy", "keep", "drop"),
    Bin.UNSOLVED: ("hard", "keep", "drop"),
    Bin.UNMEASURED: ("keep", "drop"),
}


class Method(StrEnum):
    """How the mix is reached."""

    WEIGHT = "weight"
    SAMPLE = "sample"


class MixRow(Record):
    """One bin: what was wanted, what the pool had and what the mix reached."""

    bin: str
    target: float
    """Share wanted."""
    available: int
    """Trajectories in the pool, `solved` and `unsolved` included where they count to this bin."""
    used: int
    """Trajectories that stay."""
    weight: float
    """Factor on each of them."""
    share: float
    """Share of the mass that the three bins reach together."""
    missing: float
    """Target minus share where that is positive: what the pool could not give."""


@dataclass(frozen=True, slots=True)
class _Plan:
    weight: float
    limit: int
    """Hashes up to this one are kept."""


class Mix:
    """The difficulty mix."""

    name = "mix"

    def __init__(
        self,
        *,
        target: Mapping[str, float] | None = None,
        method: str = Method.WEIGHT,
        size: int | None = None,
        seed: int = 0,
        max_weight: float = 4.0,
        solved: str = "easy",
        unsolved: str = "hard",
        unmeasured: str = "keep",
    ) -> None:
        """`size`: trajectories to sample; None = as many as the scarcest non-empty bin allows."""
        self.target = _checked_target(TARGET if target is None else target)
        if method not in tuple(Method):
            raise ConfigError(f"mix.method must be one of {[*map(str, Method)]}, got {method!r}")
        if size is not None and (method != Method.SAMPLE or size < 1):
            raise ConfigError(
                f"mix.size must be at least 1 and needs method 'sample', got {size} with {method!r}"
            )
        if not max_weight >= 1:
            raise ConfigError(f"mix.max_weight must be at least 1, got {max_weight}")
        self._others = dict(zip(_POLICIES, (solved, unsolved, unmeasured), strict=True))
        for bin_, choice in self._others.items():
            if choice not in _POLICIES[bin_]:
                raise ConfigError(f"mix.{bin_} must be one of {list(_POLICIES[bin_])}, got {choice!r}")
        self.method, self.size, self.seed, self.max_weight = Method(method), size, seed, max_weight
        self._plans: dict[str, _Plan] = {}
        self._rows: tuple[MixRow, ...] = ()

    def measure(self, trajectories: Iterable[Trajectory]) -> None:
        """Count the bins (one 8-byte hash per trajectory) and plan. Raises ConfigError without labels."""
        hashes = {str(bin_): array("Q") for bin_ in BINS}
        for trajectory in trajectories:
            bin_ = self._bin(trajectory)
            if bin_ in hashes:
                hashes[bin_].append(self._hash(trajectory))
        counts = {bin_: len(values) for bin_, values in hashes.items()}
        used = self._sample_sizes(counts) if self.method is Method.SAMPLE else counts
        weights = dict.fromkeys(counts, 1.0) if self.method is Method.SAMPLE else self._weights(counts)
        self._plans = {
            bin_: _Plan(weights[bin_], sorted(values)[used[bin_] - 1] if used[bin_] else -1)
            for bin_, values in hashes.items()
        }
        self._rows = self._report(counts, used, weights)

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        """Weight or sample a stream by the plan of `measure`."""
        for trajectory in trajectories:
            bin_ = self._bin(trajectory)
            if bin_ == "drop":
                yield judged(
                    trajectory,
                    self.name,
                    Judgement(False, "dropped_bin", detail=label_of(trajectory, "difficulty")),
                )
            elif bin_ == "keep":
                yield judged(trajectory, self.name, Judgement(True, "outside_mix", score=trajectory.weight))
            elif self.method is Method.SAMPLE and self._hash(trajectory) > self._plans[bin_].limit:
                yield judged(trajectory, self.name, Judgement(False, "not_sampled", detail=bin_))
            else:
                weight = trajectory.weight * self._plans[bin_].weight
                weighted = trajectory.model_copy(update={"weight": weight})
                yield judged(weighted, self.name, Judgement(True, score=weight, detail=bin_))

    def report(self) -> tuple[MixRow, ...]:
        """Easy, medium, hard: wanted, available, used, reached. Empty before `measure`."""
        return self._rows

    def _bin(self, trajectory: Trajectory) -> str:
        label = label_of(trajectory, "difficulty")
        if label not in tuple(Bin):
            raise ConfigError(
                f"trajectory {trajectory.trajectory_id} has difficulty {label!r}, mix needs one of "
                f"{[*map(str, Bin)]}; put the difficulty filter before mix"
            )
        return self._others.get(Bin(label), label)

    def _hash(self, trajectory: Trajectory) -> int:
        text = f"{self.seed}:{trajectory.trajectory_id}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def _weights(self, counts: Mapping[str, int]) -> dict[str, float]:
        total, present = sum(counts.values()), self._present(counts)
        return {
            bin_: min(self.max_weight, self.target[bin_] / present * total / count) if count else 0.0
            for bin_, count in counts.items()
        }

    def _sample_sizes(self, counts: Mapping[str, int]) -> dict[str, int]:
        size: float
        if self.size is not None:
            size, present = self.size, 1.0
        else:
            present = self._present(counts)
            wanted = [bin_ for bin_, count in counts.items() if count and self.target[bin_]]
            size = min((counts[bin_] * present / self.target[bin_] for bin_ in wanted), default=0)
        return {
            bin_: min(count, round(size * self.target[bin_] / present)) if count else 0
            for bin_, count in counts.items()
        }

    def _present(self, counts: Mapping[str, int]) -> float:
        return sum(self.target[bin_] for bin_, count in counts.items() if count) or 1.0

    def _report(
        self, counts: Mapping[str, int], used: Mapping[str, int], weights: Mapping[str, float]
    ) -> tuple[MixRow, ...]:
        mass = {bin_: used[bin_] * weights[bin_] for bin_ in counts}
        whole = sum(mass.values())
        if self.size is not None:
            whole = max(whole, float(self.size))
        shares = {bin_: mass[bin_] / whole if whole else 0.0 for bin_ in counts}
        return tuple(
            MixRow(
                bin=bin_,
                target=self.target[bin_],
                available=counts[bin_],
                used=used[bin_],
                weight=weights[bin_],
                share=shares[bin_],
                missing=max(0.0, round(self.target[bin_] - shares[bin_], 9)),
            )
            for bin_ in counts
        )


def _checked_target(target: Mapping[str, float]) -> dict[str, float]:
    shares = {str(bin_): float(target.get(bin_, 0.0)) for bin_ in BINS}
    unknown = sorted(set(target) - set(shares))
    if unknown or min(shares.values()) < 0 or abs(sum(shares.values()) - 1) > 1e-9:
        raise ConfigError(
            f"mix.target needs shares of easy, medium and hard that sum to 1, got {dict(target)}"
        )
    return shares
