"""Groups of single steps: an assistant turn of a stored dialogue, written anew k times (LoopTool's training).

A prompt is the stored tokens before a step, never encoded again; a rollout is one turn, and nothing is
executed. Reward (arXiv 2511.09148, section 3.2): 1 where its calls are the label's as a multiset, else 0.
Where the label is words, it is what probing asks for (`synthesizers.looptool.samples`): words without a call,
of the same typed or marked answer, with the values that the user is to be told; the released code takes any
words for these. A cut turn scores 0. What stands before the step is one prompt span, so none of it is
trained. Not covered: whether another turn would do as well, which only a world knows (`Online`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from data import canonical
from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import (
    Blame,
    EnvironmentRef,
    Origin,
    Policy,
    Reward,
    Segment,
    Span,
    SpanKind,
    Termination,
    Trajectory,
    Usage,
    make_group_id,
)
from pipeline.checks.matching import made_calls, num_matched
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.errors import EngineError
from pipeline.renderers.base import Renderer
from pipeline.rollout import make_policy
from pipeline.rollout_author import Draw, trusted
from pipeline.rollout_settings import Mode, RolloutSettings
from rl.grpo_config import GrpoConfig
from rl.grpo_rewards import ChosenReward
from rl.grpo_sources import (
    UpdatableEngine,
    batch_seed,
    check_window,
    cycle_groups,
    refuse_unrewarded,
)
from synthesizers.looptool.probing import read_prediction
from synthesizers.looptool.samples import StepSample, difference, reply_holds, step_samples

VERIFIER = "step_match/1"
_SYNTHESIZER = "grpo_steps"


@dataclass(slots=True)
class Steps:
    """Steps of successful dialogues: those of weight above 0 whose context leaves room in the window."""

    rows: Sequence[Trajectory]
    load_task: Callable[[str], Task | None]
    """Task id to task, None where it is not known: then closing words need hold no value."""
    engine: UpdatableEngine
    renderer: Renderer
    sampling: Sampling
    settings: RolloutSettings
    on_trajectory: Callable[[Trajectory], None] = lambda trajectory: None
    """Told of every rollout once a batch is complete."""
    run_id: str = ""
    runner: asyncio.Runner | None = None
    chosen: ChosenReward | None = field(default=None, init=False)
    steps: dict[str, StepSample] = field(init=False)
    """By step id."""
    too_long: int = field(default=0, init=False)
    """Steps left out because their context fills the window."""

    def __post_init__(self) -> None:
        there = [sample for row in self.rows for sample in step_samples(row)]
        window = self.settings.max_context_tokens
        self.steps = {sample.step_id: sample for sample in there if len(sample.context) < window}
        self.too_long = len(there) - len(self.steps)

    def identity(self) -> str:
        """See `Source.identity`."""
        return canonical.digest(
            sorted(self.steps),
            sorted(row.content_digest() for row in self.rows),
            [self.renderer.digest, self.settings.digest, VERIFIER],
            self.sampling.identity(),
        )

    def check(self, config: GrpoConfig) -> None:
        """See `Source.check`."""
        config.check_sampling(self.sampling)
        if not self.steps:
            raise ConfigError(
                f"GRPO on steps got {len(self.rows)} dialogues and no step of them ({self.too_long} fill the "
                f"window of {self.settings.max_context_tokens} tokens); give successful ones that fit"
            )
        if config.search is not None:
            raise ConfigError("a step is one turn, which leaves nothing to search; leave search out")
        if self.settings.mode is not Mode.CHAT:
            raise ConfigError("GRPO on steps reads chat turns, and this environment writes calls inline")
        check_window(self.settings, config)

    def plan(self, config: GrpoConfig) -> list[list[str]]:
        """See `Source.plan`; groups are named by their step."""
        return cycle_groups(list(self.steps), config)

    def collect(self, names: Sequence[str], *, batch: int, config: GrpoConfig) -> list[Trajectory]:
        """See `Source.collect`. EngineError where no rollout of the batch got a reward."""
        assert self.runner is not None, "the trainer sets the runner"
        steps = [self.steps[name] for name in names]
        played = self.runner.run(self._play(steps, batch_seed(config, batch), config))
        for trajectory in played:
            self.on_trajectory(trajectory)
        refuse_unrewarded(played, batch)
        return played

    async def _play(self, steps: Sequence[StepSample], seed: int, config: GrpoConfig) -> list[Trajectory]:
        limit = asyncio.Semaphore(config.max_in_flight)
        policy = make_policy(
            self.engine, renderer=self.renderer, sampling=self.sampling, settings=self.settings
        )

        async def one(sample: StepSample, index: int) -> Trajectory:
            async with limit:
                return await self._rollout(sample, index, policy=policy, seed=seed)

        numbers = range(config.num_rollouts)
        return list(await asyncio.gather(*(one(sample, index) for sample in steps for index in numbers)))

    async def _rollout(self, sample: StepSample, index: int, *, policy: Policy, seed: int) -> Trajectory:
        """The step written once more; without a reward where the engine failed."""
        group_id = make_group_id(sample.step_id, _SYNTHESIZER, policy, seed)
        room = min(self.sampling.max_tokens, self.settings.max_context_tokens - len(sample.context))
        asked = replace(
            self.sampling,
            max_tokens=room,
            stop_token_ids=self.sampling.stop_token_ids or self.renderer.stop_token_ids,
            seed=Draw(sample.step_id, seed, index).turn_seed(0),
        )
        try:
            made = await self.engine.generate(list(sample.context), asked, n=1, affinity=group_id)
            [completion] = trusted(made, limit=room)
        except EngineError as error:
            return self._trajectory(
                sample, policy, group_id, index, seed, termination=Termination.INFRA_FAILURE,
                blame=Blame.INFRASTRUCTURE, error=f"EngineError: {error}",
            )  # fmt: skip
        return self._written(sample, completion, policy, group_id, index, seed)

    def _written(
        self,
        sample: StepSample,
        completion: Completion,
        policy: Policy,
        group_id: str,
        index: int,
        seed: int,
    ) -> Trajectory:
        """The rollout of what the model wrote, rewarded."""
        start, is_cut = len(sample.context), completion.finish_reason is FinishReason.LENGTH
        turn = read_prediction(self.renderer, sample, completion.token_ids)
        wanted, called = made_calls([sample.label]), made_calls([turn])
        fits = reply_holds(self.load_task(sample.trajectory.task_id), sample, turn)
        is_right = not is_cut and not difference(sample.label, turn, fits=fits)
        values = {"success": float(is_right), "matched": num_matched(wanted, called), "made": len(called)}
        segment = Segment(
            origin=Origin.SAMPLED,
            tools=sample.tools,
            token_ids=(*sample.context, *completion.token_ids),
            spans=(
                Span(0, start, SpanKind.PROMPT, -1),
                Span(
                    start,
                    start + len(completion.token_ids),
                    SpanKind.GENERATED,
                    sample.turn,
                    weights_version=completion.weights_version,
                ),
            ),
            logprobs=completion.logprobs,
        )
        return self._trajectory(
            sample, policy, group_id, index, seed,
            turns=(*sample.trajectory.turns[: sample.turn], turn),
            segments=(segment,),
            termination=Termination.TOKEN_BUDGET if is_cut else Termination.FINISHED,
            blame=Blame.AGENT if is_cut else Blame.NONE,
            reward=Reward.of(values, verifier=VERIFIER, artefact_digest=""),
            usage=Usage(prompt_tokens=start, generated_tokens=len(completion.token_ids), engine_calls=1),
        )  # fmt: skip

    def _trajectory(
        self, sample: StepSample, policy: Policy, group_id: str, index: int, seed: int, **fields: object
    ) -> Trajectory:
        row = sample.trajectory
        environment = EnvironmentRef(name=row.environment.name, version=row.environment.version, seed=seed)
        known: dict[str, object] = {
            "task_id": row.task_id,
            "group_id": group_id,
            "rollout_index": index,
            "parents": (row.trajectory_id,),
            "synthesizer": _SYNTHESIZER,
            "run_id": self.run_id,
            "template": row.template,
            "tags": row.tags,
            "policy": policy,
            "environment": environment,
            "turns": row.turns[: sample.turn],
        }
        return Trajectory.model_validate(known | fields)
