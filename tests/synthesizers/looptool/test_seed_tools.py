"""Seed tools: paths of two trees, rules with reasons, one result by seed, and a world that can be played."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError
from data.messages import ToolSpec, Turn
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.check import CHECKS, check_environment
from pipeline.environments.simulated import SimulatedEnvironment
from synthesizers.looptool.seed_tools import SeedWorld, seed_tools, write_world
from synthesizers.looptool.seed_tools.__main__ import main
from synthesizers.looptool.seed_tools.demands import DEMANDS
from synthesizers.looptool.seed_tools.roles import TOOL_WRITER, ToolReply, ToolRequest
from synthesizers.looptool.seed_tools.rules import Reason, tool_problem
from synthesizers.looptool.seed_tools.trees import CONSTRAINTS, CONTEXTS, draw_leaf, leaves, read_tree

GOLDEN = Path(__file__).parent / "golden"
Changes = Mapping[str, Any]


def value(words: Sequence[str]) -> tuple[dict[str, Any], Any]:
    """A value that meets the last demand, and one that fits it."""
    made: dict[str, Any] = {"type": "string", "description": "A colour."}
    if "number_range" in words:
        return {"type": "integer", "description": "How many.", "minimum": 1, "maximum": 9}, 7
    if "flag" in words:
        return {"type": "boolean", "description": "Whether at once."}, True
    if "closed_choice" in words:
        made["enum"] = ["red", "dark_blue"]
        return made, "dark_blue"
    if "written_form" in words:
        return made | {"pattern": "^[A-Z]{2}$"}, "AB"
    return made, "red"


def fitting(words: Sequence[str], name: str = "find_paint") -> dict[str, Any]:
    """A tool that meets the demands of a path."""
    schema, given = value(words)
    first, others = "paint_id" if "takes_id" in words else "paint", ["shop", "street", "town"]
    plain = {"type": "string", "description": "Where."}
    if "nested" in words:
        schema = {
            "type": "object",
            "description": "What.",
            "properties": {first: schema, "brand": plain},
            "required": [first],
        }
        given = {first: given}
    elif "list_of_records" in words:
        item = {"type": "object", "properties": {first: schema}, "required": [first]}
        schema, given = {"type": "array", "description": "Which.", "items": item}, [{first: given}]
    elif "list_of_values" in words:
        schema, given = {"type": "array", "description": "Which.", "items": schema}, [given]
    if "optional_default" in words:
        schema["default"] = given
    count = 0 if "one_parameter" in words else 3 if "many_parameters" in words else 1
    record = {"type": "object", "properties": {"id": {"type": "string"}, "litres": {"type": "number"}}}
    return {
        "name": name,
        "description": "Paint of a shop.",
        "reads": "looks_up" in words,
        "parameters": {
            "type": "object",
            "properties": {first: schema} | dict.fromkeys(others[:count], plain),
            "required": [] if "optional_default" in words else [first],
        },
        "returns": {"type": "array", "items": record} if "answers_list" in words else record,
        "example": {
            "request": "I want red, dark blue or AB paint, 7 of it.",
            "arguments": {first: given},
        },
    }


WORDS = ("looks_up", "answers_record", "few_parameters", "closed_choice")


def written(**changes: Any) -> ToolReply:
    return ToolReply.model_validate(fitting(WORDS) | changes)


def test_every_path_of_the_shipped_trees_can_be_met_and_asks_for_something() -> None:
    paths = tuple(leaves(read_tree(CONSTRAINTS, words=tuple(DEMANDS))))
    assert len(paths) == len(set(paths)) > 30
    for path in paths:
        tool = ToolReply.model_validate(fitting(path))
        assert tool_problem(tool, demands=path) is None, path
    assert {word for path in paths for word in path} == set(DEMANDS), "no demand is in no path"
    for word in DEMANDS:
        met = [DEMANDS[word].met(ToolReply.model_validate(fitting(path))) for path in paths]
        assert 0 < sum(met) < len(paths), f"{word} tells no tool from another"
    topics = tuple(leaves(read_tree(CONTEXTS)))
    assert len(topics) == len(set(topics)) >= 80


def test_a_path_is_walked_from_the_root_and_drawn_once() -> None:
    tree = {"a": ["x"], "b": {"c": ["x", "y"], "d": ["z"]}}
    assert list(leaves(tree)) == [("a", "x"), ("b", "c", "x"), ("b", "c", "y"), ("b", "d", "z")]
    rng = random.Random(0)
    drawn = [draw_leaf(tree, rng) for _ in range(4_000)]
    assert drawn.count(("a", "x")) / 4_000 == pytest.approx(0.5, abs=0.03), "by fork, not by leaf"
    used: list[tuple[str, ...]] = []
    for _ in range(4):
        used.append(draw_leaf(tree, rng, used=used))
    assert sorted(used) == sorted(leaves(tree)) and draw_leaf(tree, rng, used=used) in used


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {}", "a must hold further names"),
        ("a: x", "a must hold further names, or a list of leaves, got 'x'"),
        ("a: [x, x]", "a names a leaf twice"),
        ("a: [1]", "list of leaves"),
        ("looks_up: [beauty]", "no demand 'beauty'; there are: looks_up"),
    ],
)
def test_what_is_no_tree_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tree.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        words = tuple(DEMANDS) if "looks_up" in text else ()
        read_tree(tmp_path / "tree.yaml", words=words)


def parameter(**changes: Any) -> dict[str, Any]:
    """The parameters of a tool whose one property has these keys."""
    known = {"type": "string", "description": "A colour."} | changes
    property_ = {key: value for key, value in known.items() if value is not None}
    return {"parameters": {"type": "object", "properties": {"paint": property_}, "required": []}}


EXAMPLE = {"request": "red paint", "arguments": {"paint": "red"}}


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        ({"name": "FindPaint"}, Reason.BAD_NAME, "lower-case words"),
        ({"name": "find"}, Reason.BAD_NAME, "as find_room"),
        ({"name": "mix_paint"}, Reason.DUPLICATE_NAME, "there is a tool mix_paint already"),
        ({"name": "mixp_aint"}, Reason.DUPLICATE_NAME, "there is a tool mix_paint already"),
        ({"description": " "}, Reason.UNDESCRIBED, "description is empty"),
        (parameter(type="int"), Reason.BAD_TYPE, "paint: type must be one of string, integer"),
        (parameter(type=["string", "null"]), Reason.BAD_TYPE, "type must be one of"),
        (parameter(type=None), Reason.BAD_TYPE, "got None"),
        (parameter(type="array"), Reason.BAD_TYPE, "paint.items"),
        (parameter(type="object"), Reason.BAD_TYPE, "an object needs properties"),
        (parameter(description=None), Reason.UNDESCRIBED, "parameters.paint needs a description"),
        (parameter(enum=["red"]), Reason.BAD_LIMIT, "two different values"),
        (parameter(type="integer", enum=[1, True]), Reason.BAD_LIMIT, "True in enum is no integer"),
        (parameter(type="integer", default=True), Reason.BAD_LIMIT, "default True does not fit"),
        (parameter(enum=["red", "blue"], default="green"), Reason.BAD_LIMIT, "default 'green'"),
        (parameter(type="integer", minimum=3, maximum=3), Reason.BAD_LIMIT, "minimum 3 must be below"),
        (parameter(minimum=1), Reason.BAD_LIMIT, "numbers, of a number"),
        (parameter(pattern="["), Reason.BAD_LIMIT, "a regular expression"),
        (parameter(pattern=r"^([A-Za-z]+\s?)+$"), Reason.BAD_LIMIT, "repeats a group that repeats"),
        (parameter(pattern=r"^(\w{1,9},?)*$"), Reason.BAD_LIMIT, "repeats a group that repeats"),
        ({"returns": {"type": "string"}}, Reason.BAD_TYPE, "returns must be an object"),
        ({"returns": {"type": "object", "properties": {}}}, Reason.BAD_TYPE, "returns: an object needs"),
        ({"example": EXAMPLE | {"arguments": {"paint": True}}}, Reason.BAD_EXAMPLE, "do not fit"),
        ({"example": EXAMPLE | {"arguments": {}}}, Reason.BAD_EXAMPLE, "missing argument: paint"),
        (
            {"example": {"request": "some paint", "arguments": {"paint": "dark_blue"}}},
            Reason.BAD_EXAMPLE,
            "does not say 'dark_blue'",
        ),
        (
            {"example": {"request": "find paint: dark blue", "arguments": {"paint": "dark_blue"}}},
            Reason.BAD_EXAMPLE,
            "name no tool",
        ),
    ],
)
def test_a_tool_that_breaks_a_rule_is_rejected_with_the_reason(
    changes: Changes, reason: Reason, detail: str
) -> None:
    problem = tool_problem(written(**changes), taken=["mix_paint"])
    assert problem is not None and problem.reason is reason and detail in problem.detail, problem


@pytest.mark.parametrize("required", [None, "paint", ["colour"], ["paint", "paint"], [1]])
def test_what_must_be_given_is_written_down_and_there(required: Any) -> None:
    parameters = parameter()["parameters"] | {"required": required}
    problem = tool_problem(written(parameters=parameters))
    assert problem is not None and problem.reason is Reason.BAD_REQUIRED
    inner = {"type": "object", "description": "x", "properties": {"paint": parameter()}}
    nested = {"type": "object", "properties": {"what": inner}, "required": []}
    problem = tool_problem(written(parameters=nested))
    assert problem is not None and "parameters.what: required" in problem.detail


def test_plain_patterns_are_taken() -> None:
    for pattern in (r"^[A-Z]{2}\d+$", r"^([0-9]{2}:){2}[0-9]{2}$|^red$", r"^(red|blue)+$"):
        example = {"request": "red", "arguments": {"paint": "red"}}
        problem = tool_problem(written(**parameter(pattern=pattern), example=example))
        assert problem is None or "repeats" not in problem.detail, pattern


def test_a_leaf_that_is_not_met_is_the_reason() -> None:
    for word in DEMANDS:
        unmet = [tool for path in leaves(read_tree(CONSTRAINTS)) if not DEMANDS[word].met(
            tool := ToolReply.model_validate(fitting(path)))]  # fmt: skip
        problem = tool_problem(unmet[0], demands=[word])
        assert problem is not None and problem.reason is Reason.DEMAND_UNMET
        assert DEMANDS[word].told in problem.detail


def asked_words(turns: Sequence[Turn]) -> tuple[str, ...]:
    """The demands that a prompt makes."""
    return tuple(word for word, demand in DEMANDS.items() if demand.told in turns[1].text)


def writer(change: Callable[[int, dict[str, Any]], Any] = lambda number, tool: tool) -> ScriptedChat:
    """A chat that writes a fitting tool of its own name for every prompt, as `change` leaves it."""
    names: dict[str, int] = {}

    def write(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> str:
        number = names.setdefault(turns[1].text, len(names))
        tool = fitting(asked_words(turns), f"find_paint_{'abcdefghijkl'[number % 12]}")
        return json.dumps(change(number, tool))

    return ScriptedChat(write, name="inventor", max_asks=1)


def made(chat: ScriptedChat | None, **options: Any) -> list[SeedWorld]:
    return asyncio.run(seed_tools(chat, **options))


def test_each_tool_is_asked_for_by_one_prompt_and_told_of_those_there_are() -> None:
    chat = writer()
    [world] = made(chat, tools=4)
    assert len(world.accepted) == len(chat.asked) == 4 and not world.rejected
    assert len({each.constraint for each in world.accepted}) == 4
    for number, (turns, each) in enumerate(zip(chat.asked, world.accepted, strict=True)):
        assert f"Topic: {' > '.join(world.context)}" in turns[1].text
        assert set(asked_words(turns)) == set(each.constraint)
        there = [earlier.tool.name in turns[1].text for earlier in world.accepted]
        assert there == [place < number for place in range(4)]


def test_paths_are_a_function_of_the_seed_and_more_changes_nothing_before() -> None:
    few, again, many = (made(writer(), worlds=w, tools=t) for w, t in ((2, 2), (2, 2), (3, 4)))

    def drawn(worlds: Sequence[SeedWorld], tools: int = 2) -> list[Any]:
        return [(each.context, [a.constraint for a in each.accepted[:tools]]) for each in worlds]

    assert drawn(few) == drawn(again) == drawn(many)[:2]
    assert len({each.context for each in many}) == 3
    assert drawn(made(writer(), worlds=2, tools=2, seed=1)) != drawn(few)


def test_a_world_has_every_path_once_before_one_comes_again(tmp_path: Path) -> None:
    tree = tmp_path / "three.yaml"
    tree.write_text("looks_up: {few_parameters: [closed_choice, flag, takes_id]}")
    [world] = made(writer(), tools=6, constraints=tree)
    drawn = [each.constraint[-1] for each in world.accepted]
    assert set(drawn[:3]) == {"closed_choice", "flag", "takes_id"} and len(drawn) == 6


def test_what_is_wrong_is_told_once_and_then_the_tool_is_rejected() -> None:
    def spoilt(number: int, tool: dict[str, Any]) -> Any:
        return tool | ({"name": "Find"} if number == 1 else {})

    chat = writer(spoilt)
    [world] = made(chat, tools=3)
    assert len(chat.asked) == 4 and not world.rejected, "the second try was another prompt, and good"
    assert "Your last tool was rejected: name 'Find'" in chat.asked[2][1].text
    [world] = made(writer(lambda number, tool: tool | {"name": "find_paint"}), tools=3)
    assert [each.tool.name for each in world.accepted] == ["find_paint"]
    assert [(row.reason, row.name) for row in world.rejected] == [(Reason.DUPLICATE_NAME, "find_paint")] * 2
    [world] = made(writer(lambda number, tool: {"name": tool["name"]}), tools=1)
    assert [(row.reason, row.name) for row in world.rejected] == [(Reason.INVALID_REPLY, "")]
    lacking = writer(lambda number, tool: tool | {"parameters": {"type": "object", "properties": {}}})
    [world] = made(lacking, tools=1)
    assert "required" in world.rejected[0].detail and len(lacking.asked) == 1


def test_without_a_chat_it_says_what_there_is_instead() -> None:
    with pytest.raises(ConfigError, match="Without a chat astra_environments makes tools"):
        made(None)
    with pytest.raises(ConfigError, match="at least 1, got 0 and 6"):
        made(writer(), worlds=0)


def player(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> str:
    """What a model that plays the tools would answer: a record that it keeps in the state."""
    asked = json.JSONDecoder().raw_decode(turns[1].text)[0]
    record = {"id": f"P{len(asked['state'].get('paints', {})) + 1}", "litres": 2.5}
    result = [record] if asked["tool"] in LISTS else record
    return json.dumps(
        {"outcome": "ok", "result": result, "error": "", "patch": {"paints": {record["id"]: record}}}
    )


LISTS: set[str] = set()
"""Tools that answer with a list."""


def test_a_written_world_is_played_as_it_is(tmp_path: Path) -> None:
    [world] = made(writer(), tools=6)
    folder = write_world(world, tmp_path)
    tools = [each.tool for each in world.accepted]
    LISTS.update(tool.name for tool in tools if tool.returns["type"] == "array")
    environment = SimulatedEnvironment(
        chat=ScriptedChat(player), tools=folder / "tools.json", tasks=folder / "tasks.jsonl"
    )
    tasks = list(environment.tasks("train"))
    assert len(tasks) == 6 and {task.template for task in tasks} == {tool.name for tool in tools}
    checks = asyncio.run(check_environment(environment))
    assert [each for each in checks if not each.passed] == [] and len(checks) == len(CHECKS)
    kept = json.loads((folder / "tools.json").read_text())
    assert [row["context"] for row in kept] == [list(world.context)] * 6
    assert {row["by"] for row in kept} == {"inventor"} and kept[0]["constraint"]
    assert (folder / "rejected.jsonl").read_text() == ""


ASKED: list[int] = []


def make_inventor() -> ScriptedChat:
    """A chat that the command line names; its last tool breaks a rule."""

    def spoilt(number: int, tool: dict[str, Any]) -> Any:
        ASKED.append(number)
        return tool | ({"reads": not tool["reads"]} if number >= 2 else {})

    return writer(spoilt)


def test_the_command_writes_worlds_and_pays_for_no_reply_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(tmp_path / "tools"), "--chat", f"{__name__}:make_inventor", "--tools", "3"]
    ASKED.clear()
    assert main(command) == 0
    told, paid = capsys.readouterr().out, len(ASKED)
    assert ": 2 of 3 tools, demand_unmet 1 -> " in told and paid == 4
    [folder] = [path for path in (tmp_path / "tools").iterdir() if path.name != "chats"]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"tools.json", "tasks.jsonl", "rejected.jsonl"}
    [rejected] = [json.loads(line) for line in before["rejected.jsonl"].splitlines()]
    assert rejected["reason"] == "demand_unmet" and "reads is" in rejected["detail"]
    assert main(command) == 0 and len(ASKED) == paid
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert main([str(tmp_path / "none")]) == 2
    assert "error: seed tools are invented by a chat" in capsys.readouterr().err
    assert main([str(tmp_path / "none"), "--chat", "{"]) == 2
    assert "--chat is not JSON" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_an_error_before_a_reply_is_paid_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    ASKED.clear()
    assert main([str(tmp_path / "taken"), "--chat", f"{__name__}:make_inventor"]) == 2
    assert "taken" in capsys.readouterr().err and ASKED == []


def make_refuser() -> ScriptedChat:
    """A chat that writes no tool."""
    return ScriptedChat(lambda turns, tools: "no", name="refuser", max_asks=1)


def test_a_world_without_a_tool_keeps_none_of_an_earlier_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_world(made(writer(), tools=1)[0], tmp_path)
    [refused] = made(make_refuser(), tools=1)
    assert write_world(refused, tmp_path) == folder
    assert [path.name for path in folder.iterdir()] == ["rejected.jsonl"]
    assert main([str(tmp_path / "cli"), "--chat", f"{__name__}:make_refuser", "--tools", "2"]) == 1
    assert ": 0 of 2 tools, invalid_reply 2 -> " in capsys.readouterr().out


def test_two_topics_of_one_folder_are_refused(tmp_path: Path) -> None:
    tree = tmp_path / "contexts.yaml"
    tree.write_text('shops: ["price lists", "price-lists"]\n')
    with pytest.raises(ConfigError, match=r"same folder: .*price lists.*rename one"):
        made(writer(), worlds=2, tools=1, contexts=tree)


def test_the_prompt_is_the_stored_one() -> None:
    request = ToolRequest(
        topic=("travel", "stays", "hotel rooms"),
        demands=(DEMANDS["looks_up"].told, DEMANDS["takes_id"].told),
        tools=("find_room(day) -> id, seats: Rooms that are free on a day.",),
        problem="the example's request does not say 'mon'",
    )
    system, user = TOOL_WRITER.turns(request)
    assert f"{system.text}\n---\n{user.text}\n" == (GOLDEN / "tool_writer.txt").read_text()
