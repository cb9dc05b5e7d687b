"""The demo: the whole job on one small real model, in the order a user would do it.

base evaluation -> demonstrations -> SFT -> rejection sampling -> curation -> GRPO -> evaluation, over one
model server whose weights are replaced as training goes on. Every stage resumes, so a demo that was
killed goes on where it was. It shows learning on one seed; `flows.stages.prove` compares.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from data.store import Store
from flows.stages import run as runs_
from flows.stages.curate import curation_stage
from flows.stages.evaluate import Evaluation
from flows.stages.policy import LivePolicy, open_policy, refuse_script_to_train
from flows.stages.progress import Say
from flows.stages.recipe import Recipe
from flows.stages.report import report
from flows.stages.train import grpo_tasks, run_grpo, run_sft
from flows.stages.verbs import chosen_stages, evaluation_stage, synthesis_stage
from pipeline.environments.base import Environment
from pipeline.reporting.content import Rate
from rl.models import model_label, resolve_model

DEMO_RECIPE = Path(__file__).parents[2] / "examples" / "demo.yaml"
_TEMPERATURES = (0.0, 1.0)
_SYNTHESES = _DEMONSTRATIONS, _ROLLOUTS = "demonstrations", "rollouts"


async def run_demo(recipe: Recipe, *, runs: Path, say: Say, show: Callable[[str], None]) -> Path:
    """Run the demo into `<runs>/<recipe name>`; prints a table with `show`, returns the report's path.

    ConfigError where the policy cannot be trained, or the recipe lacks a synthesis that the demo runs.
    """
    refuse_script_to_train(recipe.policy)
    for stage in _SYNTHESES:
        chosen_stages(recipe, stage)
    label = model_label(recipe.policy.model)
    show(f"{label}: learning {recipe.environment.name} in {runs / recipe.name}")
    base = resolve_model(recipe.policy.model)
    with runs_.open_run(recipe, runs) as store:
        environment = runs_.environment_of(recipe, root=store.root)
        async with open_policy(
            recipe.policy,
            model_dir=base,
            label=label,
            environment=environment,
            log_path=store.root / "server.log",
            say=say,
        ) as policy:
            evaluations = await _learn(store, recipe, base, environment, policy, say=say, show=show)
        page = await report(store, model_label=label)
    show(table(evaluations))
    show(f"report: {page}")
    return page


async def _learn(
    store: Store,
    recipe: Recipe,
    base: Path,
    environment: Environment,
    policy: LivePolicy,
    *,
    say: Say,
    show: Callable[[str], None],
) -> list[Evaluation]:
    """All stages over the open policy."""
    evaluations = await _evaluate(store, recipe, "base", environment, policy, say)
    show(table(evaluations))

    synthesise = partial(
        synthesis_stage, store, environment=environment, policy=policy, seed=recipe.seed, say=say
    )
    await synthesise(_DEMONSTRATIONS, recipe.synth[_DEMONSTRATIONS])
    models = store.root / "models"
    sft = run_sft(
        store, recipe.sft, model_dir=base, out_dir=models / "sft", renderer=policy.renderer, say=say
    )
    await policy.load(Path(sft.model_dir))
    evaluations += await _evaluate(store, recipe, "sft", environment, policy, say)
    show(table(evaluations))

    await synthesise(_ROLLOUTS, recipe.synth[_ROLLOUTS])
    await curation_stage(store, recipe, environment=environment, renderer=policy.renderer, say=say)
    tasks = grpo_tasks(store, recipe.grpo, environment, weights=sft.weights_digest)
    say(f"grpo: {len(tasks)} of {recipe.grpo.tasks} tasks are neither always nor never solved")
    await run_grpo(
        tasks,
        recipe.grpo,
        model_dir=Path(sft.model_dir),
        out_dir=models / "grpo",
        environment=environment,
        policy=policy,
        on_trajectory=store.append,
        on_candidate=store.append,
        run_id=store.root.name,
        say=say,
    )
    store.seal()
    return evaluations + await _evaluate(store, recipe, "grpo", environment, policy, say)


async def _evaluate(
    store: Store, recipe: Recipe, name: str, environment: Environment, policy: LivePolicy, say: Say
) -> list[Evaluation]:
    """One evaluation per temperature."""
    found = []
    for temperature in _TEMPERATURES:
        section = recipe.evaluate.model_copy(update={"temperature": temperature})
        made = await evaluation_stage(
            store, recipe, name, environment=environment, policy=policy, section=section, say=say
        )
        made.refuse_broken()
        found.append(made)
    return found


def table(evaluations: list[Evaluation]) -> str:
    """The evaluations as plain text, one line each, with 95 % intervals."""
    lines = [f"{'policy':8s} {'tasks':26s} {'success':22s} valid calls"]
    for found in evaluations:
        lines.append(
            f"{found.name:8s} {found.group:26s} {_shown(found.success):22s} {_shown(found.valid_calls)}"
        )
    return "\n".join(lines)


def _shown(rate: Rate) -> str:
    if rate.value is None:
        return "no call attempted"
    return f"{rate.value:4.0%} [{rate.low * 100:.0f}, {rate.high * 100:.0f}] of {rate.trials}"
