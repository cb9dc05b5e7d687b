"""Runs one piece of code inside the sandbox the way an interactive interpreter would.

This file's text is the sandboxed program; it imports nothing but the standard library. The code comes on
standard input; what it prints is the output, and so is the value of a last line that is an expression. An
exception ends it with one short line on standard error. Not covered: state from one call to the next (there
is none).
"""

from __future__ import annotations

import ast
import sys
import traceback

NAME = "<code>"


def run(code: str) -> str:
    """Execute; "" or the exception in one line."""
    sys.set_int_max_str_digits(0)
    namespace: dict[str, object] = {"__name__": "__main__"}
    try:
        tree = ast.parse(code, NAME)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, NAME, "exec"), namespace)
        if isinstance(last, ast.Expr):
            exec(compile(ast.Interactive([last]), NAME, "single"), namespace)
    except SyntaxError as error:
        return f"SyntaxError: {error.msg} (line {error.lineno})"
    except BaseException as error:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == NAME
        ]
        said = traceback.format_exception_only(error)[-1].strip()
        return f"{said} (line {lines[-1]})" if lines else said
    return ""


def main() -> None:
    """Exit code 1 where the code raised."""
    problem = run(sys.stdin.read())
    sys.stdout.flush()
    if problem:
        sys.stderr.write(problem)
        sys.exit(1)


if __name__ == "__main__":
    main()
