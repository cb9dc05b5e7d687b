"""Further performances of a finished blueprint: several actors for one outline, successes united.

Every actor plays the same user turns in a session of its own; only those that end in the planned end state
are kept (APIGen-MT, phase 2). Scripted actors differ in manner: one looks again before it changes anything,
one makes independent look-ups at once, one in another order, one talks while it calls. Chat actors are told
their instruction, which stands in no record: their trajectories are `origin: edited` with the label of a
hint. Not covered: the first performance, which is the blueprint's own gold.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from data.messages import Role, ToolCall, ToolStatus, Turn, assistant
from data.tasks import Task
from data.trajectories import Origin, Policy, Trajectory
from pipeline.environments.base import Environment, GoldScript
from pipeline.environments.blueprint import Blueprint, PlannedCall, PlannedTurn, read_blueprint
from pipeline.environments.gold import Plan, PlannedGold
from pipeline.renderers.base import Renderer
from pipeline.rollout import RolloutSettings
from pipeline.rollout_author import Written
from pipeline.rollout_episode import Episode, Identity
from synthesizers.demonstration import GoldAuthor
from synthesizers.director_actor.actors import ChatActor, Instruction, Scene, tells
from synthesizers.hints import LABEL, REPEATED
from synthesizers.phrasing.requests import TurnCalls

SCRIPTS = ("careful", "together", "reverse", "talkative")
"""Manners of scripted actors. Which of them do anything of their own depends on the plan; a talkative one
always does."""
_ABOUT = ("Let me look.", "I will see to that.")
"""What a talkative actor says with a look-up, and with a change."""


class Cast(NamedTuple):
    """What every performance of a blueprint shares."""

    environment: Environment
    renderer: Renderer
    settings: RolloutSettings
    task: Task
    group_id: str
    synthesizer: str
    seed: int
    run_id: str


def variation(task: Task, manner: str) -> GoldScript | None:
    """A scripted actor of that manner; None where it would do just what the plan does."""
    blueprint = read_blueprint(task)
    plain = [[[call] for call in turn.calls] for turn in blueprint.turns]
    if manner == "talkative":
        return PlannedGold(_script(blueprint, plain, talks=True))
    varied = [_varied(turn, manner) for turn in blueprint.turns]
    return None if varied == plain else PlannedGold(_script(blueprint, varied))


def manners_of(task: Task) -> list[str]:
    """The manners that differ from the plan, in the order of SCRIPTS."""
    return [manner for manner in SCRIPTS if variation(task, manner) is not None]


async def perform(
    cast: Cast, *, script: GoldScript, index: int, policy: Policy, attempt: int = 0
) -> Trajectory:
    """A scripted performance, rendered and judged."""
    author = GoldAuthor(script, renderer=cast.renderer, slip=0.0, rng=random.Random(0))
    return await _episode(cast, author, index=index, policy=policy, attempt=attempt)


async def perform_by_chat(
    cast: Cast, *, actor: ChatActor, hints: Sequence[str], index: int, policy: Policy, attempt: int = 0
) -> Trajectory:
    """A chat's performance; what it was told is in no turn, or a label says that it repeats that."""
    author = ChatAuthor(actor, hints, renderer=cast.renderer)
    trajectory = await _episode(cast, author, index=index, policy=policy, attempt=attempt)
    labels = [*trajectory.labels, LABEL]
    if any(tells(turn, hints) for turn in trajectory.turns if turn.role is not Role.USER):
        labels.append(REPEATED)
    segments = [segment.model_copy(update={"origin": Origin.EDITED}) for segment in trajectory.segments]
    changed = {"labels": tuple(labels), "segments": tuple(segments)}
    return Trajectory.model_validate(trajectory.model_copy(update=changed).model_dump())


class ChatAuthor(GoldAuthor):
    """A chat writes the assistant's turns, told the instruction of the user turn it is in."""

    def __init__(self, actor: ChatActor, hints: Sequence[str], *, renderer: Renderer) -> None:
        super().__init__(PlannedGold(iter_nothing()), renderer=renderer, slip=0.0, rng=random.Random(0))
        self.actor, self.hints = actor, hints

    async def write(self, turns: Sequence[Turn]) -> Written | None:
        """The chat's next line; call ids are made unique."""
        said = sum(turn.role is Role.USER for turn in turns) - 1
        hint = self.hints[said] if said < len(self.hints) else ""
        _, tools = self._starts[-1]
        scene = Scene(tuple(turns), tools, Instruction(hint), TurnCalls((), tools, ()))
        line = await self.actor.line(scene)
        self.engine_calls += 1
        calls = self._calls(line, turns)
        return Written(line.model_copy(update={"tool_calls": calls, "reasoning": ""}))


def iter_nothing() -> Plan:
    """A plan without a turn."""
    yield from ()


async def _episode(cast: Cast, author: GoldAuthor, *, index: int, policy: Policy, attempt: int) -> Trajectory:
    identity = Identity(
        group_id=cast.group_id,
        synthesizer=cast.synthesizer,
        policy=policy,
        seed=cast.seed,
        rollout_index=index,
        attempt=attempt,
        run_id=cast.run_id,
    )
    return await Episode(
        cast.task,
        environment=cast.environment,
        author=author,
        settings=cast.settings,
        identity=identity,
    ).run()


def _varied(turn: PlannedTurn, manner: str) -> list[list[PlannedCall]]:
    """The turn's calls as lines of one or more calls each."""
    calls = list(turn.calls)
    looks = [call for call in calls if not call.changes and call.status is ToolStatus.OK]
    if manner == "careful":
        return _looked_twice(calls, looks)
    run = 0
    while run < len(calls) and calls[run] in looks and not _reads(calls[run]):
        run += 1
    if run < 2:
        return [[call] for call in calls]
    rest = [[call] for call in calls[run:]]
    first = calls[:run]
    return [first, *rest] if manner == "together" else [*([call] for call in reversed(first)), *rest]


def _looked_twice(calls: Sequence[PlannedCall], looks: Sequence[PlannedCall]) -> list[list[PlannedCall]]:
    """The last look-up before the first change is made again."""
    change = next((place for place, call in enumerate(calls) if call.changes), 0)
    before = [call for call in calls[:change] if call in looks]
    return [[call] for call in (*calls[:change], *before[-1:], *calls[change:])]


def _reads(call: PlannedCall) -> bool:
    return any(source.provenance == "output" for source in call.sources)


def _script(
    blueprint: Blueprint, varied: Sequence[Sequence[Sequence[PlannedCall]]], *, talks: bool = False
) -> Plan:
    for turn, lines in zip(blueprint.turns, varied, strict=True):
        for line in lines:
            yield assistant(_ABOUT[line[-1].changes] if talks else "", *_calls(line))
        yield assistant(turn.reply)


def _calls(line: Sequence[PlannedCall]) -> Iterator[ToolCall]:
    for call in line:
        yield ToolCall(call_id="gold", name=call.name, arguments=call.arguments)
