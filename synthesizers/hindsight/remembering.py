"""Memories made of what was looked back at: `echo` of reached goals, `awm` and `awm++` of successes only.

A memory is a function of the episodes: entries come in the order of episode ids, whatever order they were
looked at in, and the file is written whole at the end. Of successes one per template is taken, the first, as
AWM's code does. Not covered: the update rules (`pipeline.memory`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from data.trajectories import Trajectory
from pipeline.environments.base import Environment
from pipeline.environments.splits import training_split
from pipeline.memory.entries import Entry, Kind, Memory
from pipeline.memory.stored import save_memory


class Remembered(NamedTuple):
    """What one episode gives to a memory. `own` is its own goal, where it was a success."""

    trajectory_id: str
    template: str
    reached: tuple[Entry, ...]
    own: Entry | None = None


def entry_of(episode: Trajectory, split: str, goal: str, workflow: str, tools: tuple[str, ...]) -> Entry:
    """An entry learned from an episode of a task in `split`."""
    return Entry(
        goal=goal,
        workflow=workflow,
        tools=tools,
        task_id=episode.task_id,
        trajectory_id=episode.trajectory_id,
        split=split,
    )


def remember_all(
    episodes: Iterable[Remembered], *, kinds: Sequence[Kind], folder: Path, environment: Environment
) -> list[Memory]:
    """Make and write the memories of `kinds`."""
    ordered = sorted(episodes, key=lambda episode: episode.trajectory_id)
    made = []
    for kind in kinds:
        memory = Memory(kind=kind, environment=environment.name, split=training_split(environment))
        for entry in _reached(ordered) if kind is Kind.ECHO else _successes(ordered):
            memory = memory.remember(entry)
        save_memory(folder, memory)
        made.append(memory)
    return made


def _reached(ordered: Sequence[Remembered]) -> list[Entry]:
    return [entry for episode in ordered for entry in episode.reached]


def _successes(ordered: Sequence[Remembered]) -> list[Entry]:
    first: dict[str, Entry] = {}
    for episode in ordered:
        if episode.own is not None:
            first.setdefault(episode.template, episode.own)
    return list(first.values())
