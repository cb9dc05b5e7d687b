"""files: every template's gold, unfinished work, paths that lead nowhere, limits, splits."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from data import canonical
from data.messages import Role, ToolStatus
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.agents import ListedAgent
from pipeline.environments.files import load
from pipeline.environments.files.generator import draw_task
from pipeline.environments.files.templates import TEMPLATES
from pipeline.environments.files.world import MAX_FILES, RENAMED, read_text, same_answer, same_files
from pipeline.environments.play import play
from pipeline.environments.splits import NUM_TASKS
from pipeline.errors import ConfigError
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.scripts import components, listed

FILES = load()
SEEN = [name for name, template in TEMPLATES.items() if not template.unseen]
UNSEEN = [name for name, template in TEMPLATES.items() if template.unseen]


def make(name: str, index: int = 0) -> Task:
    return draw_task(TEMPLATES[name], "heldout_unseen" if name in UNSEEN else "train", index)


def gold(run: Run, task: Task) -> Trajectory:
    played: Trajectory = run(play(FILES, task, FILES.gold(task)))
    return played


@pytest.mark.parametrize("name", TEMPLATES)
def test_gold_solves_and_stopping_early_does_not(run: Run, name: str) -> None:
    for index in range(6):
        task = make(name, index)
        played = gold(run, task)
        assert components(played) == {"success": 1, "state": 1, "answer": 1}, task.prompt[-1].text
        said = [turn for turn in played.turns if turn.role is Role.ASSISTANT]
        assert len(said) <= task.budget.max_turns
        acts = {"write", "move", "delete", "save", "rename", "remove"}
        last_act = max(
            (number for number, turn in enumerate(said) if {call.name for call in turn.tool_calls} & acts),
            default=0,
        )
        if not task.private_value()["answer"]:
            assert not run(play(FILES, task, ListedAgent(said[:last_act]))).success
        assert not run(play(FILES, task, ListedAgent([]))).success


def test_there_are_enough_templates() -> None:
    assert len(SEEN) >= 12 and len(UNSEEN) == 3


def session_of(run: Run, files: dict[str, str]) -> Any:
    task = make("swap")
    values = task.model_dump(exclude={"task_id", "state", "tools"})
    task = Task(**values, tools=None, state=canonical.dumps({"files": files, "read": []}))
    return run(FILES.open(task))


@pytest.mark.parametrize(
    "path",
    [
        "../etc/passwd",
        "/../../etc/passwd",
        "a/../../b",
        "a//b",
        "..",
        ".",
        "",
        "/",
        "a/./b",
        "x" * 200,
        "./../a",
    ],
)
def test_a_path_leads_nowhere_else(run: Run, path: str) -> None:
    session = session_of(run, {"a/b.txt": "hello"})
    for number, (tool, arguments) in enumerate(
        [
            ("read", {"path": path}),
            ("write", {"path": path, "text": "x"}),
            ("move", {"path": "a/b.txt", "to": path}),
            ("delete", {"path": path}),
        ]
    ):
        result = run(session.call(tool, arguments, f"c{number}"))
        assert result.status is ToolStatus.TOOL_ERROR and "no valid path" in result.text
    assert session.state["files"] == {"a/b.txt": "hello"}


@pytest.mark.parametrize(
    ("tool", "arguments", "text"),
    [
        ("read", {"path": "a"}, "a is a folder"),
        ("read", {"path": "nothing.txt"}, "no file nothing.txt"),
        ("write", {"path": "a", "text": "x"}, "a is a folder"),
        ("write", {"path": "c.txt/d.txt", "text": "x"}, "c.txt is a file, no folder"),
        ("write", {"path": "big.txt", "text": "x" * 30_000}, "longer than"),
        ("move", {"path": "a/b.txt", "to": "c.txt"}, "c.txt exists already"),
        ("move", {"path": "c.txt", "to": "c.txt/d"}, "c.txt is a file, no folder"),
        ("delete", {"path": "a"}, "a is a folder"),
        ("list", {"folder": "nowhere"}, "no folder nowhere"),
        ("search", {"text": " "}, "say what to search for"),
    ],
)
def test_wrong_calls_change_nothing(run: Run, tool: str, arguments: dict[str, Any], text: str) -> None:
    files = {"a/b.txt": "hello", "c.txt": ""}
    session = session_of(run, dict(files))
    result = run(session.call(tool, arguments, "c"))
    assert result.status is ToolStatus.TOOL_ERROR and text in result.text
    assert session.state["files"] == files


def test_looking_around(run: Run) -> None:
    session = session_of(run, {"a/b.txt": "Hello", "a/d/e.txt": "", "c.txt": "bye"})
    for number, (tool, arguments, text) in enumerate(
        [
            ("list", {}, "a/\nc.txt"),
            ("list", {"folder": "/a/"}, "b.txt\nd/"),
            ("read", {"path": "/a/d/e.txt"}, "(empty)"),
            ("search", {"text": "hello"}, "a/b.txt"),
            ("search", {"text": "B.TXT"}, "a/b.txt"),
            ("search", {"text": "zebra"}, "nothing found"),
        ]
    ):
        assert run(session.call(tool, arguments, f"c{number}")).text == text


def test_the_tree_cannot_grow_without_end(run: Run) -> None:
    session = session_of(run, {f"f{number}": "" for number in range(MAX_FILES)})
    result = run(session.call("write", {"path": "more", "text": "x"}, "c"))
    assert result.status is ToolStatus.TOOL_ERROR and len(session.state["files"]) == MAX_FILES


def test_harm_beside_the_right_work_fails(run: Run) -> None:
    task = make("set_value")
    said = [turn for turn in gold(run, task).turns if turn.role is Role.ASSISTANT]
    [path, *_] = [path for path in task.state_value()["files"] if path not in task.prompt[-1].text]
    harm = listed(*said[:-1], ("write", {"path": path, "text": "harm"}), "DONE")
    assert "write" in (task.tools or ()) and not run(play(FILES, task, harm)).success


def test_refusing_needs_a_reason_that_was_read(run: Run) -> None:
    tasks = [make("protected", index) for index in range(30)]
    kept = [task for task in tasks if task.private_value()["answer"]]
    plain = [task for task in tasks if not task.private_value()["answer"]]
    assert len(kept) > 5 and len(plain) > 5
    for task in tasks:
        assert not run(play(FILES, task, listed("REFUSE keep"))).success
    for task in plain[:3]:
        path = next(path for path in task.state_value()["files"] if path in task.prompt[-1].text)
        assert not run(play(FILES, task, listed(("read", {"path": path}), "REFUSE keep"))).success


def test_guessing_the_most_common_answer_stays_below_five_percent() -> None:
    answers = Counter(
        read_text(task.private_value()["answer"]) for task in itertools.islice(FILES.tasks("train"), 1600)
    )
    del answers[None]
    assert answers.most_common(1)[0][1] / 1600 < 0.05


def test_splits_share_no_request_and_unseen_tools_have_other_names() -> None:
    texts = {
        split: {task.prompt[-1].text for task in itertools.islice(FILES.tasks(split), 600)}
        for split in FILES.splits
    }
    for one, two in itertools.combinations(FILES.splits, 2):
        assert not texts[one] & texts[two]
    for task in itertools.islice(FILES.tasks("heldout_unseen"), 9):
        assert task.template in UNSEEN and set(task.tools or ()) <= set(RENAMED.values())


def test_train_has_ten_thousand_distinct_tasks() -> None:
    assert len({task.task_id for task in itertools.islice(FILES.tasks("train"), 800)}) == 800
    assert NUM_TASKS["train"] >= 10_000


def test_templates_are_named() -> None:
    with pytest.raises(ConfigError, match="no templates \\['fly'\\]; it has change_ending"):
        load(templates=["fly"])


@pytest.mark.parametrize(
    ("said", "gold", "same"),
    [
        ("ANSWER inbox/a.txt", "ANSWER inbox/a.txt", True),
        ("**ANSWER:** `./inbox/a.txt`.", "ANSWER inbox/a.txt", True),
        ("Found it.\nANSWER /inbox/A.txt", "ANSWER inbox/a.txt", True),
        ("ANSWER a.txt", "ANSWER inbox/a.txt", True),
        ("ANSWER notes/a.txt", "ANSWER inbox/a.txt", False),
        ("ANSWER txt", "ANSWER inbox/a.txt", False),
        ("ANSWER", "ANSWER inbox/a.txt", False),
        ("ANSWER inbox/a.txt\nANSWER inbox/b.txt", "ANSWER inbox/a.txt", False),
        ("ANSWER inbox/b.txt\nANSWER inbox/a.txt", "ANSWER inbox/a.txt", True),
        ('ANSWER "Ada"', "ANSWER Ada", True),
        ("REFUSE: keep.", "REFUSE keep", True),
        ("ANSWER keep", "REFUSE keep", False),
        ("inbox/a.txt", "ANSWER inbox/a.txt", False),
    ],
)
def test_the_last_typed_answer_counts_however_it_is_dressed(said: str, gold: str, same: bool) -> None:
    assert same_answer(read_text(said), read_text(gold)) is same


def test_line_ends_do_not_count_and_lines_do() -> None:
    assert same_files({"a": "x\r\ny \n\n"}, {"a": "x\ny"})
    assert not same_files({"a": "x\n\ny"}, {"a": "x\ny"}) and not same_files({"a": " x"}, {"a": "x"})
