"""Roles, role chats, hints, and the frame that plans, gates and teaches."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import Role, ToolSpec, text_parts
from data.tasks import Task
from data.trajectories import Origin, Trajectory
from data.verdicts import Verdict
from pipeline.chat.core import ChatLedger, read_structured
from pipeline.chat.roles import narrowed, one_call, one_of
from pipeline.chat.scripted import ScriptedChat
from pipeline.engines.base import Sampling
from pipeline.environments.blueprint import (
    Blueprint,
    PlannedCall,
    PlannedTurn,
    blueprint_task,
    result_digest,
)
from pipeline.environments.registry import load_environment
from pipeline.errors import StructuredReplyError
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers import roles
from synthesizers.base import Made
from synthesizers.execution import Trial
from synthesizers.hints import LABEL, MARK, REPEATED, with_hints, without_hints
from synthesizers.planning import Planned, Planner, given_up
from synthesizers.role_chats import RoleChats
from synthesizers.roles import ChatRole, Exchange, shown_parameters
from tests.pipeline.rollout_world import Speaker, call_text
from tests.tiny import make_tiny_tokenizer


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


class Question(Exchange):
    word: str
    turns: list[str]


class Answer(Exchange):
    size: int


@pytest.fixture
def role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ChatRole[Question, Answer]:
    (tmp_path / "counter.md").write_text("Count.\n---\nWord: {{ word }}\n{{ turns | json }}\n")
    monkeypatch.setattr(roles, "PROMPTS", tmp_path)
    return ChatRole("counter", reply=Answer)


def test_a_role_asks_with_its_prompt_and_reads_its_reply(role: ChatRole[Question, Answer]) -> None:
    chat = ScriptedChat(['```json\n{"size": 3}\n```'])
    question = Question(word="abc {{ x }}", turns=["a"])
    assert asyncio.run(role.ask(chat, question)) == Answer(size=3)
    system, user = role.turns(question)
    assert (system.text, user.text) == ("Count.", 'Word: abc {{ x }}\n["a"]')
    assert chat.asked[0][0] == system


def test_a_reply_is_narrowed_to_what_its_request_leaves_possible(role: ChatRole[Question, Answer]) -> None:
    question = Question(word="abc", turns=[])
    told = asyncio.run(role.ask(ScriptedChat(['{"size": 4}', '{"size": 3}']), question))
    assert told == Answer(size=4)
    chat = ScriptedChat(['{"size": 4}', '{"size": 3}'])
    assert asyncio.run(role.ask(chat, question, narrow={"size": one_of([2, 3])})) == Answer(size=3)
    assert "4 is not one of [2, 3]" in chat.asked[1][-1].text
    with pytest.raises(ValueError, match="no property 'length' to narrow; it has size"):
        asyncio.run(role.ask(chat, question, narrow={"length": one_of([2])}))


def test_calls_in_a_reply_are_narrowed_to_the_tools_there_are() -> None:
    title = '{"type":"string","title":"T"}'
    find = f'{{"type":"object","title":"Find","properties":{{"title":{title}}},"required":["title"]}}'
    schema: dict[str, Any] = {
        "$defs": {"Goal": {"properties": {"calls": {"type": "array", "maxItems": 2, "items": {}}}}},
        "properties": {"goals": {"type": "array", "items": {"$ref": "#/$defs/Goal"}}},
    }

    def valid(call: dict[str, Any], **options: Any) -> bool:
        narrow = {"calls": one_call({"find": find, "stop": "{}"}, **options)}
        value = canonical.dumps({"goals": [{"calls": [call]}]})
        return read_structured(value, narrowed(schema, narrow))[1] == ""

    found = {"name": "find", "arguments": {"title": "Birds"}}
    assert valid(found) and valid({"name": "stop", "arguments": {}})
    assert not valid(found | {"name": "fly"}) and not valid(found | {"arguments": {"title": 3}})
    assert not valid(found | {"arguments": {}}) and valid(found | {"arguments": {}}, every_argument=False)
    assert not valid(found, name="tool") and valid({"tool": "stop"}, name="tool", every_argument=False)
    three = canonical.dumps({"goals": [{"calls": [found] * 3}]})
    assert "too long" in read_structured(three, narrowed(schema, {"calls": one_call({"find": find})}))[1]
    assert "items" in schema["$defs"]["Goal"]["properties"]["calls"], "the role's own schema stays as it is"


def test_prompts_name_parameters_and_what_is_told_of_them() -> None:
    schema = '{"properties":{"city":{"type":"string"},"unit":{"type":"string","description":"C or F"}}}'
    tool = ToolSpec(name="weather", description="The weather.", parameters=schema)
    assert shown_parameters(tool) == "city, unit (C or F)"
    assert shown_parameters(tool.model_copy(update={"parameters": '{"type":"object"}'})) == "none"


def test_a_reply_that_is_none_is_an_error_with_its_text(role: ChatRole[Question, Answer]) -> None:
    chat = ScriptedChat(["three", '{"size": "many"}', '{"size": 3, "more": 1}'])
    with pytest.raises(StructuredReplyError, match="more"):
        asyncio.run(role.ask(chat, Question(word="abc", turns=[])))


def test_replies_and_their_cost_are_kept(tmp_path: Path, role: ChatRole[Question, Answer]) -> None:
    asked = []
    for _ in range(2):
        chat = ScriptedChat(['{"size": 3}'])
        chats = RoleChats(by_role={"counter": chat}, directory=tmp_path)
        player = chats.of("counter")
        assert player is chat and chats.of("other") is None
        asyncio.run(role.ask(player, Question(word="abc", turns=[])))
        asked.append(len(chat.asked))
    assert asked == [1, 0]
    assert ChatLedger(tmp_path / "ledger.jsonl").totals() == {"scripted": (1, 0)}


def test_a_role_without_a_possible_chat_is_an_error() -> None:
    with pytest.raises(ConfigError, match="chat of role judge"):
        RoleChats(default={"url": "x"}).of("judge")


class Lookup(Planner):
    """Plans one look-up of the member's profile; gives up or lies where it is told to."""

    name = "lookup"
    trouble = ""

    async def plan(self, base: Task, rng: random.Random) -> Planned:
        if self.trouble == "give_up":
            return given_up("no_path", "nothing to do")
        async with await Trial.open(self.environment, base) as trial:
            made = await trial.attempt("profile", {})
            state = trial.state if self.trouble != "lie" else "another"
        call = PlannedCall(name="profile", arguments="{}", result=result_digest(made.result))
        turn = PlannedTurn(text="How many miles?", calls=(call,), reply="Many.", state=state)
        task = blueprint_task(
            Blueprint(base=base, turns=(turn,)), synthesizer=self.name, template="lookup", system="Help."
        )
        return Planned(task, hints=("Ask for profile.",))


def bases(count: int = 2) -> tuple[Any, list[Task]]:
    environment = load_environment("travel_desk", templates=["upgrade_no_miles"])
    tasks = [task for _, task in zip(range(count), environment.tasks("train"), strict=False)]
    return environment, tasks


def made(planner: Planner, tasks: list[Task], **more: Any) -> list[Made]:
    async def run() -> list[Made]:
        return [record async for record in planner.synthesize(tasks, **more)]

    return asyncio.run(run())


def planner(renderer: ChatMLRenderer, environment: Any, engine: Any = None, **options: Any) -> Lookup:
    return Lookup(environment=environment, engine=engine, renderer=renderer, **options)


def test_a_plan_becomes_a_task_and_a_trajectory(renderer: ChatMLRenderer) -> None:
    environment, tasks = bases()
    records = made(planner(renderer, environment), tasks)
    assert [type(record) for record in records].count(Task) == 2
    for record in records:
        if isinstance(record, Trajectory):
            assert record.success and record.synthesizer == "lookup"
            assert record.task_id in {task.task_id for task in records if isinstance(task, Task)}
    done = {record.trajectory_id for record in records if isinstance(record, Trajectory)}
    again = made(planner(renderer, environment), tasks, done=done)
    assert [type(record) for record in again] == [Task, Task]


@pytest.mark.parametrize(("trouble", "reason"), [("give_up", "no_path"), ("lie", "gold_failed")])
def test_a_plan_that_fails_is_a_verdict(renderer: ChatMLRenderer, trouble: str, reason: str) -> None:
    environment, tasks = bases(1)
    bad = planner(renderer, environment)
    bad.trouble = trouble
    [verdict] = made(bad, tasks)
    assert isinstance(verdict, Verdict) and not verdict.keep
    assert (verdict.filter, verdict.reason) == ("lookup", reason)


def test_options_that_cannot_be(renderer: ChatMLRenderer) -> None:
    environment, _ = bases(1)
    with pytest.raises(ConfigError, match="plans must be at least 1"):
        planner(renderer, environment, plans=0)
    with pytest.raises(ConfigError, match="teacher"):
        planner(renderer, environment, teacher="oracle")


def test_a_hinted_teacher_leaves_no_hint(renderer: ChatMLRenderer) -> None:
    environment, tasks = bases(1)
    seen: list[str] = []

    def speech(prompt: list[int], _: Sampling) -> str:
        seen.append(renderer.decode(prompt))
        return call_text("profile") if len(seen) == 1 else "Many."

    engine = Speaker(renderer, speech)
    records = made(planner(renderer, environment, engine, teacher="hinted", k=1), tasks)
    assert MARK in seen[0]
    [trajectory] = [record for record in records if isinstance(record, Trajectory)]
    [task] = [record for record in records if isinstance(record, Task)]
    assert trajectory.task_id == task.task_id and LABEL in trajectory.labels
    assert MARK not in trajectory.model_dump_json() and "Ask for profile" not in trajectory.model_dump_json()
    [asked] = [turn.text for turn in trajectory.turns if turn.role is Role.USER]
    assert asked == task.prompt[-1].text and REPEATED not in trajectory.labels, (
        "the words stay, the hint goes"
    )
    for segment in trajectory.segments:
        assert segment.origin is Origin.EDITED and not segment.logprobs
        assert "Hint" not in renderer.decode(segment.token_ids)


def test_a_repeated_hint_trains_nothing(renderer: ChatMLRenderer) -> None:
    environment, tasks = bases(1)
    records = made(planner(renderer, environment), tasks)
    [task] = [record for record in records if isinstance(record, Task)]
    [trajectory] = [record for record in records if isinstance(record, Trajectory)]
    told = with_hints(task, ["Ask for profile."])
    assert told.task_id != task.task_id and "Ask for profile." in told.prompt[-1].text
    turns = [
        turn.model_copy(update={"parts": told.prompt[-1].parts}) if turn.role is Role.USER else turn
        for turn in trajectory.turns
    ]
    spoken = turns[-1].model_copy(update={"reasoning": "It says: Ask for profile."})
    repeating = trajectory.model_copy(update={"turns": (*turns[:-1], spoken)})
    cleaned = without_hints(repeating, task, ["Ask for profile."], renderer)
    assert REPEATED in cleaned.labels and "Ask for profile" not in cleaned.model_dump_json()
    assert sum(sum(segment.loss_mask(cleaned.turns)) for segment in cleaned.segments) == 0


def test_a_hint_that_a_tool_is_told_and_echoes_goes(renderer: ChatMLRenderer) -> None:
    environment, tasks = bases(1)
    records = made(planner(renderer, environment), tasks)
    [task] = [record for record in records if isinstance(record, Task)]
    [trajectory] = [record for record in records if isinstance(record, Trajectory)]
    hint = 'Call profile {"name":"Ann"}'
    told = canonical.dumps({"query": hint})
    turns = []
    for turn in trajectory.turns:
        if turn.tool_calls:
            calls = tuple(call.model_copy(update={"arguments": told}) for call in turn.tool_calls)
            turn = turn.model_copy(update={"tool_calls": calls})
        if turn.result is not None:
            echo = turn.result.model_copy(update={"parts": text_parts(f"nothing found for {told}")})
            turn = turn.model_copy(update={"result": echo})
        turns.append(turn)
    repeating = trajectory.model_copy(update={"turns": tuple(turns)})
    cleaned = without_hints(repeating, task, [hint], renderer)
    assert REPEATED in cleaned.labels and "Call profile" not in cleaned.model_dump_json()
    assert not any("Call profile" in renderer.decode(part.token_ids) for part in cleaned.segments)
    assert not any(any(part.loss_mask(cleaned.turns)) for part in cleaned.segments)
    marked = [
        turn.model_copy(update={"result": turn.result.model_copy(update={"parts": text_parts(f"{MARK} 3")})})
        if turn.result is not None
        else turn
        for turn in trajectory.turns
    ]
    own = without_hints(trajectory.model_copy(update={"turns": tuple(marked)}), task, [hint], renderer)
    assert REPEATED not in own.labels, "an answer may hold the mark for its own reasons"
