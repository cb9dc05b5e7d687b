"""What a diagnosis keeps of gold: per task its capabilities, and the dialogue's calls and words as bytes.

Some 300 bytes a task, so that a pool of 100,000 tasks fits. Tools' answers are dropped once the capabilities
are known. Not covered: where gold comes from (a stage plays it).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from data import canonical
from data.messages import Role, ToolCall, ToolSpec, Turn, assistant
from data.tasks import Task
from pipeline.diagnosis.capabilities import capabilities_of


class GoldBook:
    """Gold by task id."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[tuple[str, ...], bytes | None]] = {}
        self._alike: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, task: Task, gold: Sequence[Turn] | None, *, tools: Sequence[ToolSpec] = ()) -> None:
        """One task with the dialogue that solves it (None: not known) and the tools its prompt shows."""
        self.put(task.task_id, capabilities_of(None, task, gold, tools=tools), gold)

    def put(self, task_id: str, capabilities: tuple[str, ...], gold: Sequence[Turn] | None) -> None:
        """One task whose capabilities are known."""
        names = self._alike.setdefault(capabilities, capabilities)
        self._rows[task_id] = (names, None if gold is None else _packed(gold))

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._rows

    def capabilities(self, task_id: str) -> tuple[str, ...] | None:
        """The task's capabilities; None where the task is not in the book."""
        row = self._rows.get(task_id)
        return None if row is None else row[0]

    def turns(self, task_id: str) -> tuple[Turn, ...] | None:
        """Gold's assistant turns; None where they are not known."""
        _, packed = self._rows.get(task_id, ((), None))
        return None if packed is None else _unpacked(packed)


def _packed(gold: Sequence[Turn]) -> bytes:
    said = [
        [turn.text, [[call.name, call.arguments] for call in turn.tool_calls]]
        for turn in gold
        if turn.role is Role.ASSISTANT
    ]
    return zlib.compress(canonical.dumps(said).encode("ascii"), 1)


def _unpacked(packed: bytes) -> tuple[Turn, ...]:
    return tuple(
        assistant(text, *(ToolCall(call_id="", name=name, arguments=arguments) for name, arguments in calls))
        for text, calls in canonical.loads(zlib.decompress(packed).decode("ascii"))
    )
