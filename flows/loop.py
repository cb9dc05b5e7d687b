"""The loop's flow: all rounds in one task, since every arrow of them resumes from the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from prefect import flow, task

from flows.flow_parts import RETRYING, RUNS, one_flow_per_run, publish_table, say
from flows.stages.loop.driver import run_loop
from flows.stages.loop.table import row_markdown
from flows.stages.recipe import Recipe, load_recipe


@task(name="loop", **RETRYING)
async def improve(recipe: Recipe, rounds: int, runs: Path, url: str) -> dict[str, Any]:
    """Make the missing arrows; the loop's row. Training blocks, so it all has a thread of its own."""
    work = run_loop(recipe, runs=runs, rounds=rounds, url=url, say=say())
    return await asyncio.to_thread(asyncio.run, work)


@flow(name="loop")
async def loop(recipe: Path, runs: Path = RUNS, rounds: int = 0, url: str = "") -> None:
    """Run the loop of a recipe; `rounds` replaces the recipe's number where it is not 0."""
    loaded = load_recipe(recipe)
    async with one_flow_per_run(loaded, runs):
        row = await improve(loaded, rounds, runs, url)
    await publish_table(loaded, "loop", row_markdown(row))
