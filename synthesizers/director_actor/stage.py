"""The performance: the user speaks, the actor plays, the director watches every line and interrupts.

An interruption comes where an observation contradicts the outline: a planned call failed, or a planned
look-up found nothing. A call that would work now is made again; otherwise the actor refuses and says why,
and what is left is planned anew. A line that ends the turn before its goal is reached is cut and the
instruction given again, until the sub-goal has had all its lines. What was cut stands in no record. Not
covered: the outline (`directing`), performances by further actors (`performing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from data.messages import ToolCall, ToolSpec, Turn, assistant, tool
from data.messages import system as system_turn
from data.messages import user as user_turn
from data.tasks import Task
from pipeline.chat.base import Chat
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.blueprint import (
    Expects,
    Outage,
    PlannedTurn,
)
from pipeline.environments.direction import Contradiction, Direction
from synthesizers.director_actor.actors import Actor, Instruction, Scene, instruction_of, leak_in, tells
from synthesizers.director_actor.checks import (
    MAX_LINES,
    MIN_LINES,
    check_goal,
    values_refused,
)
from synthesizers.director_actor.directing import Director, Interruption
from synthesizers.director_actor.errors import PlanStopped
from synthesizers.director_actor.outline import Outline
from synthesizers.director_actor.rehearsal import Rehearsal, Rehearsed
from synthesizers.director_actor.subgoals import Step, SubGoal, executed_key, is_empty
from synthesizers.director_actor.users import HAND_IN, JUST_TELL, Users
from synthesizers.execution import Executed, Trial
from synthesizers.grounding.calls import GroundedCall, Provenance, sources_of
from synthesizers.grounding.planned import answered_names, planned_call, port_name
from synthesizers.phrasing.referring import goes_unsaid
from synthesizers.phrasing.requests import TurnCalls, phrase_closing
from synthesizers.phrasing.saying import values_to_say

MAX_REPLANS = 2
"""Interruptions after which the dialogue ends (ours)."""
NESTED_SHARE = 0.7
"""Share of turns whose look-ups are not mentioned where a later call of the turn reads them (ours)."""


class Bounds(NamedTuple):
    """IBSEN's bounds on a sub-goal's lines, and how often may be re-planned."""

    min_lines: int = MIN_LINES
    max_lines: int = MAX_LINES
    max_replans: int = MAX_REPLANS


class Played(NamedTuple):
    """A performance. `hints` are the instructions, one per user turn; `outages` those that were met."""

    turns: tuple[PlannedTurn, ...]
    hints: tuple[str, ...]
    outages: tuple[Outage, ...]


@dataclass
class _Turn:
    """A user turn being played."""

    planned: Rehearsed
    expected: TurnCalls
    instruction: Instruction
    start: int
    """Calls executed before it."""
    contradiction: Contradiction | None = None
    broken: Executed | None = None
    lines: int = 0
    cut: int = 0
    reply: str = ""
    checked: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Stage:
    """One performance of one outline in the session of `trial`; play it once."""

    base: Task
    """The base task with its whole world shown."""
    trial: Trial
    rehearsal: Rehearsal
    outline: Outline
    director: Director
    actor: Actor
    users: Users
    checker: Chat | None = None
    bounds: Bounds = field(default_factory=Bounds)
    system: str = ""

    def __post_init__(self) -> None:
        self.dialogue: list[Turn] = [system_turn(self.system)]
        self.tools = [spec for spec in self.trial.tools if spec.name in self.outline.shown]
        self.turns: list[PlannedTurn] = []
        self.hints: list[str] = []
        self.met: list[Outage] = []
        self.steps: dict[str, Step] = {}
        self.replans = 0

    async def play(self) -> Played:
        """The performance. Raises PlanStopped where it does not get through the outline."""
        queue = list(self.outline.goals)
        while queue:
            planned = queue.pop(0)
            turn = await self._turn(planned)
            if self.trial.finished:
                break
            if turn.broken is not None:
                queue = await self._replanned(turn, queue)
        return Played(tuple(self.turns), tuple(self.hints), tuple(self.met))

    async def _turn(self, planned: Rehearsed) -> _Turn:
        turn = await self._opened(planned)
        while True:
            said = await self.actor.line(
                Scene(tuple(self.dialogue), self.tools, turn.instruction, self._calls(turn))
            )
            turn.lines += 1
            if tells(said, (self.hints[-1], turn.instruction.text.removeprefix(self.hints[-1]).strip())):
                self._cut(turn, "leave the stage direction unsaid")
            elif said.tool_calls and all(call.ok for call in said.tool_calls):
                await self._execute(said, turn)
                if self.trial.finished:
                    break
            elif await self._closes(said, turn):
                break
            if turn.lines >= len(planned.executed) + self.bounds.max_lines:
                raise PlanStopped("goal_unmet", f"{planned.goal.goal}: not reached in {turn.lines} lines")
        self._keep(turn)
        return turn

    async def _opened(self, planned: Rehearsed) -> _Turn:
        goal = planned.goal
        expected = self._expected(planned)
        words = await self.users.say(goal, expected, self.dialogue, suffix=self._suffix(goal))
        self.dialogue.append(user_turn(words.text))
        instruction = instruction_of(goal.steps, self.steps, says=goal.says)
        if goal.instruction:
            instruction = instruction._replace(text=goal.instruction)
        self._refuse_leak(instruction.text, expected)
        self.steps |= {step.uid: step for step in goal.steps}
        self.hints.append(instruction.text)
        self.turns.append(PlannedTurn(text=words.text, reply="-", state=self.trial.state, text_by=words.by))
        return _Turn(planned, expected, instruction, len(self.trial.executed))

    def _suffix(self, goal: SubGoal) -> str:
        """Whether an answer is handed in or told, where a call may end the episode."""
        alone = goal.finishes and len(self.outline.goals) == 1
        if alone or goal.text_by != "task" or not hasattr(self.trial.session, "finished"):
            return ""
        return HAND_IN if goal.finishes else JUST_TELL

    def _refuse_leak(self, text: str, expected: TurnCalls) -> None:
        """IBSEN: an instruction never holds the line; nor, here, what only a tool can tell."""
        values = [
            source.value
            for source in expected.sources()
            if source.provenance is Provenance.OUTPUT and not isinstance(source.value, bool | list | dict)
        ]
        line = phrase_closing(expected, rng=self.users.rng) if expected.calls else ""
        heard = "\n".join(turn.text for turn in self.dialogue)
        if leaked := leak_in(text, line=line, values=[value for value in values if str(value) not in heard]):
            raise PlanStopped("instruction_leaks", f"the instruction gives away {leaked}")

    def _expected(self, planned: Rehearsed) -> TurnCalls:
        """The planned calls as they should go, behind what was played."""
        history = [*self.trial.executed, *planned.executed]
        calls = self._grounded(history, len(self.trial.executed))
        turn = TurnCalls(calls, self.trial.tools, history)
        if planned.goal.text_by == "task":  # its words ask for what the last call answers
            return turn._replace(unmentioned=tuple(range(len(calls) - 1)))
        return turn._replace(unmentioned=self._nested(turn))

    def _nested(self, turn: TurnCalls) -> tuple[int, ...]:
        read = {
            source.of.call - turn.seen
            for call in turn.calls
            for source in call.of(Provenance.OUTPUT)
            if source.of is not None
        }
        nested = tuple(
            sorted(
                place
                for place in read
                if place >= 0
                and not turn.calls[place].executed.changes
                and goes_unsaid(turn.calls[place], turn.tool(turn.calls[place]))
            )
        )
        return nested if self.users.rng.random() < NESTED_SHARE else ()

    def _calls(self, turn: _Turn) -> TurnCalls:
        """What the actor has done in this turn; what nobody asked for by itself is not mentioned."""
        history = list(self.trial.executed)
        made = self._grounded(history, turn.start)
        nested = {executed_key(turn.expected.calls[place].executed) for place in turn.expected.unmentioned}
        hidden = [place for place, call in enumerate(made) if executed_key(call.executed) in nested]
        return TurnCalls(made, self.trial.tools, history, hidden)

    def _grounded(self, history: Sequence[Executed], start: int) -> list[GroundedCall]:
        specs: Mapping[str, ToolSpec] = {spec.name: spec for spec in self.trial.tools}
        said = "\n".join(turn.text for turn in self.dialogue if turn.role == "user")
        return [
            GroundedCall(made, sources_of(made, specs[made.call.name], history[:index], said=said))
            for index, made in enumerate(history)
            if index >= start
        ]

    async def _execute(self, said: Turn, turn: _Turn) -> None:
        made = [await self._call(call, turn) for call in said.tool_calls]
        calls = tuple(each.call for each in made)
        self.dialogue.append(said.model_copy(update={"tool_calls": calls}))
        self.dialogue += [tool(each.result) for each in made]
        for each in made:
            await self._watch(each, turn)

    async def _call(self, call: ToolCall, turn: _Turn) -> Executed:
        """The call in this world, where a tool may be down once in this user turn."""
        index = len(self.turns) - 1
        called = any(each.call.name == call.name for each in self.trial.executed[turn.start :])
        for outage in self.outline.outages if not called else ():
            if (outage.turn, outage.name) == (index, call.name):
                self.met.append(outage)
                return self.trial.answered(
                    call.name, call.parsed_arguments(), text=outage.text, status=outage.status
                )
        return await self.trial.attempt(call.name, call.parsed_arguments())

    async def _watch(self, made: Executed, turn: _Turn) -> None:
        """Interrupt where a planned call was answered against the outline."""
        key = executed_key(made)
        planned = zip(turn.planned.goal.steps, turn.planned.executed, strict=True)
        wanted = next((each for step, each in planned if step.key == key), None)
        if wanted is None:
            if made.changes:
                raise PlanStopped("other_state", f"{made.call.name} changed what nobody asked to change")
            return
        if not made.ok:
            turn.contradiction = Contradiction.TOOL_ERROR
            self.replans += 1
            was_down = any(outage.text == made.result.text for outage in self.met)
            if not was_down and not await self._works_now(made):
                self._refuse(made, turn)
        elif is_empty(made) and not is_empty(wanted):
            turn.contradiction = Contradiction.EMPTY
            self.replans += 1
            self._refuse(made, turn)

    async def _works_now(self, made: Executed) -> bool:
        """Whether the same call would be answered: tried in the director's session."""
        self.rehearsal.follow(self.trial)
        again = await self.rehearsal.trial.attempt(made.call.name, made.arguments())
        return again.ok

    def _refuse(self, made: Executed, turn: _Turn) -> None:
        why = made.result.text.strip() if not made.ok else "nothing was found"
        why = why.removeprefix("error: ").removeprefix("Error: ")[:120]
        turn.broken = made
        turn.instruction = Instruction("Say REFUSE and why it cannot be done.", refuse=why)

    async def _closes(self, said: Turn, turn: _Turn) -> bool:
        """Whether a line that makes no call ends the turn; one that does not is cut."""
        if said.tool_calls:
            return self._cut(turn, "; ".join(call.error or str(call.status) for call in said.tool_calls))
        if turn.lines < self.bounds.min_lines:
            return self._cut(turn, "go on")
        if turn.broken is not None:
            if read_answer(said.text).kind is AnswerKind.REFUSE:
                return self._end(said, turn, ("calls",))
            return self._cut(turn, "begin with REFUSE")
        found = await check_goal(
            turn.planned,
            self.trial.executed,
            state=self.trial.state,
            reply=said.text,
            must_say=values_to_say(
                [call.executed for call in turn.expected.mentioned],
                phrase_closing(turn.expected, rng=self.users.rng),
                request=self.turns[-1].text,
            )
            if turn.expected.calls
            else (),
            dialogue=[*self.dialogue, said],
            checker=self.checker,
        )
        return self._cut(turn, found.problem) if found.problem else self._end(said, turn, found.by)

    def _cut(self, turn: _Turn, problem: str) -> bool:
        turn.cut += 1
        again = f"{self.hints[-1]} (Not yet, try {turn.cut + 1}: {problem}.)"
        if turn.broken is None:
            turn.instruction = turn.instruction._replace(text=again)
        return False

    def _end(self, said: Turn, turn: _Turn, by: tuple[str, ...]) -> bool:
        if leaked := leak_in(self.hints[-1], line=said.text, values=()):
            raise PlanStopped("instruction_leaks", f"the instruction gave away {leaked}: {said.text[:80]!r}")
        self.dialogue.append(assistant(said.text))
        turn.reply, turn.checked = said.text, by
        return True

    def _keep(self, turn: _Turn) -> None:
        made = self.trial.executed[turn.start :]
        goal = turn.planned.goal
        calls = self._calls(turn)
        asked = [call.executed for call in calls.mentioned]
        must_say = (
            values_refused(turn.broken, turn.reply)
            if turn.broken is not None
            else (*values_to_say(asked, turn.reply, request=self.turns[-1].text), *goal.says)
        )
        named = partial(port_name, names=answered_names(self.trial.executed))
        said = "\n".join(each.text for each in self.turns) if goal.text_by == "task" else None
        direction = Direction(
            goal=goal.goal,
            check="+".join(turn.checked) or "calls",
            actor=self.actor.name,
            instruction_by=goal.instruction_by,
            lines=turn.lines,
            cut=turn.cut,
            differs=[executed_key(each) for each in made]
            != [executed_key(each) for each in turn.planned.executed],
            contradiction=turn.contradiction,
            replanned=goal.replanned,
            combined=goal.combined,
        )
        self.turns[-1] = self.turns[-1].model_copy(
            update={
                "calls": tuple(
                    planned_call(call, mentioned=place not in calls.unmentioned, named=named, said=said)
                    for place, call in enumerate(calls.calls)
                ),
                "reply": turn.reply or "Done.",
                "expects": Expects.REFUSE if turn.broken is not None else Expects.ACT,
                "must_say": tuple(dict.fromkeys(must_say)),
                "state": self.trial.state,
                "direction": direction,
            }
        )

    async def _replanned(self, turn: _Turn, queue: Sequence[Rehearsed]) -> list[Rehearsed]:
        """What is left after an interruption that ended in a refusal."""
        if self.replans > self.bounds.max_replans:
            return []
        assert turn.broken is not None
        self.rehearsal.follow(self.trial)
        limit = self.users.limit
        at = Interruption(
            turn.planned, turn.broken, tuple(queue), tuple(self.dialogue), self.outline.shown, limit
        )
        planned = await self.director.replan(self.base, self.rehearsal, at)
        return [
            goal for goal in planned if {each.call.name for each in goal.executed} <= set(self.outline.shown)
        ]
