"""What a stage tells while it works: rates, solve rate, failures by kind, time left. Draws nothing itself."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from data.trajectories import Termination, Trajectory

Say = Callable[[str], None]
"""Receives one status line; the command line prints it, tests collect it, a flow logs it."""


def silent(line: str) -> None:
    """A `Say` that says nothing."""


@dataclass
class Meter:
    """Counts the episodes this process finished. `total` is the number planned for the whole stage."""

    total: int
    clock: Callable[[], float] = time.monotonic
    finished: int = 0
    rewarded: int = 0
    solved: int = 0
    tokens: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    def add(self, trajectory: Trajectory) -> None:
        """Count one finished episode."""
        self.finished += 1
        self.tokens += trajectory.usage.generated_tokens
        self.rewarded += trajectory.reward is not None
        self.solved += bool(trajectory.success)
        if trajectory.termination is not Termination.FINISHED:
            self.endings[trajectory.termination.value] += 1

    @property
    def seconds(self) -> float:
        """Wall seconds since the start; never 0."""
        return max(self.clock() - self._start, 1e-9)

    def line(self) -> str:
        """One status line: progress, rates, solve rate, endings that were not normal, time left."""
        rate = self.finished / self.seconds
        left = f"{max(self.total - self.finished, 0) / rate:.0f} s left" if rate else "nothing to do"
        solve = f"{self.solved / self.rewarded:.0%}" if self.rewarded else "-"
        odd = " ".join(f"{kind}={count}" for kind, count in self.endings.most_common())
        return (
            f"{self.finished}/{self.total} episodes, {self.tokens / self.seconds:.0f} tokens/s, "
            f"{rate:.1f} episodes/s, solved {solve}, {left}" + (f", {odd}" if odd else "")
        )
