"""The rollout loop: one policy on one task, and many of them at once.

`rollout` returns a record whatever happens; `rollouts` bounds how many run, retries what the
infrastructure broke and cuts stragglers of a group. Tokens: `pipeline.rollout_author`; the state
machine: `pipeline.rollout_episode`; settings: `pipeline.rollout_settings`. Not covered: what to do
with a high share of infrastructure failures, which is the caller's alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace

from data import canonical
from data.tasks import Task
from data.trajectories import Policy, Termination, Trajectory, make_group_id
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.renderers.base import Renderer
from pipeline.rollout_author import Draw, SamplingAuthor
from pipeline.rollout_episode import Episode, Identity
from pipeline.rollout_pool import Emit, pooled
from pipeline.rollout_settings import (
    ContextPolicy,
    Deadlines,
    InlineFormat,
    Mode,
    RolloutSettings,
    SummaryFormat,
)
from pipeline.rollout_tokens import PromptCache

__all__ = [
    "ContextPolicy",
    "Deadlines",
    "InlineFormat",
    "Job",
    "Mode",
    "RolloutSettings",
    "SummaryFormat",
    "make_policy",
    "rollout",
    "rollouts",
]


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to be made. `group_id` "" = computed from task, synthesizer, policy and seed."""

    task: Task
    rollout_index: int = 0
    seed: int = 0
    group_id: str = ""
    attempt: int = 0


def make_policy(
    engine: Engine, *, renderer: Renderer, sampling: Sampling, settings: RolloutSettings, name: str = ""
) -> Policy:
    """The identity of what acts: model, weights, renderer, harness and sampling as they are now."""
    if settings.mode is Mode.INLINE and settings.inline is not None:
        sampling = replace(sampling, stop=(*sampling.stop, *settings.inline.stop))
    return Policy(
        name=name or engine.name,
        weights=engine.weights_version,
        renderer=renderer.digest,
        harness=settings.digest,
        sampling=canonical.dumps(sampling.identity(), sort_keys=True),
        logprobs_of="processed",
    )


async def rollout(
    task: Task,
    *,
    environment: Environment,
    engine: Engine,
    renderer: Renderer,
    sampling: Sampling,
    settings: RolloutSettings,
    seed: int = 0,
    group_id: str = "",
    rollout_index: int = 0,
    attempt: int = 0,
    synthesizer: str = "rollout",
    policy: Policy | None = None,
    run_id: str = "",
    group_deadline: float | None = None,
    prompts: PromptCache | None = None,
) -> Trajectory:
    """One episode, recorded. An attempt repeats the draws of the attempt before it.

    `prompts` is shared by the rollouts of a batch. `usage.prompt_tokens` counts every token of the
    segments that was not sampled. Raises ConfigError, MissingExtraError and BudgetExceededError; every
    other failure is on the record, without a reward.
    """
    policy = policy or make_policy(engine, renderer=renderer, sampling=sampling, settings=settings)
    group_id = group_id or make_group_id(task.task_id, synthesizer, policy, seed)
    author = SamplingAuthor(
        engine,
        renderer=renderer,
        sampling=sampling,
        settings=settings,
        draw=Draw(task.task_id, seed, rollout_index),
        max_tokens=task.budget.max_tokens,
        affinity=group_id,
        prompts=prompts,
    )
    identity = Identity(
        group_id=group_id,
        synthesizer=synthesizer,
        policy=policy,
        seed=seed,
        rollout_index=rollout_index,
        attempt=attempt,
        run_id=run_id,
    )
    episode = Episode(task, environment=environment, author=author, settings=settings, identity=identity)
    return await episode.run(group_deadline=group_deadline)


async def rollouts(
    jobs: Iterable[Job],
    *,
    environment: Environment,
    engine: Engine,
    renderer: Renderer,
    sampling: Sampling,
    settings: RolloutSettings,
    synthesizer: str = "rollout",
    policy: Policy | None = None,
    run_id: str = "",
    max_in_flight: int = 64,
    infra_retries: int = 1,
) -> AsyncGenerator[Trajectory]:
    """Trajectories of `jobs` as they finish, every attempt of each; at most `max_in_flight` at a time.

    `jobs` is read lazily and a slow reader holds the workers back. An attempt that ended in
    infra_failure is followed by up to `infra_retries` more. Closing the iterator closes all sessions.
    """
    policy = policy or make_policy(engine, renderer=renderer, sampling=sampling, settings=settings)
    groups, prompts = _GroupClock(settings.deadlines.group), PromptCache(renderer)

    async def play(job: Job, emit: Emit[Trajectory]) -> None:
        group_id = job.group_id or make_group_id(job.task.task_id, synthesizer, policy, job.seed)
        for attempt in range(job.attempt, job.attempt + infra_retries + 1):
            trajectory = await rollout(
                job.task,
                environment=environment,
                engine=engine,
                renderer=renderer,
                sampling=sampling,
                settings=settings,
                seed=job.seed,
                group_id=group_id,
                rollout_index=job.rollout_index,
                attempt=attempt,
                synthesizer=synthesizer,
                policy=policy,
                run_id=run_id,
                group_deadline=groups.deadline(group_id),
                prompts=prompts,
            )
            await emit(trajectory)
            if trajectory.termination is not Termination.INFRA_FAILURE:
                break

    async with aclosing(pooled(jobs, play, max_in_flight=max_in_flight)) as played:
        async for trajectory in played:
            yield trajectory


class _GroupClock:
    """When each group is cut: a fixed time after its first rollout began."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._deadlines: dict[str, float] = {}

    def deadline(self, group_id: str) -> float | None:
        """Event-loop time, None without a group deadline."""
        if self._seconds is None:
            return None
        return self._deadlines.setdefault(group_id, asyncio.get_running_loop().time() + self._seconds)
