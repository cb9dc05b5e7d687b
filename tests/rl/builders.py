"""Small trajectories with hand-placed tokens, for the training tests."""

from __future__ import annotations

from collections.abc import Sequence

from data.messages import ToolResult, Turn, assistant, text_parts, tool, user
from data.trajectories import (
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

STOP = 2
PROMPT, GENERATED, OBSERVATION = SpanKind.PROMPT, SpanKind.GENERATED, SpanKind.OBSERVATION


def segment(
    runs: Sequence[tuple[SpanKind, int, Sequence[int]]],
    *,
    origin: Origin = Origin.RENDERED,
    logprobs: Sequence[float] | None = None,
) -> Segment:
    """A segment from (kind, turn, token ids) runs; a sampled one gets -1.0 per generated token by default."""
    ids: list[int] = []
    spans: list[Span] = []
    for kind, turn, tokens in runs:
        spans.append(Span(len(ids), len(ids) + len(tokens), kind, turn))
        ids.extend(tokens)
    generated = sum(len(tokens) for kind, _, tokens in runs if kind is GENERATED)
    if origin is Origin.SAMPLED and logprobs is None:
        logprobs = [-1.0] * generated
    return Segment(origin=origin, token_ids=tuple(ids), spans=tuple(spans), logprobs=tuple(logprobs or ()))


def trajectory(
    *segments: Segment,
    reward: float | None = 1.0,
    group: str = "g",
    index: int = 0,
    weight: float = 1.0,
    turns: tuple[Turn, ...] | None = None,
    termination: Termination = Termination.FINISHED,
) -> Trajectory:
    """A trajectory over user, assistant, tool, assistant turns (0 to 3)."""
    result = ToolResult(call_id="call_0", name="look", parts=text_parts("seen"))
    return Trajectory(
        task_id="task",
        group_id=group,
        rollout_index=index,
        synthesizer="test",
        policy=Policy(name="tiny"),
        environment=EnvironmentRef(name="none", version="0", seed=0),
        turns=turns or (user("do it"), assistant("call"), tool(result), assistant("done")),
        segments=segments,
        termination=termination,
        reward=None if reward is None else Reward(total=reward, verifier="test/1"),
        weight=weight,
    )


def two_turns(
    prompt: Sequence[int],
    first: Sequence[int],
    observed: Sequence[int],
    second: Sequence[int],
    **options: object,
) -> Segment:
    """prompt, generated turn 1, observation turn 2, generated turn 3."""
    runs = [(PROMPT, 0, prompt), (GENERATED, 1, first), (OBSERVATION, 2, observed), (GENERATED, 3, second)]
    return segment(runs, **options)  # type: ignore[arg-type]
