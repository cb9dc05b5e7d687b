"""Equality of mathematical answers, by `math-verify` in a child process.

The library's own time limit uses SIGALRM, which works in the main thread only, and a comparison can take
for ever or fill the memory. Here a child does the work under limits of the kernel: CPU seconds, so that a
busy machine changes nothing, and memory. Exceeding them is the answer's doing: not equal. A child that dies
of anything else, or a machine so busy that the wall clock runs out, is a JudgeError. Not covered: units.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import ConfigError, JudgeError, MissingExtraError

_MAX_LENGTH = 2_000
"""Characters of an answer that are looked at: its end, where the result stands."""
_START_SECONDS = 120.0
_ENDING_SECONDS = 1.0
"""For a child that closed its output to be gone."""


class MathVerdict(NamedTuple):
    """What the comparison found."""

    equal: bool
    over_limit: bool = False
    """Comparing the answer took more CPU time or memory than is allowed; `equal` is then False."""


@dataclass(frozen=True, slots=True)
class MathLimits:
    """What comparing one answer may take."""

    cpu_seconds: int = 5
    memory_bytes: int = 1 << 30
    wall_seconds: float = 120.0
    """Only a machine that is out of order takes so long for the CPU seconds above."""

    def __post_init__(self) -> None:
        if self.cpu_seconds < 1:
            raise ConfigError(f"cpu_seconds must be at least 1, got {self.cpu_seconds}")


def compare_answers(
    references: Sequence[str], given: str, *, limits: MathLimits | None = None
) -> MathVerdict:
    """Whether `given` equals any reference. No answer equals nothing.

    Raises MissingExtraError without math-verify, JudgeError where the checker itself failed. Any thread.
    """
    if not given.strip():
        return MathVerdict(equal=False)
    return _CHECKER.compare(references, given[-_MAX_LENGTH:], limits or MathLimits())


class _Checker:
    """The child, started at the first comparison and again after one that ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def compare(self, references: Sequence[str], given: str, limits: MathLimits) -> MathVerdict:
        """One comparison at a time."""
        request = {
            "references": [_as_math(reference) for reference in references],
            "given": _as_math(given),
            "cpu_seconds": limits.cpu_seconds,
            "memory_bytes": limits.memory_bytes,
        }
        with self._lock:
            child = self._running()
            line = self._asked(child, json.dumps(request).encode() + b"\n", limits.wall_seconds)
            if line is None:
                ended = self.stop()
                if ended in (-signal.SIGXCPU, -signal.SIGSEGV):
                    return MathVerdict(equal=False, over_limit=True)
                raise JudgeError(f"the checker of mathematical answers ended with status {ended}")
        reply = json.loads(line)
        if "error" in reply:
            raise JudgeError(f"math-verify failed: {reply['error']}")
        return MathVerdict(equal=reply.get("equal", False), over_limit=reply.get("over_limit", False))

    def stop(self) -> int:
        """Release the child that is ending; its exit status (0 where there is none)."""
        child, self._child = self._child, None
        if child is None:
            return 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_ENDING_SECONDS)
        child.kill()
        with contextlib.suppress(BrokenPipeError), child:
            pass
        return child.returncode

    def end(self) -> None:
        """End a child that still works."""
        if self._child is not None:
            self._child.kill()
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        if find_spec("math_verify") is None:
            raise MissingExtraError("reward math needs math-verify: pip install 'trajsmith[math]'")
        command = [sys.executable, "-I", str(Path(__file__).with_name("math_worker.py"))]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
        )
        self._child = child
        if self._asked(child, b"", _START_SECONDS) is None:
            raise JudgeError(f"the checker of mathematical answers did not start (status {child.poll()})")
        return child

    def _asked(self, child: subprocess.Popen[bytes], request: bytes, seconds: float) -> bytes | None:
        """The reply line, None where the child ended instead. JudgeError where the wall clock ran out."""
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(request)
            child.stdin.flush()
        except BrokenPipeError:
            return None
        ready, _, _ = select.select([child.stdout], [], [], seconds)
        if not ready:
            self.end()
            raise JudgeError(f"comparing a mathematical answer took more than {seconds:g} s of wall time")
        return child.stdout.readline() or None


def _as_math(text: str) -> str:
    """Bare LaTeX such as \\frac{1}{2} is only read between dollar signs."""
    stripped = text.strip()
    if "\\" in stripped and "$" not in stripped and "\\boxed" not in stripped and "\\[" not in stripped:
        return f"${stripped}$"
    return stripped


_CHECKER = _Checker()
atexit.register(_CHECKER.end)
