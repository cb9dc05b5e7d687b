"""Gold executed call by call: the director's raw material, with what each call depends on.

Gold is played to see its calls, then made again in a trial, so that states around every call are known. A
call depends on an earlier one where it answers otherwise when the earlier one is left out (executed, not
guessed; numbers made alike, because ids of new records shift), or where it uses a value the earlier one
answered. Not covered: making sub-goals of it (`groups`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from data.messages import Role, ToolCall, ToolSpec, ToolStatus, Turn
from data.tasks import Task
from pipeline.environments.base import Environment
from pipeline.errors import EnvironmentFailure, TrajsmithError
from synthesizers.execution import Executed, Trial
from synthesizers.grounding.calls import ArgumentSource, Provenance, sources_of
from synthesizers.worlds import gold_turns, training_split, whole_world

NUM_EPISODES = 64
"""Tasks of the training split whose gold is known to the director (ours)."""
MAX_LEFT_OUT = 12
"""Longest gold whose calls are left out one by one; of a longer one only values count (ours)."""


class GoldCall(NamedTuple):
    """One gold call. `turn` is the user turn it was made in; `depends` are positions of earlier calls."""

    executed: Executed
    turn: int
    sources: tuple[ArgumentSource, ...]
    depends: frozenset[int] = frozenset()
    finishes: bool = False


class GoldEpisode(NamedTuple):
    """A task's gold. `texts` are the user turns, `replies` gold's last words in each."""

    task: Task
    texts: tuple[str, ...]
    replies: tuple[str, ...]
    calls: tuple[GoldCall, ...]
    tools: tuple[ToolSpec, ...] = ()

    def said(self, turn: int) -> str:
        """All user words up to a turn."""
        return "\n".join(self.texts[: turn + 1])


async def gold_episode(environment: Environment, task: Task) -> GoldEpisode | None:
    """The gold of a task, executed; None where it has none that plays."""
    turns = await _played(environment, task)
    if not turns:
        return None
    calls = _calls(turns)
    texts = [turn.text for turn in turns if turn.role is Role.USER]
    try:
        made, tools = await _executed(environment, task, texts, calls)
    except EnvironmentFailure:
        return None
    return GoldEpisode(task, tuple(texts), _replies(turns, len(texts)), made, tools)


async def gold_episodes(environment: Environment, *, count: int = NUM_EPISODES) -> list[GoldEpisode]:
    """The first `count` tasks of `train` (or of the first split), as far as their gold plays.

    Always the same ones, so that a plan does not depend on which other tasks a run was given.
    """
    tasks = islice(environment.tasks(training_split(environment)), count)
    found = [await gold_episode(environment, task) for task in tasks]
    return [episode for episode in found if episode is not None and episode.calls]


async def _played(environment: Environment, task: Task) -> list[Turn]:
    """The dialogue of gold; [] where the world cannot be opened or gold does not play."""
    try:
        session = await environment.open(task)
    except (TrajsmithError, LookupError, ValueError):
        return []
    try:
        return await gold_turns(environment, task, session)
    finally:
        await session.close()


def _calls(turns: Sequence[Turn]) -> list[tuple[int, ToolCall]]:
    found, said = [], -1
    for turn in turns:
        said += turn.role is Role.USER
        found += [(max(said, 0), call) for call in turn.tool_calls]
    return found


def _replies(turns: Sequence[Turn], number: int) -> tuple[str, ...]:
    replies, said = [""] * number, -1
    for turn in turns:
        said += turn.role is Role.USER
        if turn.role is Role.ASSISTANT and not turn.tool_calls and said >= 0:
            replies[said] = turn.text
    return tuple(replies)


async def _executed(
    environment: Environment,
    task: Task,
    texts: Sequence[str],
    calls: Sequence[tuple[int, ToolCall]],
) -> tuple[tuple[GoldCall, ...], tuple[ToolSpec, ...]]:
    async with await Trial.open(environment, whole_world(task)) as trial:
        specs = {spec.name: spec for spec in trial.tools}
        kept, finishes = [], []
        for _, call in calls:
            kept.append(trial.session.snapshot())
            await trial.attempt(call.name, call.parsed_arguments())
            finishes.append(trial.finished)
        made = list(trial.executed)
        without = await _answers_without(trial, made, kept) if len(made) <= MAX_LEFT_OUT else {}
        found = []
        for index, ((turn, _), executed) in enumerate(zip(calls, made, strict=True)):
            said = "\n".join(texts[: turn + 1])
            sources = sources_of(executed, specs[executed.call.name], made[:index], said=said)
            depends = {
                source.of.call for source in sources if source.provenance is Provenance.OUTPUT and source.of
            }
            depends |= {earlier for earlier in range(index) if index in without.get(earlier, ())}
            found.append(GoldCall(executed, turn, sources, frozenset(depends), finishes[index]))
        return tuple(found), tuple(specs.values())


async def _answers_without(
    trial: Trial, made: Sequence[Executed], kept: Sequence[bytes]
) -> dict[int, set[int]]:
    """Position of a call that did something -> positions of later ones that answer otherwise without it."""
    found: dict[int, set[int]] = {}
    for left_out in range(len(made) - 1):
        if not made[left_out].changes:
            continue
        trial.session.restore(kept[left_out])
        for index in range(left_out + 1, len(made)):
            call = made[index].call
            result = await trial.session.call(
                call.name, call.parsed_arguments(), f"without_{left_out}_{index}"
            )
            same = result.status is made[index].result.status and _alike(result.text) == _alike(
                made[index].result.text
            )
            if not same:
                found.setdefault(left_out, set()).add(index)
            if result.status is ToolStatus.INFRA_ERROR:
                return found
    return found


def _alike(text: str) -> str:
    return re.sub(r"\d+", "9", text)
