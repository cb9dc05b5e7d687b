"""Running calls of a workspace in the sandbox, and what came of each.

Decides how a run's lines are read: a call without an answer is a timeout, an out-of-memory or an ended
process, whatever the sandbox says of the run; the calls after it were not run. A run that never began is the
sandbox's failure, never the agent's. Values are compared by the caller, outside. Not covered: which calls are
made (`session`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from data import canonical
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.errors import EnvironmentFailure
from pipeline.sandbox.base import Execution, Limits, Outcome, Program

STEPS = 20_000
"""Executed lines of one call; the references need fewer than 2,500."""
HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")


class Kind(StrEnum):
    """What came of one call."""

    VALUE = "value"
    ERROR = "error"
    TIMEOUT = "timeout"
    NOT_RUN = "not_run"


class CallResult(NamedTuple):
    """`text` is the value as JSON, or words for the agent."""

    kind: Kind
    text: str

    def gives(self, expected: Any) -> bool:
        """Whether it is exactly this value: 1, 1.0 and true differ."""
        return self.kind is Kind.VALUE and self.text == canonical.dumps(expected)

    def describe(self, expected: Any) -> str:
        """Why it is not this value, for the agent: a timeout is called one."""
        if self.kind is not Kind.VALUE:
            return self.text
        return f"got {canonical.loads(self.text)!r}, expected {expected!r}"


class PlannedCall(NamedTuple):
    """One call of a function of a module (its file's name without .py)."""

    module: str
    function: str
    arguments: list[Any]

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.arguments))
        return f"{self.function}({shown})"


async def run_calls(
    runner: SandboxRunner, files: Mapping[str, str], calls: Sequence[PlannedCall], *, seconds: float
) -> list[CallResult]:
    """One result per call, all made in one process. Raises EnvironmentFailure where the sandbox broke."""
    request = {"token": runner.token(files, calls), "steps": STEPS, "calls": calls}
    program = Program(
        code=HARNESS,
        files={name: text.encode() for name, text in files.items()},
        stdin=canonical.dumps(request),
    )
    execution = await runner.run(program, Limits(seconds=seconds))
    return read_results(execution, str(request["token"]), number=len(calls), seconds=seconds)


def read_results(execution: Execution, token: str, *, number: int, seconds: float) -> list[CallResult]:
    """The harness's lines as results; see the module docstring."""
    lines = [line[len(token) + 1 :] for line in execution.stdout.splitlines() if line.startswith(f"{token} ")]
    if not lines or lines[0] != '"ready"':
        raise EnvironmentFailure(
            f"the sandbox did not start the tests: {execution.outcome}, exit code {execution.exit_code}: "
            f"{execution.stderr[-300:]!r}"
        )
    results = [_read(line) for line in lines[1 : number + 1]]
    if len(results) < number:
        results.append(_cut_off(execution, seconds))
    missing = CallResult(Kind.NOT_RUN, "not run")
    return [*results, *[missing] * (number - len(results))]


def _read(line: str) -> CallResult:
    try:
        answer = canonical.loads(line)
        if "value" in answer:
            return CallResult(Kind.VALUE, canonical.dumps(answer["value"]))
        if "steps" in answer:
            return CallResult(Kind.TIMEOUT, f"timed out after {answer['steps']} steps")
        return CallResult(Kind.ERROR, str(answer["error"]))
    except Exception:  # a line that the agent's code wrote or cut
        return CallResult(Kind.ERROR, "unreadable result")


def _cut_off(execution: Execution, seconds: float) -> CallResult:
    if execution.outcome is Outcome.TIMEOUT:
        return CallResult(Kind.TIMEOUT, f"timed out after {seconds:g} s")
    if execution.outcome is Outcome.OUT_OF_MEMORY:
        return CallResult(Kind.ERROR, "out of memory")
    return CallResult(Kind.ERROR, "the process ended before it returned")
