"""Chats: structured replies, cache, budget, wire format, and that a key never shows."""

from __future__ import annotations

import asyncio
import errno
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data import messages
from data.messages import ParseStatus, ToolCall, ToolResult, ToolSpec, Turn
from data.trajectories import Span, SpanKind
from pipeline.chat.core import ChatBudget, ChatLedger, find_json, read_structured
from pipeline.chat.engine import EngineChat
from pipeline.chat.openai import OpenAIChat, read_reply
from pipeline.chat.scripted import ScriptedChat
from pipeline.engines.base import Sampling
from pipeline.engines.scripted import ScriptedEngine, continue_text
from pipeline.errors import (
    BudgetExceededError,
    ConfigError,
    EngineError,
    StoreError,
    StructuredReplyError,
)
from pipeline.renderers.base import Rendered
from pipeline.rewards.base import judge_failure
from tests.serving import Received, Reply, ScriptedServer

SCHEMA = {"type": "object", "properties": {"score": {"type": "integer"}}, "required": ["score"]}
QUESTION = [messages.system("Judge."), messages.user("How good?")]


def reply(chat: Any, turns: Sequence[Turn] = QUESTION, **kwargs: Any) -> Turn:
    async def run() -> Turn:
        try:
            return await chat.reply(turns, **kwargs)
        finally:
            await chat.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "text",
    [
        '{"score": 3}',
        'Sure!\n```json\n{"score": 3}\n```\nHope this helps.',
        '{"score": 3} I chose 3 because {it} is good.',
        'The set {a, b} gives {"score": 3}',
    ],
)
def test_a_reply_around_json_is_repaired(text: str) -> None:
    assert reply(ScriptedChat([text]), schema=SCHEMA).text == '{"score":3}'


@pytest.mark.parametrize(
    ("text", "found"), [("3", True), ("3 apples", False), ("", False), ("{'a': 1}", False)]
)
def test_find_json_invents_nothing(text: str, found: bool) -> None:
    assert find_json(text)[0] is found


def test_an_invalid_reply_is_asked_for_again_with_the_error() -> None:
    chat = ScriptedChat(['{"score": "high"}', "no idea", '{"score": 4}'])
    assert reply(chat, schema=SCHEMA).text == '{"score":4}'
    assert "valid under this schema" in chat.asked[0][-1].text
    assert "at score: 'high' is not of type 'integer'" in chat.asked[1][-1].text
    assert chat.asked[1][-2].text == '{"score": "high"}'
    assert "it holds no JSON value" in chat.asked[2][-1].text


def test_a_reply_that_never_fits_is_an_error_with_the_raw_text() -> None:
    with pytest.raises(StructuredReplyError, match=r"no valid reply in 2 tries.*raw: I refuse") as caught:
        reply(ScriptedChat(["{}", "I refuse"], max_asks=2), schema=SCHEMA)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_of_a_huge_reply_that_never_fits_the_error_tells_the_start() -> None:
    with pytest.raises(StructuredReplyError, match="raw: aaa") as caught:
        reply(ScriptedChat(["a" * 1_000_000], max_asks=1), schema=SCHEMA)
    assert len(str(caught.value)) < 2_000


def test_the_cache_holds_replies_that_passed_and_no_failures(tmp_path: Path) -> None:
    with pytest.raises(StructuredReplyError):
        reply(ScriptedChat(["bad"] * 3, cache=tmp_path), schema=SCHEMA)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert reply(ScriptedChat(['{"score": 1}'], cache=tmp_path), schema=SCHEMA).text == '{"score":1}'
    silent = ScriptedChat([], cache=tmp_path)
    assert reply(silent, schema=SCHEMA).text == '{"score":1}'
    assert silent.asked == [] and silent.budget.calls == 0


def test_any_part_of_the_question_changes_the_cache_key(tmp_path: Path) -> None:
    chat = ScriptedChat([str(number) for number in range(5)], cache=tmp_path)
    tool = ToolSpec(name="look")
    asked: list[dict[str, Any]] = [
        {},
        {"turns": [messages.user("How good?")]},
        {"tools": [tool]},
        {"tools": [tool.model_copy(update={"description": "Look"})]},
        {"schema": {"type": "integer"}},
    ]
    for _ in range(2):
        assert [reply(chat, **kwargs).text for kwargs in asked] == ["0", "1", "2", "3", "4"]
    clocked = [turn.model_copy(update={"started_at": 9.0, "seconds": 1.0}) for turn in QUESTION]
    assert reply(chat, clocked).text == "0"


def test_a_budget_stops_before_the_call() -> None:
    budget = ChatBudget(max_calls=2)
    chat = ScriptedChat(lambda turns, tools: "yes", budget=budget)
    reply(chat)
    reply(chat)
    with pytest.raises(BudgetExceededError, match="budget of 2 calls"):
        reply(chat)
    assert len(chat.asked) == 2
    spent = ScriptedChat(["yes"], budget=ChatBudget(max_tokens=10, tokens=10))
    with pytest.raises(BudgetExceededError, match="budget of 10 tokens"):
        reply(spent)


def completion(message: dict[str, Any]) -> Reply:
    return Reply({"choices": [{"message": message}], "usage": {"total_tokens": 12}})


def test_openai_wire_format_both_ways() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"x": '}},
        {"id": "c", "type": "function", "function": {"name": "look", "arguments": "[1]"}},
    ]
    turns = [
        messages.user("Go"),
        messages.assistant("", ToolCall(call_id="c0", name="look", arguments='{"x":0}')),
        messages.tool(ToolResult(call_id="c0", name="look", parts=messages.text_parts("found"))),
    ]
    answered = {"content": None, "reasoning": "hm", "tool_calls": calls}
    with ScriptedServer(lambda _: completion(answered)) as server:
        chat = OpenAIChat(server.url, model="m", params={"temperature": 0.5})
        turn = reply(chat, turns, tools=[ToolSpec(name="look")])
    assert [call.status for call in turn.tool_calls] == [
        ParseStatus.OK, ParseStatus.NOT_JSON, ParseStatus.NOT_A_CALL,
    ]  # fmt: skip
    assert turn.tool_calls[0].parsed_arguments() == {"x": 1} and turn.tool_calls[1].raw == '{"x": '
    assert turn.reasoning == "hm" and chat.budget.tokens == 12
    body = server.received[0].body
    assert body["temperature"] == 0.5 and body["tools"][0]["function"]["name"] == "look"
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]
    assert body["messages"][1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"x":0}'}
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "c0", "content": "found"}


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"x": ' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_arguments_nested_too_deep_are_no_call(deep: str) -> None:
    call = {"id": "a", "function": {"name": "look", "arguments": deep}}
    turn, _ = read_reply({"choices": [{"message": {"tool_calls": [call]}}]})
    [call_read] = turn.tool_calls
    assert (call_read.status, call_read.raw) == (ParseStatus.NOT_JSON, deep)


def test_a_server_without_constraints_gets_the_schema_in_the_prompt_only() -> None:
    def answer(received: Received) -> Reply:
        if "response_format" in received.body:
            return Reply({"error": "unknown field"}, status=400)
        return completion({"content": '{"score": 2}'})

    with ScriptedServer(answer) as server:
        chat = OpenAIChat(server.url, model="m")
        assert reply(chat, schema=SCHEMA).text == '{"score":2}'
        assert reply(chat, schema=SCHEMA).text == '{"score":2}'
    constrained = ["response_format" in received.body for received in server.received]
    assert constrained == [True, False, False]
    assert '"score"' in server.received[-1].body["messages"][-1]["content"]


def test_the_key_is_sent_but_shows_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with ScriptedServer(lambda _: completion({"content": "yes"})) as server:
        chat = OpenAIChat(server.url, model="m", api_key_env="MY_KEY", cache=tmp_path)
        reply(chat)
    assert server.received[0].headers["authorization"] == "Bearer sk-secret"
    stored = "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert stored and "sk-secret" not in stored + repr(chat) + str(chat.identity())
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="MY_KEY"):
        OpenAIChat(server.url, model="m", api_key_env="MY_KEY")


@pytest.mark.parametrize(
    "body", [{}, {"choices": []}, "text", {"choices": [{"message": {"tool_calls": [{}]}}]}]
)
def test_a_malformed_chat_answer_is_an_engine_error(body: Any) -> None:
    with ScriptedServer(lambda _: Reply(body)) as server, pytest.raises(EngineError, match="malformed"):
        reply(OpenAIChat(server.url, model="m"))


class Letters:
    """A renderer whose tokens are code points; 0 ends a turn."""

    name, digest, stop_token_ids = "letters", "l1", (0,)

    def render(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool = True
    ) -> Rendered:
        ids = self.encode("|".join(turn.text for turn in turns))
        return Rendered(ids, [Span(0, len(ids), SpanKind.PROMPT, -1)] if ids else [])

    def extend(self, sampled: Sequence[int], turns: Sequence[Turn], *, first_turn: int) -> Rendered:
        raise NotImplementedError

    def parse(self, token_ids: Sequence[int], *, call_prefix: str = "call") -> Turn:
        return messages.assistant(self.decode([token for token in token_ids if token]))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def test_an_engine_and_a_renderer_make_a_chat(tmp_path: Path) -> None:
    renderer = Letters()
    engine = ScriptedEngine(continue_text(lambda prompt, rng: f"<{prompt}>", renderer))
    chat = EngineChat(engine, renderer, sampling=Sampling(seed=4), cache=tmp_path)
    assert reply(chat).text == "<Judge.|How good?>"
    assert reply(chat).text == "<Judge.|How good?>" and engine.num_calls == 1
    engine.weights_version = "scripted-1"
    reply(chat)
    assert engine.num_calls == 2
    assert chat.sampling.stop_token_ids == (0,)
    assert chat.budget.tokens == 2 * (len("Judge.|How good?") * 2 + 3)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"v": 1} or rather {"v": 2}', "it holds two different values that fit; give one"),
        ('{"v": 1}, so {"v": 1}', ""),
        ('{"why": "no"} {"v": 2}', "at the top level"),
        ('{"v": 1, "v": 2}', "it holds no JSON value"),
        ('[] {"v": 1} {"w": 2}', "at the top level"),
    ],
)
def test_a_reply_with_two_verdicts_is_none(text: str, error: str) -> None:
    schema = {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"]}
    found = read_structured(text, schema)
    assert found[1].startswith(error) and (found[0] == {"v": 1}) is (error == "")


@pytest.mark.parametrize("junk", ["[" * 100_000, '[1,"' * 50_000, "{" * 100_000, '{"a":' * 50_000])
def test_a_reply_of_brackets_is_given_up(junk: str) -> None:
    """Each place where a value may begin is read a thousand levels deep; all of them would take minutes."""
    schema = {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"]}
    assert find_json(junk) == (False, None)
    assert read_structured(f'{{"v": 1}} {junk} {{"v": 2}}', schema)[1].startswith("it holds two different")


def test_a_chat_kept_in_a_run_pays_for_no_reply_twice_also_not_for_an_invalid_one(tmp_path: Path) -> None:
    replies = ["no idea", '{"score": 4}']
    asked = []
    for said in (replies[:1], replies[1:], []):
        chat = ScriptedChat(said)
        chat.keep_in(tmp_path)
        try:
            assert reply(chat, schema=SCHEMA).text == '{"score":4}'
        except EngineError:  # killed after its first reply
            assert said == replies[:1]
        asked.append(len(chat.asked))
    assert asked == [2, 1, 0]
    assert ChatLedger(tmp_path / "ledger.jsonl").totals() == {"scripted": (2, 0)}


def test_replies_that_never_fit_are_remembered_in_a_run(tmp_path: Path) -> None:
    for said in (["a", "b", "c"], []):
        chat = ScriptedChat(said)
        chat.keep_in(tmp_path)
        with pytest.raises(StructuredReplyError, match=r"in 3 tries.*raw: c"):
            reply(chat, schema=SCHEMA)


def test_one_request_asked_twice_at_a_time_is_sent_once(tmp_path: Path) -> None:
    class Slow(ScriptedChat):
        async def _ask(self, *args: Any) -> Any:
            await asyncio.sleep(0)
            return await super()._ask(*args)

    chat = Slow(["first", "second"], cache=tmp_path)

    async def ask() -> list[Turn]:
        return await asyncio.gather(*(chat.reply(QUESTION) for _ in range(3)))

    assert [turn.text for turn in asyncio.run(ask())] == ["first"] * 3


def test_a_damaged_reply_is_asked_for_again(tmp_path: Path) -> None:
    reply(ScriptedChat(["good"], cache=tmp_path))
    (kept,) = tmp_path.rglob("*.json")
    kept.write_bytes(b"")
    assert reply(ScriptedChat(["again"], cache=tmp_path)).text == "again"


def test_a_ledger_line_cut_off_by_a_kill_swallows_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = ChatLedger(path)
    ledger.note("a", 5)
    with path.open("ab") as file:
        file.write(b'{"chat":"a","tok')
    ledger.note("a", 7)
    with path.open("ab") as file:
        file.write(b"12\n\xff\n")
    assert ledger.totals() == {"a": (2, 12), "unknown": (3, 0)}


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_a_url_may_end_as_other_clients_want_it(end: str) -> None:
    chat = OpenAIChat(f"http://127.0.0.1:9{end}", model="m")
    assert chat.pool.servers[0].url == "http://127.0.0.1:9"


def test_a_disk_that_takes_no_reply_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file: Not a directory"):
        reply(ScriptedChat(["a"], cache=tmp_path / "file"))
    with monkeypatch.context() as patched, pytest.raises(StoreError, match="no space left") as caught:
        patched.setattr(Path, "write_text", full)
        reply(ScriptedChat(["a"], cache=tmp_path / "replies"))
    with pytest.raises(StoreError, match="no space left"):
        judge_failure(caught.value)
    with monkeypatch.context() as patched, pytest.raises(StoreError, match="no space left"):
        patched.setattr(Path, "open", full)
        ChatLedger(tmp_path / "ledger.jsonl").note("judge", 1)
    assert reply(ScriptedChat(["b"], cache=tmp_path / "replies")).text == "b"
