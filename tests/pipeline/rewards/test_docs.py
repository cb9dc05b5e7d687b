"""The table in docs/rewards.md lists every reward and every part, and its examples run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from filters import build_filters
from pipeline.rewards import REWARDS, build_reward
from tests.pipeline.rewards.samples import episode, task
from tests.samples import call


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    return (repository / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_every_reward_stands_in_the_table_in_order(text: str) -> None:
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(REWARDS)


def test_the_recipes_are_valid(text: str) -> None:
    training, judge, stored = (yaml.safe_load(block) for block in blocks(text, "yaml"))
    assert build_reward(training["grpo"]["reward"]).name == "tool_cost"
    assert build_reward(judge["reward"]).name == "judge"
    for recipe in (training, stored):
        (filter_,) = build_filters(recipe["curate"]["filters"], tasks=lambda task_id: None, gold={})
        assert filter_.name == "reward"


def test_the_own_reward_runs(text: str) -> None:
    namespace: dict[str, Any] = {"__name__": "docs"}
    exec(blocks(text, "python")[1], namespace)
    rome = call("search", city="Rome")
    (found,) = asyncio.run(namespace["Short"]().score(task(), [episode(rome, rome, "Done.")]))
    assert found.total == pytest.approx(0.9) and found.parts[0].value == 1.0
