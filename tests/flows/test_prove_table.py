"""The proof's table joins seeds per task and refuses rows that were not measured on the same tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.stages.prove_table import markdown_table
from pipeline.errors import ConfigError

TEMPLATES = ["cheapest"] * 10 + ["price"] * 10 + ["cancel"] * 10


def _arm(outcomes: list[float], *, tokens: int = 0, templates: list[str] = TEMPLATES) -> dict[str, Any]:
    evaluation = {
        "split": "heldout",
        "temperature": 0.0,
        "success": [int(sum(outcomes)), len(outcomes)],
        "valid_calls": [9, 10],
        "infra_failures": 0,
        "generated_tokens": 100,
        "templates": templates,
        "outcomes": outcomes,
    }
    cost = {"row_tokens": tokens, "computed_tokens": tokens // 2, "sampled_tokens": 100, "seconds": 1.0}
    return {**cost, "evaluations": [evaluation]}


def _write(folder: Path, seed: int, arms: dict[str, Any]) -> None:
    row = {"seed": seed, "model": "a model", "versions": {}, "worlds": {"desk": arms}}
    (folder / f"seed-{seed}.json").write_text(json.dumps(row))


def test_a_task_scores_its_mean_over_seeds_and_arms_are_compared_with_sft(tmp_path: Path) -> None:
    half = [1.0, 0.0] * 15
    for seed, won in enumerate(([1.0] * 30, [1.0] * 20 + half[:10])):
        arms = {"base": _arm([0.0] * 30), "sft": _arm(half, tokens=1000), "grpo": _arm(won, tokens=4000)}
        _write(tmp_path, seed, arms)
    table = markdown_table(tmp_path)
    assert "Seeds: 0, 1." in table
    assert "| sft | 50.0% | 50.0%, 50.0% | 90.0% |  |  |" in table
    # Seed 0 solves all 30, seed 1 25 of them: 91.7 % on average, 41.7 points above half.
    assert "| grpo | 91.7% | 100.0%, 83.3% | 90.0% | +41.7% [" in table
    assert "| grpo | 4,000 | 2,000 | 100 | 4,100 | 1 |" in table


def test_seeds_on_other_tasks_are_not_joined(tmp_path: Path) -> None:
    other = ["hotel"] * 30
    _write(tmp_path, 0, {"base": _arm([0.0] * 30), "sft": _arm([0.0] * 30)})
    _write(tmp_path, 1, {"base": _arm([0.0] * 30, templates=other), "sft": _arm([0.0] * 30)})
    with pytest.raises(ConfigError, match="different tasks"):
        markdown_table(tmp_path)


def test_an_empty_folder_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trajsmith prove --seed 0"):
        markdown_table(tmp_path)
