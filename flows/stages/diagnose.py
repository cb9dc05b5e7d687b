"""The diagnosis stage: the newest evaluation of a run (else what its policy sampled) against played gold.

Gold is played once per task, in this process and unrecorded (media that its tools answer are dropped), so
that a failure can be told as a wrong tool or argument instead of only a wrong end state, and that the task's
capabilities are known. The result is written as `report/diagnosis.json` and `report/diagnosis.html`, with the
trajectories it names beside it. Not covered: the kinds, the weakness test and the plan
(`pipeline.diagnosis`), the page (`pipeline.reporting`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pydantic import ValidationError

from data.errors import TrajsmithError
from data.files import write_atomically
from data.media import MediaStore
from data.messages import ToolSpec, Turn
from data.store import Store
from data.tasks import Task
from data.trajectories import Origin, Trajectory
from flows.stages.progress import Say, silent
from flows.stages.show import recipe_of, renderer_of
from pipeline.diagnosis.diagnose import Diagnosis, diagnose
from pipeline.diagnosis.gold import GoldBook
from pipeline.environments.base import Environment
from pipeline.environments.play import make_trajectory, play_turns
from pipeline.environments.registry import load_environment
from pipeline.reporting.diagnosis import write_diagnosis
from pipeline.reporting.view import Decode
from synthesizers.worlds import plannable

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
    """The diagnosis of a run; None where it holds no trajectories that its policy sampled."""
    named = recipe_of(store)["environment"]
    environment = load_environment(named["name"], **named["options"])
    folders = sorted((store.root / "eval").glob(f"*/{EVALUATION}"), key=_age)
    if folders:
        root = folders[-1].parent
        with Store.open(root) as evaluated:
            return Diagnosed(await _diagnose(evaluated, environment, say), root.name, root)
    if any(sampled(store)):
        return Diagnosed(await _diagnose(store, environment, say), "all that the policy sampled", store.root)
    return None


def save_diagnosis(store: Store, found: Diagnosed, *, say: Say = silent) -> Path:
    """Write the page, its JSON and the pages of the trajectories that it names; returns the page's path.

    Where the run's tokenizer cannot be loaded, tokens are shown as ids, and it is said.
    """

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
            decode=_decoder(store, say),
        )
    write_atomically(folder / "diagnosis.json", found.diagnosis.model_dump_json(indent=1) + "\n")
    return page


def _decoder(store: Store, say: Say) -> Decode | None:
    try:
        return renderer_of(store).decode
    except (TrajsmithError, ValidationError) as error:
        say(f"trajectories show token ids, as the tokenizer cannot be loaded: {error}")
        return None


async def gold_book(environment: Environment, tasks: Iterable[Task], *, say: Say = silent) -> GoldBook:
    """Every task with what its gold plays; where that does not score 1, gold is not known, and it is said."""
    book, world, unknown = GoldBook(), plannable(environment), 0
    with TemporaryDirectory(prefix="trajsmith-diagnose-") as folder:
        if hasattr(environment, "media"):
            environment.media = MediaStore(Path(folder))
        for number, task in enumerate(tasks, start=1):
            try:
                turns, tools = await _played(world, task)
            except TrajsmithError:
                turns, tools = None, ()
            book.add(task, turns, tools=tools)
            unknown += turns is None
            if number % _SAY_EVERY == 0:
                say(f"gold of {number:,} tasks played")
    if unknown:
        say(f"gold of {unknown:,} tasks does not score 1 here: of them only what they declare is known")
    return book


async def _played(environment: Environment, task: Task) -> tuple[Sequence[Turn] | None, tuple[ToolSpec, ...]]:
    """Gold's dialogue (None where it does not score 1) and the tools that the task's prompt shows."""
    session = await environment.open(task)
    try:
        tools = session.tools
        turns = await play_turns(session, task, environment.gold(task))
        reward = await session.verify(make_trajectory(environment, task, turns, seed=0))
        return turns if reward.total >= 1 else None, tools
    finally:
        await session.close()


async def _diagnose(store: Store, environment: Environment, say: Say) -> Diagnosis:
    return diagnose(sampled(store), gold=await gold_book(environment, store.tasks(), say=say))


def sampled(store: Store) -> Iterator[Trajectory]:
    """The trajectories in the policy's own words: demonstrations and edited dialogues tell nothing of it."""
    for row in store.trajectories():
        if all(segment.origin is Origin.SAMPLED for segment in row.segments):
            yield row


def _age(path: Path) -> float:
    return path.stat().st_mtime
