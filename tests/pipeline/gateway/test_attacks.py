"""Harnesses at their worst: whatever is sent, sampled ids are stored as they are and trained once."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import httpx
import pytest

from data.tasks import Budget
from pipeline.environments.counter import CounterEnvironment
from rl.audit import audit
from tests.pipeline.gateway.conftest import LOOK_A, user
from tests.pipeline.rollout_world import World, call_text, make_task, spoken

SYSTEM = {"role": "system", "content": "Be brief."}


def reformatted(message: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same assistant message as another client would write it."""
    echo = dict(message)
    if not echo.get("content"):
        kind = rng.randrange(4)
        echo["content"] = [None, "", [], None][kind]
        if kind == 3:
            echo.pop("content")
    elif rng.random() < 0.5:
        echo["content"] = [{"type": "text", "text": f" {echo['content']}\n"}]
    calls = []
    for number, call in enumerate(echo.get("tool_calls") or []):
        arguments = json.loads(call["function"]["arguments"])
        keys = sorted(arguments, reverse=rng.random() < 0.5)
        text = json.dumps({key: arguments[key] for key in keys}, indent=rng.choice([None, 1, 4]))
        name = call["function"]["name"]
        calls.append(call | {"index": number, "function": {"name": name, "arguments": text}})
    if calls:
        echo["tool_calls"] = calls
    if rng.random() < 0.3:
        echo |= {"refusal": None, "annotations": [], "audio": None}
    return echo


class Walk:
    """A harness that does a random thing to its dialogue before every request."""

    def __init__(self, desk: Any, rng: random.Random) -> None:
        self.desk, self.rng = desk, rng
        self.messages: list[dict[str, Any]] = [SYSTEM, user("Find it.")]

    async def step(self) -> None:
        getattr(self, self.rng.choice(MOVES))()
        options: dict[str, Any] = {}
        if self.rng.random() < 0.15:
            options["n"] = 2
        if self.rng.random() < 0.15:
            options["tools"] = []
        if self.rng.random() < 0.15:
            options["stop"] = ["e"]
        asked = list(self.messages)
        tries = self.rng.choice([1, 1, 2, 3])
        answers = await asyncio.gather(*(self.desk.raw(asked, **options) for _ in range(tries)))
        assert {answer.status_code for answer in answers} == {200}, answers[0].text
        choices = [answer.json()["choices"] for answer in answers]
        assert all(one == choices[0] for one in choices), "a repetition was sampled again"
        reply = self.rng.choice(choices[0])["message"]
        self.messages.append(reformatted(reply, self.rng))
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": str(self.rng.randrange(9))}
            for call in reply.get("tool_calls") or []
        ]
        self.rng.shuffle(results)
        self.messages += results or [user(f"and {self.rng.randrange(9)}")]

    def nothing(self) -> None: ...

    def edits_system(self) -> None:
        self.messages[0] = {"role": "system", "content": f"Be {self.rng.randrange(3)}."}

    def drops_system(self) -> None:
        if self.messages[0]["role"] == "system":
            self.messages.pop(0)

    def truncates(self) -> None:
        """Keep the opening and what follows a later assistant message."""
        starts = [at for at, one in enumerate(self.messages) if one["role"] == "assistant"]
        if starts:
            self.messages = self.messages[:2] + self.messages[max(2, self.rng.choice(starts)) :]

    def goes_back(self) -> None:
        starts = [at for at, one in enumerate(self.messages) if one["role"] == "assistant"]
        if starts:
            self.messages = self.messages[: self.rng.choice(starts)]

    def summarises(self) -> None:
        self.messages = [*self.messages[:2], user(f"Summary {self.rng.randrange(9)}: go on.")]

    def writes_a_reply(self) -> None:
        self.messages += [{"role": "assistant", "content": "I think so."}, user("Sure?")]

    def shortens_results(self) -> None:
        for at, one in enumerate(self.messages):
            if one["role"] == "tool" and self.rng.random() < 0.5:
                self.messages[at] = one | {"content": "[dropped]"}

    def asks_another(self) -> None:
        self.messages = [SYSTEM, user(f"Judge {self.rng.randrange(3)}.")]


MOVES = ["nothing"] * 6 + [
    *("edits_system", "drops_system", "truncates", "goes_back", "summarises"),
    *("writes_a_reply", "shortens_results", "asks_another"),
]


@pytest.mark.parametrize("seed", range(6))
def test_a_harness_that_does_anything_to_its_history(serve: Any, renderer: Any, seed: int) -> None:
    rng = random.Random(seed)

    class Many:
        name, weights_version = "many", "w0"

        async def generate(self, ids: Any, sampling: Any, *, n: int = 1, affinity: str = "") -> Any:
            await asyncio.sleep(0)
            return [spoken(renderer, script(f"{seed}/{sampling.seed}/{at}"), sampling) for at in range(n)]

    def script(draw: str) -> str:
        number = random.Random(draw).randrange(100_000)
        said = [
            f"done {number}",
            call_text("look", key=f"k{number}"),
            f"{call_text('look', key='a', n=number)}\n{call_text('look', key='b')}",
            f"<think>hm {number}</think>see {call_text('look', key='a')}",
            '<tool_call>\n{"name": "look", "arguments": {"key"',
        ]
        return said[number % len(said)]

    async def play() -> Any:
        task = {"max_turns": 500, "max_tokens": 10_000_000}
        async with serve(Many(), max_context_tokens=100_000) as desk:
            whole = make_task(budget=Budget(**task, max_seconds=600)).model_dump(mode="json")
            opened = await desk.post("/episodes", {"task": whole, "key": "ep"})
            assert opened.status_code == 200, opened.text
            desk.keys["ep"] = opened.json()["api_key"]
            walk = Walk(desk, rng)
            for _ in range(25):
                await walk.step()
            exchanges = list(desk.gateway._open["ep"].tree.exchanges)
            await desk.close()
            return exchanges, desk.trajectories

    exchanges, trajectories = asyncio.run(play())
    audit(trajectories, stop_token_ids=renderer.stop_token_ids).refuse()
    assert len({trajectory.trajectory_id for trajectory in trajectories}) == len(trajectories)
    made = Counter(tuple(one.completion.token_ids) for one in exchanges)
    trained: Counter[tuple[int, ...]] = Counter()
    for trajectory in trajectories:
        for segment in trajectory.segments:
            mask = segment.loss_mask(trajectory.turns)
            for span in segment.spans:
                ids = tuple(segment.token_ids[span.start : span.end])
                if span.kind == "generated":
                    assert ids in made
                    trained[ids] += all(mask[span.start : span.end])
                else:
                    assert not any(mask[span.start : span.end])
    assert trained == made, "every sampled token is trained exactly once"
    rewarded = [one for one in trajectories if one.reward is not None]
    assert all(one.termination == "finished" for one in rewarded)


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat", f'{{"messages": [], "temperature": {HUGE}}}', "temperature"),
        ("chat", '{"messages": [], "top_p": 1e999}', "top_p"),
        ("close", f'{{"reward": {HUGE}}}', "reward"),
        ("close", '{"reward": -1e999}', "reward"),
        ("close", '{"reward": 1, "components": {"speed": 1e999}}', "components.speed"),
        (
            "chat",
            '{"messages": [], "tools": [{"type": "function", '
            '"function": {"name": "a", "parameters": {"$ref": "#"}}}]}',
            "tools.0.function.parameters",
        ),
    ],
)
def test_numbers_and_schemas_without_end_are_named(serve: Any, path: str, body: str, param: str) -> None:
    async def play() -> Any:
        async with serve(["done"]) as desk:
            await desk.open()
            where = "/episodes/ep/" + {"chat": "v1/chat/completions", "close": "close"}[path]
            head = {"authorization": f"Bearer {desk.gateway.settings.token}"}
            answer = await desk.client.post(desk.url + where, content=body, headers=head)
            return answer, desk.gateway.open_keys

    answer, still_open = asyncio.run(play())
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param
    assert still_open == ("ep",), "the verdict was refused, so the episode goes on"


def test_a_head_request_is_answered_without_a_body(serve: Any) -> None:
    async def play() -> list[httpx.Response]:
        async with serve(["done"]) as desk:
            return [await desk.client.head(desk.url + path) for path in ("/health", "/episodes", "/health")]

    answers = asyncio.run(play())
    assert [answer.status_code for answer in answers] == [200, 401, 200]
    assert not any(answer.content for answer in answers)


def test_a_repeated_tool_call_is_executed_once(serve: Any) -> None:
    async def play() -> Any:
        environment = CounterEnvironment(steps=(1,))
        said = [call_text("add", amount=amount), "Done."]
        async with serve(said, environment=environment) as desk:
            opened = await desk.open(prompt=None, split="train", index=3)
            reply = await desk.chat(opened["messages"], tools=opened["tools"])
            call = reply["tool_calls"][0]
            asked = {"arguments": json.loads(call["function"]["arguments"]), "call_id": call["id"]}
            tries = [desk.post("/episodes/ep/tools/add", asked, token=opened["api_key"]) for _ in range(3)]
            answers = [one.json() for one in await asyncio.gather(*tries)]
            answers.append((await desk.post("/episodes/ep/tools/add", asked, token=opened["api_key"])).json())
            answer = {"role": "tool", "tool_call_id": call["id"], "content": answers[0]["content"]}
            await desk.chat([*opened["messages"], reply, answer], tools=opened["tools"])
            return answers, (await desk.post("/episodes/ep/close", {})).json()

    task = next(t for i, t in enumerate(CounterEnvironment(steps=(1,)).tasks("train")) if i == 3)
    (amount,) = task.private_value()["amounts"]
    answers, closed = asyncio.run(play())
    assert all(answer == answers[0] for answer in answers)
    assert closed["reward"] == 1.0, "adding twice would have missed the goal"


@pytest.mark.parametrize("broken", ["", "tool_infra", "tool_hangs"])
def test_closing_waits_for_the_tool_that_is_at_work(serve: Any, broken: str) -> None:
    """A tool that breaks after the close was asked for is still no reward."""

    async def play() -> Any:
        world, begun, go = World(broken=broken), asyncio.Event(), asyncio.Event()
        patience = 0.2 if broken == "tool_hangs" else 60.0
        async with serve([LOOK_A], environment=world, verify_seconds=patience) as desk:
            opened = await desk.open(prompt=None, split="train", index=0)
            reply = await desk.chat(opened["messages"], tools=opened["tools"])
            session = desk.gateway._open["ep"].session
            call = session.call

            async def slow(*arguments: Any) -> Any:
                begun.set()
                await go.wait()
                return await call(*arguments)

            session.call = slow
            asked = {"arguments": {"key": "a"}, "call_id": reply["tool_calls"][0]["id"]}
            tool = asyncio.create_task(desk.post("/episodes/ep/tools/look", asked, token=opened["api_key"]))
            await begun.wait()
            closing = asyncio.create_task(desk.close(reward=1.0))
            while not desk.gateway._open["ep"].closed:
                await asyncio.sleep(0)
            late = await desk.post(
                "/episodes/ep/tools/look", asked | {"call_id": "late"}, token=opened["api_key"]
            )
            go.set()
            closed = await closing
            tool.cancel()
            return late, closed

    late, closed = asyncio.run(play())
    assert late.status_code == 409 and late.json()["error"]["code"] == "episode_closed"
    assert closed["termination"] == ("infra_failure" if broken else "finished")
    assert closed["reward"] == (None if broken else 1.0)
