"""What may be set about a search, and which search is which.

Source: TSR (arXiv 2602.11767). As the paper says and its released code does not: a beam is really `width`
wide, and a lookahead really plays `depth` further steps before it scores. Not covered: how steps are scored
(`scores`), and what the choice does to the distribution that is trained on (`choosing`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from data import canonical
from data.errors import ConfigError


class SearchKind(StrEnum):
    """When candidates are compared."""

    BEST_OF_N = "best_of_n"
    """At the end: `candidates` whole episodes, `width` of them are kept."""
    BEAM = "beam"
    """After every step: each of `width` branches draws `candidates` steps, and `width` of all go on."""
    LOOKAHEAD = "lookahead"
    """The same, but each candidate is scored where `depth` further steps of the policy lead. Those steps are
    thrown away: what goes on is the candidate, and its next step is drawn anew."""


class Pick(StrEnum):
    """How the branches that go on are chosen."""

    TOP = "top"
    """The highest scores, ties by a seeded draw: the published method. What is kept is then no sample of the
    policy, no weight makes it one, and training on it is biased towards what scores well."""
    SOFT = "soft"
    """Drawn, likelier the higher the score, each candidate with a known probability above 0: then a weight
    makes training unbiased (`choosing`)."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """One search gives `width` trajectories."""

    kind: SearchKind = SearchKind.BEAM
    candidates: int = 4
    """M: steps drawn per branch (whole episodes with best_of_n)."""
    width: int = 2
    """B: branches that go on."""
    depth: int = 2
    """D: further steps before scoring; read by lookahead only."""
    scores: Mapping[str, float] = field(default_factory=lambda: {"outcome": 1.0, "errors": 0.1})
    """Name of a score to its weight (`scores.SCORES`, `component/NAME`)."""
    pick: Pick = Pick.TOP
    temperature: float = 0.25
    """Of `soft`, in units of the score: a candidate so much lower is e times less likely."""
    floor: float = 0.1
    """Of `soft`: the potential that the worst candidate has, as a share of the best one's. It bounds the
    weights of training and keeps steps that cannot be parsed in the draw."""
    max_weight: float | None = None
    """Cap of a trajectory's weight in training; None = none. A cap bounds the variance and is a bias."""
    replay: bool = False
    """Branch by making the calls again in a fresh session, even where sessions keep snapshots."""

    def __post_init__(self) -> None:
        for name, kind in (("kind", SearchKind), ("pick", Pick)):
            if getattr(self, name) not in list(kind):
                raise ConfigError(
                    f"search.{name} must be one of {', '.join(kind)}, got {getattr(self, name)!r}"
                )
            object.__setattr__(self, name, kind(getattr(self, name)))
        for name in ("candidates", "width", "depth"):
            if getattr(self, name) < 1:
                raise ConfigError(f"search.{name} must be at least 1, got {getattr(self, name)}")
        if self.width > self.candidates:
            raise ConfigError(
                f"search.width {self.width} is more than search.candidates {self.candidates}: the first step "
                f"could not fill the beam"
            )
        if not 0 < self.floor <= 1 or self.temperature <= 0:
            raise ConfigError(
                f"search.floor must be above 0 and at most 1, and search.temperature above 0; got "
                f"{self.floor} and {self.temperature}"
            )
        if self.max_weight is not None and self.max_weight < 1:
            raise ConfigError(f"search.max_weight must be at least 1 or null, got {self.max_weight}")
        if not self.scores or not all(map(math.isfinite, self.scores.values())):
            raise ConfigError(f"search.scores needs at least one score with a number, got {self.scores!r}")

    @classmethod
    def of(cls, value: SearchSettings | Mapping[str, Any]) -> SearchSettings:
        """Settings from a recipe's mapping. ConfigError names what is unknown and what there is."""
        if isinstance(value, SearchSettings):
            return value
        known = cls.__dataclass_fields__
        if unknown := sorted(set(value) - set(known)):
            raise ConfigError(
                f"search: unknown {', '.join(map(str, unknown))}; there are {', '.join(sorted(known))}"
            )
        return cls(**value)

    @property
    def digest(self) -> str:
        """16 hex digits over what changes which trajectories come out: a part of the harness."""
        value: dict[str, Any] = {
            "kind": self.kind, "candidates": self.candidates, "width": self.width, "pick": self.pick,
            "scores": sorted(self.scores.items()),
        }  # fmt: skip
        if self.kind is SearchKind.LOOKAHEAD:
            value["depth"] = self.depth
        if self.pick is Pick.SOFT:
            value |= {"temperature": self.temperature, "floor": self.floor}
        return canonical.digest("search", value, length=16)
