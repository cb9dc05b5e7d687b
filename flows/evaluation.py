"""The evaluation flow: held-out episodes; the evaluation and its diagnosis as artifacts."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, task

from data.store import Store
from flows.flow_parts import RETRYING, RUNS, one_flow_per_run, publish_table, say
from flows.stages import verbs
from flows.stages.diagnose import diagnose_run, save_diagnosis
from flows.stages.evaluate import Evaluation
from flows.stages.recipe import Recipe, load_recipe
from flows.stages.tables import diagnosis_markdown, evaluation_markdown


@task(name="evaluate", **RETRYING)
async def evaluate(recipe: Recipe, model: str, name: str, runs: Path, url: str) -> Evaluation:
    """Play the missing episodes and summarise all."""
    found = await verbs.run_evaluation(recipe, model, name=name, runs=runs, url=url, say=say())
    found.refuse_broken()
    return found


@flow(name="evaluation")
async def evaluation(recipe: Path, runs: Path = RUNS, model: str = "", name: str = "", url: str = "") -> None:
    """Evaluate a model of the run, the newest by default."""
    loaded = load_recipe(recipe)
    async with one_flow_per_run(loaded, runs):
        found = await evaluate(loaded, model, name, runs, url)
    await publish_table(loaded, "evaluation", evaluation_markdown(found))
    with Store.open(runs / loaded.name) as store:
        diagnosed = await diagnose_run(store, say=say())
        if diagnosed is not None:
            save_diagnosis(store, diagnosed, say=say())
    if diagnosed is not None:
        await publish_table(loaded, "diagnosis", diagnosis_markdown(diagnosed.diagnosis))
