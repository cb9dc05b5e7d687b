"""What the tests of director and actor share: worlds, records by kind, chats by role."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from data.messages import Role, ToolCall, ToolSpec, Turn, assistant
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.blueprint import Blueprint, read_blueprint
from pipeline.environments.registry import load_environment
from synthesizers.director_actor.synthesizer import DirectorActor


class Records(NamedTuple):
    """What a synthesis made, by kind."""

    tasks: list[Task]
    trajectories: list[Trajectory]
    verdicts: list[Verdict]

    @property
    def blueprints(self) -> list[Blueprint]:
        return [read_blueprint(task) for task in self.tasks]

    @property
    def reasons(self) -> list[str]:
        return [verdict.reason for verdict in self.verdicts]


def bases(world: str, count: int, **options: Any) -> list[Task]:
    return list(islice(load_environment(world, **options).tasks("train"), count))


def made(
    world: str,
    tasks: Sequence[Task],
    renderer: Any,
    *,
    engine: Any = None,
    done: Sequence[str] = (),
    **options: Any,
) -> Records:
    settings: dict[str, Any] = {"gold_tasks": 12, "faults": 0.0, "recombine": 0.0} | options
    synthesizer = DirectorActor(
        environment=load_environment(world), engine=engine, renderer=renderer, **settings
    )

    async def run() -> Records:
        found = Records([], [], [])
        async for record in synthesizer.synthesize(tasks, done=set(done)):
            kinds: dict[type, list[Any]] = {
                Task: found.tasks,
                Trajectory: found.trajectories,
                Verdict: found.verdicts,
            }
            kinds[type(record)].append(record)
        return found

    return asyncio.run(run())


def observations(turns: Sequence[Turn]) -> list[tuple[str, str]]:
    return [(turn.result.name, turn.text) for turn in turns if turn.result is not None]


def chat(
    answers: Callable[[str], Any] | Sequence[Any], *, name: str, cache: Path | None = None
) -> ScriptedChat:
    """A chat whose answers are JSON texts, given its last user turn where it is a function."""
    if callable(answers):
        function = answers
        return ScriptedChat(lambda turns, tools: function(turns[-1].text), name=name, cache=cache, max_asks=1)
    return ScriptedChat(list(answers), name=name, cache=cache, max_asks=1)


def tool_actor(
    lines: Callable[[Sequence[Turn], Sequence[ToolSpec]], Turn | str], *, name: str = "player"
) -> ScriptedChat:
    """An actor with tools."""
    return ScriptedChat(lines, name=name, max_asks=1)


def calls(name: str, arguments: str) -> Turn:
    return assistant("", ToolCall(call_id="c", name=name, arguments=arguments))


def results(turns: Sequence[Turn]) -> list[str]:
    """Texts of the tool results since the user spoke last."""
    last = max(index for index, turn in enumerate(turns) if turn.role is Role.USER)
    return [turn.text for turn in turns[last:] if turn.role is Role.TOOL]
