"""travel_desk: every template's gold, wrong ways to act, splits, names, and the matrix of templates."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from data.messages import Role, ToolSpec, Turn
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.checks.typed_answers import AnswerKind as Kind
from pipeline.checks.typed_answers import read_answer
from pipeline.environments.agents import ListedAgent
from pipeline.environments.play import play
from pipeline.environments.templated import MAX_DISTRACTORS
from pipeline.environments.travel_desk import DEMO_TEMPLATES, load
from pipeline.environments.travel_desk.generator import TEMPLATES, draw_task
from pipeline.environments.travel_desk.world import RENAMED, TravelSession
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.scripts import components, listed

DESK = load()
SEEN = [name for name, template in TEMPLATES.items() if not template.unseen]
UNSEEN = [name for name, template in TEMPLATES.items() if template.unseen]
NUM_PLAYED = 12


def make(name: str, index: int = 0) -> Task:
    template = TEMPLATES[name]
    return draw_task(template, "heldout_unseen" if template.unseen else "train", index)


def gold(run: Run, task: Task) -> Trajectory:
    return run(play(DESK, task, DESK.gold(task)))


def said(played: Trajectory) -> list[Turn]:
    return [turn for turn in played.turns if turn.role is Role.ASSISTANT]


def own_names(played: Trajectory) -> tuple[str, ...]:
    back = {shown: name for name, shown in RENAMED.items()}
    return tuple(back.get(call.name, call.name) for turn in played.turns for call in turn.tool_calls)


@pytest.mark.parametrize("name", TEMPLATES)
def test_gold_solves_and_makes_the_calls_it_declares(run: Run, name: str) -> None:
    for index in range(NUM_PLAYED):
        task = make(name, index)
        played = gold(run, task)
        assert components(played) == {"success": 1, "state": 1, "answer": 1, "evidence": 1}, task.task_id
        assert own_names(played) == TEMPLATES[name].calls
        assert len(said(played)) <= task.budget.max_turns


@pytest.mark.parametrize("name", TEMPLATES)
def test_stopping_before_the_last_act_fails(run: Run, name: str) -> None:
    task = make(name)
    turns = said(gold(run, task))
    for length in range(len(turns)):
        assert run(play(DESK, task, ListedAgent(turns[:length]))).reward.total == 0


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_side_effect_fails(run: Run, name: str) -> None:
    task = make(name)
    task = Task(**task.model_dump(exclude={"task_id", "tools"}), tools=None)
    flights = [record["id"] for record in task.state_value()["flights"] if not record["full"]]
    hotels = [record["id"] for record in task.state_value()["hotels"]]
    act = ("book", {"flight": flights[0]}) if flights else ("room", {"hotel": hotels[0], "nights": 1})
    extra = listed((DESK.rename(task).get(act[0], act[0]), act[1])).next_turn([])
    assert extra is not None
    played = run(play(DESK, task, ListedAgent([extra, *said(gold(run, task))])))
    assert components(played)["state"] == 0
    assert played.reward is not None and played.reward.total == 0


@pytest.mark.parametrize("name", [name for name in TEMPLATES if TEMPLATES[name].calls[-1:] == ("book",)])
def test_every_other_flight_fails(run: Run, name: str) -> None:
    task = make(name)
    turns = said(gold(run, task))
    booked = max(index for index, turn in enumerate(turns) if turn.tool_calls)
    right = turns[booked].tool_calls[0].parsed_arguments()["flight"]
    tool_name = turns[booked].tool_calls[0].name
    for other in task.state_value()["flights"]:
        agent = [
            *turns[:booked],
            listed((tool_name, {"flight": other["id"]})).next_turn([]),
            *turns[booked + 1 :],
        ]
        total = run(play(DESK, task, ListedAgent([turn for turn in agent if turn]))).reward.total
        assert total == float(other["id"] == right)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("over_budget", "REFUSE: Budget.", "REFUSE late"),
        ("cancel_late", "REFUSE late", "DONE"),
        ("upgrade_no_miles", "REFUSE miles", "I am sorry."),
        ("price", "ANSWER $", "ANSWER 1"),
    ],
)
def test_typed_answers_need_the_right_words_and_the_look_up(
    run: Run, name: str, right: str, wrong: str
) -> None:
    task = make(name)
    look_up, final = said(gold(run, task))
    right = right.replace("$", f"${final.text.split()[-1]}")
    for text, total in ((right, 1), (wrong, 0)):
        played = run(play(DESK, task, ListedAgent([look_up, *said_text(text)])))
        assert played.reward.total == total, text
    blind = run(play(DESK, task, listed(right)))
    assert components(blind) == {"success": 0, "state": 1, "answer": 1, "evidence": 0}


def said_text(text: str) -> list[Turn]:
    turn = listed(text).next_turn([])
    return [turn] if turn else []


def test_refusing_what_is_allowed_fails(run: Run) -> None:
    task = make("within_budget")
    look_up, *_ = said(gold(run, task))
    assert run(play(DESK, task, ListedAgent([look_up, *said_text("REFUSE budget")]))).reward.total == 0


def test_the_user_answers_the_right_question_only(run: Run) -> None:
    for index in range(6):
        task = make("ask_missing", index)
        question, *rest = said(gold(run, task))
        kinds = {"ASK day", "ASK from", "ASK to"}
        assert question.text in kinds
        for other in kinds - {question.text}:
            played = run(play(DESK, task, ListedAgent([*said_text(other), *rest])))
            assert played.reward.total == 0
            assert len(played.turns) == 3
        guessed = run(play(DESK, task, ListedAgent(rest)))
        assert components(guessed) == {"success": 0, "state": 1, "answer": 0, "evidence": 1}


def test_recovery_sees_a_tool_error_first(run: Run) -> None:
    statuses = [turn.result.status for turn in gold(run, make("full_flight")).turns if turn.result]
    assert statuses == ["ok", "tool_error", "ok"]


def test_booking_and_cancelling_leaves_a_trace(run: Run) -> None:
    task = make("cancel")
    values = task.model_dump(exclude={"task_id", "tools"})
    task = Task(**values, tools=None)
    turns = said(gold(run, task))
    number, flight = task.state_value()["next"], task.state_value()["flights"][0]["id"]
    undone = listed(("book", {"flight": flight}), ("cancel", {"booking": f"B{number}"}))
    extra = [turn for turn in (undone.next_turn([]), undone.next_turn([])) if turn]
    assert run(play(DESK, task, ListedAgent([*extra, *turns]))).reward.total == 0


def test_tools_answer_errors_in_few_words(run: Run) -> None:
    async def episode() -> list[str]:
        task = make("cancel")
        opened = await DESK.open(Task(**task.model_dump(exclude={"task_id", "tools"}), tools=None))
        booking = task.state_value()["bookings"][0]["id"]
        calls: list[tuple[str, dict[str, Any]]] = [
            ("book", {"flight": "F1"}),
            ("room", {"hotel": "H1", "nights": 2}),
            ("cancel", {"booking": booking}),
            ("cancel", {"booking": booking}),
            ("upgrade", {"booking": "B0"}),
            ("hotels", {"city": "Nowhere"}),
        ]
        results = [await opened.call(name, arguments, str(at)) for at, (name, arguments) in enumerate(calls)]
        await opened.close()
        return [result.text.replace(booking, "B!") for result in results]

    expected = ["no flight F1", "no hotel H1", "cancelled B!", "B! is cancelled", "no booking B0", "none"]
    assert run(episode()) == expected


def test_ten_thousand_distinct_train_tasks_and_no_text_or_state_shared_with_the_others() -> None:
    tasks = {split: list(DESK.tasks(split)) for split in DESK.splits}
    ids = [task.task_id for split in tasks.values() for task in split]
    assert len(tasks["train"]) >= 10_000
    assert len(set(ids)) == len(ids)
    texts = {split: {task.prompt[-1].text for task in listing} for split, listing in tasks.items()}
    states = {split: {task.state for task in listing} for split, listing in tasks.items()}
    for one, other in itertools.combinations(DESK.splits, 2):
        assert not texts[one] & texts[other], (one, other)
        assert not states[one] & states[other], (one, other)
    assert {task.template for task in tasks["heldout_unseen"]} == set(UNSEEN)
    for split in ("train", "dev", "heldout"):
        assert {task.template for task in tasks[split]} == set(SEEN)
    assert len(tasks["dev"]) >= 500 and len(tasks["heldout"]) >= 500 and len(tasks["heldout_unseen"]) >= 500


def test_unseen_tasks_show_no_known_tool_name() -> None:
    known = {name for task in itertools.islice(DESK.tasks("train"), 200) for name in task.tools or ()}
    for task in itertools.islice(DESK.tasks("heldout_unseen"), 60):
        assert not known & set(task.tools or ())
    assert set(RENAMED) == known == {spec.name for spec in _specs()}


def _specs() -> list[ToolSpec]:
    from pipeline.environments.toolkit import all_tools

    return [entry.signature.spec for entry in all_tools(TravelSession).values()]


def test_every_task_shows_what_gold_needs_and_at_most_two_more() -> None:
    for task in itertools.islice(DESK.tasks("train"), 200):
        needed, shown = set(TEMPLATES[task.template].tools), set(task.tools or ())
        assert needed <= shown
        assert len(shown - needed) <= MAX_DISTRACTORS


def test_a_choice_of_templates_changes_no_task() -> None:
    few = load(templates=DEMO_TEMPLATES)
    chosen = {task.task_id for task in itertools.islice(few.tasks("train"), 50)}
    assert chosen <= {task.task_id for task in itertools.islice(DESK.tasks("train"), 50 * len(SEEN))}
    assert set(DEMO_TEMPLATES) <= set(SEEN)
    assert list(few.tasks("heldout_unseen")) == []


def test_the_template_matrix_has_no_two_equal_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {name: (template.calls, template.rule) for name, template in TEMPLATES.items()}
    for name, (calls, rule) in rows.items():
        print(f"{name:18} {len(calls)} {' > '.join(calls) or '-':70} {rule}")
    assert len(set(rows.values())) == len(rows)
    assert len(SEEN) >= 12 and len(UNSEEN) == 3
    assert {len(calls) for calls, _ in rows.values()} == set(range(9))
    tags = {tag for template in TEMPLATES.values() for tag in template.tags}
    assert {"refuse", "ask", "no_call", "recover", "follow_up", "choose"} <= tags
    assert capsys.readouterr().out.count("\n") == len(rows)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("REFUSE budget", Kind.REFUSE, "budget"),
        (" ANSWER: $210.", Kind.ANSWER, "210"),
        ("ASK", Kind.ASK, ""),
        ("I will not refuse", Kind.DONE, ""),
        ("REFUSED", Kind.DONE, ""),
        ("  ", Kind.SILENT, ""),
    ],
)
def test_reading_answers(text: str, kind: Kind, value: str) -> None:
    assert read_answer(text) == (kind, value)


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_day_exists_in_its_month(name: str) -> None:
    """April and June have 30 days."""
    for index in range(300):
        task = make(name, index)
        texts = [*(turn.text for turn in task.prompt), str(task.state_value())]
        days = re.findall(r"(?:March|April|May|June|July) (\d+)", " ".join(texts))
        assert all(1 <= int(day) <= 30 for day in days), task.task_id
