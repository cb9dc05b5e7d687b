"""Generic checks of a task file: which calls were made, and what the last answer says.

- `{calls: [{name, arguments}, ...], extra: reads|all|none}`: every listed call was made and succeeded, one
  made call for each listed one (a multiset; order does not matter). Calls beyond the list must not have
  succeeded, unless `extra` allows them: `reads` (default) those of tools that only read, `all` any.
- `{answer: {equals|contains|matches: text}}`: the last assistant turn without calls; case does not count,
  nor, for `equals`, do quotes, emphasis and a full stop around it.

Arguments are compared as JSON after the schema's defaults are filled in on both sides. Not covered: order of
calls, and checks on a state (an environment adds those).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, ToolStatus, Turn
from pipeline.checks.answers import bare
from pipeline.errors import ConfigError

CheckKind = Callable[[dict[str, Any]], str]
"""What is wrong with a check as written; "" for nothing."""

_EXTRA = ("reads", "all", "none")
_ANSWERS = ("equals", "contains", "matches")


def calls_problem(check: dict[str, Any]) -> str:
    """What is wrong with a `calls` check."""
    if check.keys() - {"calls", "extra"} or check.get("extra", "reads") not in _EXTRA:
        return f"keys are calls and extra ({'|'.join(_EXTRA)})"
    listed = check["calls"]
    if not isinstance(listed, list) or not all(_is_call(item) for item in listed):
        return "calls is a list of {name, arguments}"
    return ""


def answer_problem(check: dict[str, Any]) -> str:
    """What is wrong with an `answer` check."""
    wanted = check["answer"]
    if check.keys() != {"answer"} or not isinstance(wanted, dict) or len(wanted) != 1:
        return f"write {{answer: {{{'|'.join(_ANSWERS)}: text}}}}"
    kind, text = next(iter(wanted.items()))
    if kind not in _ANSWERS or not isinstance(text, str) or not text:
        return f"write {{answer: {{{'|'.join(_ANSWERS)}: text}}}}, the text not empty"
    if kind == "matches":
        try:
            re.compile(text)
        except re.error as error:
            return f"{text!r} is no regular expression: {error}"
    return ""


COMMON_CHECKS: Mapping[str, CheckKind] = {"calls": calls_problem, "answer": answer_problem}


def check_answer(check: dict[str, Any], turns: Sequence[Turn]) -> bool:
    """Whether the last assistant turn, if it makes no calls, says what is wanted."""
    said = [turn for turn in turns if turn.role is Role.ASSISTANT]
    if not said or said[-1].tool_calls:
        return False
    text = said[-1].text.casefold()
    kind, wanted = next(iter(check["answer"].items()))
    if kind == "matches":
        return re.search(wanted, said[-1].text, re.IGNORECASE) is not None
    return wanted.casefold() in text if kind == "contains" else bare(text) == bare(wanted.casefold())


def check_calls(
    check: dict[str, Any], turns: Sequence[Turn], tools: Sequence[ToolSpec], *, reads: frozenset[str]
) -> bool:
    """Whether the successful calls are the listed ones; `reads` names the tools that change nothing."""
    filled = {tool.name: canonical.loads(tool.parameters).get("properties", {}) for tool in tools}
    made = [
        (call.name, _with_defaults(call.parsed_arguments(), filled.get(call.name, {})))
        for call in successful_calls(turns)
    ]
    wanted = [
        (item["name"], _with_defaults(item.get("arguments", {}), filled.get(item["name"], {})))
        for item in check["calls"]
    ]
    left = unmatched(wanted, made)
    if left is None:
        return False
    extra = check.get("extra", "reads")
    return extra == "all" or all(extra == "reads" and name in reads for name, _ in left)


def successful_calls(turns: Sequence[Turn]) -> list[ToolCall]:
    """The calls whose result is ok, in order."""
    good = {
        turn.result.call_id
        for turn in turns
        if turn.result is not None and turn.result.status is ToolStatus.OK
    }
    return [call for turn in turns for call in turn.tool_calls if call.call_id in good]


def unmatched(
    wanted: Sequence[tuple[str, Any]], made: Sequence[tuple[str, Any]]
) -> list[tuple[str, Any]] | None:
    """What is left of `made` after each of `wanted` took one; None where one found none.

    A maximum matching, since a wildcard may fit what another wanted call needs.
    """
    owner: dict[int, int] = {}

    def place(index: int, seen: set[int]) -> bool:
        for position, call in enumerate(made):
            if position in seen or call[0] != wanted[index][0] or not fits(wanted[index][1], call[1]):
                continue
            seen.add(position)
            if position not in owner or place(owner[position], seen):
                owner[position] = index
                return True
        return False

    if not all(place(index, set()) for index in range(len(wanted))):
        return None
    return [call for position, call in enumerate(made) if position not in owner]


def fits(wanted: Any, value: Any, *, partly: bool = False) -> bool:
    """Whether `value` equals `wanted` as JSON; `$any` and `$result` match anything.

    `partly`: objects may hold more keys, and each item of a list must be found in the list.
    """
    if isinstance(wanted, dict) and wanted.keys() in ({"$any"}, {"$result"}):
        return True
    if isinstance(wanted, dict) and isinstance(value, dict):
        same = wanted.keys() <= value.keys() if partly else wanted.keys() == value.keys()
        return same and all(fits(item, value[key], partly=partly) for key, item in wanted.items())
    if isinstance(wanted, list) and isinstance(value, list):
        if partly:
            return all(any(fits(item, other, partly=True) for other in value) for item in wanted)
        return len(wanted) == len(value) and all(map(fits, wanted, value))
    return isinstance(wanted, bool) == isinstance(value, bool) and bool(wanted == value)


def resolve(value: Any, results: Sequence[str]) -> Any:
    """`value` with every `{$result: N/pointer}` replaced by that part of the N-th result's JSON text."""
    if isinstance(value, dict):
        if value.keys() == {"$result"}:
            return _from_result(str(value["$result"]), results)
        return {key: resolve(item, results) for key, item in value.items()}
    return [resolve(item, results) for item in value] if isinstance(value, list) else value


def pointed(value: Any, pointer: str) -> Any:
    """The part of `value` at a JSON pointer (RFC 6901, leading slash optional). Raises LookupError."""
    for step in pointer.strip("/").split("/") if pointer.strip("/") else ():
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and key.isdecimal():
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            raise LookupError(f"there is no {key!r} at {pointer!r}")
    return value


def _from_result(reference: str, results: Sequence[str]) -> Any:
    number, _, pointer = reference.partition("/")
    try:
        text = results[int(number)]
        return pointed(canonical.loads(text), pointer) if pointer else text
    except (ValueError, LookupError) as error:
        raise ConfigError(
            f"gold refers to {{$result: {reference}}}, of {len(results)} results so far: {error}"
        ) from error


def _with_defaults(arguments: dict[str, Any], properties: dict[str, Any]) -> dict[str, Any]:
    defaults = {
        name: schema["default"]
        for name, schema in properties.items()
        if isinstance(schema, dict) and "default" in schema
    }
    return defaults | arguments


def _is_call(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("name"), str)
        and isinstance(item.get("arguments", {}), dict)
        and not item.keys() - {"name", "arguments"}
    )
