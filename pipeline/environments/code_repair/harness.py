"""Calls functions of the workspace inside the sandbox and reports what they gave back, one line per call.

This file's text is the sandboxed program; it imports nothing but the standard library. It knows arguments
only: expected values never enter the sandbox. Lines begin with a token of this run; the program's own output
goes nowhere. Decides when a call is stopped: after a number of executed lines of the workspace's own files,
which is the same on every machine; what the standard library executes for them (an import of `statistics`
is 22,000 lines) is not counted. The process ends with the last call, whatever threads are left. Not covered:
code that hides from the line counter; the sandbox's clock stops that.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from types import FrameType
from typing import Any

MAX_TEXT = 2000
"""Longest result, as JSON text."""


class StepLimit(BaseException):
    """The budget of executed lines is used up. No Exception, so that ordinary handlers let it pass."""


class Counter:
    """Counts executed lines of the files in `folder` that run under it."""

    def __init__(self, budget: int, folder: str) -> None:
        self.left, self.folder = budget, os.path.join(folder, "")

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The trace function; raises StepLimit in the traced code."""
        if event == "call" and not frame.f_code.co_filename.startswith(self.folder):
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                raise StepLimit
        return self.trace


def outcome(module: str, function: str, arguments: list[Any], *, steps: int) -> dict[str, Any]:
    """{"value": ...}, {"error": "..."} or {"steps": budget} of one call."""
    counter = Counter(steps, os.getcwd())
    try:
        sys.settrace(counter.trace)
        try:
            value = getattr(importlib.import_module(module), function)(*arguments)
        finally:
            sys.settrace(None)
        text = json.dumps(value)
        return {"value": value} if len(text) <= MAX_TEXT else {"error": "the result is too long"}
    except StepLimit:
        return {"steps": steps}
    except SyntaxError as error:
        return {"error": f"SyntaxError: {error.msg} (line {error.lineno})"}
    except BaseException as error:
        return {"error": _described(error, f"{module}.py")}


def _described(error: BaseException, file: str) -> str:
    """The last line of the traceback, and the line of `file` it came from."""
    last = traceback.format_exception_only(error)[-1].strip()[:200]
    frames = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if os.path.basename(frame.filename) == file
    ]
    return f"{last} (line {frames[-1]})" if frames else last


def main() -> None:
    """One request on standard input: {"token", "steps", "calls": [[module, function, arguments], ...]}."""
    request = json.loads(sys.stdin.read())
    answers, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    sys.path.insert(0, os.getcwd())
    write, dumps, token, leave = os.write, json.dumps, request["token"], os._exit

    def say(value: Any) -> None:
        write(answers, f"{token} {dumps(value)}\n".encode())

    say("ready")
    for module, function, arguments in request["calls"]:
        say(outcome(module, function, arguments, steps=request["steps"]))
    leave(0)


if __name__ == "__main__":
    main()
