"""The curation flow: the run's trajectories through the recipe's filters, the funnel as an artifact."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task

from flows.flow_parts import RETRYING, RUNS, one_flow_per_run, publish_table, say
from flows.stages import verbs
from flows.stages.curate import Curation
from flows.stages.recipe import Recipe, load_recipe
from flows.stages.tables import funnel_markdown


@task(name="curate", **RETRYING)
async def curate(recipe: Recipe, runs: Path) -> Curation:
    """One pass over the whole pool: duplicates and the mix are decided over all of it."""
    return await verbs.run_curation(recipe, runs=runs, say=say())


@flow(name="curation")
async def curation(recipe: Path, runs: Path = RUNS) -> None:
    """Curate a run."""
    loaded = load_recipe(recipe)
    async with one_flow_per_run(loaded, runs):
        found = await curate(loaded, runs)
    await publish_table(loaded, "funnel", funnel_markdown(found))
