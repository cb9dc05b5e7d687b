"""The training stages: which records go in, which model comes out. `training.json` beside it is written last.

Training itself is in `rl`, imported when a stage runs. The model of a stage is `models/<stage>`. SFT starts
from the recipe's model, GRPO from `models/sft` where there is one; what acts (synthesis, evaluation) takes
the newest (`latest_model`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from flows.stages.policy import LivePolicy
from flows.stages.progress import Say, silent
from flows.stages.recipe import GrpoSection, SftSection
from flows.stages.rewards import choose_reward
from flows.stages.synthesize import section_tasks
from pipeline.checks.options import check_options
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError
from pipeline.renderers.base import Renderer
from rl.results import StepMetrics, TrainResult
from synthesizers.hints import LABEL as HINTED

if TYPE_CHECKING:
    from pipeline.engines.vllm import VllmEngine
    from rl.grpo_config import GrpoConfig
    from rl.grpo_sources import Source
    from rl.sft import SftConfig

STAGES = ("sft", "grpo")


def latest_model(root: Path, base: Path) -> Path:
    """The model of the training stage of a run that finished last, `base` where none has."""
    from rl.results import RESULT_FILE

    results = [root / "models" / stage / RESULT_FILE for stage in STAGES]
    finished = [path for path in results if path.is_file()]
    return max(finished, key=lambda path: path.stat().st_mtime).parent if finished else base


def sft_data(store: Store, section: SftSection) -> list[Trajectory]:
    """What supervised fine-tuning trains on: the curated rows, or a synthesizer's successes.

    ConfigError where there are none.
    """
    if section.data == "curated":
        rows = list(store.read_curated())
    else:
        rows = [row for row in store.trajectories() if row.synthesizer == section.data and row.success]
    if not rows:
        raise ConfigError(
            f"run {store.root.name} has no trajectories of {section.data!r} to train on; run "
            f"`trajsmith synth` (and `curate` for `curated`) first"
        )
    return rows


def sft_settings(section: SftSection) -> SftConfig:
    """ConfigError names the field, the value and what is allowed."""
    from rl.sft import SftConfig

    config: SftConfig = settings_of(SftConfig, section.settings, "sft.settings")
    return config


def grpo_settings(section: GrpoSection) -> GrpoConfig:
    """ConfigError names the field, the value and what is allowed."""
    from rl.grpo_config import GrpoConfig

    config: GrpoConfig = settings_of(GrpoConfig, section.settings, "grpo.settings")
    return config


def run_sft(
    store: Store,
    section: SftSection,
    *,
    model_dir: Path,
    out_dir: Path,
    renderer: Renderer,
    say: Say = silent,
) -> TrainResult:
    """Fine-tune `model_dir` on the section's data into `out_dir`. Blocks; resumes from its checkpoints."""
    from rl.sft import train_sft

    return train_sft(
        sft_data(store, section),
        model_dir=model_dir,
        out_dir=out_dir,
        config=sft_settings(section),
        stop_token_ids=renderer.stop_token_ids,
        on_progress=lambda metrics: say(step_line("sft", metrics)),
    )


def grpo_tasks(store: Store, section: GrpoSection, environment: Environment, *, weights: str) -> list[Task]:
    """The tasks of the section; where there are any, only those that the weights training starts from
    were measured to solve neither always nor never."""
    tasks = section_tasks(section, environment=environment, store=store, skip=section.skip)
    if not section.only_measured:
        return tasks
    outcomes: dict[str, set[bool]] = {}
    for row in store.trajectories():
        rolled = row.synthesizer in ("rejection_sampling", section.tasks_of) and HINTED not in row.labels
        if rolled and row.policy.weights == weights and row.success is not None:
            outcomes.setdefault(row.task_id, set()).add(row.success)
    mixed = [task for task in tasks if len(outcomes.get(task.task_id, ())) == 2]
    return mixed or tasks


async def run_grpo(
    tasks: Sequence[Task],
    section: GrpoSection,
    *,
    model_dir: Path,
    out_dir: Path,
    environment: Environment,
    policy: LivePolicy,
    on_trajectory: Callable[[Trajectory], None],
    on_candidate: Callable[[Verdict], None] = lambda verdict: None,
    run_id: str,
    say: Say = silent,
) -> TrainResult:
    """Train `model_dir` online on `tasks` against the policy's server, which holds the result afterwards.

    Every rollout goes to `on_trajectory` as it finishes, every candidate of a search to `on_candidate`.
    Resumes from its checkpoints.
    """
    from rl.grpo_sources import Online

    config = grpo_settings(section)
    state_dir = out_dir.with_name(out_dir.name + ".reward")
    chosen = await choose_reward(section.reward, environment=environment, tasks=tasks, state_dir=state_dir)
    source = Online(
        tasks=tasks,
        environment=environment,
        engine=trainers_engine(policy),
        renderer=policy.renderer,
        sampling=replace(policy.sampling, temperature=config.temperature),
        settings=policy.settings,
        on_trajectory=on_trajectory,
        on_candidate=on_candidate,
        chosen=chosen,
        run_id=run_id,
    )
    return await train_served(
        source, config=config, model_dir=model_dir, out_dir=out_dir, policy=policy, stage="grpo", say=say
    )


def trainers_engine(policy: LivePolicy) -> VllmEngine:
    """The server with connections of its own: the trainer waits for rollouts inside its own event loop."""
    return policy.server_engine().twin()


async def train_served(
    source: Source,
    *,
    config: GrpoConfig,
    model_dir: Path,
    out_dir: Path,
    policy: LivePolicy,
    stage: str,
    say: Say,
) -> TrainResult:
    """GRPO on a source whose engine is the policy's server, which holds the result afterwards."""
    from rl.grpo import train_grpo

    result = await asyncio.to_thread(
        train_grpo,
        source,
        model_dir=model_dir,
        out_dir=out_dir,
        config=config,
        stop_token_ids=policy.renderer.stop_token_ids,
        on_progress=lambda metrics: say(step_line(stage, metrics)),
    )
    await policy.load(Path(result.model_dir))
    return result


def settings_of(kind: type[Any], settings: dict[str, Any], where: str) -> Any:
    """A trainer's config from recipe settings. ConfigError names the unknown field and what exists."""
    known = kind.__dataclass_fields__
    if unknown := sorted(set(settings) - set(known)):
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    check_options(kind, settings, where=where)
    return kind(**settings)


def step_line(stage: str, metrics: StepMetrics) -> str:
    """One status line of one optimiser step."""
    seconds = metrics.train_seconds + metrics.rollout_seconds + metrics.push_seconds
    line = (
        f"{stage} step {metrics.step}/{metrics.total_steps}: loss {metrics.loss:.3f}, "
        f"{metrics.row_tokens / max(metrics.train_seconds, 1e-9):.0f} row tokens/s, {seconds:.1f} s, "
        f"{(metrics.total_steps - metrics.step) * seconds:.0f} s left"
    )
    if metrics.dropped_overlong:
        line += f", {metrics.dropped_overlong} rows too long"
    if metrics.trajectories:
        line += (
            f", reward {metrics.reward_mean:.2f}, flat groups {metrics.zero_variance_share:.0%}, "
            f"gap {metrics.logprob_gap:.3f}, entropy {metrics.entropy:.2f}"
        )
        if metrics.masked_share:
            line += f", {metrics.masked_share:.1%} of tokens masked or capped"
        if metrics.without_reward:
            line += f", {metrics.without_reward} rollouts without reward"
        if metrics.dropped_singletons:
            line += f", {metrics.dropped_singletons} groups of one left out"
        if "selected" in metrics.selection:
            chosen, left = metrics.selection["selected"], metrics.selection["not_selected"]
            line += f", {chosen:.0f} of {chosen + left:.0f} rollouts selected"
        if "search_biased" in metrics.selection:
            biased, effective = metrics.selection["search_biased"], metrics.selection["search_effective"]
            line += ", search biased" if biased else f", search weights leave {effective:.0%}"
        if metrics.reward_parts:
            line += f", success {metrics.success_rate:.0%}"
        if "early_finish" in metrics.reward_parts:
            line += f", early finish {metrics.reward_parts['early_finish']:.0%}"
        if metrics.judge_failures:
            line += f", {metrics.judge_failures} judgements failed"
    return line
