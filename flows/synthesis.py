"""The synthesis flow: a Prefect task per shard of a stage's tasks, over one open run and one model server.

Shards run one after another, so a shard that fails is retried alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, task
from prefect.utilities.annotations import quote

from flows.flow_parts import RETRYING, RUNS, one_flow_per_run, say
from flows.stages import verbs
from flows.stages.recipe import load_recipe


@task(name="synthesise", task_run_name="synthesise-{stage}-{number}-of-{shards}", **RETRYING)
async def synthesise_shard(work: verbs.Work, stage: str, number: int, shards: int) -> None:
    """Every `shards`-th task of the stage from `number` on (0-based)."""
    await verbs.synthesise(work, stage, say=say(), shard=(number, shards))


@task(name="finish", task_run_name="finish-{stage}", **RETRYING)
async def finish_stage(work: verbs.Work, stage: str) -> None:
    """Make what is still missing and write the stage's manifest."""
    await verbs.synthesise(work, stage, say=say())


@flow(name="synthesis", validate_parameters=True)
async def synthesis(
    recipe: Path, runs: Path = RUNS, stage: str = "", url: str = "", shards: int = 4, model: str = ""
) -> None:
    """Run the recipe's synthesis stages (or one), each in `shards` shards, with a model of the run.

    `model`: base, sft, grpo or a directory; the newest by default.
    """
    loaded = load_recipe(recipe)
    stages = verbs.chosen_stages(loaded, stage)
    async with (
        one_flow_per_run(loaded, runs),
        verbs.open_work(loaded, runs=runs, url=url, model=model, say=say()) as work,
    ):
        # Prefect would walk through an argument that is not quoted.
        held: Any = quote(work)
        verbs.refuse_options(work, stages)
        for name in stages:
            for number in range(shards):
                await synthesise_shard(held, name, number, shards)
            await finish_stage(held, name)
