"""Calls one generated tool and writes what it returned, as one line of JSON.

This file's text is the program that the sandbox runs (`calls` says for which tools); it imports nothing but
the standard library. The tool's code lies beside it, its data in a JSON file and the call on standard input;
answers wanted never enter the sandbox. What the code prints goes nowhere. Sets are sorted, so that an answer
is the same in every process. Not covered: state from one call to the next (there is none).
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

MAX_TEXT = 8000
"""Longest result, as JSON text."""


def outcome(code: str, data: Any, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """{"value": ...} or {"error": "..."}; the error is what the tool raised, in one line."""
    space: dict[str, Any] = {"__name__": "tool", "DATA": data}
    try:
        exec(compile(code, "tool.py", "exec"), space)
        text = json.dumps(space[name](**arguments), default=_plain, allow_nan=False)
        return {"value": json.loads(text)} if len(text) <= MAX_TEXT else {"error": "the result is too long"}
    except Exception as error:
        return {"error": _said(error)}


def _said(error: BaseException) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0][:200]
    return traceback.format_exception_only(error)[-1].strip()[:200]


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"a tool returned {type(value).__name__}, which is not JSON")


def main() -> None:
    """One request on standard input: {"name", "arguments"}."""
    request = json.loads(sys.stdin.read())
    answers, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    write, dumps, leave = os.write, json.dumps, os._exit
    with open("code.txt", encoding="utf-8", errors="surrogatepass") as code, open("data.json") as data:
        try:
            said = outcome(code.read(), json.load(data), request["name"], request["arguments"])
        except BaseException as error:  # the tool's code ends the process, or means to
            said = {"error": _said(error)}
    write(answers, dumps(said).encode())
    leave(0)


if __name__ == "__main__":
    main()
