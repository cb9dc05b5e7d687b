"""Labels every trajectory with how hard its task measured for one named policy. Rejects nothing.

Labels `difficulty:<bin>` and scores `solve_rate`, from rewarded rollouts of the policy only: an
infrastructure failure is no attempt. Bins: `unsolved` (0), `hard` (> 0 and < 0.25), `medium`
(0.25 to 0.75), `easy` (>= 0.75), `solved` (1), `unmeasured` (fewer than `k` attempts). Trajectories of
other policies (demonstrations) get the label of their task. Must see failures too, so it stands before
every filter that rejects. Memory is two numbers per task. The reason of a verdict is the bin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from data.errors import ConfigError
from data.messages import NamedValue
from data.trajectories import Trajectory
from filters.base import Judged, Judgement, annotated, judged


class Bin(StrEnum):
    """How hard a task measured."""

    UNSOLVED = "unsolved"
    HARD = "hard"
    MEDIUM = "medium"
    EASY = "easy"
    SOLVED = "solved"
    UNMEASURED = "unmeasured"


@dataclass(slots=True)
class Attempts:
    """Rewarded rollouts of one task under the named policy."""

    trials: int = 0
    successes: int = 0

    def bin(self, k: int) -> Bin:
        """The bin of these attempts, of which at least `k` are needed."""
        if self.trials < k:
            return Bin.UNMEASURED
        if self.successes in (0, self.trials):
            return Bin.SOLVED if self.successes else Bin.UNSOLVED
        if self.successes * 4 < self.trials:
            return Bin.HARD
        return Bin.EASY if self.successes * 4 >= self.trials * 3 else Bin.MEDIUM


class Difficulty:
    """Measured difficulty."""

    name = "difficulty"

    def __init__(self, *, policy: str, weights: str = "", k: int = 8) -> None:
        """`policy`: `Policy.name` whose rollouts measure; `weights`: its digest, where several occur."""
        if k < 8:
            raise ConfigError(
                f"difficulty.k must be at least 8, got {k}: fewer rollouts cannot tell the bins apart"
            )
        if not policy:
            raise ConfigError(
                "difficulty.policy must name the policy whose rollouts measure, got an empty name"
            )
        self.policy, self.weights, self.k = policy, weights, k
        self.attempts: dict[str, Attempts] = {}

    def measure(self, trajectories: Iterable[Trajectory]) -> None:
        """Count the policy's attempts and successes per task. ConfigError where policies mix or lack."""
        self.attempts, seen, names = {}, set[tuple[str, str]](), set[str]()
        for trajectory in trajectories:
            policy = trajectory.policy
            names.add(policy.name)
            if policy.name != self.policy or (self.weights and policy.weights != self.weights):
                continue
            seen.add((policy.weights, policy.sampling))
            if trajectory.success is not None:
                attempts = self.attempts.setdefault(trajectory.task_id, Attempts())
                attempts.trials += 1
                attempts.successes += trajectory.success
        self._check(seen, names)

    def _check(self, seen: set[tuple[str, str]], names: set[str]) -> None:
        wanted = f"{self.policy!r}" + (f" with weights {self.weights}" if self.weights else "")
        if not seen and names:
            raise ConfigError(
                f"no rollout of policy {wanted} to measure difficulty by; policies here: {sorted(names)}"
            )
        if len(seen) > 1:
            found = "; ".join(
                f"weights {weights or '-'}, sampling {sampling}" for weights, sampling in sorted(seen)
            )
            raise ConfigError(
                f"policy {wanted} is {len(seen)} different policies ({found}); a solve rate over a mixture "
                "means nothing: set difficulty.weights, or curate the runs apart"
            )

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        """Label a stream with what `measure` counted."""
        for trajectory in trajectories:
            attempts = self.attempts.get(trajectory.task_id, Attempts())
            bin_ = attempts.bin(self.k)
            score = None if bin_ is Bin.UNMEASURED else attempts.successes / attempts.trials
            scores = () if score is None else (NamedValue(name="solve_rate", value=score),)
            labelled = annotated(trajectory, self.name, bin_, scores)
            detail = f"{attempts.successes} of {attempts.trials}"
            yield judged(labelled, self.name, Judgement(True, bin_, score=score, detail=detail))
