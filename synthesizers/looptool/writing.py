"""Variants of an error seed by a chat (EDDE's generator): written, executed in the seed's world, checked.

A sample is one request with its calls. Every call is made in a real session and must work; the request must
say what only the user can know and name no tool; a second chat, where there is one, must find it correct, and
one that gives no valid reply has not. What fails is written once more with what was wrong with it. Not
covered: the replay in a fresh session and duplicates (`expansion`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from data import canonical
from data.messages import ToolSpec
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.chat.base import Chat
from pipeline.chat.roles import one_call, shown_dialogue
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import PlannedTurn
from pipeline.errors import StructuredReplyError
from synthesizers.director_actor.personas import draw_persona
from synthesizers.execution import Trial
from synthesizers.grounding.calls import GroundedCall, sources_of, worked
from synthesizers.looptool.plans import plan_task, planned_calls, world_of
from synthesizers.looptool.records import Repair
from synthesizers.looptool.roles import (
    SAMPLE_JUDGE,
    SAMPLE_WRITER,
    CheckRequest,
    SampleReply,
    SampleRequest,
    shown_tools,
)
from synthesizers.looptool.varying import Kind
from synthesizers.phrasing.requests import TurnCalls, request_problem
from synthesizers.phrasing.saying import values_to_say
from synthesizers.planning import Planned, given_up

TRIES = 2
"""Times a sample is written (ours)."""
_MOST_STATE, _MOST_RESULTS = 1_200, 600
"""Characters of the world that the writer is shown."""
_SHOWN = 160
_CONSTRAINTS = {
    Kind.COMPLEXITY: "one step more than before, where a later call needs what an earlier one answers",
    Kind.INTERACTION: "the user tells it in another way: values in another order, or inside a short story",
    Kind.DATA: "other values than before, the same skill",
}


class ErrorSeed(NamedTuple):
    """A step that the model does not master: the repair, its dialogue and task."""

    repair: Repair
    trajectory: Trajectory
    task: Task
    tools: tuple[ToolSpec, ...]
    """Shown at the step."""

    @property
    def calls(self) -> bool:
        """Whether a call is right there, and not words."""
        row = self.repair.repaired or self.trajectory
        return bool(row.turns[self.repair.turn].tool_calls)

    @property
    def right(self) -> str:
        """What is to be said or called."""
        return self.repair.predicted if self.repair.repaired is not None else self.repair.label

    @property
    def wrong(self) -> str:
        """What was said or called instead."""
        return self.repair.label if self.repair.repaired is not None else self.repair.predicted


class _Unusable(Exception):
    """Why a sample cannot be used."""


@dataclass(kw_only=True)
class Writer:
    """Writes samples. `seed` is that of the sessions they are tried in."""

    environment: Environment
    chat: Chat
    judge: Chat | None = None
    seed: int = 0

    async def write(self, kind: Kind, seed: ErrorSeed, *, rng: random.Random) -> Planned:
        """One sample as a task, not yet gated, or why there is none."""
        constraint = _CONSTRAINTS.get(kind) or f"somebody else asks: {draw_persona(rng).described()}"
        problem = ""
        async with await Trial.open(self.environment, world_of(seed.task), seed=self.seed) as trial:
            for _ in range(TRIES):
                request = _request(seed, constraint=constraint, problem=problem)
                calls = one_call({tool.name: tool.parameters for tool in trial.tools})
                try:
                    reply = await SAMPLE_WRITER.ask(self.chat, request, narrow={"calls": calls})
                    turn = await self._turn(trial, reply)
                except StructuredReplyError as error:
                    return given_up("invalid_reply", str(error))
                except _Unusable as reason:
                    problem = str(reason)
                    trial.back_to(0)
                    continue
                return Planned(task=_task(seed, turn, kind=kind, trial_seed=self.seed))
        return given_up("unusable_sample", problem)

    async def _turn(self, trial: Trial, reply: SampleReply) -> PlannedTurn:
        """The sample executed. Raises _Unusable, with the reason in words for the writer."""
        specs = {tool.name: tool for tool in trial.tools}
        calls: list[GroundedCall] = []
        for call in reply.calls:
            made = await trial.attempt(call.name, call.arguments)
            if not worked(made, shows_state=trial.shows_state) or trial.finished:
                shown = f"{made.call.name} {made.call.arguments}"
                raise _Unusable(f"{shown} does not work here: {made.result.text[:_SHOWN] or 'no answer'}")
            sources = sources_of(made, specs[call.name], trial.executed[:-1], said=reply.request)
            calls.append(GroundedCall(made, sources))
        turn = TurnCalls(calls, trial.tools, tuple(trial.executed))
        if problem := request_problem(reply.request, turn):
            raise _Unusable(problem)
        if read_answer(reply.closing).kind not in (AnswerKind.DONE, AnswerKind.ANSWER):
            raise _Unusable("the closing asks or refuses, though everything was done")
        await self._check(reply, calls, trial.tools)
        asked = [calls[-1].executed]
        return PlannedTurn(
            text=reply.request,
            text_by=self.chat.name,
            calls=planned_calls(calls, trial.executed),
            reply=reply.closing,
            must_say=values_to_say(asked, reply.closing, request=reply.request),
            state=trial.state,
        )

    async def _check(
        self, reply: SampleReply, calls: Sequence[GroundedCall], tools: Sequence[ToolSpec]
    ) -> None:
        if self.judge is None:
            return
        made = (call.executed for call in calls)
        lines = tuple(
            f"{each.call.name} {each.call.arguments} -> {each.result.text[:_SHOWN]}" for each in made
        )
        request = CheckRequest(tools=shown_tools(tools), request=reply.request, calls=lines)
        try:
            word = await SAMPLE_JUDGE.ask(self.judge, request)
        except StructuredReplyError as error:
            raise _Unusable("it could not be judged") from error
        if not word.correct:
            raise _Unusable(word.reason)


def _request(seed: ErrorSeed, *, constraint: str, problem: str) -> SampleRequest:
    turns = seed.trajectory.turns[: seed.repair.turn]
    results = "\n".join(turn.text for turn in turns if turn.result is not None)
    state = canonical.dumps(world_of(seed.task).state_value())
    return SampleRequest(
        tools=shown_tools(seed.tools),
        values=f"{state[:_MOST_STATE]}\n{results[:_MOST_RESULTS]}".strip(),
        dialogue=shown_dialogue(turns),
        right=seed.right,
        wrong=seed.wrong,
        analysis=seed.repair.analysis,
        constraint=constraint,
        problem=problem,
    )


def _task(seed: ErrorSeed, turn: PlannedTurn, *, kind: Kind, trial_seed: int) -> Task:
    shown = [tool.name for tool in seed.tools]
    called = dict.fromkeys(call.name for call in turn.calls)
    names = [*shown, *(name for name in called if name not in shown)]
    return plan_task(seed.task, [turn], shown=names, kind=kind, trial_seed=trial_seed)
