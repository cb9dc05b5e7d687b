"""The curation stage: the store's trajectories through the recipe's filters into `curated/`.

Verdicts are stored, rejects are never copied; the funnel is what the report and the card print. Where
a filter compares with gold, tasks that no demonstration in the store solved are played once by the
environment's gold, in this process and unrecorded. Not covered: which filters exist (`filters`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.card import Funnel
from data.files import write_atomically
from data.messages import Record
from data.store import Store
from data.summaries import read_summary
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from filters import FILTERS, build_filters
from filters.base import Replay, run_filters
from filters.difficulty import Difficulty
from filters.efficiency import Efficiency, demonstrated_lengths
from filters.funnel import FunnelCounts
from filters.mix import Mix, MixRow
from filters.rewarded import Rewarded, TaskLookup
from flows.stages import run as runs_
from flows.stages.policy import policy_label
from flows.stages.progress import Say, silent
from flows.stages.recipe import CurateSection, Recipe
from pipeline.checks.matching import Call
from pipeline.environments.base import Environment
from pipeline.errors import ConfigError
from pipeline.renderers.base import Renderer
from pipeline.reporting.content import FunnelRow
from pipeline.rewards import helped_by_gold, needs_gold
from pipeline.rewards.gold import demonstrated_calls, played_calls
from synthesizers.demonstration import Demonstration

CURATION = "curation.json"


class Curation(Record):
    """What curation did."""

    seen: int
    kept: int
    funnel: tuple[FunnelRow, ...]
    mix: tuple[MixRow, ...] = ()
    """The difficulty mix that was reached, where the chain has one."""


async def curation_stage(
    store: Store, recipe: Recipe, *, environment: Environment, renderer: Renderer, say: Say
) -> Curation:
    """Curate, keep the funnel for the report, write the manifest."""
    inputs = {"trajectories": store.digest("trajectories")}
    curation = await curate(
        store,
        recipe.curate,
        environment=environment,
        renderer=renderer,
        policy_name=policy_label(recipe.policy),
        say=say,
    )
    write_atomically(store.root / CURATION, curation.model_dump_json(indent=1) + "\n")
    counts = {"seen": curation.seen, "kept": curation.kept}
    config = recipe.curate.model_dump(mode="json")
    runs_.finish(store, "curate", config=config, inputs=inputs, counts=counts)
    return curation


async def curate(
    store: Store,
    section: CurateSection,
    *,
    environment: Environment,
    renderer: Renderer,
    policy_name: str,
    may_be_empty: bool = False,
    say: Say = silent,
) -> Curation:
    """Judge every trajectory of the section's synthesizers, write verdicts and `curated/`.

    `policy_name` measures difficulty where the recipe names no policy. Raises ConfigError where nothing is
    left, unless it `may_be_empty`: training on nothing is never what was meant.
    """
    pool = Replay(lambda: _pool(store, section))
    lengths = await _gold_lengths(store, section, environment, renderer)
    rows = _rows(section, policy_name)
    gold = await _gold_calls(store, section, environment)
    filters = build_filters(rows, gold_length=lengths.get, tasks=_task_lookup(store), gold=gold)
    funnel = FunnelCounts(filter_.name for filter_ in filters)

    def on_verdict(verdict: Verdict) -> None:
        funnel(verdict)
        store.append(verdict)

    store.seal()
    kept = store.write_curated(run_filters(pool, filters, on_verdict), lambda: _card(store, funnel))
    store.seal()
    mix = next((filter_.report() for filter_ in filters if isinstance(filter_, Mix)), ())
    seen = funnel.rows()[0].seen if filters else kept
    result = Curation(seen=seen, kept=kept, funnel=funnel.rows(), mix=mix)
    say(f"curated {result.kept} of {result.seen} trajectories")
    if not result.kept and not may_be_empty:
        reasons = "; ".join(f"{row.name}: {row.reasons[0].reason}" for row in result.funnel if row.reasons)
        raise ConfigError(f"curation kept none of {result.seen} trajectories ({reasons}); loosen the filters")
    return result


def read_curation(root: Path) -> Curation | None:
    """What the newest curation of a run did; None before the first."""
    again = "delete it and run `trajsmith curate` again, which makes nothing twice"
    path = root / CURATION
    return read_summary(Curation, path, of="`trajsmith curate`", again=again) if path.is_file() else None


def card_funnel(store: Store) -> Funnel:
    """What is told of a run's filters: the newest curation, after what its synthesizers gave up or chose.

    Verdicts of earlier curations stay in the store; they are of other chains.
    """
    curation = read_curation(store.root)
    if curation is None:
        return Funnel.of(store.verdicts())
    funnel = Funnel.of(verdict for verdict in store.verdicts() if verdict.filter not in FILTERS)
    for row in curation.funnel:
        funnel.add(row.name, kept=row.kept, dropped={each.reason: each.count for each in row.dropped})
    return funnel


def check_filters(section: CurateSection, *, policy_name: str) -> None:
    """ConfigError where the section names a filter or option that there is not."""
    build_filters(_rows(section, policy_name), gold_length=lambda _: None, tasks=lambda _: None, gold={})


def _rows(section: CurateSection, policy_name: str) -> list[dict[str, Any]]:
    """The section's filters; difficulty is measured by `policy_name` where it names no policy."""
    measured = {"name": Difficulty.name, "policy": policy_name}
    return [measured | row if row.get("name") == Difficulty.name else row for row in section.filters]


def _pool(store: Store, section: CurateSection) -> Iterator[Trajectory]:
    """The trajectories the section is about."""
    for trajectory in store.trajectories():
        if not section.synthesizers or trajectory.synthesizer in section.synthesizers:
            yield trajectory


async def _gold_lengths(
    store: Store, section: CurateSection, environment: Environment, renderer: Renderer
) -> dict[str, int]:
    """Gold calls per task, only where a filter of the section compares with them."""
    if all(FILTERS.get(str(row.get("name"))) is not Efficiency for row in section.filters):
        return {}
    lengths = demonstrated_lengths(store.trajectories())
    missing = (task for task in store.tasks() if task.task_id not in lengths)
    demonstrator = Demonstration(environment=environment, renderer=renderer)
    async for trajectory in demonstrator.synthesize(missing):
        lengths.update(demonstrated_lengths([trajectory]))
    return lengths


async def _gold_calls(
    store: Store, section: CurateSection, environment: Environment
) -> dict[str, tuple[Call, ...]]:
    """Calls of gold solutions per task, only where a reward of the section compares with them."""
    rows = [row.get("reward") for row in section.filters if row.get("name") == Rewarded.name]
    rewards = [row for row in rows if isinstance(row, dict)]
    needed = any(map(needs_gold, rewards))
    if not needed and not any(map(helped_by_gold, rewards)):
        return {}
    found = demonstrated_calls(store.trajectories())
    missing = (task for task in store.tasks() if task.task_id not in found)
    return found | await played_calls(environment, missing, strict=needed)


def _task_lookup(store: Store) -> TaskLookup:
    """The store's tasks by id, read when the first is asked for."""
    tasks: dict[str, Task] = {}

    def find(task_id: str) -> Task | None:
        if not tasks:
            tasks.update((task.task_id, task) for task in store.tasks())
        return tasks.get(task_id)

    return find


def _card(store: Store, funnel: FunnelCounts) -> str:
    """The README.md beside the curated shards."""
    reasons = {row.name: ", ".join(f"{r.reason} {r.count}" for r in row.reasons) for row in funnel.rows()}
    rows = "\n".join(
        f"| {row.name} | {row.seen} | {row.kept} | {reasons[row.name]} |" for row in funnel.rows()
    )
    return (
        f"# Curated trajectories of {store.root.name}\n\n| filter | seen | kept | reasons |\n"
        f"| --- | ---: | ---: | --- |\n{rows}\n\n`trajsmith publish` writes the full card.\n"
    )
