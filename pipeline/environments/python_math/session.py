"""One episode of python_math: an interpreter, and the exact check of the last boxed number.

Every call of `python` is a program of its own in the sandbox: nothing is remembered from one to the next, so
each piece must be complete (as in ReTool), and a session has no state to lose. Success: the last assistant
turn ends in `\\boxed{}` with exactly the right rational number. Errors and timeouts of the code are
observations; a sandbox that breaks is an infrastructure failure. Private: {"answer": the number, "code": what
gold runs}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from data.messages import Role, Turn
from data.trajectories import Trajectory
from pipeline.environments.python_math.answers import boxed, read_number
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.environments.toolkit import ToolSession
from pipeline.environments.tools import ToolError, tool
from pipeline.sandbox.base import Limits, Outcome, Program

SECONDS = 5.0
"""The sandbox's clock for one piece of code."""
_INTERPRETER = Path(__file__).with_name("interpreter.py").read_text(encoding="utf-8")
_FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*\n(.*?)\n?```\s*", re.DOTALL)


class MathSession(ToolSession):
    """`runner` is set by the environment."""

    runner: SandboxRunner

    @tool
    async def python(self, code: str) -> str:
        """Run Python; print what you need."""
        fenced = _FENCE.fullmatch(code)
        program = Program(code=_INTERPRETER, stdin=fenced[1] if fenced else code)
        execution = await self.runner.run(program, Limits(seconds=SECONDS))
        if execution.outcome is Outcome.TIMEOUT:
            raise ToolError(f"timed out after {SECONDS:g} s")
        if execution.outcome is Outcome.OUT_OF_MEMORY:
            raise ToolError("out of memory")
        if execution.exit_code is None:
            raise ToolError(execution.detail or "ended from outside")
        if not execution.ok:
            raise ToolError(execution.stderr.strip() or f"ended with exit code {execution.exit_code}")
        return execution.stdout.strip() or "no output"

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """`answered`: a number is boxed; `success`: it is the right one."""
        answer = final_number(trajectory.turns)
        right = answer is not None and answer == Fraction(self.task.private_value()["answer"])
        return {"success": float(right), "answered": float(answer is not None)}

    def artefact(self) -> Any:
        """Nothing: the answer is in the turns."""
        return None


def final_number(turns: Sequence[Turn]) -> Fraction | None:
    """The number boxed in the last turn, which must be the assistant's and without calls."""
    last = turns[-1]
    if last.role is not Role.ASSISTANT or last.tool_calls:
        return None
    text = boxed(last.text)
    return None if text is None else read_number(text)
