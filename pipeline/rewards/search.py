"""Answer quality less a cost per search.

R = EM, F1 or verified success - cost * number of searches; at the default cost of 0.05 in
[-0.05 * searches, 1]. Source: Search-R1 (arXiv 2503.09516) for exact match, SQuAD for the normalisation;
the cost is the path-efficiency term of agentic search. F1 alone teaches not to answer (follow-up study of
Search-R1), so exact match is the default and the share of unanswered episodes is a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.answers import exact_match, token_f1
from pipeline.checks.attempts import attempts
from pipeline.errors import ConfigError
from pipeline.rewards.base import Measured, ProgramReward, submitted_answer


class Search(ProgramReward):
    """Parts: `em`, `f1`, `searches`, `unanswered`."""

    name = "search"

    def __init__(
        self,
        *,
        measure: str = "em",
        cost: float = 0.05,
        tools: Sequence[str] = ("search",),
        answer: str = "answer",
    ) -> None:
        """`measure`: em, f1, or success (the verifier's word, which may ask for evidence too).
        `tools`: names of the tools that search. `answer`: key of the private part with the reference(s)."""
        if measure not in ("em", "f1", "success") or cost < 0:
            raise ConfigError(
                f"reward search needs measure em, f1 or success and cost >= 0, got {measure!r} and {cost}"
            )
        self.metric, self.cost, self.tools, self.answer = measure, cost, frozenset(tools), answer

    def measure(self, task: Task, trajectory: Trajectory) -> Measured:
        """Quality less cost."""
        answer = submitted_answer(trajectory).partition("\n")[0]  # what follows explains it
        references = private_texts(task, self.answer, self.name)
        searches = sum(
            attempt.executed and attempt.call.name in self.tools for attempt in attempts(trajectory)
        )
        parts = {
            "em": float(exact_match(answer, references)),
            "f1": token_f1(answer, references),
            "searches": float(searches),
            "unanswered": float(not answer),
        }
        quality = float(bool(trajectory.success)) if self.metric == "success" else parts[self.metric]
        return Measured(quality - self.cost * searches, parts)


def private_texts(task: Task, key: str, reward: str) -> list[str]:
    """The texts under a key of the task's private part. ConfigError where there are none."""
    value: Any = task.private_value()
    found = value.get(key) if isinstance(value, dict) else None
    if isinstance(found, str | int | float) and not isinstance(found, bool):
        return [str(found)]
    if isinstance(found, list) and found and all(isinstance(item, str | int | float) for item in found):
        return [str(item) for item in found]
    shown = ", ".join(value) if isinstance(value, dict) else type(value).__name__
    raise ConfigError(
        f"reward {reward} needs texts under {key!r} in the private part of task {task.task_id}, which has: "
        f"{shown or 'nothing'}; name the right key in its options"
    )
