"""The Sandbox contract: a program and its limits in, what became of it out.

Model-written code runs here and nowhere else. `run` never raises for what the program did: every such ending
is an Outcome. It raises EnvironmentFailure where the sandbox itself broke (`api_error` of a remote one after
its retries), because that says nothing about the program. Not covered here: how a language is compiled and
run (`languages/*.yaml`), and what each implementation keeps out (its own docstring).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Outcome(StrEnum):
    """How a run ended, the first that applies."""

    COMPILE_ERROR = "compile_error"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    RUNTIME_ERROR = "runtime_error"
    """A non-zero exit code or a signal."""
    WRONG_OUTPUT = "wrong_output"
    """It ran, but `Program.expected` was given and standard output differs (trailing space ignored)."""
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use."""

    seconds: float = 5.0
    """Of the clock, for compiling and for running each. Where the implementation can tell, time in which the
    machine kept the program from running does not count: a busy machine is not a slow program."""
    memory_mib: int = 256
    processes: int = 32
    output_bytes: int = 64 * 1024
    """Of standard output and of standard error each; the rest is cut and `Execution.truncated` says so."""
    disk_mib: int = 32
    """Of the working directory, /tmp and /dev/shm each; in memory, so it counts there too."""


@dataclass(frozen=True, slots=True)
class Program:
    """Source and everything it may read. Paths are relative to its working directory."""

    code: str
    language: str = "python"
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: str = ""
    args: tuple[str, ...] = ()
    expected: str | None = None
    collect: tuple[str, ...] = ()
    """Files to hand back after the run, where they exist."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What became of a program."""

    outcome: Outcome
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    """None where it was ended from outside."""
    seconds: float = 0.0
    truncated: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)
    detail: str = ""
    """What the outcome alone does not say: `while compiling`, `output flood`."""

    @property
    def ok(self) -> bool:
        """Whether it ran to the end with exit code 0 and, where asked, the expected output."""
        return self.outcome is Outcome.OK


class Sandbox(Protocol):
    """Runs programs, many at a time. Nothing of one run is visible to another."""

    name: str

    async def run(self, program: Program, limits: Limits | None = None) -> Execution:
        """Run to its end or its limits. Raises ConfigError (unknown language), EnvironmentFailure."""
        ...

    def describe(self) -> str:
        """One line for people: what holds the limits on this machine."""
        ...

    async def close(self) -> None:
        """End what is still running and release everything; idempotent."""
        ...
