"""The verb `loop`: rounds of data from the model's own errors, and what they are worth."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from flows.commands.common import (
    RUNS,
    DryRunOption,
    JsonOption,
    RecipeArgument,
    RunsOption,
    StatusLines,
    UrlOption,
    print_json,
)


def loop(
    recipe: RecipeArgument,
    rounds: Annotated[int, typer.Option(min=0, max=1000, help="Rounds; those of the recipe by default.")] = 0,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31 - 1, help="A repetition with this seed, in a run of its own."),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of result rows, one `seed-<n>.json` for each seed.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Only print the table of the rows in --results.")
    ] = False,
    curve: Annotated[
        Path | None, typer.Option(help="With --table: where the curve by round goes, as SVG.")
    ] = None,
    runs: RunsOption = RUNS,
    url: UrlOption = "",
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Probe, repair, expand, curate, train and evaluate, round after round, against two baselines."""
    from data.files import write_atomically
    from flows.stages.loop.table import curve_svg, loop_markdown, row_markdown
    from flows.stages.recipe import load_recipe
    from pipeline.errors import ConfigError

    if curve is not None and not table:
        raise ConfigError("--curve draws the rows of a folder; name it with --table --results DIR")
    if as_json and (table or dry_run):
        raise ConfigError("--json prints the row of a loop; leave out --table and --dry-run")
    if table and (rounds or seed is not None or dry_run):
        raise ConfigError("--table prints what --results holds; leave out --rounds, --seed and --dry-run")
    loaded = load_recipe(recipe)
    if table:
        if results is None:
            raise ConfigError("--table prints the rows of a folder; name it with --results")
        typer.echo(loop_markdown(results))
        if curve is not None:
            write_atomically(curve, curve_svg(results))
        return
    if dry_run:
        from flows.stages.loop.plan import loop_plan

        typer.echo("\n".join(loop_plan(loaded, rounds=rounds)))
        return
    from flows.stages.loop.driver import run_loop

    work = run_loop(loaded, runs=runs, rounds=rounds, seed=seed, url=url, results=results, say=StatusLines())
    row = asyncio.run(work)
    print_json(row) if as_json else typer.echo(row_markdown(row))
