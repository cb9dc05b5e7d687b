"""What became of a program, from what was observed; every implementation asks here, so that they agree."""

from __future__ import annotations

import posixpath
import re
import signal

from pipeline.errors import ConfigError
from pipeline.sandbox.base import Execution, Limits, Outcome, Program
from pipeline.sandbox.toolchains import Language

_TAIL = 2_000


def checked(program: Program, language: Language, limits: Limits) -> dict[str, bytes]:
    """Every file to write, the source among them.

    Raises ConfigError for a path that leaves the working directory and for files beyond the disk limit.
    """
    for name in (*program.files, *program.collect):
        if not name or "\0" in name or posixpath.normpath(name) != name or name.startswith(("/", "..")):
            raise ConfigError(
                f"file name {name[:200]!r} of a program; allowed: a plain relative path inside its directory"
            )
    if len(program.collect) > 65_535:
        raise ConfigError(f"{len(program.collect)} files to collect; allowed: 65,535")
    files = {**program.files, language.file: program.code.encode("utf-8", errors="surrogatepass")}
    size = sum(map(len, files.values()))
    if size > limits.disk_mib << 20:
        raise ConfigError(
            f"the program's files have {size:,} bytes; allowed by disk_mib: {limits.disk_mib} MiB"
        )
    return files


def judge(
    program: Program,
    language: Language,
    *,
    code: int | None,
    stdout: str,
    stderr: str,
    timed_out: bool = False,
    out_of_memory: bool = False,
) -> tuple[Outcome, int | None]:
    """Outcome and exit code of a run. `code`: minus the number of a signal, None if ended from outside."""
    if timed_out or code == -signal.SIGXCPU:
        return Outcome.TIMEOUT, None
    if out_of_memory or (code and ran_out(language, stderr)):
        return Outcome.OUT_OF_MEMORY, code
    if code != 0:
        return Outcome.RUNTIME_ERROR, code
    if program.expected is not None and not same_output(program.expected, stdout):
        return Outcome.WRONG_OUTPUT, code
    return Outcome.OK, code


def ran_out(language: Language, stderr: str) -> bool:
    """Whether the runtime itself said that memory is used up."""
    return bool(language.out_of_memory and re.search(language.out_of_memory, stderr[-_TAIL:]))


def same_output(expected: str, found: str) -> bool:
    """Equal but for space at the ends of lines and of the whole."""
    left, right = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (expected, found))
    return left == right


def compile_failure(output: str, *, timed_out: bool = False, out_of_memory: bool = False) -> Execution:
    """A program that never ran."""
    if out_of_memory:
        return Execution(Outcome.OUT_OF_MEMORY, stderr=output, detail="while compiling")
    if timed_out:
        return Execution(Outcome.TIMEOUT, stderr=output, detail="while compiling")
    return Execution(Outcome.COMPILE_ERROR, stderr=output)
