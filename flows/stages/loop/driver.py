"""The closed loop: rounds of data from the model's own errors, against two ways of going on without them.

A start model is trained on seeds. Every round then probes it, repairs, expands, curates, trains and evaluates
on the dev split; the baselines take the same steps. A round that lost a protected capability is refused: the
model before it stays. The loop stops on plateau, budget or after its rounds. The held-out splits are read
once, after that: a run that has read them makes no further round. Every arrow resumes. Not covered: what
stands in a table (`table`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data import canonical, faults
from data.files import disk_errors, write_atomically
from data.recipe import FILE as RECIPE
from data.recipe import read_recipe
from data.schema import Kind
from data.store import Store
from data.summaries import damaged, read_value
from data.trajectories import Trajectory
from flows.stages import run as runs_
from flows.stages.evaluate import Evaluation
from flows.stages.loop.baselines import (
    START,
    STATIC,
    sampling_round,
    seeds,
    start_round,
    static_round,
)
from flows.stages.loop.looptool import LOOPTOOL, PROBES, REPAIRS, found_nothing, looptool_round
from flows.stages.loop.plan import check_loop, check_tasks, held_out_sections
from flows.stages.loop.round import MODEL, RESULT, Kept, LoopWork, RoundResult, read_result
from flows.stages.loop.rules import Stop, check_gate, stop_reason
from flows.stages.loop.table import ROW
from flows.stages.policy import open_policy, policy_label
from flows.stages.progress import Say
from flows.stages.proof import Arm, arm_row, seeded_recipe
from flows.stages.recipe import Recipe, parse_recipe
from flows.stages.report import report
from flows.stages.verbs import with_url
from pipeline.errors import ConfigError
from rl.models import checkpoint_digest, resolve_model
from rl.results import finished_result
from synthesizers.looptool.probing import Probe
from synthesizers.looptool.records import Repair
from synthesizers.looptool.rows import RowLog
from synthesizers.looptool.weakness import WEAKNESS

FINAL = "loop"
"""`models/loop` is the model that the loop kept: `trajsmith eval --model loop`."""


@dataclass
class _State:
    """Where the arms stand."""

    kept: dict[str, Kept]
    history: dict[str, list[RoundResult]]
    seen: list[Trajectory] = field(default_factory=list)
    """Seeds up to the last round."""


async def run_loop(
    recipe: Recipe,
    *,
    runs: Path,
    rounds: int = 0,
    seed: int | None = None,
    url: str = "",
    results: Path | None = None,
    say: Say,
) -> dict[str, Any]:
    """Run the loop of a recipe; resumes. Returns its row, which it writes to the run's folder.

    `rounds` replaces the recipe's number where it is not 0; a `seed` makes a run of its own. The row goes to
    `results/seed-<n>.json` as well, where that folder is given.
    """
    started = time.monotonic()
    check_loop(recipe)
    recipe = recipe if seed is None else seeded_recipe(recipe, seed)
    if rounds:
        recipe = recipe.model_copy(update={"loop": recipe.loop.model_copy(update={"rounds": rounds})})
    base, label = resolve_model(recipe.policy.model), policy_label(recipe.policy)
    environment = runs_.environment_of(recipe, root=runs / recipe.name)
    check_tasks(recipe, environment)
    _refuse_change(runs / recipe.name, recipe)
    if results is not None:
        with disk_errors(results, safe="nothing was made"):
            results.mkdir(parents=True, exist_ok=True)
    with runs_.open_run(recipe, runs) as store:
        policy_section = with_url(recipe, url).policy
        log = store.root / "server.log"
        async with open_policy(
            policy_section, model_dir=base, label=label, environment=environment, log_path=log, say=say
        ) as policy:
            work = LoopWork(recipe, store, environment, policy, base, say)
            row = await improve(work) | {"model": label, "versions": runs_.versions()}
        row["seconds"] = round(time.monotonic() - started)
        _write_row(row, [store.root / ROW, *([results / f"seed-{recipe.seed}.json"] if results else [])], say)
        say(f"report: {await report(store, model_label=label)}")
    return row


async def improve(work: LoopWork) -> dict[str, Any]:
    """All rounds over an open policy, then the held-out splits; the row without what the caller knows."""
    state = await _start(work)
    stop = await _rounds(work, state)
    work.say(f"loop: stopped on {stop}")
    heldout = await _held_out(work, state)
    _point(work.store.root, state.kept[LOOPTOOL].model_dir)
    arms = {name: arm_row(_arm(state.history[name], found)) for name, found in heldout.items()}
    return {
        "seed": work.recipe.seed,
        "environment": work.environment.name,
        "baseline": LOOPTOOL,
        "stopped": stop.value,
        "arms": arms,
        "rounds": [round_row(result) for results in state.history.values() for result in results],
        "weakness": _weakness(work.store.root),
        "digest": content_digest(work.store.root),
    }


async def _start(work: LoopWork) -> _State:
    """The seeds and the start model, from which all arms go on."""
    check_gate(await work.capabilities(), work.recipe.loop.gate)
    base = Kept(work.base, checkpoint_digest(work.base))
    first = await seeds(work, 0, teacher=base)
    result, start = await start_round(work, first, base=base)
    arms = (START, LOOPTOOL, *work.recipe.loop.arms)
    state = _State(dict.fromkeys(arms, start), {arm: [] for arm in arms}, list(first))
    state.history[START].append(result)
    return state


async def _rounds(work: LoopWork, state: _State) -> Stop:
    """Round after round, all arms of one before the next; why it ended."""
    section, start = work.recipe.loop, state.kept[START]
    dev = state.history[START][0].finished.dev
    while (stop := stop_reason(dev, [each.finished for each in state.history[LOOPTOOL]], section)) is None:
        number = len(state.history[LOOPTOOL]) + 1
        _refuse_after_held_out(work, number)
        kept = state.kept[LOOPTOOL]
        result, kept = await looptool_round(work, number, state.seen, kept=kept, start=start)
        if result is None:
            return Stop.MASTERED
        state.history[LOOPTOOL].append(result)
        state.kept[LOOPTOOL] = kept
        state.seen += await seeds(work, number, teacher=start)
        for arm in section.arms:
            await _baseline(work, number, arm, state, like=result)
    return stop


async def _baseline(work: LoopWork, number: int, arm: str, state: _State, *, like: RoundResult) -> None:
    """A round of a baseline at the cost of the loop's."""
    kept = state.kept[arm]
    if arm == STATIC:
        made = await static_round(work, number, state.seen, kept=kept, steps=like.steps)
    else:
        made = await sampling_round(work, number, kept=kept, steps=like.steps, budget=like.sampled_tokens)
    state.history[arm].append(made[0])
    state.kept[arm] = made[1]


def _refuse_change(root: Path, recipe: Recipe) -> None:
    """ConfigError where the recipe asks of a run what it can no longer give, before it becomes the run's."""
    if not (root / RECIPE).is_file():
        return
    stored, section = parse_recipe(read_recipe(root), source=str(root / RECIPE)), recipe.loop
    begun = (root / "rounds" / "0" / START).is_dir()
    more = section.rounds > stored.loop.rounds or section.tokens > stored.loop.tokens
    if (root / "eval").is_dir() and (more or not begun):
        raise _read_already(root)
    if begun and stored.curate != recipe.curate:
        raise ConfigError(
            f"the rounds of {root} were made with other filters than `curate` now says, and models were "
            f"trained on what those kept; put them back, or give the recipe another name"
        )


def _refuse_after_held_out(work: LoopWork, number: int) -> None:
    """ConfigError where the held-out splits were read and round `number` has yet to be trained."""
    root, place = work.store.root, work.place(number, LOOPTOOL)
    trained = (place / RESULT).is_file() or finished_result(place / MODEL, {}) is not None
    if (root / "eval").is_dir() and not trained and not found_nothing(place):
        raise _read_already(root)


def _read_already(root: Path) -> ConfigError:
    rounds = len(list((root / "rounds").glob(f"[1-9]*/{LOOPTOOL}/{RESULT}")))
    return ConfigError(
        f"{root} has read its held-out tasks after round {rounds}; a further round would be "
        f"chosen by them. Start a run of another name"
    )


async def _held_out(work: LoopWork, state: _State) -> dict[str, list[Evaluation]]:
    """Every arm's last kept model on the held-out splits; a model that two arms kept is evaluated once."""
    found: dict[str, list[Evaluation]] = {}
    by_weights: dict[str, str] = {}
    sections = held_out_sections(work.recipe, work.environment)
    own = state.kept[LOOPTOOL].weights
    # The loop's own comes last, and stands for all that kept its model: `diagnose` reads the newest.
    for arm in sorted(state.kept, key=lambda name: (state.kept[name].weights == own, name != LOOPTOOL)):
        kept = state.kept[arm]
        same = by_weights.setdefault(kept.weights, arm)
        if same == arm:
            await work.act_with(kept)
            found[arm] = [await work.evaluate(arm, section) for section in sections]
        else:
            found[arm] = [each.model_copy(update={"name": arm}) for each in found[same]]
        faults.kill_point("loop.heldout.arm")
    return {arm: found[arm] for arm in state.kept}


def _arm(rounds: Iterable[RoundResult], evaluations: list[Evaluation]) -> Arm:
    """What an arm cost over all its rounds, refused ones included, and its held-out evaluations."""
    arm = Arm(evaluations=evaluations)
    for each in rounds:
        arm.row_tokens += each.row_tokens
        arm.computed_tokens += each.computed_tokens
        arm.sampled_tokens += each.sampled_tokens
        arm.seconds += each.train_seconds
    return arm


def round_row(result: RoundResult) -> dict[str, Any]:
    """A round as JSON; success as [successes, tasks]."""
    dev = result.dev
    return {
        "round": result.round,
        "arm": result.arm,
        "accepted": result.accepted,
        "reason": result.reason,
        "dev": [dev.success.successes, dev.success.trials],
        "valid_calls": [dev.valid_calls.successes, dev.valid_calls.trials],
        "steps": result.steps,
        "row_tokens": result.row_tokens,
        "sampled_tokens": result.sampled_tokens,
        "train_seconds": round(result.train_seconds, 1),
        "data": {each.reason: each.count for each in result.data},
        "guarded": [each.model_dump() for each in result.guarded],
    }


def _weakness(root: Path) -> dict[str, Any]:
    """Round to the table of what its probes found, weakest first."""
    found = sorted((root / "rounds").glob(f"*/{LOOPTOOL}/{WEAKNESS}"))
    return {path.parts[-3]: _read_table(path) for path in found}


def _read_table(path: Path) -> list[Any]:
    again = "delete it and manifests/curate.json beside it, and run the same loop again"
    rows = read_value(path, of="a round of `trajsmith loop`", again=again)
    if not isinstance(rows, list):
        raise damaged(path, "it is no list", of="a round of `trajsmith loop`", again=again)
    return rows


def content_digest(root: Path) -> str:
    """Digest of everything a loop made but clocks: tables, training sets, models, verdicts of the gate."""
    parts: dict[str, Any] = {}
    for folder in [root, *sorted((root / "rounds").glob("*/*"))]:
        name = str(folder.relative_to(root))
        with Store.open(folder) as store:
            parts[name] = [store.digest(kind) for kind in Kind]
            if (folder / "curated").is_dir():
                rows = store.read_curated()
                parts[f"{name}/curated"] = sorted(row.content_digest() for row in rows)
        for log, kind in ((PROBES, Probe), (REPAIRS, Repair)):
            if (folder / log).is_file():
                with RowLog(folder / log, kind) as rows_of:
                    parts[f"{name}/{log}"] = rows_of.digest()
        if (folder / RESULT).is_file():
            parts[f"{name}/{RESULT}"] = read_result(folder).model_dump(mode="json") | {"train_seconds": 0}
    return canonical.digest(parts)


def _point(root: Path, model_dir: Path) -> None:
    """Make `models/loop` name the model that the loop kept. StoreError where the disk does not take it."""
    link = root / "models" / FINAL
    aside = link.with_name(f".{FINAL}.new")
    with disk_errors(link, safe=f"the model is kept in {model_dir}"):
        link.parent.mkdir(exist_ok=True)
        aside.unlink(missing_ok=True)
        aside.symlink_to(os.path.relpath(model_dir, link.parent))
        os.replace(aside, link)


def _write_row(row: dict[str, Any], paths: Sequence[Path], say: Say) -> None:
    for path in paths:
        write_atomically(path, json.dumps(row, sort_keys=True) + "\n")
        say(f"wrote {path}")
