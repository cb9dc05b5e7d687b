"""The diagnosis stage: the newest evaluation of a run (else its own trajectories) against played gold.

Gold is played once per task, in this process and unrecorded (media that its tools answer are dropped), so
that a failure can be told as a wrong tool or argument instead of only a wrong end state, and that the task's
capabilities are known. The result is written as `report/diagnosis.json` and `report/diagnosis.html`, with the
trajectories it names beside it. Not covered: the kinds, the weakness test and the plan
(`pipeline.diagnosis`), the page (`pipeline.reporting`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from data.files import write_atomically
from data.media import MediaStore
from data.store import Store
from data.tasks import Task
from data.trajectories import Trajectory
from flows.stages.progress import Say, silent
from flows.stages.show import renderer_of
from pipeline.diagnosis.diagnose import Diagnosis, diagnose
from pipeline.diagnosis.gold import GoldBook
from pipeline.environments.base import Environment
from pipeline.environments.play import play_turns
from pipeline.environments.registry import load_environment
from pipeline.reporting.diagnosis import write_diagnosis

EVALUATION = "evaluation.json"
"""The summary beside the episodes of a finished evaluation."""
_SAY_EVERY = 2000


class Diagnosed(NamedTuple):
    """A diagnosis, of what, and where the trajectories are."""

    diagnosis: Diagnosis
    of_what: str
    root: Path
    """The run's directory, or that of the evaluation."""


async def diagnose_run(store: Store, *, say: Say = silent) -> Diagnosed | None:
    """The diagnosis of a run; None where it holds no trajectories."""
    stored = store.recipe["environment"]
    named, options = (stored, {}) if isinstance(stored, str) else (stored["name"], stored["options"])
    environment = load_environment(named, **options)
    folders = sorted((store.root / "eval").glob(f"*/{EVALUATION}"), key=_age)
    if folders:
        root = folders[-1].parent
        with Store.open(root) as evaluated:
            return Diagnosed(await _diagnose(evaluated, environment, say), root.name, root)
    if store.ids("trajectories"):
        found = await _diagnose(store, environment, say)
        return Diagnosed(found, "all trajectories of the run", store.root)
    return None


def save_diagnosis(store: Store, found: Diagnosed) -> Path:
    """Write the page, its JSON and the pages of the trajectories that it names; returns the page's path."""

    def load(trajectory_id: str) -> Trajectory | None:
        row = held.get("trajectories", trajectory_id) or held.get("failures", trajectory_id)
        return row if isinstance(row, Trajectory) else None

    folder = store.root / "report"
    with Store.open(found.root) as held:
        page = write_diagnosis(
            found.diagnosis,
            folder,
            title=f"{store.root.name}: diagnosis of {found.of_what}",
            load=load,
            decode=renderer_of(store).decode,
        )
    write_atomically(folder / "diagnosis.json", found.diagnosis.model_dump_json(indent=1) + "\n")
    return page


async def gold_book(environment: Environment, tasks: Iterable[Task], *, say: Say = silent) -> GoldBook:
    """Every task with what its gold plays; raises what the environment raises."""
    book = GoldBook()
    with TemporaryDirectory(prefix="trajsmith-diagnose-") as folder:
        if hasattr(environment, "media"):
            environment.media = MediaStore(Path(folder))
        for number, task in enumerate(tasks, start=1):
            session = await environment.open(task)
            try:
                tools = session.tools
                book.add(task, await play_turns(session, task, environment.gold(task)), tools=tools)
            finally:
                await session.close()
            if number % _SAY_EVERY == 0:
                say(f"gold of {number:,} tasks played")
    return book


async def _diagnose(store: Store, environment: Environment, say: Say) -> Diagnosis:
    return diagnose(store.trajectories(), gold=await gold_book(environment, store.tasks(), say=say))


def _age(path: Path) -> float:
    return path.stat().st_mtime
