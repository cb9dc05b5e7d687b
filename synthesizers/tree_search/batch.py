"""Many searches at once: the one way to run them, for synthesis and for training rollouts.

Decided here: searches of a task are one group, told apart from plain rollouts by their harness digest; a
search that the infrastructure broke is made again as a whole, under a new attempt. Not covered: what a search
does (`search`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from data import canonical
from data.tasks import Task
from data.trajectories import Policy, Trajectory, make_group_id, make_trajectory_id
from data.verdicts import Verdict
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError
from pipeline.renderers.base import Renderer
from pipeline.rollout import make_policy
from pipeline.rollout_author import Draw, SamplingAuthor
from pipeline.rollout_episode import Identity
from pipeline.rollout_pool import Emit, pooled
from pipeline.rollout_settings import RolloutSettings
from pipeline.rollout_tokens import PromptCache
from synthesizers.tree_search.branch import Branch, Cost
from synthesizers.tree_search.scores import StepScores
from synthesizers.tree_search.search import Found, Search
from synthesizers.tree_search.settings import SearchSettings


@dataclass(frozen=True, slots=True)
class SearchJob:
    """One search to be made; its trajectories are the rollouts from `number * width` on."""

    task: Task
    number: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Searcher:
    """Everything that searches have in common."""

    environment: Environment
    engine: Engine
    renderer: Renderer
    sampling: Sampling
    settings: RolloutSettings
    search: SearchSettings
    seed: int = 0
    synthesizer: str = "tree_search"
    run_id: str = ""

    def __post_init__(self) -> None:
        if self.settings.deadlines.group is not None:
            raise ConfigError(
                f"a search has no stragglers to cut, got a group deadline of {self.settings.deadlines.group} "
                f"s; leave policy.group_seconds out"
            )

    @property
    def policy(self) -> Policy:
        """The identity of what is sampled from now, with the search as a part of its harness."""
        plain = make_policy(
            self.engine, renderer=self.renderer, sampling=self.sampling, settings=self.settings
        )
        harness = canonical.digest("searched", plain.harness, self.search.digest, length=16)
        return plain.model_copy(update={"harness": harness})

    def group_id(self, task: Task, policy: Policy) -> str:
        """The group of all trajectories of a task."""
        return make_group_id(task.task_id, self.synthesizer, policy, self.seed)

    async def found(
        self, job: SearchJob, *, policy: Policy, scores: StepScores, prompts: PromptCache | None = None
    ) -> Found:
        """One search, run to its end."""
        scores.check(job.task)
        identity = Identity(
            group_id=self.group_id(job.task, policy),
            synthesizer=self.synthesizer,
            policy=policy,
            seed=self.seed,
            rollout_index=job.number * self.search.width,
            attempt=job.attempt,
            run_id=self.run_id,
        )
        author = SamplingAuthor(
            self.engine,
            renderer=self.renderer,
            sampling=self.sampling,
            settings=self.settings,
            draw=Draw(job.task.task_id, self.seed, identity.rollout_index),
            max_tokens=job.task.budget.max_tokens,
            affinity=identity.group_id,
            prompts=prompts,
        )
        root = Branch(
            job.task,
            environment=self.environment,
            author=author,
            settings=self.settings,
            identity=identity,
            cost=Cost(),
            replay=self.search.replay,
        )
        return await Search(root, settings=self.search, scores=scores).run()

    async def searches(
        self,
        jobs: Iterable[SearchJob],
        *,
        is_done: Callable[[str], bool] = lambda trajectory_id: False,
        max_in_flight: int = 64,
        infra_retries: int = 1,
    ) -> AsyncGenerator[Trajectory | Verdict]:
        """What searches find as they end, the verdicts of one before its trajectories.

        `max_in_flight` bounds the branches at a time. Trajectories for whose id `is_done` are left out.
        """
        policy, scores = self.policy, StepScores(self.environment, self.search.scores)
        prompts = PromptCache(self.renderer)

        async def play(job: SearchJob, emit: Emit[Trajectory | Verdict]) -> None:
            for attempt in range(job.attempt, job.attempt + infra_retries + 1):
                tried = SearchJob(job.task, job.number, attempt)
                found = await self.found(tried, policy=policy, scores=scores, prompts=prompts)
                for verdict in found.verdicts:
                    await emit(verdict)
                for trajectory in found.trajectories:
                    if not is_done(trajectory.trajectory_id):
                        await emit(trajectory)
                if all(trajectory.reward is not None for trajectory in found.trajectories):
                    break

        at_once = max(1, max_in_flight // (self.search.candidates * self.search.width))
        async with aclosing(pooled(jobs, play, max_in_flight=at_once)) as played:
            async for record in played:
                yield record


def pending_searches(
    searcher: Searcher,
    tasks: Iterable[Task],
    *,
    searches: int,
    done: Collection[str],
    failed: Collection[str],
) -> Iterable[SearchJob]:
    """The searches of which a trajectory is missing, each at its first attempt without a recorded failure."""
    policy, width = searcher.policy, searcher.search.width
    for task in tasks:
        group_id = searcher.group_id(task, policy)
        for number in range(searches):
            places = range(number * width, (number + 1) * width)
            attempt = 0
            while any(make_trajectory_id(group_id, place, attempt) in failed for place in places):
                attempt += 1
            if any(make_trajectory_id(group_id, place, attempt) not in done for place in places):
                yield SearchJob(task, number, attempt)
