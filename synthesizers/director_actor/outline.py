"""The director's outline: sub-goals of a persona in a task's world, each tried, in an order that may be.

They come from the base task's own gold, from gold of other tasks in the same state, and from motifs of other
tasks' gold grounded here. With `random_choice` (ablation) the outline has as many sub-goals with as many
calls, but random tools with random arguments in random order. Not covered: outlines by a chat (`directing`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from data.messages import ToolSpec, ToolStatus
from data.tasks import Task
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import Outage
from synthesizers.director_actor.goldwork import NUM_EPISODES, GoldEpisode, gold_episode, gold_episodes
from synthesizers.director_actor.groups import Motif, motifs_of, own_goals
from synthesizers.director_actor.personas import Persona
from synthesizers.director_actor.rehearsal import Rehearsal, Rehearsed, random_motif
from synthesizers.director_actor.subgoals import SubGoal, is_empty
from synthesizers.grounding.calls import Choice
from synthesizers.grounding.evidence import ValuePool, make_pool
from synthesizers.grounding.reading import decoded
from synthesizers.phrasing.saying import answer_cells
from synthesizers.phrasing.twins import twins_of

MAX_DISTRACTORS = 3
"""Tools shown beside those of the outline (ours)."""
MAX_DRAWS = 12
"""Motifs tried until the outline is full (ours)."""
BUSY = "busy, try again"
"""Short, because a private text of the task stands in a tool result here (`data.leaks`)."""
NOTHING = "none"
MOST_TOLD = 8
"""Cells of an answer that a reply must hold (ours); of a longer one, none."""


class Outline(NamedTuple):
    """What is to happen. `shown` are the tools of the dialogue, in the world's order."""

    persona: Persona
    goals: tuple[Rehearsed, ...]
    shown: tuple[str, ...]
    outages: tuple[Outage, ...] = ()


@dataclass
class Library:
    """What the director knows of an environment: gold of a fixed number of training tasks."""

    environment: Environment
    num_episodes: int = NUM_EPISODES
    episodes: list[GoldEpisode] = field(default_factory=list)
    motifs: list[Motif] = field(default_factory=list)
    _pools: dict[str, ValuePool] = field(default_factory=dict)

    async def learn(self) -> None:
        """Execute the gold, once."""
        if not self.episodes:
            self.episodes = await gold_episodes(self.environment, count=self.num_episodes)
            self.motifs = motifs_of(self.episodes)

    async def pool(self, base: Task) -> ValuePool:
        """Values known in a task's world."""
        if base.task_id not in self._pools:
            self._pools[base.task_id] = await make_pool(self.environment, base)
        return self._pools[base.task_id]

    async def own(self, base: Task) -> list[SubGoal]:
        """The sub-goals of the task's own gold."""
        known = (each for each in self.episodes if each.task.task_id == base.task_id)
        episode = next(known, None) or await gold_episode(self.environment, base)
        return own_goals(episode, prefix="o") if episode is not None else []

    def neighbours(self, base: Task, *, rng: random.Random) -> Iterator[SubGoal]:
        """First sub-goals of other tasks in the same state, without the call that ends their episode."""
        near = [
            episode
            for episode in self.episodes
            if episode.task.state == base.state and episode.task.task_id != base.task_id
        ]
        for number, episode in enumerate(rng.sample(near, len(near))):
            for goal in own_goals(episode, prefix=f"n{number}_")[:1]:
                if goal.text and not goal.needs:
                    yield _without_finish(goal, episode)


async def draw_outline(
    library: Library,
    base: Task,
    rehearsal: Rehearsal,
    *,
    persona: Persona,
    from_task: bool,
    max_goals: int,
    rng: random.Random,
) -> list[Rehearsed]:
    """The sub-goals of an outline, tried in this order; [] where the world offers none."""
    number = min(max_goals, rng.randint(max(1, persona.patience - 1), persona.patience))
    own = await library.own(base)
    kept = _first(own, number - (len(own) == 1 and number > 1)) if from_task else []
    extras = list(library.neighbours(base, rng=rng)) if number > len(kept) else []
    planned = _ordered([*kept, *extras[: number - len(kept)]], rng=rng)
    last = [goal for goal in planned if goal.finishes]
    goals = [await rehearsal.of_goal(goal) for goal in planned if not goal.finishes]
    found = [goal for goal in goals if goal is not None]
    pool = await library.pool(base)
    there = {spec.name for spec in rehearsal.trial.tools}
    fitting = [motif for motif in library.motifs if {step.tool for step in motif} <= there]
    draws = rng.sample(fitting, min(MAX_DRAWS, len(fitting)))
    for motif in draws:
        if len(found) + len(last) >= number:
            break
        grounded = await rehearsal.of_motif(motif, pool, persona=persona, rng=rng, choice=Choice.EVIDENCE)
        if grounded is not None:
            found.append(grounded)
    if not found and not last:  # nothing else works here: what the task itself wants
        last = own[:1]
    closing = [await rehearsal.of_goal(goal) for goal in last]
    return [*found, *(goal for goal in closing if goal is not None)]


async def draw_randomly(
    library: Library,
    base: Task,
    rehearsal: Rehearsal,
    planned: Sequence[Rehearsed],
    *,
    persona: Persona,
    rng: random.Random,
) -> list[Rehearsed]:
    """The ablation: as many sub-goals and calls as `planned` has, tools, values and order at random."""
    pool = await library.pool(base)
    found = []
    for goal in planned:
        motif = random_motif(len(goal.executed), rehearsal.trial.tools, rng)
        grounded = await rehearsal.of_motif(motif, pool, persona=persona, rng=rng, choice=Choice.RANDOM)
        if grounded is not None:
            found.append(grounded)
    return found


def shown_tools(
    goals: Sequence[Rehearsed], tools: Sequence[ToolSpec], *, rng: random.Random
) -> tuple[str, ...]:
    """The tools the goals call and a few others, in the world's order; no twin of a used one."""
    names = [tool.name for tool in tools]
    used = {each.call.name for goal in goals for each in goal.executed}
    twins = twins_of(used, tools)
    others = [name for name in names if name not in used and name not in twins]
    chosen = used | set(rng.sample(others, min(len(others), rng.randint(1, MAX_DISTRACTORS))))
    return tuple(name for name in names if name in chosen)


def draw_outage(goals: Sequence[Rehearsed], *, rng: random.Random) -> tuple[Outage, ...]:
    """One planned call that will be contradicted: its tool is down once, or a look-up finds nothing.

    Some goal must have a call.
    """
    turn = rng.choice([turn for turn, goal in enumerate(goals) if goal.executed])
    executed = rng.choice(goals[turn].executed)
    name = executed.call.name
    if not executed.changes and not is_empty(executed) and rng.random() < 0.5:
        nothing = "[]" if isinstance(decoded(executed.result.text), dict | list) else NOTHING
        return (Outage(turn=turn, name=name, text=nothing, status=ToolStatus.OK),)
    return (Outage(turn=turn, name=name, text=BUSY),)


def _first(goals: Sequence[SubGoal], number: int) -> list[SubGoal]:
    """At most `number` goals from the start. Cutting drops what an episode's end would need, never a need."""
    return list(goals[: max(number, 1)])


def _ordered(goals: Sequence[SubGoal], *, rng: random.Random) -> list[SubGoal]:
    """A random order in which every goal stands behind what it needs, what ends the episode last."""
    left, order = list(goals), list[SubGoal]()
    names = {goal.name for goal in goals}
    while left:
        done = {goal.name for goal in order}
        ready = [goal for goal in left if goal.needs & names <= done]
        open_ = [goal for goal in ready if not goal.finishes] or ready
        order.append(rng.choice(open_))
        left.remove(order[-1])
    return order


def _without_finish(goal: SubGoal, episode: GoldEpisode) -> SubGoal:
    places = {f"{step.uid}": step for step in goal.steps}
    ends = {uid for uid in places if episode.calls[int(uid.rsplit("_", 1)[-1])].finishes}
    steps = tuple(step for step in goal.steps if step.uid not in ends)
    last = episode.calls[int(steps[-1].uid.rsplit("_", 1)[-1])].executed if steps else None
    says = answer_cells(last.result.text) if last is not None and not last.changes else ()
    return goal._replace(steps=steps, finishes=False, says=says)
