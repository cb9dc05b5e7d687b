"""Segments of a dialogue that was not sampled as it stands: rendered whole, one per tool set.

Not covered: where tool sets change (the caller knows), sampled tokens (`pipeline.rollout_author`).
"""

from __future__ import annotations

from collections.abc import Sequence

from data.messages import Role, ToolSpec, Turn
from data.trajectories import Origin, Segment, SpanKind
from pipeline.renderers.base import Renderer


def rendered_segments(
    turns: Sequence[Turn],
    starts: Sequence[tuple[int, tuple[ToolSpec, ...]]],
    *,
    renderer: Renderer,
    origin: Origin,
) -> tuple[Segment, ...]:
    """One segment per (first turn of its own, tools shown from there); those without a turn to learn are out.

    A segment ends with the last assistant turn before the next one; turns before its own are prompt in it.
    Without a start (no session opened) there is none.
    """
    if not starts:
        return ()
    ends = [start for start, _ in starts[1:]] + [len(turns)]
    segments = []
    for (start, tools), end in zip(starts, ends, strict=True):
        while end > start and turns[end - 1].role is not Role.ASSISTANT:
            end -= 1
        rendered = renderer.render(turns[:end], tools, generation_prompt=False)
        spans = tuple(
            span._replace(kind=SpanKind.PROMPT) if span.turn < start else span for span in rendered.spans
        )
        segments.append(Segment(origin=origin, tools=tools, token_ids=tuple(rendered.token_ids), spans=spans))
    return tuple(segment for segment in segments if segment.num_generated)
