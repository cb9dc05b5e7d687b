"""Looking back at one episode: which goals it reached, and what becomes of each.

Not covered: that the task made of a goal is solved by its calls in a fresh session (`synthesizer`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from data import canonical
from data.messages import Role
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.chat.base import Chat
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.base import Environment
from pipeline.errors import StructuredReplyError
from pipeline.memory.entries import plain
from synthesizers.execution import Trial
from synthesizers.grounding.calls import GroundedCall
from synthesizers.grounding.evidence import Question, ValuePool, digest_of
from synthesizers.hindsight.past import (
    Past,
    Reached,
    bare_world,
    reached_goals,
    relived,
    why_unusable,
    world_seed,
)
from synthesizers.hindsight.relabelling import NAME, Writing, relabelled
from synthesizers.hindsight.roles import ANSWERER, GOAL_LISTER, SUMMARISER, WORKFLOW_WRITER, Summary
from synthesizers.hindsight.telling import answered_anew, listed_goals, summary_of, written_workflow
from synthesizers.hindsight.trimming import trim
from synthesizers.hindsight.workflows import abstracted, workflow_of
from synthesizers.phrasing.back_translation import BACK_TRANSLATOR
from synthesizers.phrasing.saying import answer_cells
from synthesizers.planning import Planned, given_up


class Found(NamedTuple):
    """A goal that was looked at: its task or why there is none, and its words for a memory, "" for none."""

    planned: Planned
    goal: str = ""
    workflow: str = ""
    tools: tuple[str, ...] = ()
    problem: str = ""
    """Why a chat's workflow is none."""
    key: str = ""
    """Equal for goals that the same calls reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """How episodes are looked at; see `Hindsight` for the options."""

    environment: Environment
    chat_of: Callable[[str], Chat | None]
    goals: int
    max_calls: int
    own: bool
    """Whether a success's own goal is described, too: AWM remembers those, and asks with their request."""
    seed: int

    async def back_at(
        self, task: Task, episode: Trajectory, pool: ValuePool, seen: Collection[str]
    ) -> tuple[list[Found], Found | None]:
        """The goals of an episode of `task`; of a successful one also its own goal, for a memory.

        `seen` are keys of goals that earlier episodes in the same world reached. Raises EnvironmentFailure
        where the world breaks.
        """
        unusable = await why_unusable(self.environment, task, episode)
        if unusable is not None:
            return [Found(given_up(*unusable))], None
        opened = await Trial.open(self.environment, bare_world(task), seed=world_seed(task, episode))
        async with opened as trial:
            past = await relived(trial, episode, written=pool.written)
            if isinstance(past, str):
                return [Found(given_up("replay_differs", past))], None
            return await self._looked(past, task, episode, pool, seen)

    async def _looked(
        self, past: Past, task: Task, episode: Trajectory, pool: ValuePool, seen: Collection[str]
    ) -> tuple[list[Found], Found | None]:
        try:
            summary = await summary_of(self.chat_of(SUMMARISER.name), past)
            goals = await self._goals(past, summary)
        except StructuredReplyError as error:
            return [Found(given_up("invalid_reply", str(error)))], None
        own = await self._own(past, task, episode, summary) if self.own and episode.success else None
        found: list[Found] = []
        for goal in goals:
            known = {*seen, *(one.key for one in found if one.key)}
            found.append(await self._found(past, goal, task, episode, pool, known, summary))
        return found or [Found(given_up("nothing_reached"))], own

    async def _goals(self, past: Past, summary: Summary | None) -> list[Reached]:
        lister = self.chat_of(GOAL_LISTER.name)
        if lister is None:
            return reached_goals(past, most=self.goals)
        return await listed_goals(lister, past, summary, most=self.goals)

    async def _found(
        self,
        past: Past,
        goal: Reached,
        task: Task,
        episode: Trajectory,
        pool: ValuePool,
        seen: Collection[str],
        summary: Summary | None,
    ) -> Found:
        if not goal.targets:
            return Found(given_up("abstained", goal.text))
        trimmed = await trim(past, goal)
        if trimmed is None:
            return Found(given_up("not_reproduced"))
        if len(trimmed.calls) > self.max_calls:
            return Found(given_up("too_many_calls", str(len(trimmed.calls))))
        key = canonical.digest([[c.executed.call.name, c.executed.arguments()] for c in trimmed.calls])
        if key in seen:
            return Found(given_up("duplicate"), key=key)
        questions, problem = await self._question(past, goal, trimmed.calls, pool)
        if problem:
            return Found(problem)
        writing = Writing(
            tools=past.tools,
            pool=replace(pool, questions={**pool.questions, **questions}),
            state=past.trial.state,
            rng=random.Random(f"{NAME}/{self.seed}/{task.task_id}/{key}"),
            chat=self.chat_of(BACK_TRANSLATOR.name),
        )
        planned, asked = await relabelled(
            trimmed.calls,
            trimmed.targets,
            task,
            writing,
            seed=world_seed(task, episode),
            old=asked_in(task, episode),
        )
        if planned.task is None:
            return Found(planned)
        found = await self._described(planned, goal.text or asked, trimmed.calls, summary)
        return found._replace(key=key)

    async def _question(
        self, past: Past, goal: Reached, calls: Sequence[GroundedCall], pool: ValuePool
    ) -> tuple[dict[str, Question], Planned | None]:
        """The chat's goal as the question that a written call answers, or why it is none.

        The answerer, who sees the question and not the call, must come to the same answer.
        """
        written = [
            (place, call.executed)
            for place, call in enumerate(calls)
            if call.executed.call.name in pool.written
            and digest_of(call.executed.call.name, call.executed.arguments()) not in pool.questions
        ]
        answerer = self.chat_of(ANSWERER.name)
        if not written or answerer is None or not goal.text:
            return {}, None  # without a question the call is given up where it is phrased
        place, made = written[-1]
        if len(written) > 1 or made.changes or not answer_cells(made.result.text):
            return {}, given_up("written_argument", "no single question with an answer that can be told")
        tool = past.spec(made.call.name)
        before = [call.executed for call in calls[:place]]
        try:
            arguments = await answered_anew(answerer, goal.text, tool, before)
        except StructuredReplyError as error:
            return {}, given_up("invalid_reply", str(error))
        again = await past.trial.attempt(tool.name, arguments)
        past.trial.undo()
        if not again.ok or answer_cells(again.result.text) != answer_cells(made.result.text):
            return {}, given_up("question_unclear", f"{goal.text} -> {again.result.text[:80]}")
        return {digest_of(tool.name, made.arguments()): Question(goal.text)}, None

    async def _own(self, past: Past, task: Task, episode: Trajectory, summary: Summary | None) -> Found:
        """The goal that a successful episode had, and all that it did for it."""
        calls = [GroundedCall(*call) for call in zip(past.executed, past.sources, strict=True)]
        return await self._described(
            Planned(), asked_in(task, episode).replace("\n", " "), calls, summary, end=_typed_end(episode)
        )

    async def _described(
        self,
        planned: Planned,
        goal: str,
        calls: Sequence[GroundedCall],
        summary: Summary | None,
        end: str = "",
    ) -> Found:
        """With goal and workflow in words that hold for other values."""
        writer, problem = self.chat_of(WORKFLOW_WRITER.name), ""
        workflow = workflow_of(calls)
        if writer is not None:
            try:
                executed = [call.executed for call in calls]
                workflow = abstracted(await written_workflow(writer, goal, executed, summary), calls)
            except StructuredReplyError as error:
                problem, workflow = str(error), ""
        if workflow or writer is None:
            workflow = "; ".join(filter(None, (workflow, end)))
        tools = tuple(dict.fromkeys(call.executed.call.name for call in calls))
        return Found(planned, abstracted(plain(goal), calls), workflow, tools, problem)


def _typed_end(episode: Trajectory) -> str:
    """What a success said at last where it had to be typed: it is a step as well."""
    said = episode.turns[-1].text if episode.turns[-1].role is Role.ASSISTANT else ""
    return f"say {said}" if read_answer(said).kind in (AnswerKind.ASK, AnswerKind.REFUSE) else ""


def asked_in(task: Task, episode: Trajectory) -> str:
    """All that the user said in an episode; workflows shown in front of the request are no user's words."""
    turns = (*task.prompt, *episode.turns[len(task.prompt) :])
    return "\n".join(turn.text for turn in turns if turn.role is Role.USER)
