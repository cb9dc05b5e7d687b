"""The tables of the proof: all seeds' rows joined, with paired intervals.

Arms are paired by task and seed; templates and seeds are both resampled, so that an interval holds the
spread between tasks and between training runs. A task an arm has no outcome for (the infrastructure
broke it) leaves every comparison, and how many did is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from data.summaries import read_object
from pipeline.checks.stats import Comparison, holm, paired_bootstrap
from pipeline.errors import ConfigError

Rows = Sequence[dict[str, Any]]
_ORDER = (
    *("base", "sft", "sft_same", "sft_fresh", "rft", "rft_hindsight", "start", "static"),
    *("grpo", "grpo_roc", "grpo_beam", "grpo_beam_top"),
    *("demonstration", "rejection_sampling", "director_actor", "magnet", "astra_chains", "looptool"),
)
_NEEDED = ("seed", "arms")


class Key(NamedTuple):
    """One pair's place: seed, template, task."""

    seed: int
    template: str
    task: str


class Cell(NamedTuple):
    """One arm in one evaluation over all seeds."""

    scores: dict[Key, float]
    valid: float


def markdown_table(results: Path) -> str:
    """Markdown of what the arms cost and of every evaluation. ConfigError where there are no rows."""
    rows = load_rows(results, verb="prove")
    head = f"Model: {rows[0]['model']}. Seeds: {', '.join(str(row['seed']) for row in rows)}."
    parts = [head, f"### {rows[0]['environment']}", _cost_table(rows)]
    parts += [_table(rows, index) for index in range(len(_first_arm(rows)["evaluations"]))]
    return "\n\n".join(parts) + "\n"


def load_rows(results: Path, *, verb: str) -> Rows:
    """The rows of all repetitions. ConfigError where there are none, naming the verb that makes
    them; StoreError where one is damaged."""
    paths = sorted(results.glob("seed-*.json"))
    if not paths:
        raise ConfigError(f"{results} holds no seed-*.json; run `trajsmith {verb} --seed 0` first")
    again = f"delete it, or run that seed of `trajsmith {verb}` again"
    return [read_object(path, needs=_NEEDED, of=f"`trajsmith {verb}`", again=again) for path in paths]


def _table(rows: Rows, index: int) -> str:
    """Success of every arm in one evaluation, and its difference to the arm it is compared with."""
    cells = {arm: _cell(rows, arm, index) for arm in _arms(rows)}
    common = set.intersection(*(set(cell.scores) for cell in cells.values()))
    if not common:
        raise ConfigError(f"the arms of {rows[0]['environment']} share no task; their rows cannot be joined")
    baselines = _baselines(rows, tuple(cells))
    found = {arm: _compare(cells[other], cells[arm], sorted(common)) for arm, other in baselines.items()}
    adjusted = dict(zip(found, holm([each.p_value for each in found.values()]), strict=True))
    lines = [
        "| arm | success | per seed | valid calls | difference | p |",
        "| --- | ---: | --- | ---: | --- | ---: |",
    ]
    for arm, cell in cells.items():
        shown = _difference(found[arm], adjusted[arm], to=baselines[arm]) if arm in found else " | "
        seeds = ", ".join(f"{value:.1%}" for value in _per_seed(cell, common))
        success = mean(cell.scores[key] for key in common)
        lines.append(f"| {arm} | {success:.1%} | {seeds} | {cell.valid:.1%} | {shown} |")
    left_out = len(set.union(*(set(cell.scores) for cell in cells.values()))) - len(common)
    return _title(rows, index, common, left_out) + "\n\n" + "\n".join(lines)


def _title(rows: Rows, index: int, common: set[Key], left_out: int) -> str:
    example = _first_arm(rows)["evaluations"][index]
    tasks, templates = len({key.task for key in common}), len({key.template for key in common})
    name = f"**{example['split']}, temperature {example['temperature']:g}**"
    title = f"{name}: {tasks} tasks of {templates} template{'s' if templates > 1 else ''}"
    return title + (f"; {left_out} pairs left out, an arm has no outcome for them" if left_out else "")


def _baselines(rows: Rows, arms: Sequence[str]) -> dict[str, str]:
    """Arm to the arm it is compared with: the baseline, or the one that the row names (`against`). Base, the
    warm-up and the baseline are compared with none."""
    baseline, against = rows[0]["baseline"], rows[0].get("against", {})
    compared = (arm for arm in arms if arm not in ("base", "sft", baseline))
    return {arm: against.get(arm, baseline) for arm in compared}


def _difference(found: Comparison, p_value: float, *, to: str) -> str:
    low, high = found.low * 100, found.high * 100
    p = f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"
    return f"{found.difference:+.1%} [{low:+.1f}, {high:+.1f}] to {to} | {p}"


def _cost_table(rows: Rows) -> str:
    """What each arm cost beyond the model it started from, mean over seeds."""
    lines = [
        "| arm | trainer row tokens | computed | sampled | row + sampled | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm in _arms(rows):
        costs = [row["arms"][arm] for row in rows]
        keys = ("row_tokens", "computed_tokens", "sampled_tokens", "seconds")
        row_tokens, computed, sampled, seconds = (mean(cost[key] for cost in costs) for key in keys)
        lines.append(
            f"| {arm} | {row_tokens:,.0f} | {computed:,.0f} | {sampled:,.0f} "
            f"| {row_tokens + sampled:,.0f} | {seconds:,.0f} |"
        )
    return "\n".join(lines)


def _first_arm(rows: Rows) -> dict[str, Any]:
    arm: dict[str, Any] = rows[0]["arms"][next(_arms(rows))]
    return arm


def _arms(rows: Rows) -> Iterator[str]:
    return (arm for arm in _ORDER if all(arm in row["arms"] for row in rows))


def _cell(rows: Rows, arm: str, index: int) -> Cell:
    scores: dict[Key, float] = {}
    good = tried = 0
    for row in rows:
        found = row["arms"][arm]["evaluations"][index]
        good, tried = good + found["valid_calls"][0], tried + found["valid_calls"][1]
        for template, outcomes in found["outcomes"].items():
            scores |= {Key(row["seed"], template, task): success for task, success in outcomes.items()}
    return Cell(scores, good / max(1, tried))


def _per_seed(cell: Cell, common: set[Key]) -> list[float]:
    seeds = sorted({key.seed for key in common})
    return [mean(cell.scores[key] for key in common if key.seed == seed) for seed in seeds]


def _compare(baseline: Cell, treatment: Cell, keys: Sequence[Key]) -> Comparison:
    by_template = len({key.template for key in keys}) > 1
    return paired_bootstrap(
        [baseline.scores[key] for key in keys],
        [treatment.scores[key] for key in keys],
        clusters=[key.template if by_template else key.task for key in keys],
        runs=[key.seed for key in keys],
    )
