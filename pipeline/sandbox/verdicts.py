"""What became of a program, from what was observed; every implementation asks here, so that they agree."""

from __future__ import annotations

import posixpath
import re
import signal

from pipeline.errors import ConfigError
from pipeline.sandbox.base import Execution, Limits, Outcome, Program
from pipeline.sandbox.toolchains import Language

_TAIL = 2_000
_PAGE = 4096
"""A file in memory takes whole pages."""
_PATH = 1024
_MOST = 1 << 40
_SPACE = " \t\r\n\v\f"


def checked(program: Program, language: Language, limits: Limits) -> dict[str, bytes]:
    """Every file to write, the source among them.

    Raises ConfigError for limits that limit nothing, for contents, arguments and paths that no program can be
    given, for a path that leaves the working directory and for files beyond the disk limit.
    """
    _check_limits(limits)
    _check_types(program)
    for word in program.args:
        if "\0" in word or not _encodable(word):
            raise ConfigError(f"argument {word[:200]!r} of a program; allowed: text without null characters")
    for name in (*program.files, *program.collect):
        if not _plain(name):
            raise ConfigError(
                f"file name {name[:200]!r} of a program; allowed: a plain relative path inside its directory"
            )
    if len(program.collect) > 65_535:
        raise ConfigError(f"{len(program.collect)} files to collect; allowed: 65,535")
    files = {**program.files, language.file: program.code.encode("utf-8", errors="surrogatepass")}
    for name in files:
        if above := next((each for each in _parents(name) if each in files), None):
            raise ConfigError(f"{above[:200]!r} of a program is a file and the directory of {name[:200]!r}")
    size = sum(-len(content) // _PAGE * -_PAGE for content in files.values())
    if size > limits.disk_mib << 20:
        raise ConfigError(
            f"the program's files take {size:,} bytes; allowed by disk_mib: {limits.disk_mib} MiB"
        )
    return files


def _check_types(program: Program) -> None:
    texts = {"code": program.code, "stdin": program.stdin, "expected": program.expected or ""}
    texts |= {f"args[{at}]": word for at, word in enumerate(program.args)}
    texts |= {f"a file name {name!r:.200}": name for name in (*program.files, *program.collect)}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name} of a program is {value!r:.200}; allowed: a text")
    for name, content in program.files.items():
        if not isinstance(content, bytes):
            raise ConfigError(f"file {name!r:.200} of a program is {content!r:.200}; allowed: bytes")


def _check_limits(limits: Limits) -> None:
    least = {"seconds": 0.001, "memory_mib": 1, "processes": 1, "output_bytes": 0, "disk_mib": 1}
    for name, lowest in least.items():
        value = getattr(limits, name)
        if not isinstance(value, int | float) or not lowest <= value <= _MOST:
            raise ConfigError(f"limit {name}={value!r}; allowed: {lowest} to {_MOST:,}")


def _plain(name: str) -> bool:
    inside = bool(name) and "\0" not in name and posixpath.normpath(name) == name
    fits = len(name) <= _PATH and _encodable(name) and all(len(p.encode()) <= 255 for p in name.split("/"))
    return inside and fits and name != "." and not name.startswith(("/", ".."))


def _encodable(text: str) -> bool:
    return not re.search("[\ud800-\udfff]", text)


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:at]) for at in range(1, len(parts))]


def judge(
    program: Program,
    language: Language,
    *,
    code: int | None,
    stdout: str,
    stderr: str,
    timed_out: bool = False,
    out_of_memory: bool = False,
    cut: bool = False,
) -> tuple[Outcome, int | None]:
    """Outcome and exit code of a run. `code`: minus the number of a signal, None if ended from outside.

    `cut`: more than space is missing from standard output, so it cannot be what was expected.
    """
    if out_of_memory or (code and ran_out(language, stderr)):
        return Outcome.OUT_OF_MEMORY, code
    if timed_out or code == -signal.SIGXCPU:
        return Outcome.TIMEOUT, None
    if code != 0:
        return Outcome.RUNTIME_ERROR, code
    if program.expected is not None and (cut or not same_output(program.expected, stdout)):
        return Outcome.WRONG_OUTPUT, code
    return Outcome.OK, code


def ran_out(language: Language, stderr: str) -> bool:
    """Whether the runtime itself said that memory is used up."""
    return bool(language.out_of_memory and re.search(language.out_of_memory, stderr[-_TAIL:]))


def same_output(expected: str, found: str) -> bool:
    """Equal but for space at the ends of lines and of the whole."""
    left, right = (
        [line.rstrip(_SPACE) for line in text.rstrip(_SPACE).split("\n")] for text in (expected, found)
    )
    return left == right


def compile_failure(output: str, *, timed_out: bool = False, out_of_memory: bool = False) -> Execution:
    """A program that never ran."""
    if out_of_memory:
        return Execution(Outcome.OUT_OF_MEMORY, stderr=output, detail="while compiling")
    if timed_out:
        return Execution(Outcome.TIMEOUT, stderr=output, detail="while compiling")
    return Execution(Outcome.COMPILE_ERROR, stderr=output)
