"""The parts of ASTRA's trajectory score that a program decides, and how the dialogue is cut for judges.

Seven parts, each in [0, 1]: query understanding and planning, context understanding and planning (the mean of
the rounds after the first), tool success, conciseness, final answer. Of these tool success and conciseness
are counted; a final answer that names an address nobody had said, or is in another language than the request,
is 0. A trajectory without any call scores 1 in the parts about tools, as in the code. Not covered: what needs
judgement (`astra_judges`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from data.messages import Role, ToolStatus, Turn
from data.trajectories import Trajectory
from pipeline.checks.attempts import Attempt, attempts
from pipeline.checks.language import same_language

PARTS = (
    "query_understanding",
    "query_planning",
    "context_understanding",
    "context_planning",
    "tool_success",
    "conciseness",
    "final_answer",
)
PROGRAM_PARTS = ("tool_success", "conciseness")
FailedCall = Literal["paper", "code"]
FAILED_CALL: dict[str, float] = {"paper": 0.0, "code": 0.5}
"""What a failed call counts for: 0 in the paper's definition of a success rate, 0.5 in the code."""
_URL = re.compile(r"(?:https?://|www\.)[^\s<>\"')\]]+", re.IGNORECASE)


def tool_success(trajectory: Trajectory, *, failed_call: FailedCall = "paper") -> float:
    """Mean over the calls: 1 for one that worked, `failed_call`'s value for one that did not.

    What infrastructure did to a call is nobody's failure and is left out.
    """
    counted = [attempt for attempt in attempts(trajectory) if not _is_infrastructure(attempt)]
    values = [1.0 if attempt.worked else FAILED_CALL[failed_call] for attempt in counted]
    return sum(values) / len(values) if values else 1.0


def conciseness(trajectory: Trajectory) -> float:
    """Share of the calls that do not repeat one that worked and answer the same again. Ours."""
    seen: set[tuple[str, str, str]] = set()
    calls = list(attempts(trajectory))
    repeated = 0
    for attempt in calls:
        if attempt.result is not None and attempt.worked:
            key = (attempt.call.name, attempt.call.arguments, attempt.result.text)
            repeated += key in seen
            seen.add(key)
    return 1.0 - repeated / len(calls) if calls else 1.0


def final_answer(trajectory: Trajectory) -> str | None:
    """The last words of the assistant; None where the episode ended with a call."""
    last = trajectory.turns[-1] if trajectory.turns else None
    if last is None or last.role is not Role.ASSISTANT or last.tool_calls:
        return None
    return last.text


def strange_urls(trajectory: Trajectory) -> list[str]:
    """Addresses in the final answer that stand nowhere before it."""
    urls = dict.fromkeys(found.rstrip(".,;:!?") for found in _URL.findall(final_answer(trajectory) or ""))
    before = "\n".join(_all_text(turn) for turn in trajectory.turns[:-1])
    return [url for url in urls if url not in before]


def in_other_language(trajectory: Trajectory) -> bool:
    """Whether the final answer is in another language than the last request."""
    asked = [turn.text for turn in trajectory.turns if turn.role is Role.USER]
    answer = final_answer(trajectory)
    return bool(asked and answer) and not same_language(asked[-1], answer or "")


def rounds(trajectory: Trajectory) -> list[int]:
    """Indices of the assistant's turns: each is a round, the first one answers the query."""
    return [index for index, turn in enumerate(trajectory.turns) if turn.role is Role.ASSISTANT]


def has_calls(trajectory: Trajectory) -> bool:
    """Whether the assistant called anything."""
    return any(turn.tool_calls for turn in trajectory.turns)


def mean(values: Sequence[float]) -> float:
    """The mean; 1 of nothing, as a dialogue without later rounds has nothing wrong in them."""
    return sum(values) / len(values) if values else 1.0


def _is_infrastructure(attempt: Attempt) -> bool:
    return attempt.result is not None and attempt.result.status is ToolStatus.INFRA_ERROR


def _all_text(turn: Turn) -> str:
    return "\n".join([turn.text, *(call.arguments for call in turn.tool_calls)])
