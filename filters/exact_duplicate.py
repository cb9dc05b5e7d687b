"""Keeps one of all trajectories with the same prompt, the same calls and the same final text.

The prompt is what the model is shown before it acts, its tools included: the same words among other tools (a
variant with distractors, or with tools under other names) are another sample. The order in which the same
tools are listed is not.

The one kept is that of the smallest trajectory id, whatever the order of the input: results must not
depend on how shards were written. That costs a first pass and one digest and id per distinct
trajectory (about 250 bytes), never the records. Reasons: `ok`, `duplicate` (detail: the id kept).
Arguments are compared as JSON values, so key order and spacing do not matter; call ids, reasoning,
tool results and token choices do not count. Not covered: near duplicates, which need embeddings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import groupby, takewhile

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, Turn
from data.trajectories import Trajectory
from filters.base import Judged, Judgement, judged


class ExactDuplicate:
    """Exact duplicates."""

    name = "exact_duplicate"

    def __init__(self) -> None:
        self._winners: dict[bytes, bytes] = {}

    def measure(self, trajectories: Iterable[Trajectory]) -> None:
        """Find the smallest id of each distinct content."""
        winners: dict[bytes, bytes] = {}
        for trajectory in trajectories:
            key, own = duplicate_key(trajectory), trajectory.trajectory_id.encode()
            winners[key] = min(own, winners.get(key, own))
        self._winners = winners

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        """Keep the winners found by `measure`."""
        for trajectory in trajectories:
            winner = self._winners[duplicate_key(trajectory)].decode()
            if winner == trajectory.trajectory_id:
                yield judged(trajectory, self.name, Judgement(True))
            else:
                yield judged(trajectory, self.name, Judgement(False, "duplicate", detail=winner))


def duplicate_key(trajectory: Trajectory) -> bytes:
    """16 bytes over the prompt, the tools shown, the call sequence and the final text."""
    prompt = takewhile(lambda turn: turn.role is not Role.ASSISTANT, trajectory.turns)
    said = [turn for turn in trajectory.turns if turn.role is Role.ASSISTANT]
    calls = [_call_value(call) for turn in said for call in turn.tool_calls]
    value = [
        trajectory.environment.name,
        [_turn_value(turn) for turn in prompt],
        _shown_value(trajectory),
        calls,
        said[-1].text if said else "",
    ]
    return hashlib.sha256(canonical.dumps(value, sort_keys=True).encode("ascii")).digest()[:16]


def _shown_value(trajectory: Trajectory) -> list[list[str]]:
    """The tools of every prompt, sorted: a later segment counts where it shows others."""
    shown = [sorted(map(_tool_value, segment.tools)) for segment in trajectory.segments]
    return [tools for tools, _ in groupby(shown)]


def _tool_value(tool: ToolSpec) -> str:
    return "\n".join((tool.name, tool.description, tool.parameters))


def _turn_value(turn: Turn) -> list[object]:
    return [turn.role, [[part.type, part.text, part.media_sha256] for part in turn.content]]


def _call_value(call: ToolCall) -> list[object]:
    return [call.name, call.parsed_arguments()] if call.ok else [call.status, call.raw]
