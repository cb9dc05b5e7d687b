"""Small trajectories for tests of filters, diagnosis and reports; one fake token per turn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from data import messages
from data.messages import ParseStatus, Role, ToolCall, ToolResult, ToolSpec, ToolStatus, Turn
from data.trajectories import (
    Blame,
    EnvironmentRef,
    Origin,
    Policy,
    Reward,
    Segment,
    Span,
    SpanKind,
    Termination,
    Trajectory,
)


def spec(name: str, **properties: str) -> ToolSpec:
    """A tool whose arguments are all required; values are JSON Schema types."""
    schema = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return ToolSpec(name=name, description=name, parameters=json.dumps(schema))


TOOLS = (spec("search", city="string"), spec("book", offer="integer"), spec("cancel", offer="integer"))
_KINDS = {Role.ASSISTANT: SpanKind.GENERATED, Role.TOOL: SpanKind.OBSERVATION}


def call(name: str, *, status: ParseStatus = ParseStatus.OK, raw: str = "", **arguments: Any) -> ToolCall:
    """A call without id; `dialogue` numbers it."""
    return ToolCall(call_id="", name=name, arguments=json.dumps(arguments), status=status, raw=raw)


def dialogue(
    *steps: ToolCall | tuple[ToolCall, ToolStatus] | str,
    prompt: str = "Book a trip.",
    system: str = "Be brief.",
) -> tuple[Turn, ...]:
    """System, user, then one assistant turn per step: a call with its result (or an error), or a text."""
    turns = [messages.system(system), messages.user(prompt)]
    for number, step in enumerate(steps):
        if isinstance(step, str):
            turns.append(messages.assistant(step))
            continue
        made, status = step if isinstance(step, tuple) else (step, ToolStatus.OK)
        if not made.ok:
            status = ToolStatus.TOOL_ERROR
        made = made.model_copy(update={"call_id": f"c{number}"})
        result = ToolResult(
            call_id=made.call_id, name=made.name, parts=messages.text_parts("done"), status=status
        )
        turns += [messages.assistant("", made), messages.tool(result)]
    return tuple(turns)


def segment(turns: Sequence[Turn], *, tools: tuple[ToolSpec, ...] = TOOLS) -> Segment:
    """One token per turn: token id = turn index; log-prob -0.5 for each generated one."""
    spans = tuple(Span(i, i + 1, _KINDS.get(turn.role, SpanKind.PROMPT), i) for i, turn in enumerate(turns))
    generated = sum(span.kind is SpanKind.GENERATED for span in spans)
    return Segment(
        origin=Origin.SAMPLED,
        tools=tools,
        token_ids=tuple(range(len(turns))),
        spans=spans,
        logprobs=(-0.5,) * generated,
    )


def trajectory(
    *steps: ToolCall | tuple[ToolCall, ToolStatus] | str,
    task: str = "task",
    index: int = 0,
    reward: float | None = 1.0,
    policy: str = "student",
    weights: str = "w0",
    sampling: str = "{}",
    synthesizer: str = "rejection_sampling",
    template: str = "trip",
    tags: tuple[str, ...] = ("booking",),
    termination: Termination | None = None,
    prompt: str = "Book a trip.",
    tools: tuple[ToolSpec, ...] = TOOLS,
    labels: tuple[str, ...] = (),
    identifier: str = "",
) -> Trajectory:
    """A trajectory of `steps`; a reward of None makes it an infrastructure failure unless said otherwise."""
    turns = dialogue(*steps, prompt=prompt)
    if termination is None:
        termination = Termination.INFRA_FAILURE if reward is None else Termination.FINISHED
    return Trajectory(
        trajectory_id=identifier,
        task_id=task,
        group_id=f"{task}/{policy}/{weights}/{synthesizer}",
        rollout_index=index,
        synthesizer=synthesizer,
        template=template,
        tags=tags,
        policy=Policy(name=policy, weights=weights, sampling=sampling, logprobs_of="processed"),
        environment=EnvironmentRef(name="desk", version="1", seed=0),
        turns=turns,
        segments=(segment(turns, tools=tools),),
        termination=termination,
        blame=Blame.INFRASTRUCTURE if termination is Termination.INFRA_FAILURE else Blame.NONE,
        reward=None if reward is None else Reward(total=reward, verifier="v/1"),
        labels=labels,
    )


def turns_of_calls(calls: Sequence[ToolCall]) -> tuple[Turn, ...]:
    """A dialogue of bare calls, one a turn."""
    return tuple(messages.assistant("", call) for call in calls)
