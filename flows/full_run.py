"""The whole job as one flow: the other flows in order. Each skips what is on disk already.

Decides the order, from what supervised training reads, and which model acts: what is trained on is made
with the base, what GRPO and the filters measure with the supervised model. So a finished run stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from prefect import flow

from flows.curation import curation
from flows.evaluation import evaluation
from flows.flow_parts import RUNS
from flows.stages.recipe import Recipe, load_recipe
from flows.synthesis import synthesis
from flows.training import training

Step = Literal["synthesis", "curation", "sft", "grpo", "evaluation"]


class Planned(NamedTuple):
    """A step; of a synthesis, its stage ("" = all) and the model that acts ("" = the newest)."""

    step: Step
    stage: str = ""
    model: str = ""


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


def whole_job(recipe: Recipe) -> list[Planned]:
    """What supervised training reads, that training, the other syntheses with its model, GRPO, evaluation.

    Curation comes before the training that reads `curated`, else after all syntheses.
    """
    read = [name for name, section in recipe.synth.items() if section.synthesizer == recipe.sft.data]
    if recipe.sft.data == "curated":
        made = [Planned("synthesis", model="base"), Planned("curation"), Planned("sft")]
    else:
        rest = [name for name in recipe.synth if name not in read]
        made = [
            *(Planned("synthesis", name, "base") for name in read),
            Planned("sft"),
            *(Planned("synthesis", name, "sft") for name in rest),
            Planned("curation"),
        ]
    return [*made, Planned("grpo"), Planned("evaluation")]
