"""An agent framework from PyPI, unchanged: its episodes are recorded, token for token."""

from __future__ import annotations

import asyncio
from typing import Any

import agents
import openai
import pytest

from rl.audit import audit
from rl.rows import sft_rows
from tests.pipeline.gateway.conftest import sampled
from tests.pipeline.rollout_world import call_text

SCRIPT = (
    "I look it up.\n" + call_text("look", key="a") + "\n" + call_text("look", key="b"),
    call_text("add", left=40, right=2),
    "The sum is 42.",
)


@pytest.fixture(autouse=True)
def no_tracing() -> None:
    """The framework would report traces to its maker."""
    agents.set_tracing_disabled(True)


@agents.function_tool
def look(key: str) -> str:
    """Look up a number.

    Args:
        key: What to look up.
    """
    return {"a": "40", "b": "2"}[key]


@agents.function_tool
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def agent(client: openai.AsyncOpenAI, *, api: str) -> agents.Agent[None]:
    models: dict[str, Any] = {
        "chat": agents.OpenAIChatCompletionsModel,
        "responses": agents.OpenAIResponsesModel,
    }
    return agents.Agent(
        name="adder",
        instructions="Use the tools.",
        tools=[look, add],
        model=models[api](model="policy", openai_client=client),
    )


async def episode(serve: Any, *, api: str, stream: bool) -> Any:
    async with serve(list(SCRIPT)) as desk:
        opened = await desk.open(prompt="What is a plus b?")
        async with openai.AsyncOpenAI(
            base_url=f"{desk.url}{opened['path']}/v1", api_key=opened["api_key"]
        ) as client:
            question = opened["messages"][0]["content"]
            if stream:
                run = agents.Runner.run_streamed(agent(client, api=api), question)
                async for _ in run.stream_events():
                    pass
                answer = run.final_output
            else:
                answer = (await agents.Runner.run(agent(client, api=api), question)).final_output
        closed = await desk.close(reward=float("42" in answer), components={"said_42": 1})
        return answer, closed, desk


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents_is_recorded_and_trains(serve: Any, renderer: Any, api: str, stream: bool) -> None:
    answer, closed, desk = asyncio.run(episode(serve, api=api, stream=stream))
    assert answer == "The sum is 42." and closed["reward"] == 1.0
    (trajectory,) = desk.trajectories
    assert [str(turn.role) for turn in trajectory.turns] == [
        *("system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant")
    ]
    assert [turn.text for turn in trajectory.turns if turn.result] == ["40", "2", "42"]
    (segment,) = trajectory.segments
    stop = renderer.stop_token_ids[0]
    assert sampled(trajectory) == [(*renderer.encode(text), stop) for text in SCRIPT]
    for prompt in desk.engine.prompts:
        assert list(segment.token_ids[: len(prompt)]) == prompt, "every prompt is what was stored"
    report = audit([trajectory], stop_token_ids=renderer.stop_token_ids, rows=sft_rows([trajectory])).refuse()
    assert (report.finished_turns, report.problems) == (3, [])
    (row,) = sft_rows([trajectory])
    assert row.num_trained == segment.num_generated == report.trained_tokens
    assert trajectory.reward.components[0].name == "said_42"


def test_a_handoff_between_agents_stays_one_episode(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        async with serve([call_text("transfer_to_adder"), call_text("add", left=40, right=2), "42"]) as desk:
            opened = await desk.open(prompt="40 + 2?")
            async with openai.AsyncOpenAI(
                base_url=f"{desk.url}{opened['path']}/v1", api_key=opened["api_key"]
            ) as client:
                second = agent(client, api="chat")
                first = second.clone(name="desk", instructions="Hand over.", tools=[], handoffs=[second])
                result = await agents.Runner.run(first, "40 + 2?")
            await desk.close()
            return result.final_output, desk.trajectories

    answer, (trajectory,) = asyncio.run(play())
    assert answer == "42" and len(trajectory.segments) == 2
    assert [[tool.name for tool in one.tools] for one in trajectory.segments] == [
        ["transfer_to_adder"],
        ["look", "add"],
    ]
    audit([trajectory], stop_token_ids=renderer.stop_token_ids).refuse()
