"""Is a generated tool a tool? Its code is run in the sandbox on the true call and on perturbed ones.

ASTRA runs the true call only, and its tools are written from the answer they must give, so one that prints a
constant passes. Here the true call must give the sub-answer, and other arguments must not: where the data say
what they give (tools made by rules) exactly that; otherwise something else or an error, at least one of them
something else without an error, and arguments that nothing knows never the same. A call that ran out of time
is a problem and not the error that was wanted: a slow machine must not prove a tool. The answer must not
stand in the code. Not covered: whether the invented rows are true of the world; nobody asks for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from data import canonical
from pipeline.checks.calls import argument_problems
from pipeline.environments.question_dag.calls import SECONDS, Answer, call_tool
from pipeline.environments.question_dag.items import MadeTool
from pipeline.environments.question_dag.session import says
from pipeline.environments.sandboxed import SandboxRunner

UNKNOWN = "Zzyzx-unknown"
"""A word that no data hold."""
MAX_ALTERNATIVES = 3
"""[ours] Known values tried in place of one argument."""
_MIN_SECRET = 3
"""Shorter answers may stand in code by chance."""


@dataclass(frozen=True, slots=True)
class Other:
    """A perturbed call. `wanted`: what the data say it gives, "" for an error; None: nobody knows."""

    arguments: Mapping[str, Any]
    wanted: str | None = None
    unknown: bool = False
    """Whether nothing in the data knows the arguments."""


@dataclass(frozen=True, slots=True)
class ToolTest:
    """A sub-question's call, its answer, and perturbed calls; re-run whenever the tool changes."""

    step: int
    """The sub-question's index."""
    arguments: Mapping[str, Any]
    answer: str
    others: tuple[Other, ...]

    def with_arguments(self, names: Mapping[str, str]) -> ToolTest:
        """The test with its parameters renamed, as in another tool of the same intent."""

        def moved(arguments: Mapping[str, Any]) -> dict[str, Any]:
            return {names[name]: value for name, value in arguments.items()}

        others = tuple(replace(other, arguments=moved(other.arguments)) for other in self.others)
        return replace(self, arguments=moved(self.arguments), others=others)


@dataclass(frozen=True, slots=True)
class ProvenTool:
    """A tool and the tests it passes."""

    tool: MadeTool
    tests: tuple[ToolTest, ...]


async def tool_problem(runner: SandboxRunner, tool: MadeTool, test: ToolTest) -> str:
    """What is wrong with a tool under a test, "" for nothing. Raises EnvironmentFailure."""
    if problems := argument_problems(dict(test.arguments), tool.parameters):
        return f"the call does not fit the schema: {'; '.join(problems)}"
    if answer_in_code(tool.code, test.answer):
        return f"the answer {test.answer!r} stands in the code; it must follow from the data"
    true = await call_tool(runner, tool, test.arguments)
    if not true.ok:
        return f"the call failed: {true.text}"
    if not _gives(true, test.answer, exact=tool.exact):
        return f"the call gave {true.text!r:.200}, which does not say {test.answer!r}"
    if not tool.exact:
        # Another limit is another key of what the runner remembers: the same call, run again.
        again = await call_tool(runner, tool, test.arguments, seconds=SECONDS + 1)
        if again != true:
            return f"the same call gave {true.text!r:.200}, then {again.text!r:.200}"
    return await _perturbed_problem(runner, tool, test, true)


async def _perturbed_problem(runner: SandboxRunner, tool: MadeTool, test: ToolTest, true: Answer) -> str:
    answers = [(other, await call_tool(runner, tool, other.arguments)) for other in test.others]
    for other, got in answers:
        call = f"{tool.name}({canonical.dumps(dict(other.arguments))})"
        if got.timed_out:
            return f"{call} {got.text}"
        if other.wanted is not None:
            right = _gives(got, other.wanted, exact=True) if other.wanted else not got.ok
            if not right:
                return f"{call} gave {got.text!r:.200}; the data say {other.wanted or 'an error'!r}"
        elif other.unknown and got.ok and (got.text == true.text or says(got.text, test.answer)):
            return f"constant output: {call} gave {got.text!r:.200}, too"
    if all(not got.ok or got.text == true.text for _, got in answers):
        return f"constant output: none of {len(answers)} other calls gave anything but {true.text!r:.200}"
    return ""


def _gives(answer: Answer, wanted: str, *, exact: bool) -> bool:
    if exact:
        return answer.ok and answer.text == wanted
    return answer.ok and says(answer.text, wanted)


def answer_in_code(code: str, answer: str) -> bool:
    """Whether an answer, if long enough to tell, stands in the code as a word, a number or a text."""
    plain = answer.strip()
    if len(plain) < _MIN_SECRET:
        return False
    return bool(re.search(rf"(?<!\w){re.escape(plain)}(?!\w)", code, re.IGNORECASE))


def perturbed(tool: MadeTool, arguments: Mapping[str, Any], answer: str) -> tuple[Other, ...]:
    """Calls with other arguments: unknown words, other values that the data know, other numbers."""
    properties: dict[str, Any] = tool.parameters.get("properties", {})
    others = []
    nowhere = {name: _nowhere(value, properties.get(name, {})) for name, value in arguments.items()}
    if nowhere != dict(arguments) and not argument_problems(nowhere, tool.parameters):
        others.append(Other(nowhere, unknown=any(isinstance(value, str) for value in nowhere.values())))
    for name, value in arguments.items():
        for found in _alternatives(value, properties.get(name, {}), tool.data):
            changed = {**arguments, name: found}
            if changed != dict(arguments) and not argument_problems(changed, tool.parameters):
                others.append(Other(changed))
    return tuple(others)


def _nowhere(value: Any, schema: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and "enum" not in schema:
        return UNKNOWN
    return [UNKNOWN] if isinstance(value, list) and all(isinstance(item, str) for item in value) else value


def _alternatives(value: Any, schema: Mapping[str, Any], data: Any) -> list[Any]:
    if "enum" in schema:
        return [other for other in schema["enum"] if other != value][:MAX_ALTERNATIVES]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value * 2 + 3, 1]
    if isinstance(value, str):
        found = dict.fromkeys(other for other in _beside(data, value.casefold()) if other != value)
        return list(found)[:MAX_ALTERNATIVES]
    if isinstance(value, list) and value:
        return [value[1:], value[:1]]
    return []


def _beside(data: Any, value: str) -> Iterator[str]:
    """Keys beside the key `value`, and what stands in its field in other rows; case does not count."""
    if isinstance(data, dict):
        if any(key.casefold() == value for key in data):
            yield from (key for key in data if key.casefold() != value)
        rows = [row for row in data.values() if isinstance(row, dict)]
    elif isinstance(data, list):
        rows = [row for row in data if isinstance(row, dict)]
    else:
        return
    for field in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(field) for row in rows]
        if any(isinstance(item, str) and item.casefold() == value for item in values):
            yield from (item for item in values if isinstance(item, str) and item.casefold() != value)
    for inner in data.values() if isinstance(data, dict) else data:
        yield from _beside(inner, value)
