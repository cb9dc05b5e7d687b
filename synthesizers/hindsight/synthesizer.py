"""Finished episodes as data of other goals: those they really reached (after ECHO, arXiv 2510.10304).

Every finished episode of another synthesizer is executed again, failures and successes alike. Of each goal it
reached the needed calls are kept; the goal becomes a task with a checkable end state, and its trajectory is
what these calls do in a fresh session, written anew: `origin: edited`, no log-probs. The policy's own words
and reasoning are left out, because they speak of the goal it had; at the end a template tells what was done.
What becomes nothing has a verdict. On request the goals are remembered as workflows, too (`pipeline.memory`).
Not covered: training on what was made (`rl`), users who act on the world themselves (such an episode replays
differently and is given up).
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from data import canonical
from data.errors import ConfigError
from data.store import Store
from data.tasks import Task
from data.trajectories import Origin, Trajectory, make_group_id
from data.verdicts import Verdict
from pipeline.checks.options import check_least
from pipeline.engines.base import Engine
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import read_blueprint, result_digest
from pipeline.environments.splits import training_split
from pipeline.errors import EnvironmentFailure
from pipeline.memory.entries import Kind
from pipeline.memory.stored import FOLDER
from pipeline.renderers.base import Renderer
from pipeline.rollout import Job, RolloutSettings
from pipeline.rollout_episode import Episode, Identity
from pipeline.rollout_pool import Emit, pooled
from synthesizers.base import Made, Turned, pending
from synthesizers.demonstration import GoldAuthor
from synthesizers.grounding.evidence import ValuePool, gold_corpus
from synthesizers.hindsight.looking import Found, Looking
from synthesizers.hindsight.past import bare_world
from synthesizers.hindsight.relabelling import NAME
from synthesizers.hindsight.remembering import Remembered, entry_of, remember_all
from synthesizers.hindsight.roles import ANSWERER, GOAL_LISTER, SUMMARISER, WORKFLOW_WRITER
from synthesizers.phrasing.back_translation import BACK_TRANSLATOR
from synthesizers.planning import Planned, given_up
from synthesizers.role_chats import ChatSetting, RoleChats, check_chats
from synthesizers.worlds import plannable

GOALS = 5
"""Goals of one episode; the default of ECHO's code."""
FROM_FAILURE, FROM_SUCCESS = "from_failure", "from_success"
"""Labels of what was made: how the episode it comes from ended."""


@dataclass(kw_only=True)
class Hindsight:
    """See the module docstring.

    `of`: whose episodes are read. `goals`: goals of an episode at the most. `max_calls`: calls of a goal at
    the most. `memory`: kinds of memory written to the run's folder `memory`: echo, awm, awm++. `chat` plays
    every role that `chats` does not give to another one: summariser, goal_lister, workflow_writer,
    back_translator, answerer; without a chat goals come from the state and the answers.
    """

    environment: Environment
    renderer: Renderer
    store: Store
    engine: Engine | None = None
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    of: str = "rejection_sampling"
    goals: int = GOALS
    max_calls: int = 8
    memory: Sequence[str] = ()
    chat: ChatSetting | None = None
    chats: Mapping[str, Any] = field(default_factory=dict)
    chat_dir: Path | None = None
    seed: int = 0
    run_id: str = ""
    max_in_flight: int = 8
    name: ClassVar[str] = NAME
    role_names: ClassVar[tuple[str, ...]] = (
        SUMMARISER.name,
        GOAL_LISTER.name,
        WORKFLOW_WRITER.name,
        BACK_TRANSLATOR.name,
        ANSWERER.name,
    )

    def __post_init__(self) -> None:
        check_least(self, {"goals": 1, "max_calls": 1})
        if self.of == self.name:
            raise ConfigError(f"of: {self.of} would read what it made itself; name another synthesizer")
        for kind in self.memory:
            if kind not in list(Kind):
                raise ConfigError(f"memory: there is no kind {kind!r}; kinds: {', '.join(Kind)}")
        check_chats(self.chat, self.chats, known=self.role_names, method=self.name)
        self.environment = plannable(self.environment, deadlines=self.settings.deadlines)
        self.settings = replace(self.settings, memory=None)
        self.roles = RoleChats(
            default=self.chat,
            by_role=self.chats,
            directory=self.chat_dir,
            engine=self.engine,
            renderer=self.renderer,
        )
        self._sources: dict[str, list[str]] | None = None

    def inputs(self) -> dict[str, str]:
        """The episodes that are read, as a digest of their ids."""
        ids = sorted(trajectory_id for ids in self._episodes().values() for trajectory_id in ids)
        return {self.of: canonical.digest(ids)}

    def most(self, tasks: Sequence[Task]) -> int:
        """See `Synthesizer`: every goal of every episode of the tasks."""
        return self.goals * sum(len(ids) for _, ids in self._of_tasks(tasks))

    async def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Made]:
        """See `Synthesizer`. ConfigError where the run holds no episode to read, or a memory would be made of
        tasks that are not for training. EnvironmentFailure after the last task where one was broken."""
        chosen = list(tasks)
        self._refuse_other_splits(chosen)
        episodes, corpus = self._of_tasks(chosen), await gold_corpus(self.environment)
        broken, remembered = list[EnvironmentFailure](), list[Remembered]()

        async def work(job: tuple[Task, list[str]], emit: Emit[Made]) -> None:
            task, ids = job
            others = [example for task_id, example in corpus if task_id not in (task.task_id, *task.parents)]
            pool, seen = ValuePool.of(bare_world(task), corpus=others), dict[str, bool]()
            try:
                for trajectory_id in ids:
                    made, memories = await self._turned(
                        task, trajectory_id, pool, seen, done=done, failed=failed
                    )
                    remembered.append(memories)
                    for record in made:
                        await emit(record)
            except EnvironmentFailure as failure:
                broken.append(failure)

        try:
            async with aclosing(pooled(episodes, work, max_in_flight=self.max_in_flight)) as made:
                async for record in made:
                    yield record
        finally:
            await self.roles.close()
        if broken:
            raise EnvironmentFailure(
                f"the environment broke while {len(broken)} tasks were looked back at; the first: "
                f"{broken[0]}. The same command tries again what is missing"
            ) from broken[0]
        if self.memory:
            kinds, folder = [Kind(kind) for kind in self.memory], self.store.root / FOLDER
            remember_all(remembered, kinds=kinds, folder=folder, environment=self.environment)

    def _refuse_other_splits(self, tasks: Sequence[Task]) -> None:
        learned = training_split(self.environment)
        other = next((task.split for task in tasks if task.split != learned), None)
        if self.memory and other is not None:
            raise ConfigError(
                f"memory is made of split {learned!r} only, and the tasks are of {other!r}: evaluations "
                f"would read their own answers. Take tasks of {learned!r}, or leave memory out"
            )

    def _episodes(self) -> dict[str, list[str]]:
        """Ids of the finished episodes of `of` by task, in the order they were to be made: what several
        reached is data of the first, also where a run has grown."""
        if self._sources is None:
            rows = [
                (row.task_id, row.rollout_index, row.attempt, row.trajectory_id)
                for row in self.store.trajectories()
                if row.synthesizer == self.of
            ]
            self._sources = {}
            for task_id, *_, trajectory_id in sorted(rows):
                self._sources.setdefault(task_id, []).append(trajectory_id)
        return self._sources

    def _of_tasks(self, tasks: Sequence[Task]) -> list[tuple[Task, list[str]]]:
        """Tasks with their episodes: the given tasks, and tasks that were planned from them."""
        given, found = {task.task_id: task for task in tasks}, []
        for task_id, ids in sorted(self._episodes().items()):
            task = given.get(task_id) or self.store.get("tasks", task_id)
            if isinstance(task, Task) and (task_id in given or given.keys() & set(task.parents)):
                found.append((task, ids))
        if not found:
            there = {row.synthesizer for row in self.store.trajectories()} - {self.name}
            raise ConfigError(
                f"{self.store.root} holds no finished episode of {self.of} on these tasks; it has episodes "
                f"of: {', '.join(sorted(there)) or 'none'}. Run that stage first, on the same tasks, or name "
                f"another synthesizer in `of`"
            )
        return found

    async def _turned(
        self,
        task: Task,
        trajectory_id: str,
        pool: ValuePool,
        seen: dict[str, bool],
        *,
        done: Collection[str],
        failed: Collection[str],
    ) -> tuple[list[Made], Remembered]:
        """All that is made of one episode, the verdict on it last, and what is remembered of it.

        `seen`: goals of this world so far, and whether each is verified data.
        """
        episode = self.store.get("trajectories", trajectory_id)
        assert isinstance(episode, Trajectory), trajectory_id
        looking = Looking(
            environment=self.environment,
            chat_of=self.roles.of,
            goals=self.goals,
            max_calls=self.max_calls,
            own=any(Kind(kind) is not Kind.ECHO for kind in self.memory),
            seed=self.seed,
        )
        found, own = await looking.back_at(task, episode, pool, seen.keys())
        records: list[Made] = []
        entries, turned, broken = [], False, False
        for number, goal in enumerate(found):
            name = f"{task.task_id}/{trajectory_id}.{number}"
            records += self._problems(goal, trajectory_id, number)
            planned, made = await self._verified(goal.planned, episode, done=done, failed=failed)
            if planned.task is None:
                records.append(self._verdict(name, planned.reason, planned.detail))
                turned |= seen.setdefault(goal.key, False)
                continue
            records += [planned.task, *made]
            seen[goal.key] = all(record.reward is not None for record in made)
            broken |= not seen[goal.key]
            if seen[goal.key]:
                turned = True
                entries.append(entry_of(episode, task.split, goal.goal, goal.workflow, goal.tools))
        records += self._problems(own, trajectory_id, "own") if own is not None else ()
        if not broken:  # else the verdict is next time's, when what broke is tried again
            reason = Turned.of(success=bool(episode.success), turned=turned)
            records.append(Verdict(trajectory_id=trajectory_id, filter=self.name, keep=True, reason=reason))
        wanted = own and entry_of(episode, task.split, own.goal, own.workflow, own.tools)
        return records, Remembered(trajectory_id, task.template, tuple(entries), wanted)

    def _problems(self, goal: Found, trajectory_id: str, number: int | str) -> Iterator[Verdict]:
        """The verdict on a workflow that could not be read."""
        if goal.problem:
            yield self._verdict(f"{trajectory_id}.{number}.workflow", "invalid_reply", goal.problem)

    def _verdict(self, name: str, reason: str, detail: str) -> Verdict:
        return Verdict(trajectory_id=name, filter=self.name, keep=False, reason=reason, detail=detail)

    async def _verified(
        self, planned: Planned, episode: Trajectory, *, done: Collection[str], failed: Collection[str]
    ) -> tuple[Planned, list[Trajectory]]:
        """The task with its trajectory in a fresh session, none where it was made before; or why there is no
        such task: its calls do not solve it there, or answer otherwise."""
        task = planned.task
        if task is None:
            return planned, []
        update = {"renderer": self.renderer.digest, "harness": self.settings.digest, "logprobs_of": ""}
        policy = episode.policy.model_copy(update=update)
        group_id = make_group_id(task.task_id, self.name, policy, self.seed)
        for job in pending([Job(task, group_id=group_id)], done=done, failed=failed):
            script = self.environment.gold(task)
            author = GoldAuthor(script, renderer=self.renderer, slip=0.0, rng=random.Random(0))
            identity = Identity(
                group_id=group_id,
                synthesizer=self.name,
                policy=policy,
                seed=self.seed,
                attempt=job.attempt,
                run_id=self.run_id,
            )
            played = await Episode(
                task,
                environment=self.environment,
                author=author,
                settings=self.settings,
                identity=identity,
            ).run()
            if played.success is False:
                return given_up("gold_failed", str(played.reward)), []
            if played.success and not _answers_alike(played, task):
                return given_up("answer_differs"), []
            return planned, [_edited(played, episode)]
        return planned, []


def _answers_alike(played: Trajectory, task: Task) -> bool:
    meant = [call.result for call in read_blueprint(task).turns[0].calls]
    return meant == [result_digest(turn.result) for turn in played.turns if turn.result is not None]


def _edited(played: Trajectory, episode: Trajectory) -> Trajectory:
    """The record as what it is: calls of another episode, written anew."""
    segments = tuple(segment.model_copy(update={"origin": Origin.EDITED}) for segment in played.segments)
    label = FROM_SUCCESS if episode.success else FROM_FAILURE
    changed = {"segments": segments, "parents": (episode.trajectory_id,), "labels": (NAME, label)}
    return Trajectory.model_validate(played.model_copy(update=changed).model_dump())
