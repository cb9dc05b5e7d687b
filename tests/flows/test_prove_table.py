"""The proof's table pairs arms by task and seed, and says what it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.stages.proof import steps_for
from flows.stages.prove_table import markdown_table
from pipeline.errors import ConfigError
from rl.rows import Row

Outcomes = dict[str, dict[str, float]]


def _outcomes(share: float) -> Outcomes:
    """Ten tasks of each of three templates, the first `share` of each solved."""
    names = ("cancel", "cheapest", "price")
    return {name: {f"{name}{i}": float(i < 10 * share) for i in range(10)} for name in names}


def _arm(outcomes: Outcomes, *, tokens: int = 0) -> dict[str, Any]:
    evaluation = {"split": "heldout", "temperature": 0.0, "valid_calls": [9, 10], "outcomes": outcomes}
    cost = {"row_tokens": tokens, "computed_tokens": tokens // 2, "sampled_tokens": 100, "seconds": 1.0}
    return {**cost, "evaluations": [evaluation]}


def _write(folder: Path, seed: int, arms: dict[str, Any]) -> None:
    row = {"seed": seed, "model": "a model", "baseline": "sft", "environment": "desk", "arms": arms}
    (folder / f"seed-{seed}.json").write_text(json.dumps(row))


def test_arms_are_compared_with_sft_over_tasks_and_seeds(tmp_path: Path) -> None:
    for seed, won in enumerate((1.0, 0.8)):
        half = _arm(_outcomes(0.5), tokens=1000)
        arms = {"base": _arm(_outcomes(0)), "sft": half, "grpo": _arm(_outcomes(won), tokens=4000)}
        _write(tmp_path, seed, arms)
    table = markdown_table(tmp_path)
    assert "Seeds: 0, 1." in table
    assert "30 tasks of 3 templates" in table
    assert "| sft | 50.0% | 50.0%, 50.0% | 90.0% |  |  |" in table
    # The spread is between the seeds only: both drawn equal gives +30 or +50 points.
    assert "| grpo | 90.0% | 100.0%, 80.0% | 90.0% | +40.0% [+30.0, +50.0] to sft | 0.250 |" in table
    assert "| grpo | 4,000 | 2,000 | 100 | 4,100 | 1 |" in table


def test_an_arm_is_compared_with_the_arm_its_row_names(tmp_path: Path) -> None:
    arms = {
        name: _arm(_outcomes(share)) for name, share in {"sft": 0.2, "grpo": 0.5, "grpo_roc": 0.6}.items()
    }
    _write(tmp_path, 0, arms)
    path = tmp_path / "seed-0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"against": {"grpo_roc": "grpo"}}))
    table = markdown_table(tmp_path)
    assert "| +30.0% [+30.0, +30.0] to sft |" in table
    assert "| +10.0% [+10.0, +10.0] to grpo |" in table


def test_tasks_are_paired_by_id_and_a_lost_one_leaves_every_arm(tmp_path: Path) -> None:
    sft, grpo = _outcomes(0.5), _outcomes(0.5)
    del sft["price"]["price0"], grpo["price"]["price9"]
    _write(tmp_path, 0, {"base": _arm(_outcomes(0)), "sft": _arm(sft), "grpo": _arm(grpo)})
    table = markdown_table(tmp_path)
    assert "28 tasks of 3 templates; 2 pairs left out" in table
    assert "| grpo | 50.0% | 50.0% | 90.0% | +0.0% [+0.0, +0.0] to sft | 1.000 |" in table


def test_rows_without_a_common_task_are_refused(tmp_path: Path) -> None:
    _write(tmp_path, 0, {"base": _arm(_outcomes(0)), "sft": _arm({"other": {"x": 1.0}})})
    with pytest.raises(ConfigError, match="share no task"):
        markdown_table(tmp_path)


def test_an_empty_folder_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trajsmith prove --seed 0"):
        markdown_table(tmp_path)


def test_the_steps_of_an_arm_come_nearest_to_its_budget() -> None:
    steps = [[Row("t", "g", 0, (1,) * size, (1.0,) * size)] for size in (100, 100, 100)]
    assert [steps_for(steps, budget) for budget in (10, 149, 151, 260)] == [1, 1, 2, 3]
    with pytest.raises(ConfigError, match="end after 300 tokens"):
        steps_for(steps, 500)
