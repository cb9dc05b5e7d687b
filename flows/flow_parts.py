"""What the flows share: when a task is retried, one flow per run directory, log lines, artifacts.

Not covered: what a stage does (`flows.stages`). Prefect's database holds nothing that a run needs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prefect import get_client, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.concurrency.asyncio import concurrency

from data.errors import TrajsmithError
from flows.stages.progress import Say
from flows.stages.recipe import Recipe
from pipeline.errors import EngineError

RUNS = Path("runs")


def infrastructure_broke(task: Any, task_run: Any, state: Any) -> bool:
    """Whether a failed task may go better next time: a server, environment or judge failed, not the input."""
    return isinstance(state.data, TrajsmithError) and state.data.exit_code == EngineError.exit_code


RETRYING: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": 10,
    "retry_condition_fn": infrastructure_broke,
    "cache_policy": NO_CACHE,
}
"""Options of every task: retried on infrastructure errors only; what is done is known from the disk alone."""


def say() -> Say:
    """Status lines into the log of the flow run."""
    logger = get_run_logger()
    return lambda line: logger.info("%s", line)


@asynccontextmanager
async def one_flow_per_run(recipe: Recipe, runs: Path) -> AsyncIterator[None]:
    """Wait until no other flow works on the run's directory. A run locked by a command line is an error."""
    name = "trajsmith-" + re.sub(r"[^A-Za-z0-9]+", "-", str((runs / recipe.name).resolve())).strip("-")
    async with get_client() as client:
        await client.upsert_global_concurrency_limit_by_name(name, 1)
    async with concurrency(name, occupy=1):
        yield


async def publish_table(recipe: Recipe, what: str, markdown: str) -> None:
    """A Markdown artifact `<run>-<what>`."""
    key = re.sub(r"[^a-z0-9]+", "-", f"{recipe.name}-{what}".lower()).strip("-")
    await acreate_markdown_artifact(markdown=markdown, key=key, description=f"{what} of run {recipe.name}")
