"""What verification says of a step, as it is stored.

Not covered: how it is decided (`verification`, `judging`).
"""

from __future__ import annotations

from enum import StrEnum

from data.messages import Record
from data.trajectories import Trajectory
from synthesizers.looptool.samples import make_step_id

SYNTHESIZER = "looptool"
INFRA = "infra"
"""Reason of what the infrastructure broke."""
REPAIRED = "looptool:repaired"
"""Label of a dialogue that goes on with the model's own prediction in the place of a wrong label."""


class Part(StrEnum):
    """Why a step is trained in a round; records carry it as the label `looptool:<part>`."""

    ERROR_SEED = "error_seed"
    """The model is wrong there, or the label was and is repaired."""
    EXPANSION = "expansion"
    HIGH_PERPLEXITY = "high_perplexity"
    """Right, and not sure of it."""

    @property
    def mark(self) -> str:
        """As records carry it."""
        return f"looptool:{self}"


class LabelVerdict(StrEnum):
    """Who was right at a step where label and prediction differ (JGLV)."""

    PRED_WRONG = "PRED_WRONG"
    LABEL_WRONG = "LABEL_WRONG"
    BOTH_CORRECT = "BOTH_CORRECT"
    BOTH_WRONG = "BOTH_WRONG"
    UNDECIDED = "UNDECIDED"
    """Nobody could tell: judges without a majority, or a world that could not be played again."""


class Repair(Record):
    """The verdict on one mismatch, and the repaired dialogue where the prediction was adopted."""

    trajectory_id: str
    turn: int
    verdict: LabelVerdict
    reason: str = ""
    """Why it is undecided, or why a wrong label was not repaired; a stable identifier."""
    analysis: str = ""
    """What is wrong, in words."""
    label: str = ""
    """What was to be said or called at the step, as prompts show it."""
    predicted: str = ""
    """What the model wrote there."""
    votes: tuple[str, ...] = ()
    """One per judge, "" for a reply that was no verdict; empty where execution decided."""
    sampled_tokens: int = 0
    """Tokens the policy generated to finish dialogues."""
    repaired: Trajectory | None = None
    """Trains the adopted prediction only. `parents`: the trajectory it repairs."""

    @property
    def step_id(self) -> str:
        """`<trajectory_id>#<turn>`."""
        return make_step_id(self.trajectory_id, self.turn)

    @property
    def is_broken(self) -> bool:
        """Whether the infrastructure kept it from being decided: to be verified again, not to be stored."""
        return self.verdict is LabelVerdict.UNDECIDED and self.reason == INFRA

    @property
    def is_error_seed(self) -> bool:
        """Whether the step is trained again and expanded: there is a right label the model does not give."""
        return self.verdict is LabelVerdict.PRED_WRONG or self.repaired is not None
