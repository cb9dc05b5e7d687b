"""One function per verb that works on a run: opens what it needs, runs one stage, says last that it is done.

Of a synthesis and a curation `manifests/<stage>.json` says so; of a training and an evaluation the summary
that they write last anyway, `training.json` and `evaluation.json`. The demo and the proof compose the same
stages over one open server instead. Not covered: parsing and printing (`flows.commands`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from data.store import Store
from data.tasks import Task
from flows.stages import run as runs_
from flows.stages.curate import Curation, curation_stage
from flows.stages.evaluate import Evaluation, evaluate
from flows.stages.policy import LivePolicy, open_policy, policy_label, policy_model, refuse_script_to_train
from flows.stages.progress import Say
from flows.stages.recipe import EvalSection, Recipe, SynthSection
from flows.stages.report import save_evaluation
from flows.stages.synthesize import (
    checked_synthesizer,
    make_synthesizer,
    refuse_script,
    section_tasks,
    select_tasks,
    synthesize,
)
from flows.stages.train import (
    STAGES,
    grpo_settings,
    grpo_tasks,
    latest_model,
    run_grpo,
    run_sft,
    sft_data,
    sft_settings,
)
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.renderers.load import load_renderer
from pipeline.rewards import build_reward
from rl.models import checkpoint_digest, resolve_model
from rl.results import TrainResult
from synthesizers.base import Synthesizer
from synthesizers.demonstration import GOLD


def synthesis_plan(recipe: Recipe, stage: str = "") -> list[str]:
    """What a synthesis would do, without doing it."""
    environment = runs_.environment_of(recipe)
    lines = []
    for name, section in chosen_stages(recipe, stage).items():
        tasks = select_tasks(environment, section.split, count=section.tasks, skip=section.skip)
        templates = len({task.template for task in tasks})
        lines.append(
            f"{name}: {section.synthesizer} on {len(tasks)} tasks of {environment.name}/{section.split} "
            f"({templates} templates), {planned_episodes(section)} episodes, options {section.options}"
        )
    return lines


async def run_synthesis(
    recipe: Recipe, stage: str, *, model: str = "", runs: Path, url: str, say: Say
) -> None:
    """Run the recipe's synthesis stages (or one) with a model of the run (see `chosen_model`)."""
    stages = chosen_stages(recipe, stage)
    async with open_work(recipe, runs=runs, url=url, model=model, say=say) as work:
        refuse_options(work, stages)
        for name in stages:
            await synthesise(work, name, say=say)


def refuse_options(work: Work, stages: Iterable[str]) -> None:
    """ConfigError where a stage's synthesizer takes no such options: before the first stage works."""
    for name in stages:
        make_synthesizer(
            work.recipe.synth[name],
            environment=work.environment,
            policy=work.policy,
            store=work.store,
            seed=work.recipe.seed,
        )


async def synthesise(work: Work, name: str, *, say: Say, shard: tuple[int, int] = (0, 1)) -> None:
    """The stage `name` of the recipe, or a shard of it; see `synthesis_stage`."""
    await synthesis_stage(
        work.store,
        name,
        work.recipe.synth[name],
        environment=work.environment,
        policy=work.policy,
        seed=work.recipe.seed,
        say=say,
        shard=shard,
    )


@dataclass(frozen=True)
class Work:
    """What a stage that acts works with."""

    recipe: Recipe
    store: Store
    environment: Environment
    policy: LivePolicy


@asynccontextmanager
async def open_work(
    recipe: Recipe, *, runs: Path, url: str = "", model: str = "", say: Say
) -> AsyncIterator[Work]:
    """The run, open for writing, and the policy that `model` names (see `chosen_model`)."""
    environment = runs_.environment_of(recipe, root=runs / recipe.name)
    with runs_.open_run(recipe, runs) as store:
        model_dir = chosen_model(store.root, policy_model(recipe.policy), model)
        async with open_policy(
            with_url(recipe, url).policy,
            model_dir=model_dir,
            label=policy_label(recipe.policy),
            environment=environment,
            say=say,
        ) as policy:
            yield Work(recipe, store, environment, policy)


async def synthesis_stage(
    store: Store,
    name: str,
    section: SynthSection,
    *,
    environment: Environment,
    policy: LivePolicy,
    seed: int,
    say: Say,
    shard: tuple[int, int] = (0, 1),
) -> None:
    """One synthesis over an open policy; nothing is made twice.

    `shard` (i, n) makes only every n-th task from number i on, and leaves the manifest to the whole.
    Raises EngineError or EnvironmentFailure where episodes are left that infrastructure broke, ConfigError
    where the run was begun in another version of the environment.
    """
    number, count = shard
    runs_.refuse_other_version(store, environment)
    synthesizer = make_synthesizer(section, environment=environment, policy=policy, store=store, seed=seed)
    config, inputs = section.model_dump(mode="json"), synthesis_inputs(synthesizer, policy)
    if runs_.stage_done(store, f"synth-{name}", config=config, inputs=inputs):
        say(f"synth {name}: done before")
        return
    tasks = select_tasks(environment, section.split, count=section.tasks, skip=section.skip)[number::count]
    most: Callable[[Sequence[Task]], int] | None = getattr(synthesizer, "most", None)
    planned = most(tasks) if most else planned_episodes(section) * len(tasks) // section.tasks
    meter = await synthesize(
        store,
        synthesizer,
        tasks,
        planned=planned,
        at_most=most is not None,
        give_up_after=policy.max_in_flight,
        say=lambda line: say(f"synth {name}: {line}"),
    )
    if meter.unfinished:
        raise meter.failure()
    if count == 1:
        refuse_wrong_gold(store, section, tasks)
        counts = {"tasks": len(tasks), "trajectories": len(store.ids("trajectories"))}
        runs_.finish(store, f"synth-{name}", config=config, inputs=inputs, counts=counts)


def synthesis_inputs(synthesizer: Synthesizer, policy: LivePolicy) -> dict[str, str]:
    """What a synthesis depends on besides its section: weights, a memory, and what it reads of the store."""
    inputs = {"weights": policy.engine.weights_version}
    if policy.settings.memory is not None:
        inputs["memory"] = policy.settings.memory.digest
    read: Callable[[], dict[str, str]] | None = getattr(synthesizer, "inputs", None)
    return inputs | (read() if read is not None else {})


def refuse_wrong_gold(store: Store, section: SynthSection, tasks: Sequence[Task]) -> None:
    """EnvironmentFailure where a stored demonstration of `tasks` without slips did not score 1."""
    if section.synthesizer != "demonstration" or section.options.get("slip"):
        return
    wanted = {task.task_id for task in tasks}
    wrong = sum(
        row.synthesizer == "demonstration"
        and row.policy.name == GOLD
        and row.task_id in wanted
        and not row.success
        for row in store.trajectories()
    )
    if wrong:
        raise EnvironmentFailure(
            f"{store.root} holds {wrong} demonstrations whose gold did not score 1. Mend the environment "
            f"(`trajsmith env check` shows where) and start a run of another name"
        )


async def run_curation(recipe: Recipe, *, runs: Path, say: Say) -> Curation:
    """Curate the run's trajectories."""
    renderer = load_renderer(policy_model(recipe.policy))
    with runs_.open_run(recipe, runs) as store:
        return await curation_stage(
            store, recipe, environment=runs_.environment_of(recipe), renderer=renderer, say=say
        )


def train_sft(recipe: Recipe, *, runs: Path, dry_run: bool, say: Say) -> str:
    """Supervised fine-tuning from the base model; one line about the result."""
    sft_settings(recipe.sft)
    base = resolve_model(recipe.policy.model)
    with runs_.rehearsed_run(recipe, runs) if dry_run else runs_.open_run(recipe, runs) as store:
        if dry_run:
            rows = sft_data(store, recipe.sft)
            tokens = sum(len(segment.token_ids) for row in rows for segment in row.segments)
            size = f"{len(rows)} trajectories, {tokens} tokens an epoch"
            return f"would train on {size}; settings {recipe.sft.settings}"
        result = run_sft(
            store,
            recipe.sft,
            model_dir=base,
            out_dir=store.root / "models" / "sft",
            renderer=load_renderer(base),
            say=say,
        )
    trained = f"{result.steps} steps, {result.trained_tokens} trained tokens{_left_out(result)}"
    return f"{result.model_dir}: {trained}, loss {result.losses[-1]:.3f}"


async def train_grpo(recipe: Recipe, *, runs: Path, url: str, dry_run: bool, say: Say) -> str:
    """GRPO from the run's supervised model (the base where there is none); one line about the result."""
    refuse_script_to_train(recipe.policy)
    grpo_settings(recipe.grpo)
    environment = runs_.environment_of(recipe, root=runs / recipe.name)
    with runs_.rehearsed_run(recipe, runs) if dry_run else runs_.open_run(recipe, runs) as store:
        runs_.refuse_other_version(store, environment)
        base = policy_model(recipe.policy)
        start = chosen_model(store.root, base, "sft") if (store.root / "models" / "sft").is_dir() else base
        tasks = grpo_tasks(store, recipe.grpo, environment, weights=checkpoint_digest(start))
        rewarded = build_reward(recipe.grpo.reward).name
        if dry_run:
            return f"would train on {len(tasks)} tasks, reward {rewarded}; settings {recipe.grpo.settings}"
        async with open_policy(
            with_url(recipe, url).policy,
            model_dir=start,
            label=policy_label(recipe.policy),
            environment=environment,
            say=say,
        ) as policy:
            result = await run_grpo(
                tasks,
                recipe.grpo,
                model_dir=start,
                out_dir=store.root / "models" / "grpo",
                environment=environment,
                policy=policy,
                on_trajectory=store.append,
                on_candidate=store.append,
                run_id=store.root.name,
                say=say,
            )
        store.seal()
    last = result.history[-1]
    sampled = f"{result.steps} steps, {result.generated_tokens} sampled tokens{_left_out(result)}"
    return f"{result.model_dir}: {sampled}, reward {last.reward_mean:.2f}, success {last.success_rate:.0%}"


def _left_out(result: TrainResult) -> str:
    return f", {result.dropped_overlong} rows too long to train on" if result.dropped_overlong else ""


async def run_evaluation(
    recipe: Recipe, model: str, *, name: str, runs: Path, url: str, say: Say
) -> Evaluation:
    """Evaluate a model of the run (base, a stage, a directory; the newest by default)."""
    if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ConfigError(f"--name {name!r:.120} cannot name a folder; use letters, digits, '_', '.' and '-'")
    async with open_work(recipe, runs=runs, url=url, model=model, say=say) as work:
        return await evaluation_stage(
            work.store,
            recipe,
            name or evaluation_name(work.store.root, recipe, model),
            environment=work.environment,
            policy=work.policy,
            section=recipe.evaluate,
            say=say,
        )


def evaluation_name(root: Path, recipe: Recipe, model: str) -> str:
    """What an evaluation is called by default: after its model, or `scripted`."""
    if recipe.policy.engine == "scripted":
        return "scripted"
    base = resolve_model(recipe.policy.model)
    model_dir = chosen_model(root, base, model)
    return "base" if model_dir == base else model_dir.name


async def evaluation_stage(
    store: Store,
    recipe: Recipe,
    name: str,
    *,
    environment: Environment,
    policy: LivePolicy,
    section: EvalSection,
    say: Say,
) -> Evaluation:
    """Evaluate over an open policy and keep the summary beside the episodes."""
    of = f"{section.split}-{section.tasks_of}" if section.tasks_of else section.split
    root = store.root / "eval" / f"{name}-{of}-t{section.temperature:g}"
    if section.tasks_of:
        runs_.refuse_other_version(store, environment)
    tasks = section_tasks(section, environment=environment, store=store)
    policy.told_of(tasks)
    found = await evaluate(
        root,
        tasks,
        name=name,
        environment=environment,
        policy=policy,
        section=section,
        seed=recipe.seed,
        reward=recipe.grpo.reward,
        say=lambda line: say(f"eval {name}: {line}"),
    )
    save_evaluation(root, found)
    return found


def chosen_stages(recipe: Recipe, stage: str) -> dict[str, SynthSection]:
    """The synthesis stages to run. ConfigError where the recipe has none of that name."""
    if not recipe.synth:
        raise ConfigError(f"recipe {recipe.name} has no synth section; see examples/demo.yaml")
    if stage and stage not in recipe.synth:
        raise ConfigError(
            f"recipe {recipe.name} has no synth stage {stage!r}; it has {', '.join(recipe.synth)}"
        )
    chosen = {stage: recipe.synth[stage]} if stage else dict(recipe.synth)
    for section in chosen.values():
        checked_synthesizer(section)
        if recipe.policy.engine == "scripted":
            refuse_script(section)
    return chosen


def chosen_model(root: Path, base: Path, model: str) -> Path:
    """The directory `model` names: "" = the newest of the run, "base", a stage, or a directory."""
    if model == "":
        return latest_model(root, base)
    if model == "base":
        return base
    own = {path.name: path for path in (root / "models").glob("*") if path.is_dir()}
    if model in STAGES and model not in own:
        raise ConfigError(f"{root} has no model {model!r} yet; run `trajsmith train {model}` first")
    return own[model] if model in own else resolve_model(model, names=("base", *STAGES))


def planned_episodes(section: SynthSection) -> int:
    """Episodes of a synthesis when nothing stops early and no plan is given up."""
    parameters = inspect.signature(checked_synthesizer(section)).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    chosen = defaults | section.options
    per_plan = "actors" if chosen.get("teacher") == "gold" else "k"
    rollouts = int(chosen.get(per_plan, 1))
    if rollouts < 1:
        raise ConfigError(f"{per_plan} must be at least 1, got {rollouts}")
    return section.tasks * rollouts * int(chosen.get("plans", 1))


def with_url(recipe: Recipe, url: str) -> Recipe:
    """The recipe with another server, where one is given."""
    if not url:
        return recipe
    return recipe.model_copy(update={"policy": recipe.policy.model_copy(update={"url": url})})
