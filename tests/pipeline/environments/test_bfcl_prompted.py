"""BFCL format_sensitivity: prompts, notations read without eval, gold in each, what its rule lets through."""

from __future__ import annotations

import builtins
import importlib
import itertools
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from data.messages import assistant
from data.tasks import Task
from pipeline.environments.agents import ListedAgent
from pipeline.environments.bfcl import prompted_text
from pipeline.environments.bfcl.prompted import PromptedEnvironment, load, prompted_rows
from pipeline.environments.bfcl.prompted_text import PROMPTS, Prompt, read_calls, write_calls
from pipeline.environments.bfcl.stand_ins import imported
from pipeline.environments.check import check_environment
from pipeline.environments.play import play
from pipeline.errors import ConfigError
from tests.pipeline.environments.conftest import Run

pytestmark = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="bfcl_eval is not installed; run: make bfcl-setup"
)
CALLS = [
    ("geo.area", {"base": 6, "height": -2.5, "unit": 'a "b" <c> & d', "tags": ["x", "y"], "exact": True}),
    ("tell", {"options": {"a": 1, "b": [2]}, "nothing": None}),
]
TEXTS = {
    "python": [
        "[f(a=1), g.h(b='x', c=[1, -2], d={'k': (1, 2)})]",
        "f(a=1)",
        "```\n[f(a=2 * 3 + 1, b=7 // 2, c=-(3.0))]\n```",
        "[f(a=True, b=None, c=name, d=items[0], e=g(x=1), h=g(1))]",
        "[f(1, a=2)]",
        "[f]",
        "I cannot do that.",
        "[f(a=lambda: 1)]",
        "",
    ],
    "json": [
        '[{"function": "f", "parameters": {"a": 1}}]',
        'So: ```json\n[ {"function": "f", "parameters": {}}, 3 ]\n``` done',
        '[{"function": "f"}]',
        '[{"function": "f", "parameters": {"a": 1}}',
        '[{"function": "f", "parameters": {}}, 3]',
        'So: [{"function": "f", "parameters": {}}, {"function": "g", "parameters": {"x": "]"}}] done',
        "nothing",
    ],
    "verbose_xml": [
        '<functions><function name="f"><params><param name="a" value="1" type="integer"/></params>'
        "</function></functions> ",
        '<functions><function name="f"></functions>',
        "nothing",
    ],
    "concise_xml": [
        'so <functions><function name="f"><param name="a" type="array">[1]</param></function></functions>',
        '<functions><function name="f"><param name="a" type="integer">x</param></function></functions>',
    ],
}
HOSTILE = {
    "python": [
        "[f(a=__import__('os').getpid() + 1)]",
        "[f(a=9 ** 9 ** 9)]",
        "[f(a='x' * 9999999999)]",
        f"[f(a={'[' * 5000}{']' * 5000})]",
        f"[f(a={'-' * 9000}1)]",
        "[f(a=1 / 0)]",
    ],
    "json": ["[" + '{"a": {}}, ' * 1500 + "x", "[{" * 9_000, '[{"function": [], "parameters": {}}]'],
    "verbose_xml": ['<!DOCTYPE x [<!ENTITY a "b">]><functions>&a;</functions>', "</functions><functions>"],
    "concise_xml": [f"<functions>{'<a>' * 3000}</functions>"],
}


def said(run: Run, environment: PromptedEnvironment, task: Task, text: str) -> bool:
    return bool(run(play(environment, task, ListedAgent([assistant(text)]))).success)


def gold_of(environment: PromptedEnvironment, task: Task) -> str:
    turn = environment.gold(task).next_turn(task.prompt)
    assert turn is not None
    return turn.text


def test_the_prompts_are_upstreams(monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = imported("bfcl_eval.utils", {"bfcl_eval.constants.eval_config": {}})
    monkeypatch.delitem(sys.modules, "bfcl_eval.utils", raising=False)
    assert [prompt.name for prompt in PROMPTS] == upstream.get_all_format_sensitivity_configs()
    assert len({prompt.text(prompted_rows()[0].functions) for prompt in PROMPTS}) == 26


@pytest.mark.parametrize("prompt", PROMPTS[:24:3], ids=lambda prompt: f"{prompt.notation}-{prompt.tag}")
def test_what_is_written_is_read_again(prompt: Prompt) -> None:
    assert read_calls(write_calls(CALLS, prompt), prompt) == [{name: given} for name, given in CALLS]


@pytest.mark.parametrize("notation", TEXTS)
@pytest.mark.parametrize("tag", [False, True])
def test_replies_are_read_as_upstream_reads_them(notation: str, tag: bool) -> None:
    upstream = prompted_text._upstream()
    for text in TEXTS[notation]:
        for written in {text, f"<TOOLCALL>{text}</TOOLCALL>"}:
            try:
                wanted = upstream.default_decode_ast_prompting(written, upstream.ReturnFormat(notation), tag)
            except Exception:
                wanted = None
            assert (read_calls(written, Prompt(notation, tag, "json")) or None) == (wanted or None), written


def test_hostile_replies_are_no_calls_and_nothing_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    prompted_text._upstream()
    monkeypatch.setattr(builtins, "eval", None)
    for notation, texts in HOSTILE.items():
        for text in texts:
            assert read_calls(text, Prompt(notation, False, "json")) is None, text[:80]
    assert read_calls("x" * 30_000, PROMPTS[0]) is None


def test_gold_solves_under_every_prompt_and_other_replies_do_not(run: Run) -> None:
    environment = load(whole=True)
    tasks = list(itertools.islice(environment.tasks("all"), 0, 200, 7))
    assert {task.state_value()["prompt"] for task in tasks} == set(range(26))
    for task in tasks:
        gold = gold_of(environment, task)
        assert said(run, environment, task, gold), task.synthesizer
        assert not said(run, environment, task, gold[: len(gold) // 2])
        assert not said(run, environment, task, "")


def test_tags_that_were_not_asked_for_count_as_upstream_has_it(run: Run) -> None:
    environment = load(whole=True)
    for notation in TEXTS:
        task = next(task for task in environment.tasks("all") if task.tags[1:] == (notation,))
        text = f"<TOOLCALL>{gold_of(environment, task)}</TOOLCALL>"
        assert said(run, environment, task, text) == (notation != "python")


def test_it_passes_the_checks_of_every_world_and_leaves_no_folder(run: Run) -> None:
    environment = load()
    results = run(check_environment(environment, num_tasks=3, num_ids=60))
    assert not [result for result in results if not result.passed]
    first = {half: list(itertools.islice(environment.tasks(half), 300)) for half in environment.splits}
    rows = [{task.synthesizer.split("/")[2] for task in tasks} for tasks in first.values()]
    assert not rows[0] & rows[1] and sum(map(len, rows)) == len(prompted_rows()) == 200
    beside = Path(str(importlib.import_module("bfcl_eval").__file__)).parents[1]
    assert not [name for name in ("score", ".file_locks") if (beside / name).exists()]


def test_options_are_checked() -> None:
    tasks = list(load(notations=["json"], whole=True).tasks("all"))
    assert {task.tags[1] for task in tasks} == {"json"} and len({task.task_id for task in tasks}) == 6 * 200
    for notations in ([], ["yaml"]):
        with pytest.raises(ConfigError, match="some of python, json, verbose_xml, concise_xml"):
            load(notations=notations)
