"""The tables of the proof: all seeds' rows joined, with paired intervals clustered by template.

A task's score in an arm is its mean over the seeds, so that the resampled unit is the task (in its
template), never a seed's copy of it. Every seed is also printed alone: the spread between seeds is what
a reader should look at first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from pipeline.checks.stats import holm, paired_bootstrap
from pipeline.errors import ConfigError

Rows = Sequence[dict[str, Any]]


class Cell(NamedTuple):
    """One arm in one evaluation over all seeds."""

    scores: list[float]
    """Per task, mean over seeds."""
    per_seed: list[float]
    valid: float
    templates: list[str]


def markdown_table(results: Path) -> str:
    """Markdown of all worlds and evaluations. ConfigError where there are no rows."""
    paths = sorted(results.glob("seed-*.json"))
    if not paths:
        raise ConfigError(f"{results} holds no seed-*.json; run `trajsmith prove --seed 0` first")
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    head = f"Model: {rows[0]['model']}. Seeds: {', '.join(str(row['seed']) for row in rows)}."
    parts = [head]
    for world in rows[0]["worlds"]:
        parts += [f"### {world}", _cost_table(rows, world)]
        parts += [_table(rows, world, index) for index in _evaluations(rows[0], world)]
    return "\n\n".join(parts) + "\n"


def _evaluations(row: dict[str, Any], world: str) -> range:
    return range(len(row["worlds"][world]["base"]["evaluations"]))


def _table(rows: Rows, world: str, index: int) -> str:
    """Success of every arm in one evaluation, and its difference to `sft`."""
    cells = {arm: _cell(rows, world, arm, index) for arm in _arms(rows, world)}
    example = rows[0]["worlds"][world]["base"]["evaluations"][index]
    title = (
        f"**{example['split']}, temperature {example['temperature']:g}**, {len(cells['base'].scores)} tasks"
    )
    compared = [arm for arm in cells if arm not in ("base", "sft")]
    found = {arm: _compare(cells["sft"], cells[arm]) for arm in compared}
    adjusted = dict(zip(compared, holm([found[arm].p_value for arm in compared]), strict=True))
    lines = [
        "| arm | success | per seed | valid calls | vs sft | p |",
        "| --- | ---: | --- | ---: | --- | ---: |",
    ]
    for arm, cell in cells.items():
        difference, p_value = "", ""
        if arm in found:
            low, high = found[arm].low, found[arm].high
            difference = f"{found[arm].difference:+.1%} [{low * 100:+.1f}, {high * 100:+.1f}]"
            p_value = f"{adjusted[arm]:.3f}"
        seeds = ", ".join(f"{value:.1%}" for value in cell.per_seed)
        lines.append(
            f"| {arm} | {mean(cell.scores):.1%} | {seeds} | {cell.valid:.1%} | {difference} | {p_value} |"
        )
    return title + "\n\n" + "\n".join(lines)


def _cost_table(rows: Rows, world: str) -> str:
    """What each arm cost beyond the model it started from, mean over seeds."""
    lines = [
        "| arm | trainer row tokens | computed | sampled | row + sampled | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for arm in _arms(rows, world):
        costs = [row["worlds"][world][arm] for row in rows]
        keys = ("row_tokens", "computed_tokens", "sampled_tokens", "seconds")
        row_tokens, computed, sampled, seconds = (mean(cost[key] for cost in costs) for key in keys)
        lines.append(
            f"| {arm} | {row_tokens:,.0f} | {computed:,.0f} | {sampled:,.0f} "
            f"| {row_tokens + sampled:,.0f} | {seconds:,.0f} |"
        )
    return "\n".join(lines)


def _arms(rows: Rows, world: str) -> Iterator[str]:
    order = ["base", "sft", "sft_same", "sft_fresh", "rft", "grpo"]
    return (arm for arm in order if all(arm in row["worlds"][world] for row in rows))


def _cell(rows: Rows, world: str, arm: str, index: int) -> Cell:
    found = [row["worlds"][world][arm]["evaluations"][index] for row in rows]
    if len({tuple(each["templates"]) for each in found}) > 1:
        raise ConfigError(
            f"the seeds evaluated {world}/{arm} on different tasks; their rows cannot be joined"
        )
    valid = [each["valid_calls"] for each in found]
    return Cell(
        scores=[mean(scores) for scores in zip(*(each["outcomes"] for each in found), strict=True)],
        per_seed=[mean(each["outcomes"]) for each in found],
        valid=sum(good for good, _ in valid) / max(1, sum(tried for _, tried in valid)),
        templates=found[0]["templates"],
    )


def _compare(baseline: Cell, treatment: Cell) -> Any:
    clusters = treatment.templates if len(set(treatment.templates)) > 1 else None
    return paired_bootstrap(baseline.scores, treatment.scores, clusters=clusters)
