"""Who may ask, what is refused by name, and what HTTP itself may throw at the server."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from pipeline.environments.counter import CounterEnvironment
from pipeline.errors import ConfigError
from pipeline.gateway.gateway import Gateway
from pipeline.gateway.serve import run_gateway
from pipeline.gateway.settings import GatewaySettings
from tests.pipeline.gateway.conftest import LOOK, LOOK_A, user
from tests.pipeline.rollout_world import Speaker, World, call_text

START = [user("Find it.")]
CHAT = "/v1/chat/completions"


def test_an_episodes_key_asks_within_its_episode_and_nothing_else(serve: Any) -> None:
    async def play() -> Any:
        async with serve(["x", "y", "z"]) as desk:
            one, two = await desk.open("one"), await desk.open("two")
            body = {"messages": START}
            inside = await desk.post("/episodes/one" + CHAT, body, token=one["api_key"])
            by_key = await desk.post(CHAT, body | {"seed": 1}, token=one["api_key"])
            by_header = await desk.post(CHAT, body | {"seed": 2}, **{"x-trajsmith-episode": "two"})
            other = await desk.post("/episodes/two" + CHAT, body, token=one["api_key"])
            nobody = await desk.client.post(desk.url + "/episodes/one" + CHAT, json=body)
            rewarding = await desk.post("/episodes/one/close", {"reward": 1.0}, token=one["api_key"])
            opening = await desk.post("/episodes", {"prompt": "x"}, token=two["api_key"])
            listing = await desk.client.get(desk.url + "/episodes")
            models = await desk.client.get(
                desk.url + "/episodes/one/v1/models", headers={"x-api-key": one["api_key"]}
            )
            return (
                [one.status_code for one in (inside, by_key, by_header, models)],
                [one.status_code for one in (other, nobody, rewarding, opening, listing)],
                desk.gateway.open_keys,
            )

    assert asyncio.run(play()) == ([200] * 4, [401, 401, 403, 403, 401], ("one", "two"))


def test_tokens_are_random_and_shown_nowhere() -> None:
    one, two = GatewaySettings(), GatewaySettings()
    assert one.token != two.token and len(one.token) >= 32
    assert one.token not in repr(one)
    with pytest.raises(ConfigError, match="16 printable"):
        GatewaySettings(token="short")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"logit_bias": {"1": 5}}, "logit_bias"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, "tool_choice"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"n": 1000}, "n"),
    ({"n": True}, "n"),
    ({"made_up": 1}, "made_up"),
    ({"stop": [""]}, "stop"),
    ({"max_tokens": 0}, "max_tokens"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 5, "allOf": 1}}}]},
        "tools.0.function.parameters",
    ),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages.0.name"),
    ({"messages": [*START, {"role": "assistant", "content": "So"}]}, "messages"),
    ({"messages": [{"role": "tool", "tool_call_id": "no", "content": "x"}]}, "messages.0.tool_call_id"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content.0.type",
    ),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"top_p": 0.9}, "top_p"),
    ({"top_k": 5}, "top_k"),
]


@pytest.fixture(scope="module")
def answers(renderer: Any) -> list[tuple[int, Any]]:
    """What a gateway that takes no truncated sampling says to every case, and then to a good request."""

    async def play() -> Any:
        import httpx

        gateway = Gateway(
            Speaker(renderer, ["fine"]), renderer=renderer, settings=GatewaySettings(allow_truncated=False)
        )
        async with run_gateway(gateway) as url, httpx.AsyncClient(timeout=60) as client:
            head = {"authorization": f"Bearer {gateway.settings.token}"}
            await client.post(url + "/episodes", json={"prompt": "x", "key": "e"}, headers=head)
            found = []
            nothing = {"temperature": None, "tool_choice": "auto", "frequency_penalty": 0, "stop": None}
            for body in [*(body for body, _ in REFUSED), nothing]:
                sent = {"messages": START, "tools": [LOOK]} | body
                answer = await client.post(url + "/episodes/e" + CHAT, json=sent, headers=head)
                found.append((answer.status_code, answer.json()))
            return found

    return asyncio.run(play())


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_cannot_be_honoured_is_a_400_that_names_it(answers: Any, case: int) -> None:
    status, body = answers[case]
    assert (status, body["error"]["param"]) == (400, REFUSED[case][1]), body


def test_fields_without_effect_are_taken(answers: Any) -> None:
    assert answers[-1][0] == 200


def test_an_environment_lends_its_tools_and_judges(serve: Any) -> None:
    async def play(amount: int) -> Any:
        environment = CounterEnvironment(steps=(1,))
        async with serve([call_text("add", amount=amount), "Done."], environment=environment) as desk:
            opened = await desk.open(prompt=None, split="train", index=3)
            reply = await desk.chat(opened["messages"], tools=opened["tools"])
            call = reply["tool_calls"][0]
            said = await desk.post(
                "/episodes/ep/tools/add",
                {"arguments": json.loads(call["function"]["arguments"]), "call_id": call["id"]},
                token=opened["api_key"],
            )
            answer = {"role": "tool", "tool_call_id": call["id"], "content": said.json()["content"]}
            await desk.chat([*opened["messages"], reply, answer], tools=opened["tools"])
            empty = await desk.post("/episodes/ep/close", {})
            again = await desk.post("/episodes/ep/close", {})
            assert again.json() == empty.json()
            return desk.records, empty.json()

    task = next(t for i, t in enumerate(CounterEnvironment(steps=(1,)).tasks("train")) if i == 3)
    (amount,) = task.private_value()["amounts"]
    (kept, trajectory), closed = asyncio.run(play(amount))
    assert kept == task and closed["reward"] == 1.0
    assert trajectory.environment.name == "counter" and trajectory.reward.verifier == task.verifier
    _, closed = asyncio.run(play(amount % 9 + 1))
    assert closed["reward"] == 0.0


def test_a_verifier_that_breaks_is_no_reward(serve: Any) -> None:
    async def verify(trajectory: Any) -> Any:
        raise ZeroDivisionError("bug")

    async def play() -> Any:
        async with serve(["done"]) as desk:
            await desk.open()
            await desk.chat(START)
            return await desk.gateway.close("ep", verify=verify)

    (trajectory,) = asyncio.run(play())
    assert (trajectory.termination, trajectory.blame, trajectory.reward) == ("infra_failure", "judge", None)


def test_a_verdict_is_demanded_and_broken_is_one(serve: Any) -> None:
    async def play() -> Any:
        async with serve(["done"]) as desk:
            await desk.open()
            await desk.chat(START)
            nothing = await desk.post("/episodes/ep/close", {})
            nan = await desk.client.post(
                desk.url + "/episodes/ep/close",
                content=b'{"reward": NaN}',
                headers={"authorization": f"Bearer {desk.gateway.settings.token}"},
            )
            taken = await desk.post("/episodes", {"prompt": "x", "key": "ep"})
            odd = await desk.post("/episodes", {"prompt": "x", "key": "../ep"})
            return [
                nothing.status_code,
                nan.status_code,
                taken.status_code,
                odd.status_code,
            ], await desk.close(broken="the browser crashed")

    statuses, closed = asyncio.run(play())
    assert statuses == [400, 400, 409, 400]
    assert (closed["termination"], closed["reward"]) == ("infra_failure", None)


def test_nothing_of_a_request_reaches_the_log(serve: Any, caplog: Any) -> None:
    class Buggy:
        name, weights_version = "buggy", ""

        async def generate(self, ids: Any, sampling: Any, *, n: int = 1, affinity: str = "") -> Any:
            raise KeyError("a bug about SECRET-PROMPT")

    async def play() -> Any:
        async with serve(Buggy()) as desk:
            await desk.open()
            answer = await desk.raw([user("SECRET-PROMPT")])
            return answer, await desk.close(reward=0.0), desk

    with caplog.at_level(logging.DEBUG):
        answer, closed, desk = asyncio.run(play())
    assert answer.status_code == 503 and closed["termination"] == "infra_failure"
    logged = "\n".join(
        record.getMessage() for record in caplog.records if record.name.startswith("trajsmith")
    )
    assert "SECRET" not in logged + answer.text and desk.gateway.settings.token not in logged


async def talk(url: str, *pieces: bytes) -> bytes:
    """What the server says to raw bytes."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    writer.write_eof()
    said = await reader.read()
    writer.close()
    await writer.wait_closed()
    return said


def test_odd_http_is_answered_or_dropped_and_the_server_goes_on(serve: Any) -> None:
    async def play() -> Any:
        async with serve(["done"]) as desk:
            opened = await desk.open()
            body = json.dumps({"messages": START}).encode()
            bearer = f"Authorization: Bearer {opened['api_key']}"
            head = f"POST /episodes/ep{CHAT} HTTP/1.1\r\nHost: x\r\n{bearer}\r\n"
            size = f"{len(body):x}\r\n".encode()
            chunked = head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + size + body + b"\r\n0\r\n\r\n"
            health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
            return [
                await talk(desk.url, b"nonsense\r\n\r\n"),
                await talk(desk.url, head.encode() + b"Content-Length: 10\r\n\r\nabc"),
                await talk(desk.url, head.encode() + b"Content-Length: 3\r\n\r\nabc"),
                await talk(desk.url, b"GET /health HTTP/1.1\r\nX: " + b"a" * (1 << 17)),
                await talk(desk.url, chunked),
                await talk(desk.url, health, health),
                await talk(
                    desk.url, head.encode() + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"{}"
                ),
            ]

    said = asyncio.run(play())
    assert said[0].startswith(b"HTTP/1.1 400") and said[1].startswith(b"HTTP/1.1 400")
    assert b"not JSON" in said[2] and said[3].startswith(b"HTTP/1.1 431")
    assert b"done" in said[4]
    assert said[5].count(b"HTTP/1.1 200") == 2
    assert b"messages is missing" in said[6]


def test_it_listens_on_this_machine_only_and_names_a_taken_port(serve: Any, renderer: Any) -> None:
    async def play() -> Any:
        async with serve([]) as desk:
            assert desk.url.startswith("http://127.0.0.1:")
            port = int(desk.url.rpartition(":")[2])
            with pytest.raises(ConfigError, match="choose another port"):
                async with run_gateway(Gateway(Speaker(renderer, []), renderer=renderer), port=port):
                    pass
            return port

    port = asyncio.run(play())
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0, "the port is free again"


def test_a_malformed_call_comes_back_as_text_and_goes_on(serve: Any) -> None:
    broken = '<tool_call>\n{"name":"look","arguments":{"key":\n</tool_call>'

    async def play() -> Any:
        async with serve([broken + "\n" + LOOK_A, "done"]) as desk:
            await desk.open()
            reply = await desk.chat(START)
            answers = [
                {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "1"},
                user("One of your calls was malformed."),
            ]
            await desk.chat([*START, reply, *answers])
            await desk.close()
            return reply, desk.trajectories

    reply, (trajectory,) = asyncio.run(play())
    assert reply["content"] == broken and len(reply["tool_calls"]) == 1
    assert [call.status for call in trajectory.turns[1].tool_calls] == ["not_json", "ok"]
    assert len(trajectory.segments) == 1


def test_a_tool_of_the_environment_that_breaks_or_refuses(serve: Any) -> None:
    async def play(broken: str) -> Any:
        world = World(broken=broken)
        async with serve([LOOK_A, "done"], environment=world) as desk:
            await desk.open(prompt=None, split="train", index=0)
            reply = await desk.chat(START)
            call_id = reply["tool_calls"][0]["id"]
            wrong = await desk.post("/episodes/ep/tools/look", {"arguments": {"k": 1}, "call_id": call_id})
            if not broken:
                text = wrong.json()["content"]
                await desk.chat([*START, reply, {"role": "tool", "tool_call_id": call_id, "content": text}])
            right = await desk.post("/episodes/ep/tools/look", {"arguments": {"key": "a"}, "call_id": "x"})
            return wrong.json(), right.status_code, await desk.close(reward=1.0), desk.trajectories, world

    wrong, status, closed, (trajectory,), world = asyncio.run(play(""))
    assert wrong["status"] == "tool_error" and "missing argument: key" in wrong["content"]
    assert (status, closed["reward"], world.closed) == (200, 1.0, 1)
    assert [turn.result.status for turn in trajectory.turns if turn.result] == ["tool_error"]
    _, status, closed, (trajectory,), world = asyncio.run(play("tool_raises"))
    assert (status, closed["termination"], closed["reward"], world.closed) == (503, "infra_failure", None, 1)
    assert "ZeroDivisionError" in trajectory.error
