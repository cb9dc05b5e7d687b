"""What a stage tells while it works: rates, solve rate, failures by kind, time left; and its alarm.

The alarm is about episodes that the infrastructure broke (those without a reward, however they ended): how
many in a row, and which were not made up for by a later attempt. What was cut as a straggler is let go
where another episode of its group has a reward. Draws nothing itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from data.errors import TrajsmithError
from data.trajectories import Blame, Termination, Trajectory
from pipeline.errors import EngineError, EnvironmentFailure, JudgeError, UserSimulatorError

Say = Callable[[str], None]
"""Receives one status line; the command line prints it, tests collect it, a flow logs it."""


_ERRORS: dict[Blame, type[TrajsmithError]] = {
    Blame.TOOL: EnvironmentFailure,
    Blame.JUDGE: JudgeError,
    Blame.USER_SIMULATOR: UserSimulatorError,
}


def silent(line: str) -> None:
    """A `Say` that says nothing."""


@dataclass
class Meter:
    """Counts the episodes this process finished. `total` is the number planned for the whole stage, where
    `at_most` only a bound; 0 = not known."""

    total: int
    at_most: bool = False
    clock: Callable[[], float] = time.monotonic
    finished: int = 0
    rewarded: int = 0
    solved: int = 0
    tokens: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    broken_in_a_row: int = 0
    """Episodes the infrastructure broke since the last one it did not."""
    unfinished: dict[tuple[str, int], Trajectory] = field(default_factory=dict)
    """The last broken attempt of every (group, rollout) that no attempt has finished."""
    stragglers: int = 0
    """Those that were cut at their group's deadline and let go."""
    given_up: Counter[str] = field(default_factory=Counter)
    """Plans that made no task, by reason."""
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
        key = trajectory.group_id, trajectory.rollout_index
        if trajectory.reward is None:
            self.broken_in_a_row += 1
            self.unfinished[key] = trajectory
        else:
            self.broken_in_a_row = 0
            self.unfinished.pop(key, None)

    def give_up(self, reason: str) -> None:
        """Count one plan that made no task."""
        self.given_up[reason] += 1

    def cut(self) -> dict[tuple[str, int], Trajectory]:
        """The unfinished ones that were cut at their group's deadline."""
        return {
            key: each for key, each in self.unfinished.items() if each.termination is Termination.CANCELLED
        }

    def let_go(self, rewarded: Collection[str]) -> None:
        """Leave behind what was cut in the groups `rewarded`: the rest of such a group is kept."""
        for key in self.cut():
            if key[0] in rewarded:
                del self.unfinished[key]
                self.stragglers += 1

    def failure(self) -> TrajsmithError:
        """The error of the unfinished episodes, by whom the last is blamed on."""
        last = list(self.unfinished.values())[-1]
        longer = ", or give groups more time (policy.group_seconds)" if self.cut() else ""
        return _ERRORS.get(last.blame, EngineError)(
            f"{len(self.unfinished)} episodes were broken by infrastructure and have no reward; the last: "
            f"{last.error or last.termination}. The same command tries them again{longer}"
        )

    @property
    def seconds(self) -> float:
        """Wall seconds since the start; never 0."""
        return max(self.clock() - self._start, 1e-9)

    def line(self) -> str:
        """One status line: progress, rates, solve rate, endings that were not normal, time left."""
        rate, worked = self.finished / self.seconds, self.finished + self.given_up.total()
        missing = max(self.total - worked, 0)
        soon = f"{missing * self.seconds / worked:.0f} s left" if worked else "nothing to do"
        left = f", {soon}" if self.total and not self.at_most else ""
        solve = f"{self.solved / self.rewarded:.0%}" if self.rewarded else "-"
        line = (
            f"{self._done} episodes, {self.tokens / self.seconds:.0f} tokens/s, "
            f"{rate:.1f} episodes/s, solved {solve}{left}"
        )
        odd = " ".join(f"{kind}={count}" for kind, count in self.endings.most_common())
        why = " ".join(f"{reason}={count}" for reason, count in self.given_up.most_common())
        line += f", {odd}" if odd else ""
        return line + (f"; {self.given_up.total()} plans made no task: {why}" if why else "")

    @property
    def _done(self) -> str:
        if not self.total:
            return str(self.finished)
        return f"{self.finished} of at most {self.total}" if self.at_most else f"{self.finished}/{self.total}"
