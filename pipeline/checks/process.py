"""How an episode went, beyond whether it succeeded: errors, waste, repair, and giving up early.

Errors are read from the status of a result, never from its words: a result that prints "mean squared
error" is no error. Not covered: what a step was good for (that needs a judge).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from data.messages import Role
from data.trajectories import Termination, Trajectory
from pipeline.checks.attempts import Attempt


def num_turns(trajectory: Trajectory) -> int:
    """Assistant turns."""
    return sum(turn.role is Role.ASSISTANT for turn in trajectory.turns)


def num_said(trajectory: Trajectory) -> int:
    """Tokens the agent generated in this episode; `usage` also counts what a search drew and dropped."""
    said = sum(segment.num_generated for segment in trajectory.segments)
    return said or trajectory.usage.generated_tokens


def has_format_error(calls: Sequence[Attempt]) -> bool:
    """Whether a call did not parse or did not fit the schema it was shown."""
    return any(not attempt.call.ok for attempt in calls)


def num_effective(calls: Sequence[Attempt]) -> int:
    """Calls that were well formed, answered without an error, and no repetition of an answer already had."""
    seen: set[tuple[str, str, str]] = set()
    effective = 0
    for attempt in calls:
        if not attempt.executed or attempt.failed_in_tool or attempt.result is None:
            continue
        key = (attempt.call.name, attempt.call.arguments, attempt.result.text)
        effective += key not in seen
        seen.add(key)
    return effective


def repetition_share(calls: Sequence[Attempt]) -> float:
    """Share of calls that repeat the call right before them, word for word; 0 for fewer than two."""
    said = [(attempt.call.name, attempt.call.arguments, attempt.call.raw) for attempt in calls]
    repeated = sum(one == other for one, other in itertools.pairwise(said))
    return repeated / (len(said) - 1) if len(said) > 1 else 0.0


def recovery_share(calls: Sequence[Attempt], *, window: int = 3) -> float | None:
    """Share of failed calls after which the same tool succeeded within `window` calls; None without."""
    failed = [index for index, attempt in enumerate(calls) if not attempt.executed or attempt.failed_in_tool]
    if not failed:
        return None
    return sum(_repaired(calls, index, window) for index in failed) / len(failed)


def finished_early(trajectory: Trajectory, *, num_calls: int, required: int | None) -> bool:
    """Whether the agent ended the episode itself, without success and with fewer calls than gold needs.

    Where gold is not known only an episode without any call counts, so the rate is never overstated.
    """
    gave_up = trajectory.termination is Termination.FINISHED and not trajectory.success
    return gave_up and num_calls < (1 if required is None else required)


def roc_penalty(*, num_calls: int, num_errors: int, num_answers: int, num_turns: int) -> float:
    """Process penalty by which GRPO-RoC ranks successes (rStar2-Agent, arXiv 2508.20722), in [0, 2].

    Errors / calls (0.5 without a call) plus min(1, (answers - 1) / turns) (1 without an answer).
    """
    errors = num_errors / num_calls if num_calls else 0.5
    if num_answers == 0:
        return errors + 1.0
    return errors + min(1.0, (num_answers - 1) / max(num_turns, 1))


def _repaired(calls: Sequence[Attempt], index: int, window: int) -> bool:
    name = calls[index].call.name
    later = calls[index + 1 : index + 1 + window]
    return any(
        attempt.executed and not attempt.failed_in_tool and (attempt.call.name == name or not name)
        for attempt in later
    )
