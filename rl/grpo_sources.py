"""Where groups come from: played now against a model server, or stored before (steps: `rl.grpo_steps`).

A source plans which groups a step takes (a function of seed and step, so a resumed run takes the same
ones) and delivers their trajectories. Not covered: advantages and rows (`rl.grpo`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from data import canonical
from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import Termination, Trajectory
from data.verdicts import Verdict
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.errors import EngineError
from pipeline.renderers.base import Renderer
from pipeline.rollout import Job, RolloutSettings, rollouts
from rl.grpo_config import GrpoConfig
from rl.grpo_rewards import ChosenReward
from rl.rows import require_sampled
from synthesizers.tree_search.batch import Searcher, SearchJob
from synthesizers.tree_search.scores import StepScores
from synthesizers.tree_search.settings import Pick

_log = logging.getLogger("trajsmith.grpo")
MAX_BROKEN_SHARE, LEAST_BROKEN = 0.2, 4
"""Rollouts of a batch that the infrastructure may break for good: this share, and always fewer than this
many. Ours; a run that goes on with most of its tools down learns from what happened to get through."""


@runtime_checkable
class UpdatableEngine(Engine, Protocol):
    """An engine whose weights can be replaced (`pipeline.engines.vllm`)."""

    async def reload_weights(self, directory: Path) -> str:
        """Load a checkpoint on every server; the digest of what they loaded."""
        ...

    async def load_adapter(self, directory: Path, *, name: str = "adapter", version: str) -> None:
        """Answer with a LoRA adapter from now on."""
        ...


class Source(Protocol):
    """Groups for the trainer."""

    runner: asyncio.Runner | None
    """Where engines and judges are called; made by the trainer when None."""
    chosen: ChosenReward | None
    """What is trained on; None = verified success."""

    @property
    def engine(self) -> UpdatableEngine | None:
        """What makes rollouts and gets the weights of every step; None where they were made before."""
        ...

    def identity(self) -> str:
        """Digest of what the groups are made of; a checkpoint of another one is refused."""
        ...

    def check(self, config: GrpoConfig) -> None:
        """ConfigError where the groups cannot be trained on as `config` says."""
        ...

    def plan(self, config: GrpoConfig) -> list[list[str]]:
        """Names of the groups of every batch of rollouts, in order."""
        ...

    def collect(self, names: Sequence[str], *, batch: int, config: GrpoConfig) -> list[Trajectory]:
        """The trajectories of the groups `names` of batch number `batch`, failed ones included."""
        ...


def num_batches(config: GrpoConfig) -> int:
    """Batches of rollouts in a run: each serves `num_iterations` steps."""
    return -(-config.steps // config.num_iterations)


def batch_seed(config: GrpoConfig, batch: int) -> int:
    """What the rollouts of a batch are drawn by."""
    return int(canonical.digest("grpo", config.seed, batch, length=8), 16)


def check_window(settings: RolloutSettings, config: GrpoConfig) -> None:
    """ConfigError where a rollout may be longer than a row."""
    if settings.max_context_tokens > config.episode_tokens:
        raise ConfigError(
            f"rollouts may reach max_context_tokens={settings.max_context_tokens}, above "
            f"episode_tokens={config.episode_tokens}; lower the first or raise the second"
        )


def refuse_unrewarded(played: Sequence[Trajectory], batch: int) -> None:
    """EngineError where no rollout of a batch got a reward, or the infrastructure broke too many for good.

    An attempt that a later one made up for does not count, nor do rollouts that were cut as stragglers.
    """
    attempts = [((each.group_id, each.rollout_index), each) for each in played]
    rewarded = {key for key, each in attempts if each.reward is not None}
    left = {key: each for key, each in attempts if key not in rewarded}
    broken = [each for each in left.values() if each.termination is not Termination.CANCELLED]
    number, reasons = len(rewarded) + len(left), "; ".join(sorted({each.error for each in left.values()})[:3])
    if not rewarded:
        raise EngineError(f"none of {number} rollouts of batch {batch} got a reward: {reasons}")
    if len(broken) >= LEAST_BROKEN and len(broken) > MAX_BROKEN_SHARE * number:
        raise EngineError(
            f"{len(broken)} of {number} rollouts of batch {batch} were broken by the infrastructure, more "
            f"than {MAX_BROKEN_SHARE:.0%}; what is left is no fair sample. They said: {reasons}"
        )


def cycle_groups(names: Sequence[str], config: GrpoConfig) -> list[list[str]]:
    """`groups_per_step` names per batch: shuffled by the seed, reshuffled whenever all were taken."""
    queue: list[str] = []
    batches: list[list[str]] = []
    for _ in range(num_batches(config)):
        batch: list[str] = []
        while len(batch) < min(config.groups_per_step, len(names)):
            if not queue:
                queue = sorted(names)
                random.Random(f"{config.seed}/{len(batches)}/{len(batch)}").shuffle(queue)
            # After a reshuffle a name may be in the batch already: it keeps its place for the next batch.
            name = next(name for name in reversed(queue) if name not in batch)
            queue.remove(name)
            batch.append(name)
        batches.append(batch)
    return batches


@dataclass(slots=True)
class Online:
    """Rollouts made by our loop with the weights of the last step.

    The engine must not be in use by another event loop; rollouts run in the loop of `runner`.
    """

    tasks: Sequence[Task]
    environment: Environment
    engine: UpdatableEngine
    renderer: Renderer
    sampling: Sampling
    settings: RolloutSettings
    on_trajectory: Callable[[Trajectory], None] = lambda trajectory: None
    """Told of every rollout as it finishes, failed attempts too; the place to store it."""
    on_candidate: Callable[[Verdict], None] = lambda verdict: None
    """Told of every candidate of a search, chosen or not."""
    run_id: str = ""
    chosen: ChosenReward | None = None
    """What is trained on; None = verified success."""
    runner: asyncio.Runner | None = None
    """Where engine calls run; made by the trainer when None."""

    def identity(self) -> str:
        """See `Source.identity`."""
        return canonical.digest(
            sorted(task.task_id for task in self.tasks),
            [self.environment.name, self.environment.version, self.renderer.digest, self.settings.digest],
            self.sampling.identity(),
            *_chosen_identity(self.chosen),
        )

    def check(self, config: GrpoConfig) -> None:
        """See `Source.check`."""
        config.check_sampling(self.sampling)
        if not self.tasks:
            raise ConfigError("online GRPO got no tasks; give at least one")
        check_window(self.settings, config)
        if config.search is not None:
            scores = StepScores(self.environment, config.search.scores)
            for task in self.tasks:
                scores.check(task)
            self._searcher(0, config)
            if config.search.pick is Pick.TOP:
                _log.warning(
                    "search.pick is 'top': what is trained on is no sample of the policy, and nothing can "
                    "correct for it; 'soft' draws with known probabilities and weights its rollouts"
                )

    def plan(self, config: GrpoConfig) -> list[list[str]]:
        """See `Source.plan`; groups are named by their task."""
        return cycle_groups([task.task_id for task in self.tasks], config)

    def collect(self, names: Sequence[str], *, batch: int, config: GrpoConfig) -> list[Trajectory]:
        """See `Source.collect`. EngineError where no rollout of the batch got a reward."""
        known = {task.task_id: task for task in self.tasks}
        seed = batch_seed(config, batch)
        assert self.runner is not None, "the trainer sets the runner"
        played = self.runner.run(self._play([known[name] for name in names], seed, config))
        refuse_unrewarded(played, batch)
        if self.chosen is not None:
            self.chosen.refuse_failures(played)
        return played

    async def _play(self, tasks: Sequence[Task], seed: int, config: GrpoConfig) -> list[Trajectory]:
        played: list[Trajectory] = []
        async with aclosing(self._made(tasks, seed, config)) as made:
            async for record in made:
                if isinstance(record, Verdict):
                    self.on_candidate(record)
                    continue
                trajectory = record
                if self.chosen is not None and not self.chosen.waits:
                    (trajectory,) = await self.chosen.rescored([trajectory])
                if self.chosen is None or not self.chosen.waits:
                    self.on_trajectory(trajectory)
                played.append(trajectory)
        if self.chosen is not None and self.chosen.waits:
            try:
                played = await self.chosen.rescored(played)
            finally:  # what was played is kept, judged or not
                for trajectory in played:
                    self.on_trajectory(trajectory)
        return sorted(played, key=lambda item: (item.group_id, item.rollout_index, item.attempt))

    def _made(
        self, tasks: Sequence[Task], seed: int, config: GrpoConfig
    ) -> AsyncGenerator[Trajectory | Verdict]:
        """Rollouts of the tasks, `num_rollouts` each; by searches where they are set."""
        if config.search is not None:
            numbers = range(config.group_size // config.search.width)
            searches = [SearchJob(task, number) for task in tasks for number in numbers]
            return self._searcher(seed, config).searches(searches, max_in_flight=config.max_in_flight)
        return rollouts(
            [Job(task, rollout_index=i, seed=seed) for task in tasks for i in range(config.num_rollouts)],
            environment=self.environment,
            engine=self.engine,
            renderer=self.renderer,
            sampling=self.sampling,
            settings=self.settings,
            synthesizer="grpo",
            run_id=self.run_id,
            max_in_flight=config.max_in_flight,
        )

    def _searcher(self, seed: int, config: GrpoConfig) -> Searcher:
        assert config.search is not None
        return Searcher(
            environment=self.environment,
            engine=self.engine,
            renderer=self.renderer,
            sampling=self.sampling,
            settings=self.settings,
            search=config.search,
            seed=seed,
            synthesizer="grpo",
            run_id=self.run_id,
        )


class Replay:
    """Stored groups, their sampled log-probs as the behaviour policy."""

    engine: UpdatableEngine | None = None

    def __init__(self, trajectories: Sequence[Trajectory], *, chosen: ChosenReward | None = None) -> None:
        """`chosen`: what is trained on, scored anew; None = verified success."""
        self.chosen = chosen
        self.runner: asyncio.Runner | None = None
        self._groups: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in trajectories:
            self._groups[trajectory.group_id].append(trajectory)

    def identity(self) -> str:
        """See `Source.identity`."""
        return canonical.digest(
            sorted(item.content_digest() for group in self._groups.values() for item in group),
            *_chosen_identity(self.chosen),
        )

    def check(self, config: GrpoConfig) -> None:
        """See `Source.check`: everything sampled, at one temperature, with processed log-probs."""
        if not self._groups:
            raise ConfigError("replay got no trajectories; give stored groups of sampled ones")
        self._check_choices(config)
        for trajectory in (member for group in self._groups.values() for member in group):
            if trajectory.reward is None:
                continue
            for index in range(len(trajectory.segments)):
                require_sampled(trajectory, index)
            if trajectory.policy.logprobs_of != "processed":
                raise ConfigError(
                    f"log-probs of trajectory {trajectory.trajectory_id} are of "
                    f"{trajectory.policy.logprobs_of!r}, and only 'processed' ones (of the sampled "
                    f"distribution) can be replayed; sample it again"
                )
            config.check_sampling(_stored_sampling(trajectory))

    def _check_choices(self, config: GrpoConfig) -> None:
        """ConfigError for settings of rollouts that are still to be made."""
        if config.search is not None:
            raise ConfigError(
                "search chooses while rollouts are made, and replay trains on stored ones (those of a search "
                "carry their weights); leave search out, or train online"
            )
        largest = max(sum(item.reward is not None for item in group) for group in self._groups.values())
        if config.selection is not None and largest <= config.group_size:
            raise ConfigError(
                f"selection keeps group_size={config.group_size} rollouts of more, and no stored group has "
                f"more than {largest} with a reward; lower group_size, or leave selection out"
            )

    def plan(self, config: GrpoConfig) -> list[list[str]]:
        """See `Source.plan`."""
        return cycle_groups(list(self._groups), config)

    def collect(self, names: Sequence[str], *, batch: int, config: GrpoConfig) -> list[Trajectory]:
        """See `Source.collect`."""
        stored = [trajectory for name in names for trajectory in self._groups[name]]
        if self.chosen is None:
            return stored
        assert self.runner is not None, "the trainer sets the runner"
        scored = self.runner.run(self.chosen.rescored(stored))
        self.chosen.refuse_failures(scored)
        return scored


def _chosen_identity(chosen: ChosenReward | None) -> tuple[str, ...]:
    return () if chosen is None else (chosen.identity(),)


def _stored_sampling(trajectory: Trajectory) -> Sampling:
    """The part of the stored sampling parameters that decides the distribution."""
    stored = canonical.loads(trajectory.policy.sampling)
    names = ("temperature", "top_p", "top_k", "min_p")
    if "temperature" not in stored:
        raise ConfigError(
            f"trajectory {trajectory.trajectory_id} does not say at which temperature it was sampled "
            f"(policy.sampling is {trajectory.policy.sampling}); replay needs it"
        )
    return Sampling(**{name: stored[name] for name in names if name in stored})
