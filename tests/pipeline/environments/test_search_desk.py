"""search_desk: gold by chat and inline, evidence, refusals, answers, worlds that share nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from data.messages import ToolStatus, assistant
from data.tasks import Task
from data.trajectories import SpanKind, Trajectory
from pipeline.engines.base import Sampling
from pipeline.environments.check import check_environment
from pipeline.environments.play import play
from pipeline.environments.search_desk import INLINE, load
from pipeline.environments.search_desk.desk import read_answer
from pipeline.environments.search_desk.index import make_index
from pipeline.environments.search_desk.questions import QUESTIONS, REFUSAL
from pipeline.environments.search_desk.world import make_world
from pipeline.environments.splits import NUM_TASKS
from pipeline.errors import ConfigError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import Mode, RolloutSettings, rollout
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.scripts import components, listed
from tests.pipeline.rollout_world import Speaker
from tests.tiny import make_tiny_tokenizer

DESK = load()
TRAIN = list(itertools.islice(DESK.tasks("train"), 250))


def task_of(name: str) -> Task:
    return next(task for task in TRAIN if task.template == name)


def way(task: Task) -> list[list[str]]:
    found: list[list[str]] = json.loads(task.private_value()["way"])
    return found


def test_gold_solves_every_question_in_both_protocols(run: Run) -> None:
    for desk in (DESK, load(protocol="inline")):
        for task in itertools.chain(
            itertools.islice(desk.tasks("train"), 75), itertools.islice(desk.tasks("heldout_unseen"), 30)
        ):
            assert run(play(desk, task, desk.gold(task))).success, task.prompt[-1].text
    assert {task.template for task in TRAIN} == {
        question.name for question in QUESTIONS if not question.unseen
    }


def test_inline_passes_the_check(run: Run) -> None:
    results = run(check_environment(load(protocol="inline"), num_tasks=26, num_ids=60))
    assert [result for result in results if not result.passed] == []


def test_the_real_loop_plays_search_r1(tmp_path: Path) -> None:
    desk = load(protocol="inline")
    task = next(task for task in desk.tasks("train") if task.template == "author_birthplace")
    said = [f"<search>{query}</search>" for query, _ in way(task)]
    renderer = ChatMLRenderer.load(make_tiny_tokenizer(tmp_path))
    settings = RolloutSettings(mode=Mode.INLINE, inline=INLINE, max_context_tokens=60_000)
    task = Task(**task.model_dump(exclude={"task_id", "budget"}), budget={"max_tokens": 50_000})
    played: Trajectory = asyncio.run(
        rollout(
            task,
            environment=desk,
            engine=Speaker(renderer, [*said, f"<answer>{task.private_value()['answer']}</answer>"]),
            renderer=renderer,
            sampling=Sampling(max_tokens=2_000),
            settings=settings,
        )
    )
    assert played.success and components(played)["searches"] == len(said)
    kinds = [span.kind for span in played.segments[0].spans]
    assert kinds.count(SpanKind.OBSERVATION) == len(said) and "<information>" in renderer.decode(
        played.segments[0].token_ids
    )


def test_the_answer_is_never_in_the_question() -> None:
    for task in TRAIN:
        assert task.private_value()["answer"].lower() not in task.prompt[-1].text.lower()


def test_an_answer_without_evidence_scores_nothing(run: Run) -> None:
    for task in TRAIN[:60]:
        played = run(play(DESK, task, listed(f"ANSWER {task.private_value()['answer']}")))
        assert components(played)["success"] == 0 and components(played)["evidence"] == 0


def test_the_most_common_answer_is_rare_and_needs_reading_too() -> None:
    tasks = list(itertools.islice(DESK.tasks("train"), 3000))
    [(_, number)] = Counter(task.private_value()["answer"] for task in tasks).most_common(1)
    assert number / len(tasks) < 0.05


def test_refusals_need_the_document_and_fail_elsewhere(run: Run) -> None:
    task = task_of("no_birthplace")
    [[_, title]] = way(task)
    read, searched = ("open", {"title": title}), ("search", {"query": title})
    assert run(play(DESK, task, listed(searched, read, REFUSAL))).success
    assert not run(play(DESK, task, listed(searched, REFUSAL))).success
    assert not run(play(DESK, task, listed(REFUSAL))).success
    assert not run(play(DESK, task, listed(searched, read, "ANSWER unknown"))).success
    other = task_of("birthplace")
    assert not run(play(DESK, other, listed(("open", {"title": way(other)[0][1]}), REFUSAL))).success


def test_a_snippet_that_says_it_is_evidence(run: Run) -> None:
    world = make_world(0)
    task = next(
        task
        for task in TRAIN
        if task.template == "author"
        and f"by {task.private_value()['answer']}" in world.entities[way(task)[0][1]].text[:75]
    )
    agent = listed(("search", {"query": way(task)[0][0]}), f"ANSWER {task.private_value()['answer']}")
    assert run(play(DESK, task, agent)).success


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("ANSWER Marsulba", "Marsulba"),
        ("I think so.\nANSWER: Marsulba \n", "Marsulba"),
        ("<answer>a</answer> no, <answer> b </answer>", "b"),
        ("REFUSE", REFUSAL),
        ("<answer>REFUSE</answer>", REFUSAL),
        ("**ANSWER** the river Marsulba.", "Marsulba"),
        ("Answer: “Marsulba”", "Marsulba"),
        ("ANSWER in Marsulba\n\nThe second document says so.", "Marsulba"),
        ("ANSWER Kaba\nANSWER Marsulba", "Marsulba"),
        ("ANSWER: `REFUSE`", REFUSAL),
        ("They do not say.\n**REFUSE**", REFUSAL),
        ("Answering this takes more", None),
        ("It is Marsulba", None),
        ("ANSWER", None),
        ("REFUSE me not", None),
        ("", None),
    ],
)
def test_answers_are_typed(text: str, answer: str | None) -> None:
    assert read_answer([assistant(text)]) == answer


def test_worlds_share_no_name_and_hold_what_they_promise() -> None:
    worlds = [make_world(number) for number in range(4)]
    assert all(len(world.entities) >= 2000 for world in worlds)
    for one, two in itertools.combinations(worlds, 2):
        shared = {title for title in one.entities if title in two.entities}
        assert len(shared) < 10  # short names may meet; their facts do not
    first = [next(DESK.tasks(split)).state_value()["world"] for split in DESK.splits]
    assert first == [0, 1, 2, 3]


@pytest.mark.parametrize("query", ["", "   ", "?!", "x" * 50_000, "' OR 1=1 --", "the of and", "zzzz"])
def test_hostile_queries_are_answered(run: Run, query: str) -> None:
    session = run(DESK.open(TRAIN[0]))
    result = run(session.call("search", {"query": query}, "c"))
    assert result.status is ToolStatus.OK and result.text == "nothing found"
    opened = run(session.call("open", {"title": query}, "d"))
    assert opened.status is ToolStatus.TOOL_ERROR and len(opened.text) < 200
    run(session.close())


def test_a_query_that_is_no_text_is_a_wrong_argument(run: Run) -> None:
    session = run(DESK.open(TRAIN[0]))
    assert run(session.call("search", {"query": "\ud800"}, "c")).status is ToolStatus.TOOL_ERROR
    run(session.close())


def test_a_title_finds_its_document_among_namesakes() -> None:
    world, index = make_world(0), make_index(0)
    for title in list(world.entities)[::37]:
        assert index.search(title, limit=1) == [title]


def test_splits_have_the_promised_size_and_unseen_paths() -> None:
    for split, number in NUM_TASKS.items():
        if split != "train":
            assert len({task.task_id for task in DESK.tasks(split)}) == number
    seen = {question.path for question in QUESTIONS if not question.unseen and not question.compare}
    unseen = [question for question in QUESTIONS if question.unseen]
    assert len(unseen) == 3 and not {q.path for q in unseen if not q.compare} & seen


def test_options_are_named() -> None:
    assert {task.template for task in itertools.islice(load(hops=(1,)).tasks("dev"), 50)} >= {
        "author",
        "school",
    }
    with pytest.raises(ConfigError, match="no protocol 'mail'; it has chat, inline"):
        load(protocol="mail")
    with pytest.raises(ConfigError, match="hops are 1 to 4"):
        load(hops=(9,))
