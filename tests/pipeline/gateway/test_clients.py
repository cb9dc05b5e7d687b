"""The official clients of both wire formats, unchanged, against a served gateway."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from pipeline.errors import EngineError
from tests.pipeline.gateway.conftest import LOOK, LOOK_A, sampled
from tests.pipeline.rollout_world import call_text

START: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find it."}]
TWO_CALLS = "Let me see.\n" + LOOK_A + "\n" + call_text("look", key="b")
FUNCTION: Any = LOOK["function"]
FLAT = {"type": "function", **FUNCTION}
NATIVE = {"name": "look", "description": "Look up", "input_schema": FUNCTION["parameters"]}


@asynccontextmanager
async def openai_client(desk: Any) -> Any:
    opened = await desk.open()
    async with openai.AsyncOpenAI(
        base_url=f"{desk.url}{opened['path']}/v1", api_key=opened["api_key"]
    ) as client:
        yield client


def test_openai_chat_with_tools_and_parallel_calls(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        async with serve([TWO_CALLS, "done"]) as desk, openai_client(desk) as client:
            first = await client.chat.completions.create(
                model="m", messages=START, tools=[LOOK], logprobs=True, temperature=0.5, max_tokens=120
            )
            message = first.choices[0].message
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": f"value {n}"}
                for n, call in enumerate(message.tool_calls)
            ]
            second = await client.chat.completions.create(
                model="m", messages=[*START, message, *results], tools=[LOOK]
            )
            await desk.close()
            return first, second, desk

    first, second, desk = asyncio.run(play())
    choice = first.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert [call.function.arguments for call in choice.message.tool_calls] == ['{"key":"a"}', '{"key":"b"}']
    assert [request.temperature for request in desk.engine.requests] == [0.5, 1.0]
    assert desk.engine.requests[0].max_tokens == 120
    (trajectory,) = desk.trajectories
    segment = trajectory.segments[0]
    told = [entry.logprob for entry in choice.logprobs.content]
    assert told == list(segment.logprobs[: len(told)]) and len(told) == first.usage.completion_tokens
    assert "".join(entry.token for entry in choice.logprobs.content) == renderer.decode(
        sampled(trajectory)[0]
    )
    assert second.choices[0].finish_reason == "stop" and second.choices[0].message.content == "done"
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.total_tokens
    assert [turn.text for turn in trajectory.turns if turn.result] == ["value 0", "value 1"]


def test_openai_chat_stream(serve: Any) -> None:
    async def play() -> Any:
        async with serve([TWO_CALLS, "done"]) as desk, openai_client(desk) as client:
            async with client.chat.completions.stream(
                model="m", messages=START, tools=[LOOK], stream_options={"include_usage": True}
            ) as stream:
                async for _ in stream:
                    pass
                first = await stream.get_final_completion()
            message = first.choices[0].message
            echo = {
                "role": "assistant",
                "content": message.content,
                "tool_calls": [
                    call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls
                ],
            }
            for call in echo["tool_calls"]:
                call["function"].pop("parsed_arguments", None)
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": "v"} for call in message.tool_calls
            ]
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model="m", messages=[*START, echo, *results], tools=[LOOK], stream=True
                )
            ]
            await desk.close()
            return first, chunks, desk.trajectories

    first, chunks, (trajectory,) = asyncio.run(play())
    assert first.choices[0].finish_reason == "tool_calls" and first.usage.completion_tokens > 10
    assert [call.function.arguments for call in first.choices[0].message.tool_calls] == [
        '{"key":"a"}',
        '{"key":"b"}',
    ]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "done"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(trajectory.segments) == 1


def test_openai_client_retries_an_engine_error_by_itself(serve: Any) -> None:
    async def play() -> Any:
        async with serve([EngineError("down"), "done"]) as desk, openai_client(desk) as client:
            quick = client.with_options(max_retries=1)
            reply = await quick.chat.completions.create(model="m", messages=START)
            return reply.choices[0].message.content, await desk.close()

    text, closed = asyncio.run(play())
    assert text == "done" and closed["reward"] == 1.0


def test_openai_responses(serve: Any) -> None:
    async def play(*, stream: bool) -> Any:
        async with serve([TWO_CALLS, "done"]) as desk, openai_client(desk) as client:
            items: list[Any] = [{"role": "user", "content": "Find it."}]
            for _ in range(2):
                asked: dict[str, Any] = {
                    "model": "m",
                    "instructions": "Be brief.",
                    "input": items,
                    "tools": [FLAT],
                }
                if stream:
                    async with client.responses.stream(**asked) as events:
                        async for _event in events:
                            pass
                        reply = await events.get_final_response()
                else:
                    reply = await client.responses.create(**asked)
                said = [item.model_dump(exclude_none=True) for item in reply.output]
                for item in said:
                    item.pop("parsed_arguments", None)
                    for part in item.get("content") or ():
                        part.pop("parsed", None)
                calls = [item for item in said if item["type"] == "function_call"]
                items += said
                items += [
                    {"type": "function_call_output", "call_id": call["call_id"], "output": call["arguments"]}
                    for call in calls
                ]
            await desk.close()
            return reply, desk.trajectories

    for stream in (False, True):
        reply, (trajectory,) = asyncio.run(play(stream=stream))
        assert reply.output_text == "done" and reply.status == "completed"
        assert reply.usage.total_tokens == len(trajectory.segments[0].token_ids)
        assert len(trajectory.segments) == 1 and len(trajectory.turns) == 6


def test_anthropic_messages(serve: Any) -> None:
    async def play(*, stream: bool) -> Any:
        async with serve([TWO_CALLS, "done ### never shown"]) as desk:
            opened = await desk.open()
            async with anthropic.AsyncAnthropic(
                base_url=desk.url + opened["path"], api_key=opened["api_key"]
            ) as client:
                messages: list[Any] = [{"role": "user", "content": "Find it."}]
                replies = []
                for _ in range(2):
                    asked: dict[str, Any] = {
                        "model": "m",
                        "system": "Be brief.",
                        "max_tokens": 100,
                        "messages": messages,
                        "tools": [NATIVE],
                        "stop_sequences": ["###"],
                    }
                    if stream:
                        async with client.messages.stream(**asked) as events:
                            reply = await events.get_final_message()
                    else:
                        reply = await client.messages.create(**asked)
                    replies.append(reply)
                    results = [
                        {"type": "tool_result", "tool_use_id": block.id, "content": "v", "is_error": True}
                        for block in reply.content
                        if block.type == "tool_use"
                    ]
                    messages += [
                        {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
                        {"role": "user", "content": results},
                    ]
            await desk.close()
            return replies, desk.trajectories

    for stream in (False, True):
        (first, second), (trajectory,) = asyncio.run(play(stream=stream))
        assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
        assert first.stop_reason == "tool_use" and first.content[1].input == {"key": "a"}
        assert (second.content[0].text, second.stop_reason, second.stop_sequence) == (
            "done",
            "stop_sequence",
            "###",
        )
        assert len(trajectory.segments) == 1
        assert {turn.result.status for turn in trajectory.turns if turn.result} == {"tool_error"}
        used = second.usage.input_tokens + second.usage.cache_read_input_tokens + second.usage.output_tokens
        assert used == len(trajectory.segments[0].token_ids)


def test_errors_are_read_by_the_clients(serve: Any) -> None:
    async def play() -> None:
        async with serve([]) as desk, openai_client(desk) as client:
            with pytest.raises(openai.BadRequestError, match="logit_bias"):
                await client.chat.completions.create(model="m", messages=START, logit_bias={"5": 1})
            with pytest.raises(openai.AuthenticationError):
                await client.with_options(api_key="ep.wrong").chat.completions.create(
                    model="m", messages=START
                )
            native = anthropic.AsyncAnthropic(base_url=desk.url + "/episodes/ep", api_key=desk.keys["ep"])
            async with native:
                with pytest.raises(anthropic.BadRequestError, match="thinking"):
                    await native.messages.create(
                        model="m",
                        max_tokens=9,
                        messages=START[1:],
                        thinking={"type": "enabled", "budget_tokens": 1024},
                    )

    asyncio.run(play())
