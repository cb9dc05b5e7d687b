"""The diagnosis stage: the newest evaluation of a run (else its own trajectories) against played gold.

Gold is played once per task, in this process and unrecorded (media that its tools answer are dropped), so
that a failure can be told as a wrong tool or argument instead of only a wrong end state. Not covered: the
kinds (`pipeline.diagnosis`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from data.media import MediaStore
from data.messages import ToolCall
from data.store import Store
from data.tasks import Task
from pipeline.diagnosis.diagnose import Diagnosis, diagnose
from pipeline.environments.base import Environment
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment

EVALUATION = "evaluation.json"
"""The summary beside the episodes of a finished evaluation."""


async def diagnose_run(store: Store) -> tuple[Diagnosis | None, str]:
    """A diagnosis and what it is of; None where the run holds no trajectories."""
    stored = store.recipe["environment"]
    named, options = (stored, {}) if isinstance(stored, str) else (stored["name"], stored["options"])
    environment = load_environment(named, **options)
    folders = sorted((store.root / "eval").glob(f"*/{EVALUATION}"), key=_age)
    if folders:
        with Store.open(folders[-1].parent) as evaluated:
            return await _diagnose(evaluated, environment), folders[-1].parent.name
    if store.ids("trajectories"):
        return await _diagnose(store, environment), "all trajectories of the run"
    return None, ""


async def gold_calls(environment: Environment, tasks: Iterable[Task]) -> dict[str, Sequence[ToolCall]]:
    """Task id to the calls its gold makes; raises what the environment raises."""
    known: dict[str, Sequence[ToolCall]] = {}
    with TemporaryDirectory(prefix="trajsmith-diagnose-") as folder:
        if hasattr(environment, "media"):
            environment.media = MediaStore(Path(folder))
        for task in tasks:
            played = await play(environment, task, environment.gold(task))
            known[task.task_id] = [call for turn in played.turns for call in turn.tool_calls]
    return known


async def _diagnose(store: Store, environment: Environment) -> Diagnosis:
    known = await gold_calls(environment, store.tasks())
    return diagnose(store.trajectories(), gold_calls=known.get)


def _age(path: Path) -> float:
    return path.stat().st_mtime
