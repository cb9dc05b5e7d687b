"""The verbs that do work on a run: synth, curate, train, eval, demo, prove."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.common import (
    RUNS,
    DryRunOption,
    JsonOption,
    RecipeArgument,
    RunsOption,
    StatusLines,
    UrlOption,
    percent,
    print_json,
)

if TYPE_CHECKING:
    from flows.stages.evaluate import Evaluation

ModelOption = Annotated[
    str, typer.Option(help="base, sft, grpo, or a model directory; the newest by default.")
]


def synth(
    recipe: RecipeArgument,
    stage: Annotated[
        str, typer.Argument(help="A stage under `synth` in the recipe; all of them by default.")
    ] = "",
    model: ModelOption = "",
    runs: RunsOption = RUNS,
    url: UrlOption = "",
    dry_run: DryRunOption = False,
) -> None:
    """Make trajectories: run the recipe's synthesis stages, resuming what is not done."""
    from flows.stages import verbs
    from flows.stages.recipe import load_recipe

    loaded = load_recipe(recipe)
    if dry_run:
        typer.echo("\n".join(verbs.synthesis_plan(loaded, stage)))
        return
    work = verbs.run_synthesis(loaded, stage, model=model, runs=runs, url=url, say=StatusLines())
    asyncio.run(work)


def curate(recipe: RecipeArgument, runs: RunsOption = RUNS, as_json: JsonOption = False) -> None:
    """Filter the run's trajectories into `curated/`."""
    from flows.stages import verbs
    from flows.stages.recipe import load_recipe

    curation = asyncio.run(verbs.run_curation(load_recipe(recipe), runs=runs, say=StatusLines()))
    if as_json:
        print_json(curation.model_dump(mode="json"))
        return
    for row in curation.funnel:
        reasons = ", ".join(f"{reason.reason} {reason.count}" for reason in row.reasons)
        typer.echo(f"{row.name:20s} {row.seen:7d} -> {row.kept:7d}   {reasons}")


def sft(recipe: RecipeArgument, runs: RunsOption = RUNS, dry_run: DryRunOption = False) -> None:
    """Supervised fine-tuning on the run's data; the model goes to models/sft."""
    from flows.stages import verbs
    from flows.stages.recipe import load_recipe

    typer.echo(verbs.train_sft(load_recipe(recipe), runs=runs, dry_run=dry_run, say=StatusLines()))


class ProofName(StrEnum):
    """What is compared."""

    TRAINING = "training"
    CONTROL = "control"
    METHODS = "methods"
    FAILURES = "failures"
    HINDSIGHT = "hindsight"


def grpo(
    recipe: RecipeArgument, runs: RunsOption = RUNS, url: UrlOption = "", dry_run: DryRunOption = False
) -> None:
    """Reinforcement learning from models/sft (the base where there is none) to models/grpo."""
    from flows.stages import verbs
    from flows.stages.recipe import load_recipe

    work = verbs.train_grpo(load_recipe(recipe), runs=runs, url=url, dry_run=dry_run, say=StatusLines())
    typer.echo(asyncio.run(work))


def evaluate(
    recipe: RecipeArgument,
    model: ModelOption = "",
    name: Annotated[str, typer.Option(help="Name of the evaluation; the model's by default.")] = "",
    runs: RunsOption = RUNS,
    url: UrlOption = "",
    as_json: JsonOption = False,
) -> None:
    """Free-running episodes on held-out tasks: success and valid calls, with intervals."""
    from flows.stages import verbs
    from flows.stages.recipe import load_recipe

    work = verbs.run_evaluation(load_recipe(recipe), model, name=name, runs=runs, url=url, say=StatusLines())
    found = asyncio.run(work)
    _show(found, as_json=as_json)
    found.refuse_broken()


def _show(found: Evaluation, *, as_json: bool) -> None:
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    success, calls = found.success, found.valid_calls
    typer.echo(
        f"{found.name} ({found.group}), {found.model}: success "
        f"{percent(success.successes, success.trials, success.low, success.high)}, valid calls "
        f"{percent(calls.successes, calls.trials, calls.low, calls.high)}"
        f"{', ' if found.reliability else ''}{found.reliability}"
    )


def demo(
    runs: RunsOption = RUNS,
    recipe: Annotated[Path | None, typer.Option(help="Another recipe than the shipped one.")] = None,
) -> None:
    """The whole job on a small real model, from demonstrations to GRPO, with the figures before and after."""
    from flows.stages.demo import DEMO_RECIPE, run_demo
    from flows.stages.recipe import load_recipe

    asyncio.run(run_demo(load_recipe(recipe or DEMO_RECIPE), runs=runs, say=StatusLines(), show=typer.echo))


def prove(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of this repetition.")] = 0,
    of: Annotated[
        ProofName,
        typer.Option(
            help="training: ways of training; control: the same where reinforcement must win; "
            "methods: data of each synthesizer; failures: selection, search and hindsight; "
            "hindsight: the last alone, where failures are many."
        ),
    ] = ProofName.TRAINING,
    runs: RunsOption = RUNS,
    results: Annotated[
        Path | None, typer.Option(help="Where the JSON row goes; by default a folder per proof.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Only print the table of the rows there are.")
    ] = False,
) -> None:
    """Every arm at equal compute against held-out tasks; one JSON row per seed."""
    from flows.stages.proof import run_proof
    from flows.stages.prove import CONTROL, TRAINING
    from flows.stages.prove_failures import FAILURES, HINDSIGHT
    from flows.stages.prove_methods import METHODS
    from flows.stages.prove_table import markdown_table

    proofs = {
        ProofName.TRAINING: TRAINING,
        ProofName.CONTROL: CONTROL,
        ProofName.METHODS: METHODS,
        ProofName.FAILURES: FAILURES,
        ProofName.HINDSIGHT: HINDSIGHT,
    }
    folder = results or Path("benchmarks/results/prove") / of
    if not table:
        asyncio.run(run_proof(proofs[of], seed, runs=runs, results=folder, say=StatusLines()))
    typer.echo(markdown_table(folder))
