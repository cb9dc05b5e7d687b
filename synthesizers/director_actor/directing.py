"""The director at work: outlines and re-planning, by templates and execution or by a chat.

A director's plan counts only as far as it was tried in its own session. After a contradiction only what is
left is planned anew: the next best way to what failed, found by trying, and those of the remaining sub-goals
that did not depend on it; nothing else is left, then the dialogue ends with the refusal. Not covered: playing
(`stage`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from data import canonical
from data.messages import ToolSpec, Turn
from data.tasks import Task
from pipeline.chat.base import Chat
from pipeline.chat.roles import one_call
from synthesizers.director_actor.errors import PlanStopped
from synthesizers.director_actor.groups import Motif, motif_of
from synthesizers.director_actor.outline import Library, draw_outline, draw_randomly
from synthesizers.director_actor.personas import Persona, price_of
from synthesizers.director_actor.rehearsal import Rehearsal, Rehearsed, random_motif, rivals_of
from synthesizers.director_actor.roles import (
    DIRECTOR,
    REPLANNER,
    OutlineGoal,
    OutlineReply,
    OutlineRequest,
    ReplanRequest,
    ShownTool,
)
from synthesizers.director_actor.subgoals import (
    Read,
    Step,
    SubGoal,
    call_key,
    dependents,
    executed_key,
    place_of,
    reads_of,
)
from synthesizers.execution import Executed
from synthesizers.grounding.calls import Choice, ground
from synthesizers.grounding.evidence import Evidence
from synthesizers.roles import shown_dialogue, shown_parameters

KNOWN_LINES = 24
"""Rows of the world a chat director is told (ours)."""


class Interruption(NamedTuple):
    """What contradicts the outline: the sub-goal being played, the call, and what was still to come."""

    goal: Rehearsed
    executed: Executed
    remaining: tuple[Rehearsed, ...]
    dialogue: tuple[Turn, ...]
    shown: tuple[str, ...]
    """Names of the tools of the dialogue; no others can be planned with."""
    limit: int | None = None
    """What the user has said to pay at most, in dollars."""


class Director(Protocol):
    """Plans in a rehearsal; what it returns was tried there, in order, after what the stage has played."""

    async def outline(
        self, base: Task, rehearsal: Rehearsal, *, feedback: Sequence[str] = ()
    ) -> list[Rehearsed]:
        """The sub-goals. Raises PlanStopped where there are none."""
        ...

    async def replan(self, base: Task, rehearsal: Rehearsal, at: Interruption) -> list[Rehearsed]:
        """What is played instead of the rest; [] ends the dialogue."""
        ...


class TemplateDirector:
    """Without a model."""

    def __init__(
        self,
        library: Library,
        *,
        persona: Persona,
        rng: random.Random,
        from_task: bool,
        max_goals: int,
        random_choice: bool = False,
    ) -> None:
        self.library, self.persona, self.rng = library, persona, rng
        self.from_task, self.max_goals, self.random_choice = from_task, max_goals, random_choice

    async def outline(
        self, base: Task, rehearsal: Rehearsal, *, feedback: Sequence[str] = ()
    ) -> list[Rehearsed]:
        """See `Director.outline`; feedback makes another draw."""
        goals = await draw_outline(
            self.library,
            base,
            rehearsal,
            persona=self.persona,
            from_task=self.from_task,
            max_goals=self.max_goals,
            rng=self.rng,
        )
        if goals and self.random_choice:
            rehearsal.begin()
            goals = await draw_randomly(
                self.library, base, rehearsal, goals, persona=self.persona, rng=self.rng
            )
        if not goals:
            raise PlanStopped("no_outline", "no sub-goal works in this world")
        return goals

    async def replan(self, base: Task, rehearsal: Rehearsal, at: Interruption) -> list[Rehearsed]:
        """See `Director.replan`."""
        instead = await self._instead(base, rehearsal, at)
        lost = set() if instead else dependents([goal.goal for goal in at.remaining], at.goal.goal.name)
        kept = [goal.goal for goal in at.remaining if goal.goal.name not in lost]
        again = [await rehearsal.of_goal(goal) for goal in kept]
        return [*instead, *(goal for goal in again if goal is not None)]

    async def _instead(self, base: Task, rehearsal: Rehearsal, at: Interruption) -> list[Rehearsed]:
        """The next best way to the sub-goal that failed, as a sub-goal of its own; [] where there is none."""
        steps = at.goal.goal.steps
        failed = next((i for i, step in enumerate(steps) if step.key == executed_key(at.executed)), None)
        if failed is None:
            return []
        if self.random_choice:
            motif = random_motif(len(steps) - failed, rehearsal.trial.tools, self.rng)
            return await self._grounded(base, rehearsal, motif, Choice.RANDOM)
        if at.executed.ok:
            return await self._grounded(base, rehearsal, motif_of(steps[failed:]), Choice.EVIDENCE)
        for arguments in self._rivals(rehearsal, steps[failed], limit=at.limit):
            step = _with(steps[failed], arguments, rehearsal)
            goal = SubGoal(
                f"{at.goal.goal.name}+", (step, *steps[failed + 1 :]), finishes=at.goal.goal.finishes
            )
            if (tried := await rehearsal.of_goal(goal)) is not None:
                return [_marked(tried)]
        return []

    async def _grounded(
        self, base: Task, rehearsal: Rehearsal, motif: Motif, choice: Choice
    ) -> list[Rehearsed]:
        """A motif with other values; [] where it does not work."""
        pool = await self.library.pool(base)
        drawn = await rehearsal.of_motif(motif, pool, persona=self.persona, rng=self.rng, choice=choice)
        return [_marked(drawn)] if drawn is not None else []

    def _rivals(self, rehearsal: Rehearsal, step: Step, *, limit: int | None) -> list[dict[str, Any]]:
        """Other arguments for a call that failed, the best first: what is known to work, then other rows."""
        found = [dict(step.fallback)] if step.fallback is not None and limit is None else []
        for name, read in step.reads.items():
            source = rehearsal.answers.get(read.step)
            rows = rivals_of(source.result.text, step.arguments.get(name)) if source is not None else []
            left = [
                (row, value)
                for row, value in rows
                if value != step.arguments.get(name) and (limit is None or (price_of(row) or 0) <= limit)
            ]
            while left:
                chosen = left.pop(self.persona.choose([row for row, _ in left], rng=self.rng))
                found.append({**step.arguments, name: chosen[1]})
        return [arguments for arguments in found if call_key(step.tool, arguments) != step.key]


class ChatDirector:
    """A chat plans and re-plans; what it plans is tried like everything else."""

    def __init__(
        self,
        library: Library,
        *,
        chat: Chat,
        replanner: Chat,
        persona: Persona,
        rng: random.Random,
        from_task: bool,
        max_goals: int,
        can_judge: bool,
    ) -> None:
        self.library, self.chat, self.replanner = library, chat, replanner
        self.persona, self.rng, self.from_task = persona, rng, from_task
        self.max_goals, self.can_judge = max_goals, can_judge

    async def outline(
        self, base: Task, rehearsal: Rehearsal, *, feedback: Sequence[str] = ()
    ) -> list[Rehearsed]:
        """See `Director.outline`."""
        request = OutlineRequest(
            persona=self.persona.described(),
            tools=shown(rehearsal.trial.tools),
            known=await self._known(base),
            wish=base.prompt[-1].text if self.from_task else "",
            max_goals=self.max_goals,
            feedback=tuple(feedback),
        )
        reply = await DIRECTOR.ask(self.chat, request, narrow=_possible(rehearsal.trial.tools))
        goals = await self._tried(base, rehearsal, reply, by=self.chat.name)
        if not goals:
            raise PlanStopped("no_outline", "the director planned nothing")
        return goals

    async def replan(self, base: Task, rehearsal: Rehearsal, at: Interruption) -> list[Rehearsed]:
        """See `Director.replan`. A new plan that does not work ends the dialogue, like none."""
        tools = [spec for spec in rehearsal.trial.tools if spec.name in at.shown]
        request = ReplanRequest(
            persona=self.persona.described(),
            tools=shown(tools),
            known=await self._known(base),
            dialogue=shown_dialogue(at.dialogue),
            problem=_problem(at.executed),
            remaining=tuple(goal.goal.text or goal.goal.goal for goal in at.remaining),
            max_goals=self.max_goals,
        )
        reply = await REPLANNER.ask(self.replanner, request, narrow=_possible(tools))
        try:
            goals = await self._tried(base, rehearsal, reply, by=self.replanner.name)
        except PlanStopped:
            return []
        return [_marked(goal) for goal in goals]

    async def _tried(
        self, base: Task, rehearsal: Rehearsal, reply: OutlineReply, *, by: str
    ) -> list[Rehearsed]:
        """Every sub-goal grounded. Raises PlanStopped naming the first that does not work."""
        found = []
        for number, goal in enumerate(reply.goals[: self.max_goals]):
            made = await self._grounded(base, rehearsal, goal)
            if not made and not self.can_judge:
                raise PlanStopped(
                    "outline_unchecked", f"no program can tell whether {goal.intent!r} is reached"
                )
            steps = _steps_of(made, rehearsal, name=f"c{len(rehearsal.answers)}.{number}")
            planned = SubGoal(
                f"c{len(rehearsal.answers)}.{number}",
                steps,
                text=goal.intent,
                text_by=by,
                instruction=goal.instruction,
                instruction_by=by,
                judged=not made,
                finishes=rehearsal.trial.finished,
            )
            rehearsal.answers |= {step.uid: each for step, each in zip(steps, made, strict=True)}
            found.append(Rehearsed(planned, tuple(made), rehearsal.trial.state))
        return found

    async def _grounded(self, base: Task, rehearsal: Rehearsal, goal: OutlineGoal) -> list[Executed]:
        specs = {spec.name: spec for spec in rehearsal.trial.tools}
        made = []
        for call in goal.calls:
            executed = await self._made(base, rehearsal, specs[call.tool], dict(call.arguments))
            if executed is None:
                raise PlanStopped(
                    "outline_ungrounded", f"{call.tool} {canonical.dumps(call.arguments)} does not work here"
                )
            made.append(executed)
        return made

    async def _made(
        self, base: Task, rehearsal: Rehearsal, spec: ToolSpec, given: dict[str, Any]
    ) -> Executed | None:
        """The call as given, or with what was left out filled in."""
        trial = rehearsal.trial
        executed = await trial.attempt(spec.name, given)
        if executed.ok:
            return executed
        trial.undo()
        filled = await ground(trial, spec, await self.library.pool(base), rng=self.rng)
        if filled is None:
            return None
        arguments = {**filled.executed.arguments(), **given}
        trial.undo()
        executed = await trial.attempt(spec.name, arguments)
        if executed.ok:
            return executed
        trial.undo()
        return None

    async def _known(self, base: Task) -> tuple[str, ...]:
        pool = await self.library.pool(base)
        records = [record for record in pool.records if record.evidence in (Evidence.STATE, Evidence.GOLD)]
        lines = [
            f"{record.kind or record.tool or 'values'}: "
            + ", ".join(f"{name}={value}" for name, value in record.values if not isinstance(value, dict))[
                :160
            ]
            for record in records
        ]
        return tuple(dict.fromkeys(lines))[:KNOWN_LINES]


def shown(tools: Sequence[ToolSpec]) -> tuple[ShownTool, ...]:
    """Tools as a chat director sees them."""
    return tuple(
        ShownTool(name=tool.name, description=tool.description, parameters=shown_parameters(tool))
        for tool in tools
    )


def _possible(tools: Sequence[ToolSpec]) -> dict[str, dict[str, Any]]:
    """The calls that an outline may hold: arguments that an earlier answer gives are left out."""
    known = {tool.name: tool.parameters for tool in tools}
    return {"calls": one_call(known, name="tool", every_argument=False)}


def _steps_of(made: Sequence[Executed], rehearsal: Rehearsal, *, name: str) -> tuple[Step, ...]:
    """Executed calls as steps that read what earlier calls answered."""
    steps: list[Step] = []
    sources = list(rehearsal.answers.items())
    for index, executed in enumerate(made):
        reads = reads_of(executed, sources)
        steps.append(Step(f"{name}/{index}", executed.call.name, executed.arguments(), reads))
        sources.append((steps[-1].uid, executed))
    return tuple(steps)


def _with(step: Step, arguments: dict[str, Any], rehearsal: Rehearsal) -> Step:
    """The step with other arguments, read where the old ones were read."""
    reads = {}
    for name, read in step.reads.items():
        source = rehearsal.answers.get(read.step)
        found = place_of(source.result.text, arguments.get(name)) if source is not None else None
        if found is not None:
            reads[name] = Read(read.step, *found)
    return Step(f"{step.uid}+", step.tool, arguments, reads)


def _problem(executed: Executed) -> str:
    return f"{executed.call.name} {executed.call.arguments} answered {executed.result.text!r}"


def _marked(rehearsed: Rehearsed) -> Rehearsed:
    return rehearsed._replace(goal=rehearsed.goal._replace(replanned=True))
