"""A chosen reward through the command line: evaluation reports it, curation keeps by it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data.store import Store
from flows.stages.recipe import GrpoSection
from flows.stages.rewards import choose_reward
from flows.stages.train import step_line
from pipeline.environments.registry import load_environment
from pipeline.rewards.base import chosen_total
from rl.results import StepMetrics
from tests.flows.lab import recipe, trajsmith, write_recipe

COST = {"name": "tool_cost", "weight": 0.1}


def test_evaluation_reports_verified_success_and_the_chosen_mean(tokenizer: Path, workplace: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer, grpo={"reward": COST}))
    done = trajsmith("eval", path)
    assert done.code == 0, done.err
    (found,) = Path("runs/small/eval").glob("*/*.json")
    value: dict[str, Any] = json.loads(found.read_text())
    with Store.open(found.parent) as store:
        rows = list(store.trajectories())
    assert value["success"]["successes"] == sum(bool(row.success) for row in rows) and len(rows) == 8
    calls = [len([call for turn in row.turns for call in turn.tool_calls if call.ok]) for row in rows]
    expected = sum(bool(row.success) - 0.1 * count for row, count in zip(rows, calls, strict=True)) / len(
        rows
    )
    assert value["reward"] == {"name": "tool_cost", "mean": pytest.approx(expected), "scored": 8, "failed": 0}
    assert all(chosen_total(row, "tool_cost") is None for row in rows)


def test_curation_keeps_by_a_reward_that_compares_with_gold(tokenizer: Path, workplace: Path) -> None:
    filters = [{"name": "reward", "reward": {"name": "call_match"}}]
    path = write_recipe(workplace, recipe(tokenizer, curate={"filters": filters}))
    assert trajsmith("synth", path).code == 0
    done = trajsmith("curate", path)
    assert done.code == 0, done.err
    with Store.open(Path("runs/small")) as store:
        kept, rows = list(store.read_curated()), list(store.trajectories())
        reasons = {verdict.reason for verdict in store.verdicts()}
    assert 4 <= len(kept) < len(rows) and reasons == {"ok", "low_reward"}
    assert all(chosen_total(row, "call_match") == 1.0 and row.success for row in kept)


def test_other_filters_over_the_same_run_play_nothing_again(tokenizer: Path, workplace: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer))
    assert trajsmith("synth", path).code == 0
    with Store.open(Path("runs/small")) as store:
        before = store.digest("trajectories")
    for name in ("call_f1", "call_match"):
        filters = [{"name": "reward", "threshold": 0.01, "reward": {"name": name}}]
        done = trajsmith("curate", write_recipe(workplace, recipe(tokenizer, curate={"filters": filters})))
        assert done.code == 0, done.err
        with Store.open(Path("runs/small")) as store:
            kept = list(store.read_curated())
            assert kept and all(chosen_total(row, name) is not None for row in kept)
            assert store.digest("trajectories") == before


def test_a_wrong_reward_is_refused_before_any_episode(tokenizer: Path, workplace: Path) -> None:
    path = write_recipe(workplace, recipe(tokenizer, grpo={"reward": {"name": "tool_costs"}}))
    done = trajsmith("eval", path)
    assert (
        done.code == 2
        and "unknown reward 'tool_costs'" in done.err
        and "did you mean 'tool_cost'" in done.err
    )
    assert not list(Path("runs/small").glob("eval/*/journal/*"))


def test_the_recipes_reward_is_made_with_the_gold_it_needs(tmp_path: Path) -> None:
    environment = load_environment("counter")
    tasks = list(islice(environment.tasks("train"), 3))

    def choose(row: dict[str, Any]) -> Any:
        return asyncio.run(choose_reward(row, environment=environment, tasks=tasks, state_dir=tmp_path))

    assert choose(GrpoSection().reward) is None
    chosen = choose(COST)
    assert set(chosen.reward.gold) == set(chosen.tasks) == {task.task_id for task in tasks}
    assert not chosen.waits and choose({"name": "end_state", "state": "value"}).reward.state == "value"
    judged = choose({"name": "rubrics", "judges": [{"url": "http://127.0.0.1:1", "model": "m"}]})
    assert judged.waits and judged.reward.state_dir == tmp_path


def test_the_status_line_shows_success_and_giving_up_beside_a_chosen_reward() -> None:
    numbers = dict.fromkeys(
        ("loss", "trained_tokens", "row_tokens", "computed_tokens", "grad_norm", "learning_rate"), 0
    )
    plain = StepMetrics(step=1, total_steps=2, train_seconds=1.0, trajectories=8, reward_mean=0.25, **numbers)
    assert step_line("grpo", plain).endswith("reward 0.25, flat groups 0%, gap 0.000, entropy 0.00")
    off = replace(plain, logprob_gap=0.0314, entropy=0.5, masked_share=0.02, without_reward=3)
    off = replace(off, dropped_singletons=1)
    told = "gap 0.031, entropy 0.50, 2.0% of tokens masked or capped, 3 rollouts without reward, "
    told += "1 groups of one left out"
    assert step_line("grpo", off).endswith(told)
    shown = replace(plain, success_rate=0.5, reward_parts={"early_finish": 0.125}, judge_failures=2)
    assert step_line("grpo", shown).endswith(", success 50%, early finish 12%, 2 judgements failed")
