"""The whole job as one flow: the other flows in order. Each skips what is on disk already."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from prefect import flow

from flows.curation import curation
from flows.evaluation import evaluation
from flows.flow_parts import RUNS
from flows.synthesis import synthesis
from flows.training import training

Step = Literal["synthesis", "curation", "sft", "grpo", "evaluation"]
ALL: list[Step] = ["synthesis", "curation", "sft", "grpo", "evaluation"]


@flow(name="full-run")
async def full_run(
    recipe: Path, runs: Path = RUNS, url: str = "", shards: int = 4, steps: list[Step] = ALL
) -> None:
    """Run `steps` in the order they are given."""
    for step in steps:
        if step == "synthesis":
            await synthesis(recipe, runs, url=url, shards=shards)
        elif step == "curation":
            await curation(recipe, runs)
        elif step == "evaluation":
            await evaluation(recipe, runs, url=url)
        else:
            await training(recipe, runs, method=step, url=url)
