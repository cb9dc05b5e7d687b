"""An analysis judged in several dimensions: right, complete, grounded, readable.

R = weighted mean of, by default, 0.5 correct + 0.3 complete + 0.1 grounded + 0.1 readable, in [0, 1].

- correct: the verifier's total, cut to [0, 1].
- complete: share of the points the task's private part lists that the answer states (a number by value,
  a text as whole words); the correctness where it lists none.
- grounded: share of the numbers in the answer that the dialogue showed before (prompt and tool results) or
  that a private point holds; 1 where the answer has no numbers.
- readable: 1 up to `max_words` words, falling linearly to 0 at twice as many.

No answer scores 0 in every dimension but correctness. Grounded and readable count only as far as the analysis
is correct or complete, so that a short evasion earns nothing. Tone and structure are a judge's business:
combine with `judge` under `weighted`.
"""

from __future__ import annotations

from data.messages import Role
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.answers import numbers_in, states
from pipeline.errors import ConfigError
from pipeline.rewards.base import Measured, ProgramReward, submitted_answer, verified
from pipeline.rewards.search import private_texts


class DataAnalysis(ProgramReward):
    """Parts: `correct`, `complete`, `grounded`, `readable`, each in [0, 1]."""

    name = "data_analysis"

    def __init__(
        self,
        *,
        points: str = "",
        correct: float = 0.5,
        complete: float = 0.3,
        grounded: float = 0.1,
        readable: float = 0.1,
        max_words: int = 120,
    ) -> None:
        """`points`: key of the private part that lists what a complete answer states; "" = none."""
        self.weights = {"correct": correct, "complete": complete, "grounded": grounded, "readable": readable}
        if min(self.weights.values()) < 0 or correct + complete <= 0 or max_words < 1:
            raise ConfigError(
                f"reward data_analysis: weights must be at least 0, correct or complete above 0 and "
                f"max_words at least 1; got {self.weights} and {max_words}"
            )
        self.points, self.max_words = points, max_words

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """The weighted mean of the dimensions."""
        answer = submitted_answer(trajectory)
        correct = min(1.0, max(0.0, verified(trajectory).total))
        points = private_texts(task, self.points, self.name) if self.points else []
        stated = [states(answer, point) for point in points]
        complete = sum(stated) / len(stated) if stated else correct
        earned = max(correct, complete) if answer else 0.0
        parts = {
            "correct": correct,
            "complete": complete if answer else 0.0,
            "grounded": earned * _grounded(answer, _shown(trajectory) + " ".join(points)),
            "readable": earned * min(1.0, max(0.0, 2.0 - len(answer.split()) / self.max_words)),
        }
        total = sum(self.weights[name] * value for name, value in parts.items())
        return Measured(total / sum(self.weights.values()), parts)


def _shown(trajectory: Trajectory) -> str:
    """Everything the agent was told."""
    return " ".join(turn.text for turn in trajectory.turns if turn.role is not Role.ASSISTANT) + " "


def _grounded(answer: str, shown: str) -> float:
    said, known = numbers_in(answer), set(numbers_in(shown))
    return sum(number in known for number in said) / len(said) if said else 1.0
