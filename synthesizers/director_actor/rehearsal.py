"""Sub-goals tried by the director before anybody plays them: what each call should answer.

The director has a session of its own. What it finds there is what it expects of the stage; a planned call
that has a known fallback is expected to work although the director's own session knows better, as a plan
made from look-ups alone would. Not covered: which sub-goals to try (`outline`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolSpec
from pipeline.errors import RecordError
from synthesizers.director_actor.groups import Motif, MotifStep
from synthesizers.director_actor.personas import Persona
from synthesizers.director_actor.subgoals import (
    Step,
    SubGoal,
    call_key,
    executed_key,
    is_empty,
    place_of,
    reads_of,
    resolved,
)
from synthesizers.execution import Executed, Trial
from synthesizers.grounding.calls import Choice, OutputPort, ground, worked
from synthesizers.grounding.evidence import ValuePool
from synthesizers.grounding.reading import Row, rows_of, shape


class Rehearsed(NamedTuple):
    """A sub-goal with what its calls should answer, and the state it should lead to."""

    goal: SubGoal
    executed: tuple[Executed, ...]
    state: str


class Rehearsal:
    """The director's session. `answers` holds the answer to every step tried so far, by its uid."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.answers: dict[str, Executed] = {}
        self._numbers = 0

    def begin(self) -> None:
        """Take everything back."""
        self.trial.back_to(0)
        self.answers = {}

    def follow(self, stage: Trial) -> None:
        """Stand where the stage stands: its state, its calls, its answers in place of the expected ones."""
        self.trial.follow(stage)
        given = {executed_key(each): each for each in stage.executed if each.ok}
        answers = {uid: given.get(executed_key(each)) for uid, each in self.answers.items()}
        self.answers = {uid: each for uid, each in answers.items() if each is not None}

    async def of_goal(self, goal: SubGoal) -> Rehearsed | None:
        """The sub-goal tried and kept; None, and nothing kept, where a call fails or nothing is left to do.

        A look-up that was answered before in the same words is left out.
        """
        before, steps, expected = len(self.trial.executed), list[Step](), list[Executed]()
        answers = dict(self.answers)
        for step in goal.steps:
            try:
                done = await self._step(step, answers)
            except (LookupError, TypeError, ValueError, RecordError):
                done = None
            if done is None or (self.trial.finished and not goal.finishes):
                self.trial.back_to(before)
                return None
            planned, executed, is_new = done
            answers[step.uid] = executed
            if is_new:
                steps.append(planned)
                expected.append(_as_planned(executed, planned))
        made = tuple(expected)
        if not made or all(is_empty(each) for each in made):
            self.trial.back_to(before)
            return None
        self.answers = answers
        return Rehearsed(goal._replace(steps=tuple(steps)), made, self.trial.state)

    async def of_motif(
        self,
        motif: Motif,
        pool: ValuePool,
        *,
        persona: Persona,
        rng: random.Random,
        choice: Choice,
    ) -> Rehearsed | None:
        """A motif grounded in this world, the persona choosing; None where it does not work here."""
        specs = {spec.name: spec for spec in self.trial.tools}
        before, steps = len(self.trial.executed), list[Step]()
        if any(part.tool not in specs for part in motif):
            return None
        for part in motif:
            prefer = {name: OutputPort(before + source) for name, source, _ in part.reads}
            grounded = await ground(
                self.trial, specs[part.tool], pool, rng=rng, prefer=prefer, choice=choice, may_finish=False
            )
            if grounded is None:
                self.trial.back_to(before)
                return None
            executed = grounded.executed
            if choice is Choice.EVIDENCE:
                executed = await self._chosen(executed, part, before=before, persona=persona, rng=rng)
            steps.append(self._as_step(executed, before=before, steps=steps))
        goal = SubGoal(f"m{self._numbers}", tuple(steps))
        self._numbers += 1
        made = tuple(self.trial.executed[before:])
        self.answers |= {step.uid: each for step, each in zip(steps, made, strict=True)}
        return Rehearsed(goal, made, self.trial.state)

    def _as_step(self, executed: Executed, *, before: int, steps: Sequence[Step]) -> Step:
        """An executed call as a step that reads what the motif's earlier calls answered."""
        earlier = [(step.uid, each) for step, each in zip(steps, self.trial.executed[before:-1], strict=True)]
        uid = f"x{self._numbers}.{len(steps)}"
        return Step(uid, executed.call.name, executed.arguments(), reads_of(executed, earlier))

    async def _chosen(
        self, executed: Executed, part: MotifStep, *, before: int, persona: Persona, rng: random.Random
    ) -> Executed:
        """The call with what the persona would rather read, where that works as well."""
        arguments = executed.arguments()
        linked = {name: before + source for name, source, _ in part.reads}
        done = {executed_key(each) for each in self.trial.executed[:-1]}
        for name, value in executed.arguments().items():
            source = linked.get(name, self._holder(value))
            if source is None:
                continue
            rivals = [
                (row, other)
                for row, other in rivals_of(self.trial.executed[source].result.text, value)
                if call_key(part.tool, {**arguments, name: other}) not in done
            ]
            if len(rivals) > 1:
                arguments[name] = rivals[persona.choose([row for row, _ in rivals], rng=rng)][1]
        if arguments == executed.arguments():
            return executed
        self.trial.undo()
        other = await self.trial.attempt(executed.call.name, arguments)
        if worked(other, shows_state=self.trial.shows_state) and not self.trial.finished:
            return other
        self.trial.undo()
        return await self.trial.attempt(executed.call.name, executed.arguments())

    def _holder(self, value: Any) -> int | None:
        """Index of the latest earlier call whose answer holds an argument, or None."""
        if isinstance(value, bool) or len(str(value)) < 2:
            return None
        earlier = list(enumerate(self.trial.executed[:-1]))
        return next((i for i, each in reversed(earlier) if place_of(each.result.text, value)), None)

    async def _step(self, step: Step, answers: dict[str, Executed]) -> tuple[Step, Executed, bool] | None:
        """(the step as it is to be played, what it should answer, whether it is new); None where it fails."""
        arguments = resolved(step, answers)
        executed = await self.trial.attempt(step.tool, arguments)
        if not executed.ok and step.fallback is not None:
            self.trial.undo()
            executed = await self.trial.attempt(step.tool, dict(step.fallback))
        if not executed.ok:
            return None
        key = call_key(step.tool, arguments)
        for earlier in self.trial.executed[:-1]:
            same = executed_key(earlier) == key and earlier.result.text == executed.result.text
            if same and not executed.changes and not earlier.changes:
                self.trial.undo()
                return step, earlier, False
        return step._replace(arguments=arguments), executed, True


def _as_planned(executed: Executed, step: Step) -> Executed:
    """What the director expects of a step: its own arguments, answered like those that worked."""
    call = executed.call.model_copy(update={"arguments": canonical.dumps(dict(step.arguments))})
    return executed._replace(call=call)


def rivals_of(text: str, value: Any) -> list[tuple[Row, Any]]:
    """The rows of an answer that hold a value written like this one in the same place, and that value."""
    rows = rows_of(text)
    place = place_of(text, value)
    if place is None:
        return []
    column = _column(rows[place[0]], place[1])
    found = []
    for row in rows:
        for index, field in enumerate(row.fields):
            if _column(row, index) == column and shape(field.value) == shape(value):
                found.append((row, field.value))
    return found


def _column(row: Row, index: int) -> tuple[str, object]:
    name = row.fields[index].name
    return (row.kind, name) if name else (row.kind, index)


def random_motif(length: int, tools: Sequence[ToolSpec], rng: random.Random) -> Motif:
    """`length` steps, any tools, nothing read: what the ablation grounds in place of a motif."""
    return tuple(MotifStep(rng.choice(tools).name) for _ in range(length))
