"""The training flow: supervised fine-tuning or GRPO, resumed from its own checkpoints."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from prefect import flow, task

from flows.flow_parts import RETRYING, RUNS, one_flow_per_run, publish_table, say
from flows.stages import verbs
from flows.stages.recipe import Recipe, load_recipe


@task(name="train", task_run_name="train-{method}", **RETRYING)
async def train(recipe: Recipe, method: str, runs: Path, url: str) -> str:
    """Train; one line about the result."""
    if method == "sft":
        return await asyncio.to_thread(verbs.train_sft, recipe, runs=runs, dry_run=False, say=say())
    return await verbs.train_grpo(recipe, runs=runs, url=url, dry_run=False, say=say())


@flow(name="training")
async def training(
    recipe: Path, runs: Path = RUNS, method: Literal["sft", "grpo"] = "sft", url: str = ""
) -> None:
    """Train on a run."""
    loaded = load_recipe(recipe)
    async with one_flow_per_run(loaded, runs):
        line = await train(loaded, method, runs, url)
    await publish_table(loaded, f"train-{method}", line)
