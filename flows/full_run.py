"""The whole job as one flow: the other flows in order. Each skips what is on disk already."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import flow

from flows.curation import curation
from flows.evaluation import evaluation
from flows.flow_parts import RUNS
from flows.stages.order import Planned, Step, whole_job
from flows.stages.recipe import load_recipe
from flows.synthesis import synthesis
from flows.training import training


@flow(name="full-run")
async def full_run(
    recipe: Path, runs: Path = RUNS, url: str = "", shards: int = 4, steps: Sequence[Step] = ()
) -> None:
    """Run `steps` in the order they are given, without any all in the order of `whole_job`."""
    planned = [Planned(step) for step in steps]
    for step, stage, model in planned or whole_job(load_recipe(recipe)):
        if step == "synthesis":
            await synthesis(recipe, runs, stage=stage, url=url, shards=shards, model=model)
        elif step == "curation":
            await curation(recipe, runs)
        elif step == "evaluation":
            await evaluation(recipe, runs, url=url)
        else:
            await training(recipe, runs, method=step, url=url)
