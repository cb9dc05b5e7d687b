"""Variants of an error seed without a chat: what a program can vary and execution can verify.

- data: another task of the same template (else of the same tags) of the training split;
- complexity: more tools to choose from, other names for the tools, or one more request afterwards;
- interaction: the user asks for something else first;
- persona: the same request in another manner.

What is not possible for a seed is None, and the next kind is tried. Not covered: variants by a chat
(`writing`), the gates (`expansion`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice

from data import canonical
from data.errors import ConfigError
from data.messages import Role, ToolSpec, text_parts
from data.tasks import Task
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import Expects, PlannedTurn, is_blueprint, read_blueprint
from pipeline.environments.renamed import can_rename, renamed_task
from synthesizers.director_actor.personas import PERSONAS
from synthesizers.execution import Trial
from synthesizers.grounding.calls import ground
from synthesizers.grounding.evidence import NUM_CORPUS, make_pool
from synthesizers.looptool.plans import plan_task, planned_calls, planned_turns, replayed, world_of
from synthesizers.looptool.records import SYNTHESIZER
from synthesizers.phrasing.requests import PhrasingError, TurnCalls, phrase_closing, phrase_request
from synthesizers.phrasing.saying import values_to_say
from synthesizers.phrasing.twins import twins_of
from synthesizers.worlds import training_split

MORE_TOOLS = 4
"""Tools added at the most (ours)."""
SEARCHED = 2_000
"""Tasks of the training split among which others of a template are looked for (ours)."""
OTHERS = 16
"""Of these, among how many one is drawn (ours)."""


class Kind(StrEnum):
    """In what a variant differs from its error seed. From the paper's code: four kinds."""

    COMPLEXITY = "complexity"
    PERSONA = "persona"
    INTERACTION = "interaction"
    DATA = "data"


@dataclass(kw_only=True)
class Variants:
    """Makes variants of tasks of one environment. `seed` is that of the sessions plans are made in."""

    environment: Environment
    seed: int = 0
    _listed: list[Task] = field(default_factory=list, init=False)
    _stream: Iterator[Task] | None = field(default=None, init=False)

    async def of(self, kind: Kind, task: Task, *, rng: random.Random, used: Collection[str]) -> Task | None:
        """A variant of that kind, not yet gated; None where this seed has none. `used`: tasks not to take."""
        if kind is Kind.DATA:
            return self._instance(task, rng=rng, used=used)
        if kind is Kind.PERSONA:
            return in_another_manner(task, rng=rng)
        if kind is Kind.INTERACTION:
            return await self._with_request(task, rng=rng, before=True)
        ways = rng.sample(("tools", "names", "request"), 3)
        for way in ways:
            if made := await self._harder(way, task, rng=rng):
                return made
        return None

    async def _harder(self, way: str, task: Task, *, rng: random.Random) -> Task | None:
        if way == "request":
            return await self._with_request(task, rng=rng, before=False)
        tools = await self._tools(task)
        if way == "tools":
            return with_more_tools(task, tools, rng=rng)
        return renamed_task(task, tools, rng=rng, synthesizer=SYNTHESIZER) if can_rename(task) else None

    async def _tools(self, task: Task) -> tuple[ToolSpec, ...]:
        async with await Trial.open(self.environment, world_of(task), seed=self.seed) as trial:
            return trial.tools

    def _instance(self, task: Task, *, rng: random.Random, used: Collection[str]) -> Task | None:
        """Another task of the template; of a planned task, one of the template that it was planned from."""
        like = read_blueprint(task).base if is_blueprint(task) else task
        skip = {*used, task.task_id, like.task_id}
        others = self._first(lambda other: other.template == like.template, skip)
        if not others and like.tags:
            others = self._first(lambda other: other.tags == like.tags, skip)
        return rng.choice(others).model_copy(update={"parents": (task.task_id,)}) if others else None

    def _first(self, fits: Callable[[Task], bool], skip: Collection[str]) -> list[Task]:
        """The first OTHERS tasks of the training split that fit."""
        fitting = (task for task in self._training_tasks() if fits(task) and task.task_id not in skip)
        return list(islice(fitting, OTHERS))

    def _training_tasks(self) -> Iterator[Task]:
        """The first SEARCHED, each listed by the environment once."""
        if self._stream is None:
            self._stream = islice(self.environment.tasks(training_split(self.environment)), SEARCHED)
        for place in range(SEARCHED):
            if place == len(self._listed):
                task = next(self._stream, None)
                if task is None:
                    return
                self._listed.append(task)
            yield self._listed[place]

    async def _with_request(self, task: Task, *, rng: random.Random, before: bool) -> Task | None:
        """The task with one more request, of a tool of its world; a look-up where it comes first."""
        turns = await planned_turns(self.environment, task)
        if not turns or any(turn.tools is not None for turn in turns[1:]):
            return None
        try:
            return await self._lengthened(task, turns, rng=rng, before=before)
        except ConfigError:  # a world without snapshots takes no call back
            return None

    async def _lengthened(
        self, task: Task, turns: Sequence[PlannedTurn], *, rng: random.Random, before: bool
    ) -> Task | None:
        async with await Trial.open(self.environment, world_of(task), seed=self.seed) as trial:
            new = await self._request(trial, task, rng=rng, said="", look_up=True) if before else None
            if before and new is None:
                return None
            kept = [await replayed(trial, turn) for turn in turns]
            if not all(kept):
                return None
            said = "\n".join(turn.text for turn in turns)
            if not before:
                new = await self._request(trial, task, rng=rng, said=said, look_up=False)
            if new is None:
                return None
        shown = _shown(task, turns)
        names = (
            shown if shown is None else [*shown, *(call.name for call in new.calls if call.name not in shown)]
        )
        whole = [turn for turn in ([new, *kept] if before else [*kept, new]) if turn is not None]
        kind = Kind.INTERACTION if before else Kind.COMPLEXITY
        return plan_task(task, whole, shown=names, kind=kind, trial_seed=self.seed)

    async def _request(
        self, trial: Trial, task: Task, *, rng: random.Random, said: str, look_up: bool
    ) -> PlannedTurn | None:
        """One grounded call, put into words; the first tool for which that works."""
        pool = await make_pool(self.environment, world_of(task), num_corpus=NUM_CORPUS)
        for tool in rng.sample(trial.tools, len(trial.tools)):
            start = len(trial.executed)
            made = await ground(trial, tool, pool, rng=rng, said=said, may_finish=False)
            if made is None:
                continue
            turn = TurnCalls((made,), trial.tools, tuple(trial.executed))
            if not (look_up and made.executed.changes):
                try:
                    return self._worded(turn, trial, rng=rng, said=said)
                except PhrasingError:
                    pass
            trial.back_to(start)
        return None

    def _worded(self, turn: TurnCalls, trial: Trial, *, rng: random.Random, said: str) -> PlannedTurn:
        text = phrase_request(turn, rng=rng, said=said)
        reply = phrase_closing(turn, rng=rng)
        asked = [call.executed for call in turn.calls]
        return PlannedTurn(
            text=text,
            calls=planned_calls(turn.calls, trial.executed),
            reply=reply,
            must_say=values_to_say(asked, reply, request=text),
            state=trial.state,
        )


def with_more_tools(task: Task, tools: Sequence[ToolSpec], *, rng: random.Random) -> Task | None:
    """The task with other tools of its world beside those it shows; no tool that would do as well.

    None where all are shown, or where a refusal may rest on what is not shown.
    """
    shown = _shown(task, read_blueprint(task).turns if is_blueprint(task) else ())
    if shown is None or _may_lack(task):
        return None
    twins = twins_of(shown, tools)
    others = [tool.name for tool in tools if tool.name not in shown and tool.name not in twins]
    if not others:
        return None
    names = [*shown, *rng.sample(others, min(MORE_TOOLS, len(others)))]
    rng.shuffle(names)
    return _variant(task, tools=tuple(names))


def in_another_manner(task: Task, *, rng: random.Random) -> Task | None:
    """The task whose first request another kind of person makes; None where no manner changes its words."""
    text = next((turn.text for turn in task.prompt if turn.role is Role.USER), "")
    framed = list(dict.fromkeys(_manners(text, rng)))
    return _variant(task, text=rng.choice(framed)) if framed else None


def _manners(text: str, rng: random.Random) -> Iterator[str]:
    for persona in PERSONAS:
        if (said := persona.framed(text, first=True, rng=rng)) != text:
            yield said


def _shown(task: Task, turns: Sequence[PlannedTurn]) -> tuple[str, ...] | None:
    """The tools shown at first; None = all."""
    if is_blueprint(task) and turns and turns[0].tools is not None:
        return turns[0].tools
    return task.tools


def _may_lack(task: Task) -> bool:
    """Whether a planned turn is refused because of what is not shown, or tools change between turns."""
    turns = read_blueprint(task).turns if is_blueprint(task) else ()
    refused = any(turn.expects is Expects.REFUSE and not turn.calls for turn in turns)
    return refused or any(turn.tools is not None for turn in turns[1:])


def _variant(task: Task, *, tools: tuple[str, ...] | None = None, text: str = "") -> Task:
    """A copy with other tools or another first request; the task itself as parent."""
    changed: dict[str, object] = {"task_id": "", "parents": (task.task_id,), "synthesizer": SYNTHESIZER}
    if tools is not None:
        changed["tools"] = tools
    if text:
        changed["prompt"] = _said(task, text)
    if is_blueprint(task):
        blueprint = read_blueprint(task)
        first = blueprint.turns[0]
        new = first.model_copy(update={"tools": tools or first.tools, "text": text or first.text})
        whole = blueprint.model_copy(update={"turns": (new, *blueprint.turns[1:])})
        changed["private"] = canonical.dumps(whole.model_dump(mode="json"))
    return Task.model_validate(task.model_copy(update=changed).model_dump())


def _said(task: Task, text: str) -> tuple[object, ...]:
    first = next(place for place, turn in enumerate(task.prompt) if turn.role is Role.USER)
    told = task.prompt[first].model_copy(update={"parts": text_parts(text)})
    return (*task.prompt[:first], told, *task.prompt[first + 1 :])
