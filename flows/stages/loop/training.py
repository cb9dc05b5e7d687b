"""What an arm's model is trained with in a round: supervised, or by GRPO on single steps (`loop.train`).

The start model is supervised, whatever `loop.train` says, and so is `rejection_sampling`, which is
supervised by definition. With `train: grpo` the loop's own arm and `static` take steps on groups of stored
turns that are written anew (`rl.grpo_steps`), as LoopTool trains. Weights go on from the kept model, the
optimizer starts anew. Not covered: which steps there are, and whether the model is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.tasks import Task
from data.trajectories import Trajectory
from flows.stages.policy import LivePolicy
from flows.stages.progress import Say
from flows.stages.proof import within
from flows.stages.recipe import Recipe
from flows.stages.train import settings_of, sft_settings, train_served, trainers_engine
from pipeline.errors import ConfigError
from rl.results import TrainResult
from rl.rows import sft_rows

if TYPE_CHECKING:
    from rl.grpo_config import GrpoConfig
    from rl.grpo_steps import Steps
    from rl.sft import SftConfig

PASSES = 2
"""Times a round goes over its steps with GRPO, where no number of optimiser steps is given. The paper: 2."""
SUPERVISED_ARMS = ("rejection_sampling",)
Tasks = Callable[[], Mapping[str, Task]]


def by_grpo(recipe: Recipe, number: int, arm: str) -> bool:
    """Whether round `number` of an arm is trained by GRPO."""
    return recipe.loop.train == "grpo" and number > 0 and arm not in SUPERVISED_ARMS


def round_settings(recipe: Recipe, number: int, arm: str) -> dict[str, Any]:
    """The trainer's settings in a round; round 0 is the start model's."""
    if by_grpo(recipe, number, arm):
        return recipe.grpo.settings | recipe.loop.settings
    own = number and recipe.loop.train == "sft"
    return recipe.sft.settings | (recipe.loop.settings if own else {})


def training_key(recipe: Recipe, number: int, arm: str, *, steps: int) -> dict[str, Any]:
    """What a finished training depends on besides data and weights."""
    key = {**round_settings(recipe, number, arm), "steps": steps, "tokens": recipe.loop.train_tokens}
    return key | {"train": "grpo"} if by_grpo(recipe, number, arm) else key


def check_training(recipe: Recipe) -> None:
    """ConfigError where a trainer does not take its settings, or GRPO has nothing to sample with."""
    from rl.grpo_config import GrpoConfig
    from rl.sft import SftConfig

    section = recipe.loop
    sft_settings(recipe.sft)
    if section.train == "sft":
        settings_of(SftConfig, recipe.sft.settings | section.settings, "loop.settings")
        return
    config: GrpoConfig = settings_of(GrpoConfig, recipe.grpo.settings | section.settings, "loop.settings")
    if config.search is not None:
        raise ConfigError("loop.train: grpo writes single turns, which leave nothing to search; drop search")
    if recipe.policy.engine == "scripted":
        raise ConfigError(
            "loop.train: grpo samples from a model, and policy.engine is scripted; set policy.engine: vllm, "
            "or loop.train: sft"
        )


async def train_round(
    recipe: Recipe,
    policy: LivePolicy,
    data: Sequence[Trajectory],
    tasks: Tasks,
    *,
    number: int,
    arm: str,
    start: Path,
    out: Path,
    steps: int,
    say: Say,
) -> TrainResult:
    """Train the model in `start` on `data` into `out`; resumes from its checkpoints.

    `tasks` are those of the data, by id. `steps`: optimiser steps, 0 = as the recipe says.
    """
    if by_grpo(recipe, number, arm):
        source = _steps(recipe, policy, data, tasks())
        settings = round_settings(recipe, number, arm)
        config = grpo_config(recipe, settings, num_groups=len(source.steps), steps=steps)
        source.sampling = replace(source.sampling, temperature=config.temperature)
        return await train_served(
            source, config=config, model_dir=start, out_dir=out, policy=policy, stage="train", say=say
        )
    from rl.sft import train_sft

    return train_sft(
        data,
        model_dir=start,
        out_dir=out,
        config=_sft_config(recipe, number, arm, data, steps=steps),
        stop_token_ids=policy.renderer.stop_token_ids,
        on_progress=lambda step: say(f"train step {step.step}/{step.total_steps}: loss {step.loss:.3f}"),
    )


def _steps(
    recipe: Recipe, policy: LivePolicy, data: Sequence[Trajectory], tasks: Mapping[str, Task]
) -> Steps:
    """The steps of `data`, written anew on the policy's server."""
    from rl.grpo_steps import Steps

    return Steps(
        rows=data,
        load_task=tasks.get,
        engine=trainers_engine(policy),
        renderer=policy.renderer,
        sampling=policy.sampling,
        settings=policy.settings,
        run_id=recipe.name,
    )


def grpo_config(recipe: Recipe, settings: Mapping[str, Any], *, num_groups: int, steps: int) -> GrpoConfig:
    """Exactly `steps`; without a number those of the settings, else PASSES over the groups, in either case as
    long as the round's tokens last (row tokens and sampled ones)."""
    from rl.grpo_config import GrpoConfig

    config: GrpoConfig = settings_of(GrpoConfig, dict(settings), "grpo.settings and loop.settings")
    if steps:
        return replace(config, steps=steps, token_budget=0)
    if "steps" not in settings:
        groups = min(config.groups_per_step, max(1, num_groups))
        batches = max(1, ceil(PASSES * num_groups / groups))
        config = replace(config, steps=batches * config.num_iterations)
    return replace(config, token_budget=config.token_budget or recipe.loop.train_tokens)


def _sft_config(
    recipe: Recipe, number: int, arm: str, data: Sequence[Trajectory], *, steps: int
) -> SftConfig:
    """Exactly `steps`; without a number the epochs over the data, in a round as long as its tokens last."""
    from rl.sft import SftConfig

    settings = round_settings(recipe, number, arm)
    config: SftConfig = settings_of(SftConfig, settings, "sft.settings and loop.settings")
    if steps:
        return replace(config, epochs=steps, max_steps=steps)  # an epoch holds a step at least
    rows, most = sft_rows(data), recipe.loop.train_tokens if number else 0
    all_of_it = config.epochs * sum(len(row.token_ids) for row in rows)
    return within(config, rows, most) if 0 < most < all_of_it else config
