"""Hindsight without a chat: goals, trimming, what is recorded and that nothing of the old goal is."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data import canonical
from data.messages import Role, ToolCall, ToolResult, text_parts, user
from data.store import Store
from data.tasks import Task
from data.trajectories import Origin, SpanKind, Trajectory
from flows.stages.synthesize import synthesize
from pipeline.environments.agents import null_agent
from pipeline.environments.blueprint import read_blueprint
from pipeline.environments.blueprint_session import with_blueprints
from pipeline.environments.counter import CounterEnvironment
from pipeline.environments.gold import call
from pipeline.environments.play import play
from pipeline.errors import ConfigError, EnvironmentFailure
from pipeline.memory.entries import Kind
from pipeline.memory.showing import HEADING
from pipeline.memory.stored import load_memory
from pipeline.rollout_episode import Episode
from synthesizers.execution import Executed
from synthesizers.hindsight.looking import asked_in
from synthesizers.hindsight.past import _lasting
from synthesizers.hindsight.synthesizer import Hindsight, _answers_alike
from tests.synthesizers.hindsight.lab import (
    MARKS,
    SEARCH,
    Records,
    desk,
    episode,
    looked_back,
    paris_to_miami,
    wordy,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, renderer: Any) -> tuple[Task, Trajectory, Records]:
    """A failed episode: it asked about hotels, looked flights up, booked a dear one, listed bookings."""
    task = paris_to_miami()
    turns = (
        wordy(call("hotels", city="Miami")),
        wordy(call("profile")),
        wordy(call("book", flight="F999")),
        wordy(SEARCH),
        wordy(call("book", flight="F773")),
        wordy(call("bookings")),
    )
    past = episode(task, *turns)
    assert past.success is False
    return task, past, looked_back(tmp_path_factory.mktemp("run"), renderer, [task], [past])


def test_a_failure_is_data_of_what_it_reached(made: tuple[Task, Trajectory, Records]) -> None:
    _, past, records = made
    assert records.ends == ["failure_turned"]
    assert records.calls == [["flights", "book"], ["profile"], ["flights", "book", "bookings"]]
    request = records.tasks[0].prompt[-1].text
    assert "from Paris to Miami on May 14" in request and "F773" not in request
    assert any(words in request for words in ("the earliest flight", "the most expensive flight"))
    for task, row in zip(records.tasks, records.trajectories, strict=True):
        assert row.success and row.task_id == task.task_id
        assert (row.parents, row.labels) == ((past.trajectory_id,), ("hindsight", "from_failure"))
        assert row.synthesizer == "hindsight" and task.parents == (past.task_id,)
        assert row.policy.name == past.policy.name and not row.policy.logprobs_of
        assert {segment.origin for segment in row.segments} == {Origin.EDITED}
        assert all(segment.logprobs == () and segment.num_generated for segment in row.segments)


def test_no_trace_of_the_old_goal_is_left(made: tuple[Task, Trajectory, Records], renderer: Any) -> None:
    old_task, past, records = made
    assert all(mark in canonical.dumps(past.model_dump(mode="json")) for mark in MARKS)
    old = set(re.findall(r"\w+", old_task.prompt[-1].text + old_task.prompt[0].text))
    for task, row in zip(records.tasks, records.trajectories, strict=True):
        base = read_blueprint(task).base
        assert base.private == "{}" and base.prompt[-1] == task.prompt[-1]
        decoded = " ".join(renderer.decode(segment.token_ids) for segment in row.segments)
        record = f"{task.model_dump_json()} {row.model_dump_json()} {decoded}"
        assert not [mark for mark in MARKS if mark in record]
        world = f"{task.state} {[s.model_dump_json() for s in row.segments]} {task.prompt[0].text}"
        results = " ".join(turn.text for turn in row.turns if turn.result is not None)
        known = set(re.findall(r"\w+", f"{task.prompt[-1].text} {world} {results}"))
        said = " ".join(turn.text for turn in row.turns if turn.role is Role.ASSISTANT)
        calls = " ".join(c.arguments + c.raw for turn in row.turns for c in turn.tool_calls)
        assert not (old - known) & set(re.findall(r"\w+", f"{said} {calls} {row.template} {row.tags}"))
        assert all(not turn.reasoning for turn in row.turns)


def test_what_is_recorded_is_what_a_fresh_session_does(made: tuple[Task, Trajectory, Records]) -> None:
    _, _, records = made
    for task, row in zip(records.tasks, records.trajectories, strict=True):
        again = asyncio.run(play(desk(), task, desk().gold(task)))
        assert again.success
        assert [turn.text for turn in again.turns] == [turn.text for turn in row.turns]


def test_a_fresh_session_that_answers_otherwise_makes_no_data(
    made: tuple[Task, Trajectory, Records], tmp_path: Path, renderer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, records = made
    for task, row in zip(records.tasks, records.trajectories, strict=True):
        assert _answers_alike(row, task)
        place = next(place for place, turn in enumerate(row.turns) if turn.result is not None)
        told = row.turns[place].result
        assert told is not None
        other = told.model_copy(update={"parts": text_parts(f"{told.text} and more")})
        turns = (*row.turns[:place], row.turns[place].model_copy(update={"result": other}))
        assert not _answers_alike(row.model_copy(update={"turns": (*turns, *row.turns[place + 1 :])}), task)

    class Drifting(Episode):
        """Ends as it should, with an answer that was not there when the goal was looked at."""

        async def run(self, *, group_deadline: float | None = None) -> Trajectory:
            """The record of a world that answers another thing."""
            played = await super().run(group_deadline=group_deadline)
            last = next(turn for turn in reversed(played.turns) if turn.result is not None)
            return played.model_copy(update={"turns": (*played.turns, last)})

    monkeypatch.setattr("synthesizers.hindsight.synthesizer.Episode", Drifting)
    task = paris_to_miami()
    drifted = looked_back(tmp_path, renderer, [task], [episode(task, SEARCH, call("book", flight="F219"))])
    assert (drifted.reasons, drifted.tasks, drifted.ends) == (["answer_differs"], [], ["failure_left"])


def test_an_agent_that_does_nothing_does_not_solve_it(made: tuple[Task, Trajectory, Records]) -> None:
    _, _, records = made
    for task in records.tasks:
        assert asyncio.run(play(desk(), task, null_agent())).success is False


def test_the_success_flag_plays_no_part(tmp_path: Path, renderer: Any) -> None:
    task, turns = paris_to_miami(), (SEARCH, call("book", flight="F219"))
    failed = looked_back(tmp_path / "a", renderer, [task], [episode(task, *turns, reward=0.0)])
    worked = looked_back(tmp_path / "b", renderer, [task], [episode(task, *turns, reward=1.0)])
    assert failed.tasks == worked.tasks != []
    assert [row.segments for row in failed.trajectories] == [row.segments for row in worked.trajectories]
    assert (failed.ends, worked.ends) == (["failure_turned"], ["success_turned"])


def test_several_changes_are_a_goal_together_and_each_alone(tmp_path: Path, renderer: Any) -> None:
    task = paris_to_miami()
    past = episode(task, call("book", flight="F219"), call("profile"), call("book", flight="F111"))
    records = looked_back(tmp_path, renderer, [task], [past])
    assert records.calls == [["book", "book"], ["book"], ["book"], ["profile"]]
    assert [c.changes for c in read_blueprint(records.tasks[0]).turns[0].calls] == [True, True]
    few = looked_back(tmp_path, renderer, [task], [past], goals=1, max_calls=1)
    assert few.tasks == [] and few.reasons == ["too_many_calls"]


def test_equal_goals_of_one_world_make_one_task_of_the_first(tmp_path: Path, renderer: Any) -> None:
    task, turns = paris_to_miami(), (SEARCH, call("book", flight="F219"))
    rows = [episode(task, *turns, index=index, reward=float(index == 1)) for index in range(3)]
    records = looked_back(tmp_path, renderer, [task], [*reversed(rows)])
    assert [row.parents for row in records.trajectories] == [(rows[0].trajectory_id,)]
    assert records.reasons == ["duplicate", "duplicate"]
    assert records.ends == ["failure_turned", "success_turned", "failure_turned"]


def test_what_was_taken_back_is_no_change() -> None:
    def done(before: str, after: str) -> Executed:
        made = ToolCall(call_id="x", name="set")
        return Executed(made, ToolResult(call_id="x", name="set", parts=text_parts("ok")), before, after)

    path = [done("a", "b"), done("b", "b"), done("b", "c"), done("c", "b"), done("b", "d")]
    assert _lasting(path) == [0, 4]
    assert _lasting([done("a", "b"), done("b", "a")]) == []


def test_an_episode_that_replays_differently_is_given_up(tmp_path: Path, renderer: Any) -> None:
    """The test (k) of the checklist: a spliced observation is found by executing again."""
    task = paris_to_miami()
    past = episode(task, SEARCH, call("book", flight="F219"))
    turns = list(past.turns)
    place = next(i for i, turn in enumerate(turns) if turn.result is not None)
    result = turns[place].result
    assert result is not None
    other = result.model_copy(update={"parts": text_parts("F1 Sun 07:20 direct $1")})
    turns[place] = turns[place].model_copy(update={"result": other})
    spliced = past.model_copy(update={"turns": tuple(turns)})
    records = looked_back(tmp_path, renderer, [task], [spliced], memory=("echo",))
    assert (records.reasons, records.tasks, records.ends) == (["replay_differs"], [], ["failure_left"])
    held = load_memory(tmp_path / "memory", Kind.ECHO, desk())
    assert held.entries == (), "ECHO's code remembers workflows that nobody executed"


def test_an_episode_without_calls_reached_nothing(tmp_path: Path, renderer: Any) -> None:
    task = paris_to_miami()
    records = looked_back(
        tmp_path, renderer, [task], [episode(task), episode(task, call("book", flight="F9"), index=1)]
    )
    assert records.reasons == ["nothing_reached"] * 2 and records.ends == ["failure_left"] * 2


class SecretCounter(CounterEnvironment):
    """A counter whose session starts from what only the private part says."""

    def tasks(self, split: str) -> Iterator[Task]:
        """The usual ones."""
        return super().tasks(split)

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        """Reads the private part."""
        task.private_value()["amounts"]
        return await super().open(task, seed=seed)


def test_a_world_that_needs_its_request_is_given_up(tmp_path: Path, renderer: Any) -> None:
    world = SecretCounter()
    task = next(world.tasks("train"))
    past = episode(task, call("add", amount=1), environment=world)
    records = looked_back(tmp_path, renderer, [task], [past], environment=world)
    assert records.reasons == ["needs_its_goal"] and records.tasks == []


class DownCounter(CounterEnvironment):
    """A counter whose database may go down."""

    down = False

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        """Opens while it is up."""
        if self.down:
            raise OSError("the counter's database is down")
        return await super().open(task, seed=seed)


def test_what_the_infrastructure_broke_has_no_verdict(tmp_path: Path, renderer: Any) -> None:
    world = DownCounter()
    task = next(world.tasks("train"))
    past = episode(task, call("add", amount=1), environment=with_blueprints(world))
    world.down = True
    with pytest.raises(EnvironmentFailure, match=r"1 tasks were looked back at.*database is down"):
        looked_back(tmp_path, renderer, [task], [past], environment=with_blueprints(world))
    world.down = False
    assert looked_back(tmp_path, renderer, [task], [past], environment=with_blueprints(world)).ends == [
        "failure_turned"
    ]


def test_episodes_of_planned_tasks_are_read_with_the_world_they_were_planned_in(
    tmp_path: Path, renderer: Any
) -> None:
    base = paris_to_miami()
    first = looked_back(
        tmp_path / "a", renderer, [base], [episode(base, SEARCH, call("book", flight="F219"))]
    )
    planned = first.tasks[0]
    past = episode(planned, SEARCH, call("book", flight="F111"))
    assert past.success is False
    made = looked_back(tmp_path / "b", renderer, [base], [past], known=[planned])
    assert made.calls == [["flights", "book"]] and made.ends == ["failure_turned"]
    assert made.tasks[0].parents == (planned.task_id,)
    assert read_blueprint(made.tasks[0]).base.state == base.state
    assert planned.prompt[-1].text not in made.tasks[0].model_dump_json()


@pytest.mark.parametrize("records", [1, 2, 4])
def test_a_killed_stage_ends_as_an_undisturbed_one(tmp_path: Path, renderer: Any, records: int) -> None:
    task = paris_to_miami()
    rows = [
        episode(task, SEARCH, call("book", flight=flight), call("profile"), index=index)
        for index, flight in enumerate(("F773", "F219", "F773"))
    ]

    def stage(root: Path, *, stop_after: int | None = None) -> str:
        async def run(store: Store) -> None:
            made = Hindsight(environment=desk(), renderer=renderer, store=store)
            there = store.ids("trajectories")
            await synthesize(store, _Stopping(made, stop_after), [task], planned=1)
            assert stop_after is None or store.ids("trajectories") >= there

        with Store.create_or_open(root, {"name": "lab"}) as store:
            for row in rows:
                if row.trajectory_id not in store.ids("trajectories"):
                    store.append(row)
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(run(store))
            return "".join(store.digest(kind) for kind in ("tasks", "trajectories", "verdicts"))

    undisturbed = stage(tmp_path / "a")
    assert stage(tmp_path / "b", stop_after=records) != undisturbed
    assert stage(tmp_path / "b") == undisturbed


class _Stopping:
    """A synthesizer that is interrupted after some records."""

    name = "hindsight"

    def __init__(self, inner: Hindsight, after: int | None) -> None:
        self.inner, self.after = inner, after

    async def synthesize(self, tasks: Any, **options: Any) -> Any:
        """The inner records, until it is time."""
        number = 0
        async with contextlib.aclosing(self.inner.synthesize(tasks, **options)) as made:
            async for record in made:
                if number == self.after:
                    raise KeyboardInterrupt
                number += 1
                yield record


def test_what_exists_is_not_made_again(tmp_path: Path, renderer: Any) -> None:
    task = paris_to_miami()
    past = episode(task, SEARCH, call("book", flight="F219"))
    first = looked_back(tmp_path, renderer, [task], [past])
    done = [row.trajectory_id for row in first.trajectories]
    again = looked_back(tmp_path, renderer, [task], [past], done=done)
    assert again.trajectories == [] and again.tasks == first.tasks and again.verdicts == first.verdicts


def test_memories_of_reached_goals_and_of_successes(tmp_path: Path, renderer: Any) -> None:
    task = paris_to_miami()
    failed = episode(task, call("profile"), SEARCH, call("book", flight="F773"))
    worked = episode(task, SEARCH, call("profile"), call("book", flight="F111"), index=1, reward=1.0)
    kinds = ("echo", "awm", "awm++")
    looked_back(tmp_path, renderer, [task], [failed, worked], memory=kinds)
    held = {kind: load_memory(tmp_path / "memory", Kind(kind), desk()) for kind in kinds}
    assert [e.trajectory_id for e in held["awm"].entries] == [worked.trajectory_id]
    assert (
        held["awm"].entries[0].workflow
        == "flights(src={src}, dst={dst}, day={day}); profile(); book(flight=flights)"
    )
    assert held["awm"].entries == held["awm++"].entries
    assert [e.workflow for e in held["echo"].entries if e.tools == ("flights", "book")] == [
        "flights(src={src}, dst={dst}, day={day}); book(flight=flights)"
    ] * len([e for e in held["echo"].entries if e.tools == ("flights", "book")])
    assert all("Paris" not in f"{e.goal} {e.workflow}" for e in held["echo"].entries)
    other = tmp_path / "other"
    looked_back(other, renderer, [task], [worked, failed], memory=kinds)
    for kind in kinds:  # AWM's script pairs files in the order the disk lists them with tasks by position
        same = [(folder / "memory" / f"{kind}.json").read_bytes() for folder in (tmp_path, other)]
        assert same[0] == same[1]


def test_workflows_shown_in_front_of_a_request_are_not_what_was_asked() -> None:
    task = paris_to_miami()
    past = episode(task, SEARCH)
    shown = (past.turns[0], user(f"{HEADING}\n- x: y\n\n{past.turns[1].text}"), *past.turns[2:])
    assert asked_in(task, past.model_copy(update={"turns": shown})) == task.prompt[-1].text


def test_a_memory_of_held_out_tasks_is_refused(tmp_path: Path, renderer: Any) -> None:
    task = paris_to_miami().model_copy(update={"split": "dev"})
    with pytest.raises(ConfigError, match="memory is made of split 'train' only, and the tasks are of 'dev'"):
        looked_back(tmp_path, renderer, [task], [episode(task, SEARCH)], memory=("echo",))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"goals": 0}, "goals must be at least 1"),
        ({"of": "hindsight"}, "would read what it made itself"),
        ({"memory": ("reflexion",)}, "no kind 'reflexion'; kinds: awm, awm"),
        ({"of": "magnet"}, "holds no finished episode of magnet"),
    ],
)
def test_options_are_checked(tmp_path: Path, renderer: Any, options: dict[str, Any], problem: str) -> None:
    task = paris_to_miami()
    with pytest.raises(ConfigError, match=problem):
        looked_back(tmp_path, renderer, [task], [episode(task, SEARCH)], **options)


def test_only_calls_and_the_closing_are_trained(
    made: tuple[Task, Trajectory, Records], renderer: Any
) -> None:
    _, _, records = made
    for row in records.trajectories:
        (segment,) = row.segments
        trained = [span for span in segment.spans if span.kind is SpanKind.GENERATED]
        assert {row.turns[span.turn].role for span in trained} == {Role.ASSISTANT}
        assert len(trained) == sum(turn.role is Role.ASSISTANT for turn in row.turns)
