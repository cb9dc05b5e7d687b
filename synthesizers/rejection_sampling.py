"""Rejection sampling: k rollouts per task by the policy itself, every one kept with its outcome.

Nothing is rejected here; filters choose. With `enough_skeletons`, a task gets no further wave of
rollouts once its successes hold that many distinct call skeletons: easy tasks stop early, and a task
solved k times in one way does not count as k ways. Waves make the decision a function of outcomes,
never of which rollout happened to finish first.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from data import canonical
from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import Policy, Trajectory, make_group_id, make_trajectory_id
from pipeline.checks.options import check_least
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.renderers.base import Renderer
from pipeline.rollout import Job, RolloutSettings, make_policy, rollouts
from synthesizers.base import open_attempt, pending


@dataclass(kw_only=True)
class RejectionSampling:
    """`k` rollouts per task, in waves of `wave` where `enough_skeletons` is set, else all at once."""

    environment: Environment
    engine: Engine
    renderer: Renderer
    sampling: Sampling = field(default_factory=Sampling)
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    k: int = 8
    enough_skeletons: int | None = None
    wave: int = 4
    load: Callable[[str], Trajectory | None] | None = None
    """Reads a trajectory made earlier; needed to resume with `enough_skeletons`."""
    tasks_at_once: int = 256
    """Tasks whose waves advance together; bounds what is held in memory."""
    seed: int = 0
    run_id: str = ""
    max_in_flight: int = 64
    infra_retries: int = 1
    name: str = "rejection_sampling"

    def __post_init__(self) -> None:
        check_least(self, {"k": 1, "wave": 1, "tasks_at_once": 1})
        if self.enough_skeletons is not None and self.enough_skeletons < 1:
            raise ConfigError(f"enough_skeletons must be at least 1 or None, got {self.enough_skeletons}")

    @property
    def policy(self) -> Policy:
        """The identity of what is sampled from, as it is now."""
        return make_policy(
            self.engine, renderer=self.renderer, sampling=self.sampling, settings=self.settings
        )

    async def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Trajectory]:
        """See `Synthesizer`. Raises ConfigError where resuming needs `load` and it is missing."""
        policy = self.policy
        if self.enough_skeletons is None:
            jobs = self._jobs(tasks, range(self.k), policy=policy)
            async with aclosing(self._rollouts(pending(jobs, done=done, failed=failed), policy)) as made:
                async for trajectory in made:
                    yield trajectory
            return
        if done and self.load is None:
            raise ConfigError("resuming with enough_skeletons needs `load`, which reads what was made before")
        source = iter(tasks)
        while chunk := list(islice(source, self.tasks_at_once)):
            async with aclosing(self._waves(chunk, policy, done=done, failed=failed)) as made:
                async for trajectory in made:
                    yield trajectory

    def recalled(
        self, tasks: Iterable[Task], *, done: Collection[str], failed: Collection[str]
    ) -> Iterator[Trajectory]:
        """What earlier runs made of `tasks`, read with `load`."""
        jobs = self._jobs(tasks, range(self.k), policy=self.policy)
        return self._recalled(jobs, done=done, failed=failed)

    async def _waves(
        self, tasks: list[Task], policy: Policy, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncGenerator[Trajectory]:
        """Wave after wave over the tasks whose successes do not differ enough yet."""
        found: dict[str, set[str]] = {task.task_id: set() for task in tasks}
        for start in range(0, self.k, self.wave):
            wanting = [task for task in tasks if len(found[task.task_id]) < (self.enough_skeletons or 1)]
            indices = range(start, min(start + self.wave, self.k))
            jobs = list(self._jobs(wanting, indices, policy=policy))
            for trajectory in self._recalled(jobs, done=done, failed=failed):
                _note(trajectory, found)
            async with aclosing(self._rollouts(pending(jobs, done=done, failed=failed), policy)) as made:
                async for trajectory in made:
                    _note(trajectory, found)
                    yield trajectory

    def _jobs(self, tasks: Iterable[Task], indices: range, *, policy: Policy) -> Iterator[Job]:
        for task in tasks:
            group_id = make_group_id(task.task_id, self.name, policy, self.seed)
            for index in indices:
                yield Job(task, rollout_index=index, seed=self.seed, group_id=group_id)

    def _recalled(
        self, jobs: Iterable[Job], *, done: Collection[str], failed: Collection[str]
    ) -> Iterator[Trajectory]:
        """What earlier runs made of `jobs`, at whichever attempt it came out."""
        for job in jobs if self.load else ():
            attempt = open_attempt(job.group_id, job.rollout_index, failed=failed)
            trajectory_id = make_trajectory_id(job.group_id, job.rollout_index, attempt)
            trajectory = self.load(trajectory_id) if self.load and trajectory_id in done else None
            if trajectory is not None:
                yield trajectory

    def _rollouts(self, jobs: Iterable[Job], policy: Policy) -> AsyncGenerator[Trajectory]:
        return rollouts(
            jobs,
            environment=self.environment,
            engine=self.engine,
            renderer=self.renderer,
            sampling=self.sampling,
            settings=self.settings,
            synthesizer=self.name,
            policy=policy,
            run_id=self.run_id,
            max_in_flight=self.max_in_flight,
            infra_retries=self.infra_retries,
        )


def _note(trajectory: Trajectory, found: dict[str, set[str]]) -> None:
    if trajectory.success:
        found[trajectory.task_id].add(call_skeleton(trajectory))


def call_skeleton(trajectory: Trajectory) -> str:
    """Digest over the calls in order: names and normalised arguments; what was said does not matter."""
    calls = [call for turn in trajectory.turns for call in turn.tool_calls if call.ok]
    return canonical.digest([[call.name, _normal(call.parsed_arguments())] for call in calls], length=16)


def _normal(value: Any) -> Any:
    """Equal for values a tool would hardly tell apart: case, outer blanks and 1 against 1.0."""
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items()}
    return [_normal(item) for item in value] if isinstance(value, list) else value
