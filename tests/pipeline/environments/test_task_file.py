"""Task files: what is read, what a wrong one is told, and how its checks judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.messages import ToolCall, ToolResult, ToolSpec, ToolStatus, Turn, assistant, text_parts, tool, user
from pipeline.environments.adapters.rows import read_rows
from pipeline.environments.gold import last_result
from pipeline.environments.task_checks import check_answer, check_calls, fits, resolve, unmatched
from pipeline.environments.task_file import (
    TaskRules,
    file_checks,
    file_gold,
    later_turns,
    read_tasks,
    splits_of,
)
from pipeline.errors import ConfigError
from synthesizers.astra.environments import read_sources

RULES = TaskRules(environment="shop", verifier="shop/1", tools=("find", "order"))
GOOD = """
defaults: {system: Be brief., split: dev, budget: {max_turns: 4}}
tasks:
- prompt: Order two lamps.
  tools: [order, find]
  gold:
    - {name: find, arguments: {text: lamp, since: 2026-01-02}}
    - {name: order, arguments: {item: {$result: 0/id}, count: 2}}
- turns: [Hello., Order one.]
  split: heldout
  template: talk
  gold: [{say: Hi.}, {name: order, arguments: {item: 1}}, {say: Done.}]
  checks:
    - calls: [{name: order, arguments: {item: {$any: true}}}]
      extra: none
    - {answer: {contains: done}}
"""


def written(tmp_path: Path, text: str, name: str = "tasks.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_becomes_tasks(tmp_path: Path) -> None:
    first, second = read_tasks(written(tmp_path, GOOD), RULES)
    assert [turn.text for turn in first.prompt] == ["Be brief.", "Order two lamps."]
    assert (first.tools, first.split, first.budget.max_turns) == (("order", "find"), "dev", 4)
    assert file_checks(first)[0]["calls"][0] == {
        "name": "find",
        "arguments": {"text": "lamp", "since": "2026-01-02"},
    }
    assert (later_turns(second), second.template) == (["Order one."], "talk")
    assert splits_of((first, second)) == ("dev", "heldout")
    assert "Order one." not in second.prompt[-1].text


def test_jsonl_and_yaml_give_the_same_tasks(tmp_path: Path) -> None:
    rows = [{"prompt": "Find.", "gold": [{"name": "find", "arguments": {"text": "a"}}]}]
    lines = "\n\n".join(canonical.dumps(row) for row in rows)
    text = "- prompt: Find.\n  gold: [{name: find, arguments: {text: a}}]\n"
    assert read_tasks(written(tmp_path, lines, "a.jsonl"), RULES) == read_tasks(
        written(tmp_path, text), RULES
    )


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_a_row_may_hold_what_some_take_for_a_line_end(tmp_path: Path, end: str) -> None:
    row = {"prompt": f"Find{end}it.", "gold": [{"name": "find", "arguments": {}}]}
    path = written(tmp_path, f"{json.dumps(row, ensure_ascii=False)}\n", "a.jsonl")
    assert [task.prompt[-1].text for task in read_tasks(path, RULES)] == [row["prompt"]]
    assert read_rows(path, check=lambda row: row) == [row]
    document = {"document": f"a{end}b", "question": "What?", "answer": "b"}
    path = written(tmp_path, json.dumps(document, ensure_ascii=False), "b.jsonl")
    assert [source.document for source in read_sources(path)] == [document["document"]]


def test_gold_uses_earlier_results(tmp_path: Path) -> None:
    task = read_tasks(written(tmp_path, GOOD), RULES)[0]
    script, turns = file_gold(task), list(task.prompt)
    for answer in ('{"id":17}', "ok"):
        turns.append(script.next_turn(turns))
        turns.append(result_of(turns[-1].tool_calls[0], answer))
    assert turns[-2].tool_calls[0].parsed_arguments() == {"item": 17, "count": 2}
    assert last_result(turns).text == "ok"
    last = script.next_turn(turns)
    assert last is not None and last.text == "DONE"
    with pytest.raises(ConfigError, match=r"\$result: 1/id.*of 1 results"):
        resolve({"$result": "1/id"}, ["{}"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- prompt: a\n- gold: []\n", r"tasks.yaml, line 1: gold: Field required"),
        (
            "\n- prompt: a\n  gold: [{name: find}]\n- gold: [{name: find}]\n",
            "line 4: .*`prompt`.*or `turns`",
        ),
        ("- {prompt: a, gold: [{name: fetch}]}", r"line 1: no tool 'fetch'; tools: find, order"),
        ("- {prompt: a, tools: [find], gold: [{name: order}]}", "gold calls 'order', which `tools` hides"),
        ("- {prompt: a, gold: [{say: b}]}", "`checks` must say what passes"),
        ("- {prompt: a, gold: [{say: b, name: find}]}", "either {name, arguments} or {say}"),
        ("- {prompt: a, gold: [{name: find}], checks: [{get: /a}]}", "no check 'get'; .*calls, answer"),
        ("- {prompt: a, gold: [{name: find}], checks: [{calls: find}]}", "check calls: calls is a list"),
        ("- {prompt: a, gold: [{name: find}], checks: [{answer: {matches: '('}}]}", "no regular expr"),
        ("- {prompt: a, gold: [{name: find}], budget: {max_turns: 0}}", "budget: max_turns: .*greater"),
        (
            "- {prompt: a, gold: [{name: find}]}\n- {prompt: a, gold: [{name: find}]}",
            "line 2: the same task",
        ),
        ("- {prompt: a, prompt: b}", "line 1: key 'prompt' occurs twice"),
        ("- {prompt: a, gold: !!python/name:os.system }", "line 1: could not determine a constructor"),
        ("tasks: 3", "line 1: a list is expected here"),
        ("rows: []", "a task file is a list of tasks, or the keys"),
        ("", "is empty"),
        ("- [", "line 1: "),
        ("a: &a [*a]", "line 1: a value holds itself"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"{k}: &{k} [{','.join([f'*{j}'] * 9)}]\n"
                for j, k in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "stands for more than 2000000 values",
        ),
    ],
)
def test_a_wrong_file_is_told_where(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_tasks(written(tmp_path, text), RULES)


def test_a_wrong_line_or_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a.jsonl, line 2: not JSON"):
        read_tasks(written(tmp_path, '{"prompt":"a","gold":[{"name":"find"}]}\n{', "a.jsonl"), RULES)
    with pytest.raises(ConfigError, match=r"must end in .yaml"):
        read_tasks(written(tmp_path, "", "a.txt"), RULES)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tasks(tmp_path / "none.yaml", RULES)


def test_matching_finds_the_one_way_that_works() -> None:
    """The wildcard comes first and must give way to the call that only fits one."""
    wanted = [("a", {"x": {"$any": True}}), ("a", {"x": 1})]
    assert unmatched(wanted, [("a", {"x": 1}), ("a", {"x": 2}), ("b", {})]) == [("b", {})]
    assert unmatched(wanted, [("a", {"x": 2}), ("a", {"x": 3})]) is None
    assert unmatched([("a", {}), ("a", {})], [("a", {})]) is None


@pytest.mark.parametrize(
    ("wanted", "value", "partly", "same"),
    [
        (1, True, False, False),
        (1, 1.0, False, True),
        ({"a": 1}, {"a": 1, "b": 2}, False, False),
        ({"a": 1}, {"a": 1, "b": 2}, True, True),
        ([{"a": 1}], [{"c": 0}, {"a": 1, "b": 2}], True, True),
        ([1, 2], [2, 1], False, False),
        ({"a": {"$any": True}}, {"a": None}, False, True),
        ({"a": {"$any": True}}, {}, True, False),
    ],
)
def test_values_fit(wanted: Any, value: Any, partly: bool, same: bool) -> None:
    assert fits(wanted, value, partly=partly) is same


def result_of(call: ToolCall, text: str = "ok", status: ToolStatus = ToolStatus.OK) -> Turn:
    return tool(ToolResult(call_id=call.call_id, name=call.name, parts=text_parts(text), status=status))


def dialogue(*calls: tuple[str, dict[str, Any], ToolStatus], said: str = "Done.") -> list[Turn]:
    turns = [user("Go.")]
    for index, (name, arguments, status) in enumerate(calls):
        call = ToolCall(call_id=f"c{index}", name=name, arguments=canonical.dumps(arguments))
        turns += [assistant("", call), result_of(call, status=status)]
    return [*turns, assistant(said)]


ORDER = ToolSpec(name="order", parameters='{"type":"object","properties":{"item":{},"count":{"default":1}}}')


def passes(turns: list[Turn], **check: Any) -> bool:
    wanted = {"calls": [{"name": "order", "arguments": {"item": 7}}], **check}
    return check_calls(wanted, turns, [ORDER, ToolSpec(name="find")], reads=frozenset({"find"}))


def test_calls_are_judged_as_a_multiset_with_defaults() -> None:
    ok, failed = ToolStatus.OK, ToolStatus.TOOL_ERROR
    order = ("order", {"item": 7, "count": 1}, ok)
    look: Any = ("find", {}, ok)
    assert passes(dialogue(order, look, ("order", {"item": 8}, failed)))
    assert not passes(dialogue(("order", {"item": 7}, failed)))
    assert not passes(dialogue(order, order))
    assert passes(dialogue(order, order), extra="all")
    assert not passes(dialogue(order, look), extra="none")
    assert not passes(dialogue(("order", {"item": 7, "count": 2}, ok)))


def test_an_answer_is_judged_on_the_last_turn_alone() -> None:
    turns = dialogue(("find", {}, ToolStatus.OK), said="It costs 12 EUR.")
    assert check_answer({"answer": {"contains": "12 eur"}}, turns)
    assert check_answer({"answer": {"matches": r"\b12\b"}}, turns)
    assert not check_answer({"answer": {"equals": "12 eur"}}, turns)
    assert not check_answer({"answer": {"contains": "12"}}, turns[:-1])
    assert not check_answer({"answer": {"contains": "Go"}}, turns[:1])


@pytest.mark.parametrize(
    ("said", "passes"),
    [("Paid", True), (" **paid.** ", True), ("\u201cPaid\u201d", True), ("Paid twice", False), ("", False)],
)
def test_an_equal_answer_may_be_dressed(said: str, passes: bool) -> None:
    assert check_answer({"answer": {"equals": "paid"}}, [assistant(said)]) is passes
