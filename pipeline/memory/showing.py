"""A memory in a prompt: the entries that fit a request best, behind the system prompt.

What is shown is a function of the memory and the task, so the prompt of every episode is told by its turns,
and its harness digest names the memory. A task without a system prompt gets the workflows in front of the
request, so that the number of turns stays what verifiers expect. An entry learned on the very task is left
out: it would be its answer. Not covered: inline protocols of base models, which read no advice.
"""

from __future__ import annotations

from dataclasses import dataclass

from data.messages import Role, Turn, text_parts
from data.tasks import Task
from pipeline.errors import ConfigError
from pipeline.memory.entries import Entry, Memory, overlap, words_of

HEADING = "Workflows that worked before:"


@dataclass(frozen=True, slots=True)
class ShownMemory:
    """A memory of which at most `max_entries` are shown to a task."""

    memory: Memory
    max_entries: int = 5

    def __post_init__(self) -> None:
        if self.max_entries < 1:
            raise ConfigError(f"memory.max_entries must be at least 1, got {self.max_entries}")

    @property
    def digest(self) -> str:
        """16 hex digits: part of the harness."""
        return f"{self.memory.digest}-{self.max_entries}"

    @property
    def label(self) -> str:
        """What results call it."""
        return f"memory {self.memory.kind} of {len(self.memory.entries)} workflows, {self.max_entries} a task"

    def entries_for(self, task: Task) -> tuple[Entry, ...]:
        """The entries that share most words with the request and call no tool that the task does not show.

        Of equally fitting ones the shorter comes first.
        """
        request = words_of(" ".join(turn.text for turn in task.prompt if turn.role is Role.USER))
        ranked = [
            (-overlap(entry.goal, request), len(entry.workflow), place, entry)
            for place, entry in enumerate(self.memory.entries)
            if entry.task_id != task.task_id and (task.tools is None or set(entry.tools) <= set(task.tools))
        ]
        ranked.sort(key=lambda row: row[:3])
        return tuple(entry for fits, _, _, entry in ranked[: self.max_entries] if fits < 0)

    def prompt(self, task: Task) -> tuple[Turn, ...]:
        """The task's prompt with the workflows; unchanged where none fits."""
        entries = self.entries_for(task)
        if not entries:
            return task.prompt
        told = "\n".join([HEADING, *(f"- {entry.goal}: {entry.workflow}" for entry in entries)])
        turns = list(task.prompt)
        place = next((at for at, turn in enumerate(turns) if turn.role is Role.SYSTEM), None)
        if place is None:
            place = next(at for at, turn in enumerate(turns) if turn.role is Role.USER)
            told = f"{told}\n\n{turns[place].text}"
        else:
            told = f"{turns[place].text}\n\n{told}"
        turns[place] = turns[place].model_copy(update={"parts": text_parts(told)})
        return tuple(turns)
