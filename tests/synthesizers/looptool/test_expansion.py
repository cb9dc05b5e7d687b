"""EDDE: variants of error seeds with and without a chat, two gates, provenance, one result in any order."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from data import leaks
from data.errors import ConfigError
from data.messages import ParseStatus, ToolCall, Turn, text_parts
from data.tasks import Task
from data.trajectories import Origin, Trajectory
from data.verdicts import Verdict
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.blueprint import Expects, is_blueprint, read_blueprint
from pipeline.environments.gold import PlannedGold
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.environments.renamed import is_renamed
from pipeline.errors import EnvironmentFailure
from pipeline.rollout_settings import RolloutSettings
from synthesizers.base import Made, is_given_up
from synthesizers.grounding.provenance import Provenance
from synthesizers.looptool.expansion import expand
from synthesizers.looptool.gates import GoldGate, fits_schemas, wording
from synthesizers.looptool.plans import plan_task, planned_turns
from synthesizers.looptool.records import LabelVerdict, Part, Repair
from synthesizers.looptool.roles import (
    SAMPLE_JUDGE,
    SAMPLE_WRITER,
    CheckRequest,
    SampleRequest,
)
from synthesizers.looptool.varying import Kind, Variants, in_another_manner, with_more_tools
from synthesizers.phrasing.wording import mentions
from tests.synthesizers.looptool.world import Desk, said

GOLDEN = Path(__file__).parent / "golden"


def error_at(desk: Desk, template: str, **fields: Any) -> Repair:
    """An error seed at the first step of the gold row of a template."""
    row = next(each for each in desk.rows.values() if each.template == template)
    turn = next(place for place, said in enumerate(row.turns) if said.role == "assistant")
    return Repair(
        trajectory_id=row.trajectory_id,
        turn=turn,
        verdict=LabelVerdict.PRED_WRONG,
        label="right call",
        predicted="wrong call",
        **fields,
    )


def expanded(desk: Desk, repairs: Sequence[Repair], **options: Any) -> list[Made]:
    options = {"environment": desk.environment, **options}

    async def run() -> list[Made]:
        made = expand(
            repairs, load=desk.rows.get, load_task=desk.tasks.get, renderer=desk.renderer, **options
        )
        return [each async for each in made]

    return asyncio.run(run())


def tasks_of(made: Sequence[Made]) -> list[Task]:
    return [each for each in made if isinstance(each, Task)]


def rows_of(made: Sequence[Made]) -> list[Trajectory]:
    return [each for each in made if isinstance(each, Trajectory)]


def verdicts_of(made: Sequence[Made]) -> list[Verdict]:
    return [each for each in made if isinstance(each, Verdict)]


TEMPLATES = ("cheapest", "ask_missing", "over_budget", "price", "hotel", "cancel")


@pytest.fixture(scope="module")
def seeds(desk: Desk) -> list[Repair]:
    return [error_at(desk, template) for template in TEMPLATES]


@pytest.fixture(scope="module")
def made(desk: Desk, seeds: list[Repair]) -> list[Made]:
    return expanded(desk, seeds, k=5)


def test_every_error_seed_gets_verified_variants_with_its_name_on_them(
    desk: Desk, seeds: list[Repair], made: list[Made]
) -> None:
    tasks, rows = tasks_of(made), rows_of(made)
    assert len(tasks) == len(rows) >= 0.8 * 5 * len(seeds)
    assert len(tasks) + len(verdicts_of(made)) == 5 * len(seeds)
    by_id = {task.task_id: task for task in tasks}
    assert len(by_id) == len(tasks) and not set(by_id) & set(desk.tasks)
    parents = {seed.trajectory_id: desk.rows[seed.trajectory_id].task_id for seed in seeds}
    for row in rows:
        task = by_id[row.task_id]
        assert row.success and row.synthesizer == "looptool" and Part.EXPANSION.mark in row.labels
        assert row.parents[0] in parents and task.parents == (parents[row.parents[0]],)
        assert task.split == "train" and {segment.origin for segment in row.segments} == {Origin.RENDERED}
        leaks.check_trajectory(row, task)
    assert {row.parents[0] for row in rows} == set(parents)
    kinds = Counter(label for row in rows for label in row.labels if label.split(":")[1] in list(Kind))
    assert set(kinds) == {f"looptool:{kind}" for kind in Kind}


@pytest.mark.parametrize("behind", [False, True])
def test_a_sample_trains_one_step_the_one_that_stands_where_the_error_stood(desk: Desk, behind: bool) -> None:
    """Once the look-up, once the booking behind it: in every kind, wherever that turn has moved to."""
    seed = error_at(desk, "cheapest")
    seed = seed.model_copy(update={"turn": seed.turn + 2 * behind})
    label = desk.rows[seed.trajectory_id].turns[seed.turn]
    made = expanded(desk, [seed], k=16)
    tasks, rows = {task.task_id: task for task in tasks_of(made)}, rows_of(made)
    assert {f"looptool:{kind}" for kind in Kind} <= {name for row in rows for name in row.labels}
    for row in rows:
        (trained,) = (turn for turn in row.turns if turn.role == "assistant" and turn.weight > 0.0)
        assert len(trained.tool_calls) == 1
        if not is_renamed(tasks[row.task_id]):
            assert trained.tool_calls[0].name == label.tool_calls[0].name == ("book" if behind else "flights")


def test_a_task_comes_before_its_trajectory(made: list[Made]) -> None:
    known: set[str] = set()
    for record in made:
        if isinstance(record, Task):
            known.add(record.task_id)
        elif isinstance(record, Trajectory):
            assert record.task_id in known


def test_program_variants_of_each_sort(desk: Desk, made: list[Made]) -> None:
    tasks = tasks_of(made)
    assert any(is_renamed(task) for task in tasks)
    longer = [task for task in tasks if is_blueprint(task)]
    assert {task.template for task in longer} == {"looptool/complexity", "looptool/interaction"}
    for task in longer:
        turns = read_blueprint(task).turns
        [new] = [turn for turn in turns if turn.text_by == "template"]
        assert (turns[0] is new) == (task.template == "looptool/interaction")
        assert new.calls and not (turns[0] is new and any(call.changes for call in new.calls))
    asked = {turn.expects for task in longer for turn in read_blueprint(task).turns}
    assert asked >= {Expects.ACT} and len(asked) > 1, "asking and refusing survive"
    others = [task for task in tasks if not task.synthesizer]
    assert others and {task.template for task in others} <= set(TEMPLATES)


def test_the_same_repairs_make_the_same_samples_whatever_runs_beside(
    desk: Desk, seeds: list[Repair], made: list[Made]
) -> None:
    one_by_one = expanded(desk, list(reversed(seeds)), k=5, max_in_flight=1)
    assert [digest(each) for each in one_by_one] == [digest(each) for each in made]
    other = expanded(desk, seeds[:2], k=5, seed=1)
    assert {task.task_id for task in tasks_of(other)} != {task.task_id for task in tasks_of(made)[:10]}


def digest(record: Made) -> str:
    if isinstance(record, Trajectory):
        return record.content_digest()
    return record.model_dump_json()


def test_what_is_done_is_not_made_again_and_used_tasks_are_not_taken(
    desk: Desk, seeds: list[Repair], made: list[Made]
) -> None:
    done = {row.trajectory_id for row in rows_of(made)}
    again = expanded(desk, seeds[:2], k=5, done=done)
    assert tasks_of(again) and not rows_of(again)
    only = {Kind.DATA: 1.0}
    first = tasks_of(expanded(desk, seeds[:1], k=2, weights=only))
    second = tasks_of(expanded(desk, seeds[:1], k=2, weights=only, used={task.task_id for task in first}))
    assert len(first) == len(second) == 2
    assert not {task.task_id for task in first} & {task.task_id for task in second}


def test_only_error_seeds_are_expanded(desk: Desk) -> None:
    seed = error_at(desk, "cheapest")
    others = [verdict for verdict in LabelVerdict if verdict is not LabelVerdict.PRED_WRONG]
    passive = [seed.model_copy(update={"verdict": verdict}) for verdict in others]
    assert expanded(desk, passive) == []
    with pytest.raises(ConfigError, match=r"trajectory of step gone#2 is not in the store; probe again"):
        expanded(desk, [seed.model_copy(update={"trajectory_id": "gone"})])


class Wrong:
    """travel_desk whose gold of planned tasks books nothing, or calls with a boolean for a number."""

    def __init__(self, inner: Any, plan: Any) -> None:
        self.inner, self.plan = inner, plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def gold(self, task: Task) -> Any:
        return self.plan(self.inner.gold(task))


class Booleans:
    """A script that says true where a number of nights belongs."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        said: Turn | None = self.inner.next_turn(turns)
        if said is None:
            return None
        return said.model_copy(update={"tool_calls": tuple(map(self.with_boolean, said.tool_calls))})

    def with_boolean(self, call: ToolCall) -> ToolCall:
        arguments = call.parsed_arguments()
        lies = {"nights": True} if "nights" in arguments else {}
        return call.model_copy(update={"arguments": json.dumps(arguments | lies)})


def test_the_first_gate_is_gold_in_a_fresh_session(desk: Desk) -> None:
    wrong: Any = Wrong(desk.environment, lambda gold: PlannedGold(iter(())))  # type: ignore[arg-type]
    made = expanded(desk, [error_at(desk, "hotel")], environment=wrong, weights={Kind.DATA: 1})
    assert not tasks_of(made) and {each.reason for each in verdicts_of(made)} == {"gold_failed"}
    assert all(is_given_up(each) and each.filter == "looptool" for each in verdicts_of(made))


def test_a_boolean_fails_the_check_of_an_integer(desk: Desk) -> None:
    """In the released code isinstance(True, int) lets it pass."""
    lying: Any = Wrong(desk.environment, Booleans)
    made = expanded(desk, [error_at(desk, "hotel")], environment=lying, weights={Kind.DATA: 1}, k=2)
    assert not tasks_of(made) and {each.reason for each in verdicts_of(made)} == {"gold_failed"}
    settings = RolloutSettings()
    gate = GoldGate(environment=lying, renderer=desk.renderer, settings=settings, seed=0, run_id="")
    task = next(each for each in desk.tasks.values() if each.template == "hotel")
    played = asyncio.run(gate.gold(task.model_copy(update={"synthesizer": "looptool"}), failed=()))
    booked = [call for turn in played.turns for call in turn.tool_calls if "true" in call.arguments]
    assert booked and {call.status for call in booked} == {ParseStatus.BAD_ARGUMENTS}
    assert "nights must be integer" in booked[0].error and not fits_schemas(played)


def test_the_second_gate_lets_no_duplicate_pass(desk: Desk) -> None:
    seed = error_at(desk, "cheapest")
    twin = seed.model_copy(update={"turn": seed.turn + 2})
    made = expanded(desk, [seed, twin], k=12, weights={Kind.PERSONA: 1})
    assert {each.reason for each in verdicts_of(made)} == {"duplicate"}
    assert len({wording(task) for task in tasks_of(made)}) == len(tasks_of(made)) < 24


def test_equal_words_are_a_duplicate_whatever_the_task_is_called(desk: Desk) -> None:
    """The same request, tools and world with other tags have another id, and are no new sample."""
    seed = error_at(desk, "cheapest")
    row = desk.rows[seed.trajectory_id]
    task = desk.tasks[row.task_id]
    changes = {"task_id": "", "tags": ("other",)}
    twin = Task.model_validate(task.model_copy(update=changes).model_dump())
    other = row.model_copy(update={"trajectory_id": "twin", "task_id": twin.task_id})
    assert twin.task_id != task.task_id and wording(twin) == wording(task)
    spaced = task.prompt[-1].model_copy(update={"parts": text_parts(f"  {task.prompt[-1].text.upper()} ")})
    assert wording(task.model_copy(update={"prompt": (*task.prompt[:-1], spaced)})) == wording(task)
    assert wording(task.model_copy(update={"tools": ("book",)})) != wording(task)
    assert wording(task.model_copy(update={"state": "{}"})) != wording(task)

    async def run() -> list[Made]:
        made = expand(
            [seed, seed.model_copy(update={"trajectory_id": "twin"})],
            load={**desk.rows, "twin": other}.get,
            load_task={**desk.tasks, twin.task_id: twin}.get,
            environment=desk.environment,
            renderer=desk.renderer,
            k=12,
            weights={Kind.PERSONA: 1},
        )
        return [each async for each in made]

    made = asyncio.run(run())
    assert len({wording(each) for each in tasks_of(made)}) == len(tasks_of(made)) < 24
    assert {each.reason for each in verdicts_of(made)} == {"duplicate"}


def test_a_world_that_breaks_ends_the_expansion_with_an_error_and_no_verdict(desk: Desk) -> None:
    class Down:
        def __getattr__(self, name: str) -> Any:
            return getattr(desk.environment, name)

        async def open(self, task: Any, *, seed: int = 0) -> Any:
            raise OSError("the database is down")

    with pytest.raises(EnvironmentFailure, match="4 samples were broken by the environment"):
        expanded(desk, [error_at(desk, "cheapest")], environment=Down())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"size": 1}}, "complexity, persona, interaction, data"),
        ({"weights": {"data": 0}}, "not all 0"),
        ({"k": -1}, "k is at least 0"),
        ({"teacher": "policy"}, "teacher is gold or agreement"),
        ({"teacher": "agreement"}, "needs an engine"),
    ],
)
def test_wrong_options_are_named(desk: Desk, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expanded(desk, [], **options)


def test_more_tools_never_bring_a_twin_nor_undo_a_refusal(desk: Desk) -> None:
    task = next(each for each in desk.tasks.values() if each.tools is not None)
    tools = asyncio.run(Variants(environment=desk.environment)._tools(task))
    more = with_more_tools(task, tools, rng=random.Random(0))
    assert more is not None and set(task.tools or ()) < set(more.tools or ()) and more.prompt == task.prompt
    assert with_more_tools(task.model_copy(update={"tools": None}), tools, rng=random.Random(0)) is None
    turns = asyncio.run(planned_turns(desk.environment, task))
    refused = turns[0].model_copy(update={"expects": Expects.REFUSE, "calls": (), "reply": "REFUSE tool"})
    lacking = plan_task(task, [refused], shown=["hotels"], kind="t", trial_seed=0)
    assert with_more_tools(lacking, tools, rng=random.Random(0)) is None


@pytest.mark.parametrize("name", ["files", "travel_desk"])
def test_what_nobody_said_is_not_called_the_users(name: str) -> None:
    """A path found by listing a folder stands in no request; the names in it do."""
    environment, found = load_environment(name), Counter[str]()
    for task in islice(environment.tasks("train"), 30):
        heard = ""
        for turn in asyncio.run(planned_turns(environment, task)):
            heard += f"{turn.text}\n"
            for call in turn.calls:
                values = json.loads(call.arguments)
                for source in call.sources:
                    unsaid = not mentions(heard, values[source.argument])
                    assert not (source.provenance is Provenance.USER and unsaid), (call, turn.text)
                    found[source.provenance] += 1
    assert found[Provenance.USER] > 30
    assert (found[Provenance.WRITTEN] > 30) == (name == "files")


def test_a_manner_changes_the_words_around_a_request_only(desk: Desk) -> None:
    for task in list(desk.tasks.values())[:6]:
        other = in_another_manner(task, rng=random.Random(3))
        assert other is not None and task.prompt[-1].text in other.prompt[-1].text != task.prompt[-1].text
        assert asyncio.run(play(desk.environment, other, desk.environment.gold(other))).success


def test_variants_can_be_taught_by_what_two_samples_agree_on(desk: Desk) -> None:
    made = expanded(
        desk,
        [error_at(desk, "cheapest")],
        k=2,
        weights={Kind.DATA: 1},
        teacher="agreement",
        engine=desk.policy(mistakes=0.3),
    )
    rows = rows_of(made)
    assert len(rows) == len(tasks_of(made)) == 2
    for row in rows:
        assert row.policy.name.endswith("+agreement") and {s.origin for s in row.segments} == {Origin.EDITED}
        assert Part.EXPANSION.mark in row.labels and row.parents


# --- with a chat --------------------------------------------------------------------------------------------


def world_flight(desk: Desk, repair: Repair) -> tuple[dict[str, Any], str]:
    """A flight of the seed's world that can be booked, and the request for it."""
    row = desk.rows[repair.trajectory_id]
    flights = desk.tasks[row.task_id].state_value()["flights"]
    flight = next(each for each in flights if not each["full"])
    return flight, f"Get me a seat on {flight['id']}, please."


def sample(request: str, calls: list[dict[str, Any]], closing: str = "Done.") -> str:
    return json.dumps({"request": request, "calls": calls, "closing": closing})


def writing(*texts: str) -> ScriptedChat:
    return ScriptedChat(list(texts), name="writer", max_asks=1)


def test_a_written_sample_is_executed_and_carries_its_writers_name(desk: Desk) -> None:
    seed = error_at(desk, "cheapest", analysis="The day is wrong.")
    flight, request = world_flight(desk, seed)
    chat = writing(sample(request, [{"name": "book", "arguments": {"flight": flight["id"]}}]))
    [task, row] = expanded(desk, [seed], k=1, writer=chat)
    assert isinstance(task, Task) and isinstance(row, Trajectory) and row.success
    [turn] = read_blueprint(task).turns
    assert (turn.text, turn.text_by, turn.calls[0].changes) == (request, "writer", True)
    assert said(row.turns[2]) == [("book", f'{{"flight":"{flight["id"]}"}}')]
    assert [place for place, turn in enumerate(row.turns) if turn.role == "assistant" and turn.weight] == [2]
    told = chat.asked[0][-1].text
    assert (
        "right call" in told and "wrong call" in told and "The day is wrong." in told and flight["id"] in told
    )


def test_a_written_sample_for_words_in_error_trains_its_closing_words(desk: Desk) -> None:
    seed = error_at(desk, "cheapest")
    last = len(desk.rows[seed.trajectory_id].turns) - 1
    flight, request = world_flight(desk, seed)
    chat = writing(sample(request, [{"name": "book", "arguments": {"flight": flight["id"]}}]))
    [_, row] = expanded(desk, [seed.model_copy(update={"turn": last})], k=1, writer=chat)
    assert isinstance(row, Trajectory)
    trained = [turn for turn in row.turns if turn.role == "assistant" and turn.weight > 0.0]
    assert trained == [row.turns[-1]] and not trained[0].tool_calls


def test_what_is_wrong_with_a_sample_is_told_once_and_then_it_is_given_up(desk: Desk) -> None:
    seed = error_at(desk, "cheapest")
    flight, request = world_flight(desk, seed)
    good = sample(request, [{"name": "book", "arguments": {"flight": flight["id"]}}])
    for bad, problem in (
        (
            sample("Take F1.", [{"name": "book", "arguments": {"flight": "F1"}}]),
            "does not work here: no flight F1",
        ),
        (
            sample("Fly me.", [{"name": "book", "arguments": {"flight": flight["id"]}}]),
            "does not say flight=",
        ),
        (
            sample(request, [{"name": "book", "arguments": {"flight": flight["id"]}}], "ASK day"),
            "asks or refuses",
        ),
    ):
        chat = writing(bad, good)
        assert len(tasks_of(expanded(desk, [seed], k=1, writer=chat))) == 1
        assert problem in chat.asked[1][-1].text
        [verdict] = expanded(desk, [seed], k=1, writer=writing(bad, bad))
        assert (
            isinstance(verdict, Verdict) and verdict.reason == "unusable_sample" and problem in verdict.detail
        )
        assert verdict.trajectory_id == f"{seed.step_id}/0" and is_given_up(verdict)


def test_a_reply_that_fits_no_schema_makes_no_sample(desk: Desk) -> None:
    seed = error_at(desk, "hotel")
    nights = [{"name": "room", "arguments": {"hotel": "H1", "nights": True}}]
    for text in ("a sample", sample("Book it.", [{"name": "fly", "arguments": {}}]), sample("Book.", nights)):
        [verdict] = expanded(desk, [seed], k=1, writer=writing(text))
        assert isinstance(verdict, Verdict) and verdict.reason == "invalid_reply"


def test_a_judge_must_find_the_sample_correct_and_silence_is_no_approval(desk: Desk) -> None:
    seed = error_at(desk, "cheapest")
    flight, request = world_flight(desk, seed)
    good = sample(request, [{"name": "book", "arguments": {"flight": flight["id"]}}])

    def judged(*words: str) -> list[Made]:
        judge = ScriptedChat(list(words), name="judge", max_asks=1)
        return expanded(desk, [seed], k=1, writer=writing(good, good), judge=judge)

    yes, no = '{"reason": "It fits.", "correct": true}', '{"reason": "It is too short.", "correct": false}'
    assert len(tasks_of(judged(yes))) == 1
    [refused] = judged(no, no)
    assert isinstance(refused, Verdict) and refused.detail == "It is too short."
    [silent] = judged("well", "well")
    assert isinstance(silent, Verdict) and silent.detail == "it could not be judged"


def test_prompts_are_the_stored_ones() -> None:
    writer = SampleRequest(
        tools=("book(flight): Book a flight.",),
        values='{"flights":["F1"]}',
        dialogue="user: Book the cheapest.",
        right='book {"flight":"F1"}',
        wrong='book {"flight":"F2"}',
        analysis="F1 is cheaper.",
        constraint="other values than before, the same skill",
        problem="F9 does not work here",
    )
    judge = CheckRequest(tools=writer.tools, request="Book F1.", calls=('book {"flight":"F1"} -> booked B1',))
    shown = {"sample_writer": SAMPLE_WRITER.turns(writer), "sample_judge": SAMPLE_JUDGE.turns(judge)}
    for name, (system, user) in shown.items():
        assert f"{system.text}\n---\n{user.text}\n" == (GOLDEN / f"{name}.txt").read_text(), name
