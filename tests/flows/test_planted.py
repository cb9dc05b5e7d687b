"""A scripted engine that fails on chosen capabilities: the report of its run names exactly these."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from data.messages import Turn, assistant
from data.tasks import Task
from flows.stages import policy
from flows.stages.scripted import GIVE_UP, ScriptedPolicy
from tests.flows.lab import recipe, trajsmith, write_recipe

TASKS = 414
"""Of 23 templates, 18 each: at least 50 of each planted tag."""


def weak_at(*tags: str) -> type[ScriptedPolicy]:
    """Gold, but 9 of 10 tasks with one of the tags, and 1 of 12 others, are given up."""

    class WeakPolicy(ScriptedPolicy):
        def _gold_turn(self, task: Task, turns: Sequence[Turn]) -> Turn:
            drawn = int(task.task_id[:8], 16) / 2**32
            fails = drawn < (0.9 if set(tags) & set(task.tags) else 1 / 12)
            return assistant(GIVE_UP) if fails else super()._gold_turn(task, turns)

    return WeakPolicy


@pytest.mark.slow
@pytest.mark.parametrize("planted", [("refuse",), ("refuse", "loyalty")])
def test_exactly_the_planted_capabilities_are_named(
    workplace: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, planted: tuple[str, ...]
) -> None:
    monkeypatch.setattr(policy, "ScriptedPolicy", weak_at(*planted))
    value = recipe(tokenizer, environment={"name": "travel_desk"}, **{"policy.mistakes": 0.0})
    value["synth"] = {"rollouts": {"synthesizer": "rejection_sampling", "tasks": TASKS, "options": {"k": 1}}}
    assert trajsmith("synth", write_recipe(workplace, value)).code == 0
    done = trajsmith("diagnose", "runs/small", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["weaknesses"]["capabilities"]
    weak = {row["name"]: row for row in found if row["standing"] == "weak"}
    assert set(weak) == {f"tag:{tag}" for tag in planted}
    assert all(row["num_tasks"] >= 50 and row["beside"] == [] for row in weak.values())
    page = (workplace / "runs" / "small" / "report" / "diagnosis.html").read_text()
    assert "gave_up" in page and 'href="trajectories/' in page
