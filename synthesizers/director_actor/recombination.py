"""Reverse task recombination: validated requests of one persona and state, put together into one.

Each sub-goal is first made alone in a fresh session: what works only behind another one is not a task of its
own and is left out, and so is what ends the episode. The combined sub-goal is tried again as a whole by
whoever plays it. Long tasks come from short ones that hold, not from long generation (APIGen-MT). Not
covered: the combined wording (`users`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from data.tasks import Task
from pipeline.environments.base import Environment
from synthesizers.director_actor.rehearsal import Rehearsal, Rehearsed
from synthesizers.director_actor.subgoals import SubGoal
from synthesizers.execution import Trial

MOST = 3
"""Requests put together in one (ours)."""


async def combined_outline(
    environment: Environment, world: Task, goals: Sequence[Rehearsed], *, rng: random.Random
) -> SubGoal | None:
    """One sub-goal for up to MOST of `goals` that hold alone; None where there are fewer than two."""
    alone = [
        goal.goal
        for goal in goals
        if not goal.goal.finishes
        and all(step.fallback is None for step in goal.goal.steps)
        and await _holds_alone(environment, world, goal)
    ]
    written = [goal for goal in alone if goal.text_by == "task" and goal.says]  # each with its answer
    kept = written if len(written) > 1 else [goal for goal in alone if goal.text_by != "task"]
    chosen = kept[:MOST]
    if len(chosen) < 2:
        return None
    chosen = rng.sample(chosen, len(chosen))
    return SubGoal(
        "r0",
        tuple(step for goal in chosen for step in goal.steps),
        text=" ".join(goal.text for goal in chosen) if kept is written else "",
        text_by="task" if kept is written else "template",
        says=tuple(value for goal in chosen for value in goal.says),
        combined=len(chosen),
    )


async def _holds_alone(environment: Environment, world: Task, goal: Rehearsed) -> bool:
    async with await Trial.open(environment, world) as trial:
        made = await Rehearsal(trial).of_goal(goal.goal)
    return made is not None and [each.call.name for each in made.executed] == [
        each.call.name for each in goal.executed
    ]
