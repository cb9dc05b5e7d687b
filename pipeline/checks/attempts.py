"""Calls of a trajectory as they count: checked against the tools shown at that point, with their results.

Decides which tools were shown at a turn (those of the segment that generated it), and which calls are
the price of a recovery rather than waste. Not covered: the schema check itself (`pipeline.checks.calls`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from data.messages import ParseStatus, Role, ToolCall, ToolResult, ToolSpec, ToolStatus
from data.trajectories import SpanKind, Trajectory
from pipeline.checks.calls import check_call


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call the assistant wrote, checked, and what it was answered."""

    turn: int
    """Index into `Trajectory.turns`."""
    call: ToolCall
    result: ToolResult | None
    """None where the episode ended before the call was answered."""

    @property
    def failed_in_tool(self) -> bool:
        """A well-formed call that the tool itself (or the infrastructure under it) answered with an error."""
        return self.call.ok and self.result is not None and self.result.status is not ToolStatus.OK

    @property
    def executed(self) -> bool:
        """A well-formed call that was answered."""
        return self.call.ok and self.result is not None

    @property
    def worked(self) -> bool:
        """A well-formed call that was answered without an error."""
        return self.call.ok and self.result is not None and self.result.status is ToolStatus.OK


def tools_by_turn(trajectory: Trajectory) -> dict[int, tuple[ToolSpec, ...]]:
    """Tools shown to each generated turn; a turn that several segments carry keeps the first."""
    shown: dict[int, tuple[ToolSpec, ...]] = {}
    for segment in trajectory.segments:
        for span in segment.spans:
            if span.kind is SpanKind.GENERATED:
                shown.setdefault(span.turn, segment.tools)
    return shown


def attempts(trajectory: Trajectory) -> Iterator[Attempt]:
    """Every call of every assistant turn, in order.

    Calls of turns without tokens (imported dialogues) keep the status they were recorded with, as what
    was shown then is not known.
    """
    shown = tools_by_turn(trajectory)
    results = {turn.result.call_id: turn.result for turn in trajectory.turns if turn.result is not None}
    for index, turn in enumerate(trajectory.turns):
        if turn.role is Role.ASSISTANT:
            for call in turn.tool_calls:
                checked = check_call(call, shown[index]) if call.ok and index in shown else call
                yield Attempt(index, checked, results.get(call.call_id))


def first_invalid(calls: Sequence[Attempt]) -> Attempt | None:
    """The first call that does not parse or does not fit the schema it was shown."""
    return next((attempt for attempt in calls if attempt.call.status is not ParseStatus.OK), None)


def num_counted(calls: Sequence[Attempt], *, recovery_window: int = 3) -> int:
    """Number of calls, not counting what a tool's error cost.

    A call that its tool answered with an error is free, and so are up to `recovery_window` calls between
    it and the next call of that tool, which stands in its place and counts as one. A malformed call is
    the agent's own mistake and counts.
    """
    free: set[int] = set()
    for position, attempt in enumerate(calls):
        if attempt.failed_in_tool:
            free.add(position)
            window = range(position + 1, min(position + 2 + recovery_window, len(calls)))
            retry = next((i for i in window if calls[i].call.name == attempt.call.name), None)
            if retry is not None:
                free.update(range(position + 1, retry))
    return len(calls) - len(free)
