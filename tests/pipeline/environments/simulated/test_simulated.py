"""Sessions whose tools a chat plays: consistent, cached, marked, and never an invented answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from data.messages import ToolResult, ToolSpec, ToolStatus, Turn
from pipeline.chat.base import Chat
from pipeline.chat.core import ChatBudget
from pipeline.chat.openai import OpenAIChat
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.play import play
from pipeline.environments.simulated.environment import SimulatedEnvironment, load
from pipeline.environments.simulated.simulator import reply_schema
from pipeline.environments.simulated.tools import listed_tools, openapi_tools
from pipeline.errors import BudgetExceededError, ConfigError, EngineError, EnvironmentFailure
from pipeline.http import HttpPolicy
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.openapi.api_server import DOCUMENT
from tests.pipeline.environments.openapi.big_document import big_document
from tests.serving import Received, Reply, ScriptedServer

TOOLS = [
    {
        "name": "create_note",
        "description": "Keep a note.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "returns": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
    },
    {
        "type": "function",
        "reads": True,
        "function": {
            "name": "get_note",
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
    },
]
TASKS = """
- prompt: Keep "milk".
  state: {notes: {}}
  gold: [{name: create_note, arguments: {text: milk}}, {name: get_note, arguments: {id: {$result: 0/id}}}]
  checks: [{state: /notes/n1/text, equals: milk}]
"""


def said(outcome: str = "ok", result: Any = None, error: str = "", **patch: Any) -> str:
    return json.dumps({"outcome": outcome, "result": result, "error": error, "patch": patch})


def honest(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> str:
    asked = json.JSONDecoder().raw_decode(turns[1].text)[0]
    notes, arguments = asked["state"]["notes"], asked["arguments"]
    if asked["tool"] == "get_note":
        found = notes.get(arguments["id"])
        return said(result=found) if found else said("not_found", error="No such note.")
    note = {"id": f"n{len(notes) + 1}", "text": arguments["text"], "world": asked["world"]}
    return said(result=note, notes={note["id"]: note})


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., SimulatedEnvironment]:
    def made(chat: Chat | Any, **options: Any) -> SimulatedEnvironment:
        (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
        (tmp_path / "tasks.yaml").write_text(options.pop("text", TASKS))
        return load(chat=chat, tools=tmp_path / "tools.json", tasks=tmp_path / "tasks.yaml", **options)

    return made


async def ask(
    environment: SimulatedEnvironment, *calls: tuple[str, dict[str, Any]], seed: int = 0
) -> list[ToolResult]:
    """Calls in one session."""
    async with await environment.open(next(environment.tasks("train")), seed=seed) as session:
        return [
            await session.call(name, arguments, f"c{index}") for index, (name, arguments) in enumerate(calls)
        ]


MILK = ("create_note", {"text": "milk"})


def test_gold_solves_a_task_whose_state_the_chat_keeps(run: Run, make: Any) -> None:
    environment = make(ScriptedChat(honest))
    task = next(environment.tasks("train"))
    played = run(play(environment, task, environment.gold(task)))
    assert played.success
    results = [turn.result for turn in played.turns if turn.result is not None]
    assert json.loads(results[1].text)["text"] == "milk"
    assert all(
        [(mark.name, mark.value) for mark in result.metrics] == [("simulated", 1.0)] for result in results
    )
    assert environment.version.startswith("simulated-")
    assert environment.num_open == 0


def test_the_same_call_on_the_same_state_is_asked_once(run: Run, make: Any, tmp_path: Path) -> None:
    chat = ScriptedChat(honest)
    environment = make(chat, cache=tmp_path / "cache")

    async def many() -> list[list[ToolResult]]:
        return await asyncio.gather(*(ask(environment, MILK, ("get_note", {"id": "n1"})) for _ in range(8)))

    answers = run(many())
    assert all(answer == answers[0] for answer in answers)
    assert len(chat.asked) == 2
    other = run(ask(environment, MILK, seed=5))
    assert json.loads(other[0].text)["world"] == 5
    assert len(chat.asked) == 3
    silent = ScriptedChat([])
    again = make(silent, cache=tmp_path / "cache")
    assert run(ask(again, MILK, ("get_note", {"id": "n1"}))) == answers[0]
    assert silent.asked == []


def test_another_chat_guidance_or_document_is_another_world(run: Run, make: Any, tmp_path: Path) -> None:
    versions = {
        make(ScriptedChat(honest)).version,
        make(ScriptedChat(honest, name="other")).version,
        make(ScriptedChat(honest), guidance="A notebook.").version,
    }
    assert len(versions) == 3
    cache = tmp_path / "cache"
    run(ask(make(ScriptedChat(honest), cache=cache), MILK))
    other = ScriptedChat(honest, name="other")
    run(ask(make(other, cache=cache), MILK))
    assert len(other.asked) == 1


def test_a_contradiction_is_asked_again_with_what_is_wrong(run: Run, make: Any) -> None:
    note = {"id": "n1", "text": "milk"}
    chat = ScriptedChat([said(result=note), said(result=note, notes={"n1": note})])
    result = run(ask(make(chat), MILK))[0]
    assert (result.status, json.loads(result.text)) == (ToolStatus.OK, note)
    assert "id n1 is in the result and not in the state" in chat.asked[1][-1].text


def test_a_reply_that_breaks_the_documented_answer_is_asked_again(run: Run, make: Any) -> None:
    note = {"id": "n1", "text": "milk"}
    chat = ScriptedChat(
        [said(result={"text": "milk"}), "sorry", said(), said(result=note, notes={"n1": note})], max_asks=3
    )
    assert run(ask(make(chat), MILK))[0].status is ToolStatus.OK
    assert len(chat.asked) == 4


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (["no"] * 9, "gave no valid reply in 3 tries"),
        ([said(result={"id": "n9"})] * 9, "gave no consistent reply in 3 tries"),
        ([], "has only 0 replies"),
    ],
)
def test_no_answer_is_an_infrastructure_failure_and_is_never_kept(
    run: Run, make: Any, tmp_path: Path, replies: list[str], why: str
) -> None:
    cache = tmp_path / "cache"
    environment = make(ScriptedChat(replies), cache=cache)
    result, later = run(ask(environment, MILK, MILK))
    assert (result.status, later.status) == (ToolStatus.INFRA_ERROR, ToolStatus.INFRA_ERROR)
    assert why in result.text
    assert not cache.exists() or list(cache.iterdir()) == []
    good = make(ScriptedChat(honest))

    async def judged() -> None:
        task = next(environment.tasks("train"))
        async with await environment.open(task) as session:
            await session.call(*MILK, "c1")
            await session.verify(await play(good, task, good.gold(task)))

    with pytest.raises(EnvironmentFailure, match="is unusable"):
        run(judged())
    assert run(ask(make(ScriptedChat(honest), cache=cache), MILK))[0].status is ToolStatus.OK


def test_a_used_up_budget_stops_instead_of_failing_the_tool(run: Run, make: Any) -> None:
    environment = make(ScriptedChat(honest, budget=ChatBudget(max_calls=1)))
    with pytest.raises(BudgetExceededError):
        run(ask(environment, MILK, ("get_note", {"id": "n1"})))


def test_wrong_arguments_never_reach_the_chat(run: Run, make: Any) -> None:
    chat = ScriptedChat([])
    results = run(ask(make(chat), ("get_note", {}), ("get_note", {"id": 3}), ("nope", {})))
    assert [result.status for result in results] == [ToolStatus.TOOL_ERROR] * 3
    assert [list(result.metrics) for result in results] == [[], [], []]
    assert chat.asked == []


def test_what_the_tool_refuses_is_an_observation_and_marked(run: Run, make: Any) -> None:
    result = run(ask(make(ScriptedChat(honest)), ("get_note", {"id": "n4"})))[0]
    assert (result.status, result.text) == (ToolStatus.TOOL_ERROR, "No such note.")
    assert result.metrics[0].name == "simulated"


def test_a_snapshot_holds_the_played_state(run: Run, make: Any) -> None:
    environment = make(ScriptedChat(honest))

    async def episode() -> tuple[Any, Any, str]:
        task = next(environment.tasks("train"))
        async with await environment.open(task) as session, await environment.open(task) as other:
            await session.call(*MILK, "c1")
            kept = session.snapshot()
            await session.call("create_note", {"text": "eggs"}, "c2")
            session.restore(kept)
            other.restore(kept)
            missing = await other.call("get_note", {"id": "n2"}, "c3")
            return session.end_state(), other.end_state(), missing.text

    first, second, missing = run(episode())
    assert first == second and list(first["notes"]) == ["n1"]
    assert missing == "No such note."


def test_a_state_without_end_is_refused(run: Run, make: Any) -> None:
    flood = said(result={"id": "n1"}, notes={"n1": {"id": "n1", "text": "x" * 30_000}})
    chat = ScriptedChat([flood] * 3)
    result = run(ask(make(chat), MILK))[0]
    assert result.status is ToolStatus.INFRA_ERROR
    assert "the state would have 30" in result.text


def test_a_real_endpoint_plays_and_its_failures_are_not_the_agents(run: Run, make: Any) -> None:
    def answer(received: Received) -> Reply:
        turns = [
            Turn(role=item["role"], parts=({"text": item["content"]},)) for item in received.body["messages"]
        ]
        if received.number == 2:
            return Reply(status=400, body={"error": "no"})
        return Reply({"choices": [{"message": {"content": honest(turns, [])}}]})

    with ScriptedServer(answer) as server:
        chat = OpenAIChat(server.url, model="m", policy=HttpPolicy(backoff=0.0, patience=0.0))
        environment = make(chat)
        good = run(ask(environment, MILK))[0]
        assert json.loads(good.text) == {"id": "n1", "text": "milk", "world": 0}
        sent = server.received[0].body["response_format"]["json_schema"]["schema"]
        assert sent["properties"]["result"]["anyOf"][0]["required"] == ["id"]
    dead = run(ask(environment, ("get_note", {"id": "n1"})))[0]
    assert dead.status is ToolStatus.INFRA_ERROR


def test_openapi_documents_are_played_too(tmp_path: Path) -> None:
    (tmp_path / "big.json").write_text(json.dumps(big_document()))
    (tmp_path / "items.json").write_text(json.dumps(DOCUMENT))
    tools = openapi_tools(tmp_path / "big.json", operations=["getOrder", "createOrder"])
    assert [tool.reads for tool in tools.values()] == [True, False]
    schema = reply_schema(tools["getOrder"])
    assert "Note" in schema["$defs"]
    assert schema["properties"]["result"]["anyOf"][0]["properties"]["id"] == {"type": "string"}
    assert len(openapi_tools(tmp_path / "items.json")) == 8


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ([], "expected a list of tools"),
        ([{"description": "a"}], "tool 1: name: Field required"),
        ([{"name": "a", "parameters": {"type": "strange"}}], "no JSON Schema"),
        ([{"name": "a"}, {"name": "a"}], "two tools of one name"),
    ],
)
def test_a_wrong_list_of_tools_is_told(tmp_path: Path, rows: Any, wrong: str) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(rows))
    with pytest.raises(ConfigError, match=wrong):
        listed_tools(tmp_path / "tools.json")


def test_wrong_options_are_told(make: Any, tmp_path: Path) -> None:
    chat = ScriptedChat(honest)
    with pytest.raises(ConfigError, match="either `tools`"):
        make(chat, document="a.yaml")
    with pytest.raises(ConfigError, match=r"chat 'nope' is no dotted path"):
        make("nope")
    with pytest.raises(ConfigError, match=r"chat 'json:JSONDecoder' is a JSONDecoder, which has no `reply`"):
        make("json:JSONDecoder")
    with pytest.raises(ConfigError, match="chat: unknown speed; a chat is set by url, model"):
        make({"url": "http://127.0.0.1:9", "model": "m", "speed": 3})
    with pytest.raises(ConfigError, match="with one of equals, contains, absent"):
        make(chat, text="- {prompt: a, gold: [{say: b}], checks: [{state: /a}]}")


def test_the_engine_errors_of_a_chat_keep_their_words(run: Run, make: Any) -> None:
    def broken(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> str:
        raise EngineError("the teacher's server died")

    assert "the teacher's server died" in run(ask(make(ScriptedChat(broken)), MILK))[0].text
