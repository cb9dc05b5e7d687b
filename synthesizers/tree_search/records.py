"""How a search is written down: figures of its choices on what is kept, a verdict on every candidate.

A kept trajectory's `scores` hold `search/<step>/...` for every choice on its way (`turn`, `candidates`,
`rank`, `score`, and `probability` where the choice was drawn) and `search/weight` where training can correct
for them. A candidate's verdict (filter `tree_search`) holds its tokens, log-probs and turns as JSON, or the
id of the kept trajectory that its step is a part of: with `parent` the whole tree can be read back, and
nothing is stored twice. Not covered: what weights mean (`choosing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from data import canonical
from data.messages import NamedValue, Turn
from data.trajectories import Trajectory
from data.verdicts import Verdict

FILTER = "tree_search"
WEIGHT = "search/weight"
REPLAYED = "search:replayed"
"""Label: branches were brought to their place by making calls again, since sessions keep no snapshot."""


class Choice(NamedTuple):
    """A choice that a trajectory survived."""

    step: int
    """Number of the choice, from 0."""
    turn: int
    """Index of the assistant turn that was the latest then."""
    candidates: int
    """Number of candidates it was chosen among."""
    rank: int
    """From 1, the best."""
    score: float
    probability: float | None
    """Of going on, given the candidates; None where it was not drawn."""

    def named(self) -> list[NamedValue]:
        """The choice as it is stored."""
        names = ("turn", "candidates", "rank", "score", "probability")
        values = ((name, getattr(self, name)) for name in names)
        return [
            NamedValue(name=f"search/{self.step}/{name}", value=float(value))
            for name, value in values
            if value is not None
        ]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A step that was drawn."""

    id: str
    parent: str
    """Id of the candidate it continues; "" at the start."""
    turns: Sequence[Turn]
    token_ids: Sequence[int]
    """What was sampled in this step, and the log-probs of it."""
    logprobs: Sequence[float]
    parts: dict[str, float]
    """Its scores, unweighted."""
    rank: int
    """From 1; 0 where it was not compared."""
    parsable: bool
    error: str
    """What the infrastructure broke; "" where nothing."""
    score: float
    chosen: bool
    """Whether it went on."""

    @property
    def reason(self) -> str:
        """What became of it."""
        if self.chosen:
            return "chosen"
        if self.error:
            return "infra_failure"
        return "outscored" if self.parsable else "unparsable"

    def verdict(self, kept_in: str = "") -> Verdict:
        """The candidate as it is stored; `kept_in` is a trajectory that holds its step. No clocks."""
        detail: dict[str, Any] = {
            "parent": self.parent, "rank": self.rank, "parts": self.parts, "error": self.error,
        }  # fmt: skip
        if kept_in:
            detail["kept_in"] = kept_in
        else:
            clocks = {"started_at", "seconds"}
            detail["token_ids"], detail["logprobs"] = list(self.token_ids), list(self.logprobs)
            detail["turns"] = [turn.model_dump(mode="json", exclude=clocks) for turn in self.turns]
        return Verdict(
            trajectory_id=self.id,
            filter=FILTER,
            keep=self.chosen,
            reason=self.reason,
            score=None if self.error else self.score,
            detail=canonical.dumps(detail),
        )


def search_weight(trajectory: Trajectory) -> float | None:
    """The weight that corrects for the search a trajectory comes from; None where there is none.

    The mean over all trajectories of such searches is 1.
    """
    return next((score.value for score in trajectory.scores if score.name == WEIGHT), None)


def is_searched(trajectory: Trajectory) -> bool:
    """Whether a search chose the trajectory."""
    return any(score.name.startswith("search/") for score in trajectory.scores)
