"""Chats that a real model plays: what it gets wrong is a failure, never an invented answer or score."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from data.messages import ToolStatus
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.environments.simulated import SimulatedEnvironment
from pipeline.rewards.base import Score
from pipeline.rewards.judge import Judge
from pipeline.server import ModelServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]
EXAMPLES = Path(__file__).parents[3] / "examples" / "own_tools"


def settings_of(server: ModelServer) -> dict[str, object]:
    params = {"temperature": 0, "max_tokens": 160}
    return {"url": server.url, "model": server.settings.served_name, "params": params, "max_asks": 2}


def test_a_real_model_plays_a_tool_or_fails_as_infrastructure(vllm_server: ModelServer) -> None:
    world = SimulatedEnvironment(
        name="kitchen",
        chat=settings_of(vllm_server),
        tools=EXAMPLES / "simulated_tools.yaml",
        tasks=EXAMPLES / "simulated_tasks.yaml",
    )

    async def run() -> list[ToolStatus]:
        found = []
        for index, task in enumerate(world.tasks("train")):
            session = await world.open(task)
            result = await session.call("search_recipes", {"ingredient": "leek"}, f"c{index}")
            marked = [metric.name for metric in result.metrics]
            assert result.status is ToolStatus.INFRA_ERROR or marked == ["simulated"]
            found.append(result.status)
            await session.close()
        return found

    assert set(asyncio.run(run())) <= set(ToolStatus)


def test_a_real_judge_grades_or_gives_no_score(vllm_server: ModelServer) -> None:
    world = load_environment("counter")
    judge = Judge(
        judges=[settings_of(vllm_server)], criteria={"completion": "the counter was raised as asked"}
    )

    async def run() -> list[Score]:
        task = next(world.tasks("dev"))
        played = await play(world, task, world.gold(task))
        scores = await judge.score(task, [played, played])
        await judge.close()
        return scores

    for score in asyncio.run(run()):
        if score.total is None:
            assert score.error
        else:
            assert 0 <= score.total <= 1 and "completion" in {part.name for part in score.parts}
