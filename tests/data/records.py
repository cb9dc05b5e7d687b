"""Hypothesis strategies for records, and a few fixed ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from data import canonical, messages
from data.messages import NamedValue, Part, Role, ToolCall, ToolResult, ToolSpec, Turn
from data.tasks import Task
from data.trajectories import (
    EnvironmentRef,
    Origin,
    Policy,
    Reward,
    RewardComponent,
    Segment,
    Span,
    SpanKind,
    Termination,
    Trajectory,
    Usage,
)
from data.verdicts import Pair, Verdict

NASTY = [
    "",
    "\x00\x01\x1f\x7f",
    "\ud800",
    "\ud83d\ude00",  # a pair of lone surrogates, which is not the emoji below
    "\U0001f600",
    "\ufdd0",
    "\ufdd0d800",
    "\ufdd0\ufdd0",
    "\\ufdd0",
    '<tool_call>\n{"name": "x"}\n</tool_call>',
    "line\u2028separator\nnewline\r\ttab",
    "null",
    "5",
]
texts = st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=()), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
# To JSON such a pair is the emoji: two names that differ in that alone are one name.
names = texts.map(lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | numbers | texts | st.just(2**70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(names, json_values, max_size=3).map(canonical.dumps)
named_values = st.lists(st.builds(NamedValue, name=texts, value=numbers), max_size=2).map(tuple)
parts = st.lists(st.builds(Part, text=texts), max_size=2).map(tuple)
calls = st.builds(ToolCall, call_id=texts, name=texts, arguments=json_objects, raw=texts, error=texts)
results = st.builds(
    ToolResult,
    call_id=texts,
    name=texts,
    parts=parts,
    reward=st.none() | numbers,
    metrics=named_values,
    truncated=st.booleans(),
)
specs = st.builds(ToolSpec, name=texts, description=texts, parameters=json_objects)
turns = st.one_of(
    st.builds(
        Turn,
        role=st.just(Role.ASSISTANT),
        parts=parts,
        reasoning=texts,
        tool_calls=st.lists(calls, max_size=2).map(tuple),
        weight=st.floats(0, 2),
        started_at=numbers,
    ),
    st.builds(Turn, role=st.just(Role.TOOL), result=results),
    st.builds(
        Turn,
        role=st.sampled_from([Role.SYSTEM, Role.USER]),
        parts=parts,
        tools_changed=st.none() | st.lists(specs, max_size=1).map(tuple),
    ),
)
turn_lists = st.lists(turns, max_size=3).map(tuple)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """A segment whose spans tile its tokens; sampled ones carry log-probs."""
    lengths = draw(st.lists(st.integers(1, 4), max_size=3))
    spans, position = [], 0
    for length in lengths:
        kind = draw(st.sampled_from(SpanKind))
        spans.append(
            Span(position, position + length, kind, draw(st.integers(-1, 5)), draw(texts), draw(texts))
        )
        position += length
    origin = draw(st.sampled_from(Origin))
    generated = sum(s.end - s.start for s in spans if s.kind is SpanKind.GENERATED)
    count = generated if origin is Origin.SAMPLED else 0
    return Segment(
        origin=origin,
        tools=tuple(draw(st.lists(specs, max_size=1))),
        token_ids=tuple(draw(st.lists(st.integers(0, 2**31 - 1), min_size=position, max_size=position))),
        spans=tuple(spans),
        logprobs=tuple(draw(st.lists(numbers, min_size=count, max_size=count))),
    )


trajectories = st.builds(
    Trajectory,
    task_id=texts,
    group_id=texts,
    parents=st.lists(texts, max_size=2).map(tuple),
    synthesizer=texts,
    policy=st.builds(Policy, name=texts, sampling=json_objects),
    environment=st.builds(EnvironmentRef, name=texts, version=texts, seed=st.integers(-(2**63), 2**63 - 1)),
    turns=turn_lists,
    segments=st.lists(segments(), max_size=2).map(tuple),
    termination=st.just(Termination.FINISHED),
    reward=st.builds(
        Reward,
        total=numbers,
        verifier=texts,
        components=st.lists(st.builds(RewardComponent, name=texts, value=numbers), max_size=2).map(tuple),
    ),
    usage=st.builds(Usage, cost=numbers),
    scores=named_values,
    labels=st.lists(texts, max_size=2).map(tuple),
)
tasks = st.builds(
    Task,
    environment=texts,
    split=texts,
    template=texts,
    tags=st.lists(texts, max_size=2).map(tuple),
    prompt=turn_lists,
    tools=st.none() | st.lists(texts, max_size=2).map(tuple),
    state=json_objects,
    private=json_objects,
    verifier=texts,
)
verdicts = st.builds(
    Verdict,
    trajectory_id=texts,
    filter=texts,
    keep=st.booleans(),
    reason=texts,
    score=st.none() | numbers,
    detail=texts,
)
pairs = st.builds(
    Pair,
    pair_id=texts,
    prompt=turn_lists,
    tools=st.lists(specs, max_size=1).map(tuple),
    chosen=turn_lists,
    rejected=turn_lists,
    parents=st.lists(texts, max_size=2).map(tuple),
)
records = st.one_of(trajectories, tasks, verdicts, pairs)


def make_task(number: int = 0, private: str = "{}", **changes: Any) -> Task:
    """A task whose prompt names its number."""
    fields: dict[str, Any] = {
        "environment": "desk",
        "split": "train",
        "template": "trip",
        "prompt": (messages.system("Be brief."), messages.user(f"Book trip {number}.")),
        "private": private,
        "verifier": "desk/1",
    }
    return Task(**(fields | changes))


def make_trajectory(
    number: int = 0, *, reward: float | None = 1.0, tokens: int = 12, **changes: Any
) -> Trajectory:
    """A short rollout; `number` decides its id."""
    call = ToolCall(
        call_id="c0", name="book", arguments=canonical.dumps({"offer": number}), raw="<tool_call>"
    )
    result = ToolResult(call_id="c0", name="book", parts=messages.text_parts("booked"))
    half = tokens // 2
    spans = (Span(0, half, SpanKind.PROMPT, -1), Span(half, tokens, SpanKind.GENERATED, 2, "", "w0"))
    segment = Segment(
        origin=Origin.SAMPLED,
        tools=(ToolSpec(name="book", description="Book an offer"),),
        token_ids=tuple(range(tokens)),
        spans=spans,
        logprobs=tuple(-0.1 * (i + number) for i in range(tokens - half)),
    )
    fields: dict[str, Any] = {
        "task_id": f"task{number}",
        "group_id": f"group{number}",
        "synthesizer": "rejection_sampling",
        "policy": Policy(name="student", weights="w0", logprobs_of="processed"),
        "environment": EnvironmentRef(name="desk", version="1", seed=number),
        "turns": (
            messages.system("Be brief."),
            messages.user(f"Book trip {number}."),
            messages.assistant("", call),
            messages.tool(result),
            messages.assistant("Done."),
        ),
        "segments": (segment,),
        "termination": Termination.INFRA_FAILURE if reward is None else Termination.FINISHED,
        "reward": None if reward is None else Reward(total=reward, verifier="desk/1"),
    }
    return Trajectory(**(fields | changes))


def make_verdict(number: int = 0, *, keep: bool = True, name: str = "outcome", **changes: Any) -> Verdict:
    """A verdict on `make_trajectory(number)`."""
    reason = "ok" if keep else "failed"
    fields = {
        "trajectory_id": make_trajectory(number).trajectory_id,
        "filter": name,
        "keep": keep,
        "reason": reason,
    }
    return Verdict(**(fields | changes))
