"""A finished episode, executed again: what its calls did, and the goals they reached.

The calls that were answered are made again, in the task's world without its request and its private part, and
must be answered the same. A goal is a set of them, its targets. Without a chat these are, the most first: all
changes that did not cancel each other; each change; each look-up that found something and fed no other call.
A call that hands in and ends the episode is no goal. Whether the episode was a success plays no part. Not
covered: which other calls a goal needs (`trimming`), goals listed by a chat (`telling`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from data import canonical
from data.messages import ToolSpec, system, user
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.attempts import attempts
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import OUTAGE_METRIC, SYSTEM, is_blueprint, read_blueprint
from pipeline.errors import EnvironmentFailure
from synthesizers.execution import Executed, Trial
from synthesizers.grounding.calls import ArgumentSource, Provenance, sources_of, worked

_NAME = re.compile(r"[^\W\d]\w{3,}")
MOST_CALLS = 32
"""Answered calls of an episode that are looked at; a longer one is cut there. Ours."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A goal: positions in `Past.executed` of the calls that are it. `text` is a chat's, "" for none."""

    targets: tuple[int, ...]
    whole: bool = False
    """Whether the state at the end is the episode's: all its changes together."""
    text: str = ""


@dataclass(slots=True)
class Past:
    """An episode executed again in `trial`, whose state is then the one after the last call."""

    trial: Trial
    executed: tuple[Executed, ...]
    sources: tuple[tuple[ArgumentSource, ...], ...]
    tools: tuple[ToolSpec, ...]
    written: frozenset[str] = frozenset()
    """Tools with an argument that the assistant writes itself, such as a query."""

    def spec(self, name: str) -> ToolSpec:
        """A tool's document."""
        return next(tool for tool in self.tools if tool.name == name)

    def did(self, position: int) -> bool:
        """Whether the call did its work: it changed or found something."""
        return worked(self.executed[position], shows_state=self.trial.shows_state)

    def fed(self, position: int) -> frozenset[str]:
        """Names of the call's arguments that earlier answers hold."""
        return output_names(self.sources[position])

    def feeders(self, position: int) -> frozenset[int]:
        """Positions of the calls whose answers hold an argument of this one, or words it is written with."""
        feeding = {source.of.call for source in self.sources[position] if source.of is not None}
        if self.executed[position].call.name in self.written:
            feeding |= self._read_by(position)
        return frozenset(feeding)

    def _read_by(self, position: int) -> set[int]:
        """Look-ups before a written call whose answers hold words of it; of equal ones the first."""
        words = set(_NAME.findall(self.executed[position].call.arguments.casefold()))
        found: dict[str, int] = {}
        for place, made in enumerate(self.executed[:position]):
            told = _NAME.findall(made.result.text.casefold())
            if not made.changes and made.call.name not in self.written and words & set(told):
                found.setdefault(canonical.dumps([made.call.name, made.arguments()], sort_keys=True), place)
        return set(found.values())


def output_names(sources: Sequence[ArgumentSource]) -> frozenset[str]:
    """Arguments that earlier answers hold."""
    return frozenset(source.name for source in sources if source.provenance is Provenance.OUTPUT)


def bare_world(task: Task, *, request: str = "") -> Task:
    """The task's world: its state and tools with another request; of what was asked or is secret, nothing."""
    base = read_blueprint(task).base if is_blueprint(task) else task
    return Task(
        environment=base.environment,
        split=base.split,
        template="hindsight/world",
        prompt=(system(SYSTEM), user(request)),
        tools=_tools(task),
        state=base.state,
        verifier=base.verifier,
    )


def _tools(task: Task) -> tuple[str, ...] | None:
    """Every tool that the task shows at any time; None for all."""
    if not is_blueprint(task):
        return task.tools
    blueprint = read_blueprint(task)
    shown = [blueprint.base.tools if turn.tools is None else turn.tools for turn in blueprint.turns]
    return None if None in shown else tuple(dict.fromkeys(name for names in shown for name in names or ()))


async def replay(trial: Trial, trajectory: Trajectory) -> str:
    """Make the answered calls again, kept in `trial`; which answer differs, "" where none does."""
    for attempt in attempts(trajectory):
        result = attempt.result
        if not attempt.worked or result is None or any(m.name == OUTAGE_METRIC for m in result.metrics):
            continue
        if len(trial.executed) == MOST_CALLS:
            break
        made = await trial.attempt(attempt.call.name, attempt.call.parsed_arguments())
        if (made.result.status, made.result.text) != (result.status, result.text):
            return f"call {len(trial.executed) - 1}, {attempt.call.name}"
        if trial.finished:
            trial.undo()
            break
    return ""


async def relived(trial: Trial, trajectory: Trajectory, *, written: frozenset[str]) -> Past | str:
    """The episode executed again; which answer differs where one does. `written`: see `Past`."""
    differs = await replay(trial, trajectory)
    if differs:
        return differs
    tools, executed = trial.tools, tuple(trial.executed)
    specs = {tool.name: tool for tool in tools}
    sources = tuple(
        sources_of(made, specs[made.call.name], executed[:place]) for place, made in enumerate(executed)
    )
    return Past(trial, executed, sources, tools, written)


async def why_unusable(
    environment: Environment, task: Task, trajectory: Trajectory
) -> tuple[str, str] | None:
    """Reason and detail where the episode cannot be executed again without its goal, else None.

    Raises EnvironmentFailure where the world is broken: the task itself cannot be played, either.
    """
    seed, world = world_seed(task, trajectory), bare_world(task)
    base = read_blueprint(task).base if is_blueprint(task) else task
    try:
        differs = await _differs_in(environment, world, seed, trajectory)
        if not differs:
            return None
    except EnvironmentFailure:
        await _differs_in(environment, base, seed, trajectory)
        try:
            differs = await _differs_in(environment, world, seed, trajectory)
        except EnvironmentFailure as failure:
            return "needs_its_goal", str(failure)
    as_it_was = not await _differs_in(environment, base, seed, trajectory)
    return ("needs_its_goal" if as_it_was else "replay_differs", differs) if differs else None


async def _differs_in(environment: Environment, world: Task, seed: int, trajectory: Trajectory) -> str:
    async with await Trial.open(environment, world, seed=seed) as trial:
        return await replay(trial, trajectory)


def world_seed(task: Task, trajectory: Trajectory) -> int:
    """The seed that the episode's world was opened with."""
    return read_blueprint(task).seed if is_blueprint(task) else trajectory.environment.seed


def reached_goals(past: Past, *, most: int) -> list[Reached]:
    """The goals, at most `most`; see the module docstring."""
    changes = [place for place in _lasting(past.executed) if past.did(place)]
    found = [Reached(tuple(changes), whole=True)] if len(changes) > 1 else []
    found += [Reached((place,)) for place in changes]
    found += [Reached((place,)) for place in _last_look_ups(past)]
    return found[:most]


def _lasting(executed: Sequence[Executed]) -> list[int]:
    """Positions of the changes that lead from the first state to the last one, without those taken back."""
    if not executed:
        return []
    states, calls = [executed[0].before], list[int]()
    for place, made in enumerate(executed):
        if not made.changes:
            continue
        if made.after in states:
            back = states.index(made.after)
            del states[back + 1 :], calls[back:]
        else:
            states.append(made.after)
            calls.append(place)
    return calls


def _last_look_ups(past: Past) -> Iterator[int]:
    feeding = {place for later in range(len(past.executed)) for place in past.feeders(later)}
    seen: set[str] = set()
    for place, made in enumerate(past.executed):
        key = canonical.dumps([made.call.name, made.arguments()], sort_keys=True)
        if made.changes or place in feeding or not past.did(place) or key in seen:
            continue
        seen.add(key)
        yield place
