"""Which capabilities a task exercises: the axes of the diagnosis, of a loop's gate and of its next round.

Capabilities are a function of the task, of the tools its prompt shows and of a dialogue that solves it
(gold), never of what the policy did: a capability that depended on the outcome would be weak or strong by
definition. Of the trajectory only its tags, its environment and the tools of its *first* segment are read,
all of which stand before the policy's first token. Names are stable and prefixed:

    tag:refuse   environment:travel_desk   tool:flights   pair:flights>book   call:dependent

Where no gold is known, a planned task (blueprint) is read from its plan; any other task has its tags, its
environment and what its tags say by a known name. Not covered: whether a policy needs gold's way (a task of
two ways has the capabilities of gold's), and difficulty that no declared or visible feature shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, ToolStatus, Turn, assistant, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.blueprint import Blueprint, is_blueprint, read_blueprint

LONG_CONTEXT = 16_000
"""Characters of gold's dialogue (prompt and answers of tools included) from which it is a long context."""
_SHORTEST_VALUE = 2
"""Characters; a shorter value stands in an answer by chance."""


class Feature(StrEnum):
    """What gold's calls and words are like; each is a capability `call:<feature>`."""

    OPTIONAL_PARAMETER = "optional_parameter"
    """A call gives a parameter that its schema does not require."""
    NESTED_ARGUMENTS = "nested_arguments"
    """An argument is an object or a list with something in it."""
    PARALLEL = "parallel"
    """An assistant turn makes several calls."""
    DEPENDENT = "dependent"
    """A call takes a value that an earlier answer holds and no user or system text before it."""
    LONG_CONTEXT = "long_context"
    """The dialogue has LONG_CONTEXT characters or more."""
    MISSING_FUNCTION = "missing_function"
    """A user turn is refused without a call, in a dialogue that calls tools elsewhere."""
    MISSING_PARAMETER = "missing_parameter"
    """A user turn is answered by asking for a value (`ASK name`)."""
    IRRELEVANCE = "irrelevance"
    """No call is right, and nothing is asked."""
    REFUSAL = "refusal"
    """A user turn is refused after calls have shown that it cannot be done."""
    RECOVERY = "recovery"
    """A call of gold's is answered with an error, and gold goes on."""
    MULTI_TURN = "multi_turn"
    """The user speaks more than once."""


_MEANT_BY_TAG = {
    "miss_func": Feature.MISSING_FUNCTION,
    "missing_function": Feature.MISSING_FUNCTION,
    "miss_param": Feature.MISSING_PARAMETER,
    "miss_params": Feature.MISSING_PARAMETER,
    "missing_parameter": Feature.MISSING_PARAMETER,
    "irrelevance": Feature.IRRELEVANCE,
    "long_context": Feature.LONG_CONTEXT,
    "multi_turn": Feature.MULTI_TURN,
    "parallel": Feature.PARALLEL,
    "recover": Feature.RECOVERY,
    "recovery": Feature.RECOVERY,
}
"""Tags of shipped environments and synthesizers that declare a feature that gold need not show."""


def capabilities_of(
    trajectory: Trajectory | None,
    task: Task | None,
    gold: Sequence[Turn] | None = None,
    *,
    tools: Sequence[ToolSpec] = (),
) -> tuple[str, ...]:
    """The capabilities of a trajectory's task, sorted. `gold`: a dialogue that solves the task.

    Either record may be missing: without a task its tags are the trajectory's copy of them, without a
    trajectory `tools` are those that the prompt shows; of tools not known no optional parameter is told.
    Raises ValueError without both.
    """
    if task is None and trajectory is None:
        raise ValueError("capabilities need a task or a trajectory, got neither")
    tags = task.tags if task is not None else trajectory.tags if trajectory is not None else ()
    where = task.environment if task is not None else trajectory.environment.name if trajectory else ""
    plan = read_blueprint(task) if task is not None and is_blueprint(task) else None
    if gold is None and plan is not None:
        gold = _planned_turns(plan)
    found = {f"tag:{tag}" for tag in tags} | {f"environment:{where}"}
    found |= {f"call:{_MEANT_BY_TAG[tag]}" for tag in tags if tag in _MEANT_BY_TAG}
    if plan is not None:
        found |= {f"call:{feature}" for feature in _features_of_plan(plan)}
    if gold is not None:
        calls = calls_of(gold)
        found |= {f"tool:{call.name}" for call in calls}
        found |= {f"pair:{a.name}>{b.name}" for a, b in pairwise(calls) if a.name != b.name}
        found |= {f"call:{feature}" for feature in _features(gold, calls, _optional(trajectory, tools))}
    return tuple(sorted(found))


def calls_of(gold: Sequence[Turn]) -> tuple[ToolCall, ...]:
    """The calls of a dialogue, in order."""
    return tuple(call for turn in gold if turn.role is Role.ASSISTANT for call in turn.tool_calls)


def _features(
    gold: Sequence[Turn], calls: Sequence[ToolCall], optional: dict[str, frozenset[str]]
) -> Iterator[Feature]:
    """What the dialogue itself shows."""
    arguments = [call.parsed_arguments() for call in calls]
    if any(
        optional.get(call.name, frozenset()) & made.keys()
        for call, made in zip(calls, arguments, strict=True)
    ):
        yield Feature.OPTIONAL_PARAMETER
    if any(isinstance(value, dict | list) and value for made in arguments for value in made.values()):
        yield Feature.NESTED_ARGUMENTS
    if any(len(turn.tool_calls) > 1 for turn in gold):
        yield Feature.PARALLEL
    if _is_dependent(gold):
        yield Feature.DEPENDENT
    if sum(len(turn.text) for turn in gold) >= LONG_CONTEXT:
        yield Feature.LONG_CONTEXT
    if any(turn.result is not None and turn.result.status is ToolStatus.TOOL_ERROR for turn in gold):
        yield Feature.RECOVERY
    if sum(turn.role is Role.USER for turn in gold) > 1:
        yield Feature.MULTI_TURN
    yield from _features_of_words(gold, any_call=bool(calls))


def _features_of_words(gold: Sequence[Turn], *, any_call: bool) -> Iterator[Feature]:
    """How gold ends its user turns."""
    ends: list[tuple[AnswerKind, bool]] = []
    called = False
    for turn in gold:
        if turn.role is Role.USER:
            called = False
        elif turn.role is Role.ASSISTANT and turn.tool_calls:
            called = True
        elif turn.role is Role.ASSISTANT:
            ends.append((read_answer(turn.text).kind, called))
    asked = any(kind is AnswerKind.ASK for kind, _ in ends)
    if asked:
        yield Feature.MISSING_PARAMETER
    elif ends and not any_call:
        yield Feature.IRRELEVANCE
    if any_call and (AnswerKind.REFUSE, False) in ends:
        yield Feature.MISSING_FUNCTION
    if (AnswerKind.REFUSE, True) in ends:
        yield Feature.REFUSAL


def _features_of_plan(plan: Blueprint) -> Iterator[Feature]:
    """What a blueprint knows beyond its dialogue: where values come from, and which tools are down."""
    calls = [call for turn in plan.turns for call in turn.calls]
    if any(source.provenance == "output" for call in calls for source in call.sources):
        yield Feature.DEPENDENT
    if plan.outages or any(call.status is ToolStatus.TOOL_ERROR for call in calls):
        yield Feature.RECOVERY


def _planned_turns(plan: Blueprint) -> tuple[Turn, ...]:
    """The plan as a dialogue; what tools answer is kept as digests only and left out."""
    turns: list[Turn] = []
    for planned in plan.turns:
        turns.append(user(planned.text))
        turns += [
            assistant("", ToolCall(call_id="", name=call.name, arguments=call.arguments))
            for call in planned.calls
        ]
        turns.append(assistant(planned.reply))
    return tuple(turns)


def _is_dependent(gold: Sequence[Turn]) -> bool:
    answered: list[str] = []
    said: list[str] = []
    for turn in gold:
        if turn.role is Role.TOOL:
            answered.append(turn.text)
        elif turn.role is not Role.ASSISTANT:
            said.append(turn.text)
        for call in turn.tool_calls if answered else ():
            for value in _scalars(call.parsed_arguments()):
                if _stands_in(value, answered) and not _stands_in(value, said):
                    return True
    return False


def _scalars(value: Any) -> Iterator[str]:
    """Strings and numbers of an argument, as text; none of truth values, which stand everywhere."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _scalars(inner)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield from (text for text in (str(value),) if len(text) >= _SHORTEST_VALUE)


def _stands_in(value: str, texts: Sequence[str]) -> bool:
    """Whether a text holds the value as a word of its own."""
    return any(
        value in text and re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None for text in texts
    )


def _optional(trajectory: Trajectory | None, tools: Sequence[ToolSpec]) -> dict[str, frozenset[str]]:
    """Tool to its parameters that are not required, of the tools that the prompt shows."""
    if trajectory is not None and trajectory.segments:
        tools = trajectory.segments[0].tools
    shown: dict[str, frozenset[str]] = {}
    for tool in tools:
        schema = canonical.loads(tool.parameters)
        shown[tool.name] = frozenset(schema.get("properties", {})) - frozenset(schema.get("required", ()))
    return shown
