"""What one step of GRPO reports: the figures of its batch of rollouts and of its update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from data.trajectories import Trajectory
from rl.advantages import AdvantageReport
from rl.grpo_config import GrpoConfig
from rl.results import StepMetrics
from rl.rows import Row


@dataclass(slots=True)
class Collected:
    """What the last batch of rollouts held."""

    report: AdvantageReport = field(default_factory=AdvantageReport)
    selection: dict[str, float] = field(default_factory=dict)
    reward_parts: dict[str, float] = field(default_factory=dict)
    trajectories: int = 0
    generated_tokens: int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    dropped_overlong: int = 0
    """Rows beside `rows` that were too long."""


def step_metrics(
    number: int,
    config: GrpoConfig,
    trainer: Any,
    collected: Collected,
    *,
    fresh: bool,
    train_seconds: float,
    push_seconds: float,
    digest: str,
) -> StepMetrics:
    """The record of one step. Rollout figures are counted once per batch (`fresh`)."""
    sums, report = trainer.sums, collected.report
    tokens = max(sums.tokens, 1)
    return StepMetrics(
        step=number,
        total_steps=config.steps,
        loss=sums.loss,
        trained_tokens=sums.tokens,
        row_tokens=sum(len(row.token_ids) for row in collected.rows if row.advantage != 0.0),
        computed_tokens=sums.computed_tokens,
        grad_norm=trainer.grad_norm,
        learning_rate=config.learning_rate,
        train_seconds=train_seconds,
        dropped_overlong=collected.dropped_overlong if fresh else 0,
        rollout_seconds=collected.seconds if fresh else 0.0,
        push_seconds=push_seconds,
        **report.figures(),
        reward_parts=collected.reward_parts,
        selection=collected.selection if fresh else {},
        trajectories=collected.trajectories if fresh else 0,
        without_reward=report.without_reward if fresh else 0,
        judge_failures=report.judge_failures if fresh else 0,
        dropped_singletons=report.dropped_singletons if fresh else 0,
        generated_tokens=collected.generated_tokens if fresh else 0,
        entropy=sums.entropy / tokens,
        masked_share=sums.corrected / tokens,
        kl_to_sampler=sums.kl / tokens,
        logprob_gap=sums.gap / tokens,
        clip_share=sums.clipped / tokens,
        weights_digest=digest,
    )


def sampled_tokens(trajectory: Trajectory) -> int:
    """Tokens that were sampled for a trajectory: of one that a search found its share, which is less than it
    holds where it has a prefix in common with others; what it holds where its usage is not recorded."""
    kept = sum(segment.num_generated for segment in trajectory.segments)
    return trajectory.usage.generated_tokens or kept
