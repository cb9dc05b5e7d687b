"""Director and actor as a synthesizer: outline, performance, review, recombination, further actors.

Without a chat the outline comes from executed gold, the actor follows its cues, the user's words are worded
from the calls, and programs check and review. Each role that a chat is given to is played by it: director,
actor, user_simulator, reply_critic, goal_checker, replanner, judge_1, judge_2, ... What a task owes to whom
stands in its blueprint (`direction`, `reviews`, `text_by`). `strict` is APIGen-MT's verified blueprint.
Sources: IBSEN (arXiv 2407.01093), APIGen-MT (arXiv 2504.03601). Not covered: filters after the teacher.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import Policy, Trajectory, make_group_id, make_trajectory_id
from data.verdicts import Verdict
from pipeline.chat.base import Chat
from pipeline.checks.options import check_least, check_shares
from pipeline.environments.direction import Review
from synthesizers.director_actor.actors import MANNERS, Actor, ChatActor, ScriptedActor
from synthesizers.director_actor.checks import MAX_LINES, MIN_LINES
from synthesizers.director_actor.directing import ChatDirector, Director, TemplateDirector
from synthesizers.director_actor.errors import PlanStopped
from synthesizers.director_actor.goldwork import NUM_EPISODES
from synthesizers.director_actor.outline import Library, Outline, draw_outage, shown_tools
from synthesizers.director_actor.performing import Cast, manners_of, perform, perform_by_chat, variation
from synthesizers.director_actor.personas import Persona, draw_persona
from synthesizers.director_actor.recombination import combined_outline
from synthesizers.director_actor.rehearsal import Rehearsal, Rehearsed
from synthesizers.director_actor.stage import MAX_REPLANS, Bounds, Stage
from synthesizers.director_actor.strict import (
    MAX_ROUNDS,
    Draft,
    check_judges,
    load_policies,
    review,
    state_difference,
)
from synthesizers.director_actor.users import CANDIDATES, Users
from synthesizers.director_actor.writing import Performance, system_prompt, written
from synthesizers.execution import Trial
from synthesizers.grounding.evidence import leaves_of
from synthesizers.hints import REPEATED
from synthesizers.planning import Planned, Planner, given_up
from synthesizers.worlds import whole_world

FAULT_SHARE = 0.2
"""Share of outlines one of whose calls is contradicted (ours)."""
RECOMBINED_SHARE = 0.2
"""Share of plans whose validated requests are put together into one (ours)."""
MAX_GOALS = 4
"""Sub-goals of an outline, whatever a persona's patience (ours)."""


@dataclass(kw_only=True)
class DirectorActor(Planner):
    """`start`: outlines from the base task's own gold (`task`), from what a persona may want in its world
    (`persona`), or from either. `actors`: performances per outline. `policies`: predicates of the world that
    strict mode checks, callables or `module:name` of one or several. `rounds`: feedback to the director.
    `gold_tasks`: training tasks whose gold the director knows."""

    name: ClassVar[str] = "director_actor"
    role_names: ClassVar[tuple[str, ...]] = (
        *("director", "replanner", "actor", "user_simulator", "reply_critic", "goal_checker"),
        *("judge", "judge_*"),
    )
    start: Literal["task", "persona", "mixed"] = "mixed"
    max_goals: int = MAX_GOALS
    actors: int = 1
    faults: float = FAULT_SHARE
    recombine: float = RECOMBINED_SHARE
    strict: bool = False
    rounds: int = MAX_ROUNDS
    policies: Sequence[Any] = ()
    gold_tasks: int = NUM_EPISODES
    candidates: int = CANDIDATES
    min_lines: int = MIN_LINES
    max_lines: int = MAX_LINES
    max_replans: int = MAX_REPLANS
    _library: Library = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start not in ("task", "persona", "mixed"):
            raise ConfigError(f"start is task, persona or mixed, got {self.start!r}")
        positive = ("max_goals", "actors", "candidates", "min_lines", "max_lines", "gold_tasks")
        check_least(self, dict.fromkeys(positive, 1) | {"rounds": 0, "max_replans": 0})
        check_shares(self, "faults", "recombine")
        if self.min_lines > self.max_lines:
            raise ConfigError(f"min_lines {self.min_lines} is more than max_lines {self.max_lines}")
        idle = [role for role in self.chats if role.startswith("judge")] + ["policies"] * bool(self.policies)
        if idle and not self.strict:
            raise ConfigError(
                f"{', '.join(idle)}: used in strict mode only; set strict: true, or leave them out"
            )
        self._library = Library(self.environment, num_episodes=self.gold_tasks)
        self._policies = [policy for named in self.policies for policy in load_policies(named)]
        self._judges = self._committee() if self.strict else []

    async def prepare(self, tasks: Sequence[Task]) -> None:
        """Execute the gold of the library's tasks."""
        await self._library.learn()

    async def plan(self, base: Task, rng: random.Random) -> Planned:
        """See `Planner.plan`."""
        persona = draw_persona(rng)
        feedback: list[str] = []
        stopped = PlanStopped("not_approved")
        for _ in range(self.rounds + 1 if self.strict else 1):
            try:
                performance = await self._performance(base, persona, rng, feedback)
            except PlanStopped as stop:
                stopped, feedback = stop, [f"{stop.reason}: {stop.detail}"]
                continue
            reviews, reasons = await self._reviewed(base, performance)
            if not reasons:
                return written(
                    base, persona, performance, reviews=reviews, strict=self.strict, synthesizer=self.name
                )
            stopped, feedback = PlanStopped("not_approved", "; ".join(reasons)), reasons
        return given_up(stopped.reason, stopped.detail[:500])

    async def _performance(
        self, base: Task, persona: Persona, rng: random.Random, feedback: Sequence[str]
    ) -> Performance:
        world = whole_world(base)
        director = self._director(persona, rng)
        async with await Trial.open(self.environment, world) as own:
            rehearsal = Rehearsal(own)
            goals = await director.outline(base, rehearsal, feedback=feedback)
            combine = len(goals) > 1 and rng.random() < self.recombine
            if combine and (whole := await combined_outline(self.environment, world, goals, rng=rng)):
                rehearsal.begin()
                rehearsed = await rehearsal.of_goal(whole)
                goals = [rehearsed] if rehearsed is not None else await _again(rehearsal, goals)
            if not goals:
                raise PlanStopped("no_outline", "what worked in one order does not work again")
            combined = goals[0].goal.combined > 1
            outline = self._outline(goals, persona, own, rng, combined=combined)
            return await self._staged(base, world, outline, director, rehearsal, rng)

    def _outline(
        self, goals: Sequence[Rehearsed], persona: Persona, own: Trial, rng: random.Random, *, combined: bool
    ) -> Outline:
        shown = shown_tools(goals, own.tools, rng=rng)
        contradicted = not combined and rng.random() < self.faults and any(goal.executed for goal in goals)
        outages = draw_outage(goals, rng=rng) if contradicted else ()
        return Outline(persona, tuple(goals), shown, outages)

    async def _staged(
        self,
        base: Task,
        world: Task,
        outline: Outline,
        director: Director,
        rehearsal: Rehearsal,
        rng: random.Random,
    ) -> Performance:
        async with await Trial.open(self.environment, world) as trial:
            before = _state(trial)
            stage = Stage(
                base=base,
                trial=trial,
                rehearsal=rehearsal,
                outline=outline,
                director=director,
                actor=self._actor(rng),
                users=self._users(base, outline.persona, rng),
                checker=self.roles.of("goal_checker"),
                bounds=Bounds(self.min_lines, self.max_lines, self.max_replans),
                system=system_prompt(base, (goal.goal.text_by for goal in outline.goals)),
            )
            played = await stage.play()
            executed = tuple(trial.executed)
            difference = state_difference(before, _state(trial))
            combined = outline.goals[0].goal.combined > 1
            return Performance(played, executed, outline.shown, difference, combined)

    def _director(self, persona: Persona, rng: random.Random) -> Director:
        from_task = self.start == "task" or (self.start == "mixed" and rng.random() < 0.5)
        chat = self.roles.of("director")
        if chat is None or self.random_choice:
            return TemplateDirector(
                self._library,
                persona=persona,
                rng=rng,
                from_task=from_task,
                max_goals=self.max_goals,
                random_choice=self.random_choice,
            )
        return ChatDirector(
            self._library,
            chat=chat,
            replanner=self.roles.of("replanner") or chat,
            persona=persona,
            rng=rng,
            from_task=from_task,
            max_goals=self.max_goals,
            can_judge=self.roles.of("goal_checker") is not None,
        )

    def _actor(self, rng: random.Random) -> Actor:
        chat = self.roles.of("actor")
        return ScriptedActor(rng) if chat is None else ChatActor(chat)

    def _users(self, base: Task, persona: Persona, rng: random.Random) -> Users:
        return Users(
            persona,
            rng=rng,
            simulator=self.roles.of("user_simulator"),
            critic=self.roles.of("reply_critic"),
            num_candidates=self.candidates,
            world=leaves_of(base.state_value()),
        )

    def _committee(self) -> list[Chat]:
        """The judges; none where no chat is set at all. ConfigError for a committee of one."""
        names = [name for name in self.chats if name.startswith("judge")]
        found = [self.roles.of(name) for name in sorted(names) or (["judge"] if self.chat else [])]
        judges = [judge for judge in found if judge is not None]
        if judges:
            check_judges(judges)
        return judges

    async def _reviewed(self, base: Task, performance: Performance) -> tuple[list[Review], list[str]]:
        """(reviews, reasons against); none of both outside strict mode."""
        if not self.strict:
            return [], []
        draft = Draft(
            performance.played.turns,
            performance.executed,
            base.state_value(),
            performance.difference,
            performance.shown,
        )
        return await review(draft, policies=self._policies, judges=self._judges)

    async def further(
        self, planned: Planned, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncIterator[Trajectory | Verdict]:
        """The further actors of the outline, on the gold of the first."""
        for number in range(1, self.actors if self.teacher == "gold" else 1):
            made = await self._acted(planned, number, done=done, failed=failed)
            if made is not None:
                yield made

    async def _acted(
        self, planned: Planned, number: int, *, done: Collection[str], failed: Collection[str]
    ) -> Trajectory | Verdict | None:
        """One further performance, kept where it ends in the planned end state and repeats no instruction;
        None where it is no other."""
        assert planned.task is not None
        chat = self.roles.of("actor")
        manner = _manner(planned.task, number) if chat is None else MANNERS[number % len(MANNERS)]
        if not manner:
            return None
        policy = Policy(
            name="gold" if chat is None else chat.name,
            renderer=self.renderer.digest,
            harness=self.settings.digest,
        )
        group = make_group_id(planned.task.task_id, self.name, policy, self.seed)
        attempt = 0
        while make_trajectory_id(group, number, attempt) in failed:
            attempt += 1
        if make_trajectory_id(group, number, attempt) in done:
            return None
        cast = Cast(
            self.environment,
            self.renderer,
            self.settings,
            planned.task,
            group,
            self.name,
            self.seed,
            self.run_id,
        )
        if chat is not None:
            actor = ChatActor(chat, manner=manner)
            made = await perform_by_chat(
                cast, actor=actor, hints=planned.hints, index=number, policy=policy, attempt=attempt
            )
        else:
            script = variation(planned.task, manner)
            assert script is not None, "its manner is one that differs"
            made = await perform(cast, script=script, index=number, policy=policy, attempt=attempt)
        repeated = REPEATED in made.labels
        if made.reward is None or (made.success and not repeated):
            return made
        return Verdict(
            trajectory_id=made.trajectory_id,
            filter=self.name,
            keep=False,
            reason=REPEATED if repeated else "other_end_state",
            detail=f"actor {number} ({manner}) of task {made.task_id}",
        )


async def _again(rehearsal: Rehearsal, goals: Sequence[Rehearsed]) -> list[Rehearsed]:
    """The sub-goals one by one, where they do not work as one."""
    rehearsal.begin()
    found = [await rehearsal.of_goal(goal.goal) for goal in goals]
    return [goal for goal in found if goal is not None]


def _manner(task: Task, number: int) -> str:
    """The manner of scripted actor `number`; "" where there are fewer."""
    manners = manners_of(task)
    return manners[number - 1] if number <= len(manners) else ""


def _state(trial: Trial) -> Any:
    """What of the session's state can be seen; its answered calls where it shows none."""
    shown = getattr(trial.session, "end_state", None)
    return (
        shown()
        if shown is not None
        else [f"{each.call.name} {each.call.arguments}" for each in trial.executed]
    )
