"""Every error of the runtime, named by the boundary it crossed, and the one place that classifies them.

Extension code (a user's tool, a verifier) raises plain Python errors; the boundary that called it
wraps what escapes. All types are picklable: one message argument, nothing else.
Not covered here: the record's and the store's errors (`data.errors`).
"""

from __future__ import annotations

from data.errors import ConfigError, RecordError, StoreError, TrajsmithError
from data.trajectories import Blame, Termination

__all__ = [
    "BudgetExceededError",
    "ConfigError",
    "EngineError",
    "EngineProtocolError",
    "EnvironmentFailure",
    "JudgeError",
    "MissingExtraError",
    "RecordError",
    "StoreError",
    "StructuredReplyError",
    "TrajsmithError",
    "UserSimulatorError",
    "classify",
]


class EngineError(TrajsmithError):
    """The model server is unreachable, overloaded beyond the retries, or died. Exit code 3."""

    exit_code = 3


class EngineProtocolError(EngineError):
    """The model server answered something that cannot be trusted (garbage, too few log-probs)."""


class EnvironmentFailure(TrajsmithError):
    """An environment or tool broke for reasons that are not the agent's (crash, missed deadline, poison)."""

    exit_code = 3


class UserSimulatorError(TrajsmithError):
    """The simulated user failed to produce a turn."""

    exit_code = 3


class JudgeError(TrajsmithError):
    """A verifier or judge failed; the result is no reward, never 0 and never 1."""

    exit_code = 3


class StructuredReplyError(TrajsmithError):
    """A chat reply never matched its schema; the raw text is quarantined, no fallback is invented."""

    exit_code = 3


class BudgetExceededError(TrajsmithError):
    """A token, call or money budget is used up; work stops cleanly and resumes with a larger one."""

    exit_code = 5


class MissingExtraError(TrajsmithError, ImportError):
    """An optional package is not installed; the message holds the install command. Exit code 2."""

    exit_code = 2


_BLAME: tuple[tuple[type[BaseException], Blame], ...] = (
    (UserSimulatorError, Blame.USER_SIMULATOR),
    (JudgeError, Blame.JUDGE),
    (EnvironmentFailure, Blame.TOOL),
    (EngineError, Blame.INFRASTRUCTURE),
)


def classify(error: BaseException) -> tuple[Termination, Blame]:
    """Ending and blame of an exception that escaped an episode. Anything unknown is infrastructure."""
    for kind, blame in _BLAME:
        if isinstance(error, kind):
            return Termination.INFRA_FAILURE, blame
    return Termination.INFRA_FAILURE, Blame.INFRASTRUCTURE
