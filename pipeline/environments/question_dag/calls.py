"""One call of a generated tool, and what came of it in words.

A tool that a task brings is somebody else's code: each call is a program of its own in the sandbox. Tools
over our own tables are code of this package, as any world's tools are, and run here, by the same harness.

Decides that whatever a tool's code does is an observation (`ok` is False): it raised, ran out of time or
memory, or returned what JSON cannot say. An agent can bring most of that about by its arguments, and what an
agent can bring about must not spare it its verdict. Only a sandbox that breaks raises EnvironmentFailure.
Not covered: whether arguments fit the schema (the caller's).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from data import canonical
from pipeline.environments.question_dag.harness import outcome
from pipeline.environments.question_dag.items import MadeTool
from pipeline.environments.question_dag.questions import shown_value
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.sandbox.base import Execution, Limits, Outcome, Program

SECONDS = 5.0
HARNESS = Path(__file__).with_name("harness.py").read_text(encoding="utf-8")


class Answer(NamedTuple):
    """What a call answered: the value as text, or an error."""

    ok: bool
    text: str
    timed_out: bool = False


async def call_tool(
    runner: SandboxRunner,
    tool: MadeTool,
    arguments: Mapping[str, Any],
    *,
    data: Mapping[str, Any] | None = None,
    seconds: float = SECONDS,
) -> Answer:
    """Run the call; `data` stands in for the tool's own. Raises EnvironmentFailure if the sandbox breaks."""
    rows = tool.data if data is None else data
    program = Program(
        code=HARNESS,
        files={
            "code.txt": tool.code.encode("utf-8", errors="surrogatepass"),
            "data.json": canonical.dumps(rows).encode("ascii"),
        },
        stdin=canonical.dumps({"name": tool.name, "arguments": dict(arguments)}),
    )
    return _read(await runner.run(program, Limits(seconds=seconds)), seconds)


def call_own_tool(tool: MadeTool, arguments: Mapping[str, Any], *, data: Mapping[str, Any]) -> Answer:
    """Run a call of a tool that this package wrote. Never for a tool out of a task, a file or a model."""
    return _answer(outcome(tool.code, data, tool.name, dict(arguments)))


def _answer(said: Mapping[str, Any]) -> Answer:
    return Answer(True, shown_value(said["value"])) if "value" in said else Answer(False, str(said["error"]))


def _read(execution: Execution, seconds: float) -> Answer:
    if execution.outcome is Outcome.TIMEOUT:
        return Answer(False, f"timed out after {seconds:g} s", timed_out=True)
    if execution.outcome is Outcome.OUT_OF_MEMORY:
        return Answer(False, "out of memory")
    try:
        return _answer(canonical.loads(execution.stdout))
    except Exception:  # the tool's code took over the process, or left nothing of it
        return Answer(False, execution.detail or "the tool ended without an answer")
