"""Tasks of any environment whose tools are shown under other names: the skill must not hang on a name.

A renamed task is the task it was made of in everything public but the names. Its session answers to the
shown names only, the inner one never sees them; gold and verdict are the inner task's, read back into its
names. Every environment of the registry opens such tasks. Not covered: other names for parameters, and names
that stand in answers and descriptions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import Record, ToolCall, ToolResult, ToolSpec, Turn
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from pipeline.environments.base import Environment, GoldScript, Session
from pipeline.environments.blueprint import is_blueprint
from pipeline.environments.wrapped import PassesOn, no_such_tool

VERIFIER = "renamed/1"
_PATTERNS = ("{}_tool", "do_{}", "{}_v2", "run_{}", "api_{}")


class Shown(Record):
    """A tool's own name and the one shown."""

    own: str
    shown: str


class Renaming(Record):
    """The private part of a renamed task: what it takes to have back the task it was made of."""

    names: tuple[Shown, ...]
    tools: tuple[str, ...] | None
    verifier: str
    private: Any
    """Decoded."""


def is_renamed(task: Task) -> bool:
    """Whether a task shows tools under other names."""
    return task.verifier == VERIFIER


def can_rename(task: Task) -> bool:
    """Whether `renamed_task` takes it: neither a planned task nor one that is renamed already."""
    return not is_blueprint(task) and not is_renamed(task)


def renamed_task(task: Task, tools: Sequence[ToolSpec], *, rng: random.Random, synthesizer: str) -> Task:
    """The task with every tool of its world under another name, the names drawn anew for each task."""
    taken = {tool.name for tool in tools}
    names = []
    for tool in tools:
        free = [name for pattern in _PATTERNS if (name := pattern.format(tool.name)) not in taken]
        names.append(Shown(own=tool.name, shown=rng.choice(free)))
        taken.add(names[-1].shown)
    shown = {each.own: each.shown for each in names}
    private = Renaming(
        names=tuple(names), tools=task.tools, verifier=task.verifier, private=task.private_value()
    )
    return Task(
        environment=task.environment,
        split=task.split,
        template=task.template,
        tags=task.tags,
        prompt=task.prompt,
        tools=None if task.tools is None else tuple(shown.get(name, name) for name in task.tools),
        state=task.state,
        private=canonical.dumps(private.model_dump(mode="json")),
        verifier=VERIFIER,
        budget=task.budget,
        synthesizer=synthesizer,
        parents=(task.task_id,),
    )


def read_renaming(task: Task) -> tuple[Task, Renaming]:
    """The inner task and the names, of a task for which `is_renamed` is true."""
    renaming = Renaming.model_validate(task.private_value())
    changed = {
        "task_id": "",
        "tools": renaming.tools,
        "verifier": renaming.verifier,
        "private": canonical.dumps(renaming.private),
    }
    return Task.model_validate(task.model_copy(update=changed).model_dump()), renaming


async def open_task(environment: Environment, task: Task, *, seed: int) -> Session:
    """A session of the task or, under other names, of the one it was made of."""
    if not is_renamed(task):
        return await environment.open(task, seed=seed)
    base, renaming = read_renaming(task)
    return RenamedSession(await environment.open(base, seed=seed), renaming)


def gold_of(environment: Environment, task: Task) -> GoldScript:
    """The environment's gold; of a renamed task with the names that it shows."""
    if not is_renamed(task):
        return environment.gold(task)
    base, renaming = read_renaming(task)
    return _RenamedGold(environment.gold(base), renaming)


class RenamedSession(PassesOn):
    """One episode; see the module docstring."""

    inner: Session

    def __init__(self, inner: Session, renaming: Renaming) -> None:
        self.inner = inner
        self._own = {each.shown: each.own for each in renaming.names}
        self._shown = {each.own: each.shown for each in renaming.names}

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The inner tools under their shown names."""
        return tuple(
            spec.model_copy(update={"name": self._shown.get(spec.name, spec.name)})
            for spec in self.inner.tools
        )

    async def call(self, name: str, arguments: dict[str, Any], call_id: str) -> ToolResult:
        """The inner call; a name that is not shown is no tool's."""
        shown = [spec.name for spec in self.tools]
        if name not in shown:
            return no_such_tool(name, call_id, shown=shown)
        result = await self.inner.call(self._own.get(name, name), arguments, call_id)
        return result.model_copy(update={"name": name})

    async def next_user(self, turns: Sequence[Turn]) -> Turn | None:
        """The inner user's next turn."""
        return await self.inner.next_user(_in_names(turns, self._own))

    async def verify(self, trajectory: Trajectory) -> Reward:
        """The inner verdict on the dialogue in the inner task's names."""
        turns = tuple(_in_names(trajectory.turns, self._own))
        return await self.inner.verify(trajectory.model_copy(update={"turns": turns}))


class _RenamedGold:
    def __init__(self, inner: GoldScript, renaming: Renaming) -> None:
        self._inner = inner
        self._own = {each.shown: each.own for each in renaming.names}
        self._shown = {each.own: each.shown for each in renaming.names}

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The inner gold's next turn with the shown names."""
        said = self._inner.next_turn(_in_names(turns, self._own))
        return None if said is None else _in_names([said], self._shown)[0]


def _in_names(turns: Sequence[Turn], names: Mapping[str, str]) -> list[Turn]:
    """The turns with calls and results under other names."""
    return [_turn_in_names(turn, names) for turn in turns]


def _turn_in_names(turn: Turn, names: Mapping[str, str]) -> Turn:
    changed: dict[str, object] = {}
    if turn.tool_calls:
        changed["tool_calls"] = tuple(_call_in_names(call, names) for call in turn.tool_calls)
    if turn.result is not None:
        name = names.get(turn.result.name, turn.result.name)
        changed["result"] = turn.result.model_copy(update={"name": name})
    return turn.model_copy(update=changed) if changed else turn


def _call_in_names(call: ToolCall, names: Mapping[str, str]) -> ToolCall:
    return call.model_copy(update={"name": names.get(call.name, call.name)})
