"""Grounding: what is proposed, what counts as working, what is taken back, where arguments come from."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from data import canonical
from data.messages import ToolCall, ToolResult, ToolSpec, ToolStatus, text_parts
from data.tasks import Task
from pipeline.environments.registry import load_environment
from pipeline.environments.travel_desk import TravelDesk
from synthesizers.execution import Executed, Trial
from synthesizers.grounding.calls import (
    ArgumentSource,
    Choice,
    GroundedCall,
    OutputPort,
    Provenance,
    ground,
    sources_of,
    worked,
)
from synthesizers.grounding.evidence import Example, Record, ValuePool, gold_corpus, make_pool
from synthesizers.grounding.proposals import proposals
from synthesizers.grounding.reading import rows_of, shape
from synthesizers.phrasing.saying import answer_cells


def spec(name: str, properties: dict[str, Any], *, required: tuple[str, ...] = ()) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, "required": list(required or properties)}
    return ToolSpec(name=name, description=f"{name}.", parameters=canonical.dumps(parameters))


def done(name: str, text: str, /, *, status: ToolStatus = ToolStatus.OK, **arguments: Any) -> Executed:
    call = ToolCall(call_id="c", name=name, arguments=canonical.dumps(arguments))
    return Executed(call, ToolResult(call_id="c", name=name, parts=text_parts(text), status=status), "a", "b")


FLIGHTS = done("flights", "F12 Nova 07:10 direct $90\nF77 Sun 20:30 1 stop $360", src="Oslo", dst="Rome")
STRING, INTEGER = {"type": "string"}, {"type": "integer"}


def provenance(
    tool: ToolSpec, call: Executed, *earlier: Executed, said: str = ""
) -> dict[str, tuple[Provenance, Any]]:
    found = sources_of(call, tool, earlier, said=said)
    return {source.name: (source.provenance, source.of) for source in found}


def test_a_value_of_an_earlier_result_is_an_output_with_its_port() -> None:
    book = spec("book", {"flight": STRING})
    found = provenance(book, done("book", "booked B1", flight="F77"), FLIGHTS)
    assert found == {"flight": (Provenance.OUTPUT, OutputPort(0, "F#"))}


def test_a_value_that_the_user_said_is_the_users_even_where_a_result_holds_it() -> None:
    book = spec("book", {"flight": STRING})
    call = done("book", "booked B1", flight="F77")
    assert provenance(book, call, FLIGHTS, said="Reserve F77.")["flight"] == (Provenance.USER, None)
    assert provenance(book, call, FLIGHTS, said="Reserve F7.")["flight"][0] is Provenance.OUTPUT


def test_small_numbers_come_from_a_result_only_under_their_name() -> None:
    room = spec("room", {"hotel": STRING, "nights": INTEGER})
    hotels = done("hotels", "H12 3 stars $90", city="Rome")
    found = provenance(room, done("room", "ok", hotel="H12", nights=3), hotels)
    assert found["hotel"][0] is Provenance.OUTPUT and found["nights"] == (Provenance.USER, None)
    stay = done("plan", '{"trip": {"nights": 3}}')
    assert provenance(room, done("room", "ok", hotel="H1", nights=3), stay)["nights"] == (
        Provenance.OUTPUT,
        OutputPort(0, "trip.nights"),
    )


def test_defaults_and_what_is_left_out_are_defaults() -> None:
    tail = spec("tail", {"file": STRING, "lines": {**INTEGER, "default": 10}, "raw": {"type": "boolean"}})
    found = sources_of(done("tail", "x", file="a.txt", lines=10), tail, [])
    assert found[1:] == (
        ArgumentSource("lines", 10, Provenance.DEFAULT),
        ArgumentSource("raw", None, Provenance.DEFAULT),
    )


def test_a_list_is_an_output_only_as_a_whole() -> None:
    mention = spec("mention", {"users": {"type": "array", "items": STRING}})
    found = done("list_users", '{"users": ["alice", "bobby"]}')
    both = provenance(mention, done("mention", "ok", users=["alice", "bobby"]), found)
    assert both["users"][0] is Provenance.OUTPUT
    other = provenance(mention, done("mention", "ok", users=["alice", "carol"]), found)
    assert other["users"][0] is Provenance.USER


def test_the_latest_result_is_the_source_unless_a_port_is_asked_for() -> None:
    book = spec("book", {"flight": STRING})
    call, again = done("book", "booked", flight="F77"), done("check", "F77 is free")
    assert provenance(book, call, FLIGHTS, again)["flight"][1].call == 1
    asked = sources_of(call, book, [FLIGHTS, again], prefer={"flight": OutputPort(0, "F#")})
    assert asked[0].of == OutputPort(0, "F#")


@pytest.mark.parametrize(
    ("text", "shows_state", "works"),
    [
        ("booked B12", True, True),
        ("Bad request: no such day", True, False),
        ("Error during execution: 3", True, False),
        ('{"error": "no file"}', True, False),
        ("[{'error': 'not logged in'}]", True, False),
        ('{"success": false}', True, False),
        ("mean squared error 0.3", True, True),
        ("none", False, False),
        ("No flights found", False, False),
        ('{"matches": []}', False, False),
        ('{"authenticated": false}', False, False),
        ("None", False, True),
        ("0", False, True),
    ],
)
def test_what_counts_as_working(text: str, shows_state: bool, works: bool) -> None:
    made = done("x", text, a=1)._replace(after="a")
    assert worked(made, shows_state=shows_state) is works


def test_a_call_that_changes_nothing_and_repeats_its_arguments_did_no_work() -> None:
    moved = done("change", "B33 is now F616", booking="B33", flight="F616")._replace(after="a")
    assert not worked(moved, shows_state=True)
    assert worked(moved._replace(after="b"), shows_state=True)
    assert worked(moved._replace(result=done("find", "F616 07:10 $90").result), shows_state=True)


def test_a_small_number_of_things_in_an_answer_is_not_where_a_number_comes_from() -> None:
    earlier = [done("bookings", "B27 H76 Oslo 5 nights")]
    room = spec("room", {"hotel": {"type": "string"}, "nights": {"type": "integer"}})
    sources = sources_of(
        done("room", "booked", hotel="H76", nights=5),
        room,
        earlier,
        prefer={"nights": OutputPort(0, "nights")},
    )
    assert [source.provenance for source in sources] == [Provenance.OUTPUT, Provenance.USER]


def test_a_silent_call_works_where_it_changed_the_state() -> None:
    assert worked(done("x", "none"), shows_state=True)
    assert not worked(done("x", "none", status=ToolStatus.TOOL_ERROR), shows_state=True)


def test_rows_hold_what_belongs_together() -> None:
    rows = rows_of('{"flights": [{"id": "F1", "price": 3}], "files": {"a.txt": {"type": "file"}}}')
    assert [(row.kind, {field.name: field.value for field in row.fields}) for row in rows] == [
        ("flight", {"id": "F1", "price": 3}),
        ("file", {"key": "a.txt", "type": "file"}),
    ]
    assert [field.value for field in rows_of("a|b\nF1|2")[1].fields] == ["F1", "2"]
    assert shape("F320") == shape("F7") != shape("B24") and shape("June 13") == shape("May 4")


# On real worlds.

TRAVEL = TravelDesk()


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(islice(TRAVEL.tasks("train"), 30))


async def grounded(
    task: Task, names: tuple[str, ...], *, seed: int = 0, **options: Any
) -> tuple[list[GroundedCall | None], Trial]:
    pool = await make_pool(TRAVEL, task, num_corpus=30)
    rng = random.Random(seed)
    async with await Trial.open(TRAVEL, task) as trial:
        tools = {tool.name: tool for tool in trial.tools}
        calls = [await ground(trial, tools[name], pool, rng=rng, **options) for name in names]
        return calls, trial


def of_template(tasks: list[Task], name: str) -> Task:
    return next(task for task in tasks if task.template == name)


def test_values_of_one_record_are_used_together(tasks: list[Task]) -> None:
    task = of_template(tasks, "cheapest")
    state = task.state_value()["flights"]
    ways = {(row["src"], row["dst"], row["day"]) for row in state}
    for seed in range(5):
        [call], _ = asyncio.run(grounded(task, ("flights",), seed=seed))
        assert call is not None and tuple(call.executed.arguments().values()) in ways


def test_a_wanted_port_is_followed_and_named_as_the_source(tasks: list[Task]) -> None:
    task = of_template(tasks, "cheapest")
    prefer = {"flight": OutputPort(0, "F#")}
    for seed in range(5):
        calls, _ = asyncio.run(grounded(task, ("flights", "book"), seed=seed, prefer=None))
        pool_free, _ = asyncio.run(_booked_from(task, prefer, seed))
        assert calls[0] is not None
        assert pool_free.sources == (
            ArgumentSource("flight", pool_free.sources[0].value, Provenance.OUTPUT, OutputPort(0, "F#")),
        )


async def _booked_from(task: Task, prefer: dict[str, OutputPort], seed: int) -> tuple[GroundedCall, Trial]:
    pool = await make_pool(TRAVEL, task, num_corpus=30)
    async with await Trial.open(TRAVEL, task) as trial:
        tools = {tool.name: tool for tool in trial.tools}
        rng = random.Random(seed)
        await ground(trial, tools["flights"], pool, rng=rng)
        booked = await ground(trial, tools["book"], pool, rng=rng, prefer=prefer)
        assert booked is not None
        assert booked.executed.arguments()["flight"] in trial.executed[0].result.text
        return booked, trial


def test_what_does_not_work_is_taken_back_to_the_letter(tasks: list[Task]) -> None:
    task = next(
        task for task in tasks if not task.state_value()["bookings"] and "change" in (task.tools or ())
    )

    async def run() -> None:
        pool = await make_pool(TRAVEL, task, num_corpus=30)
        async with await Trial.open(TRAVEL, task) as trial:
            tools = {tool.name: tool for tool in trial.tools}
            before, snapshot = trial.state, trial.session.snapshot()
            assert await ground(trial, tools["change"], pool, rng=random.Random(0)) is None
            assert (trial.state, trial.session.snapshot(), trial.executed) == (before, snapshot, [])

    asyncio.run(run())


def test_the_same_call_is_not_made_twice(tasks: list[Task]) -> None:
    task = next(task for task in tasks if "profile" in (task.tools or ()))
    calls, trial = asyncio.run(grounded(task, ("profile", "profile")))
    assert calls[0] is not None and calls[1] is None and len(trial.executed) == 1


def test_equal_seeds_ground_equal_calls(tasks: list[Task]) -> None:
    task = of_template(tasks, "cheapest")
    first, _ = asyncio.run(grounded(task, ("flights", "book"), seed=3))
    again, _ = asyncio.run(grounded(task, ("flights", "book"), seed=3))
    assert first == again
    others = [asyncio.run(grounded(task, ("flights", "book"), seed=seed))[0] for seed in range(6)]
    assert len({repr(calls) for calls in others}) > 1


def test_random_arguments_work_less_often_than_evidence(tasks: list[Task]) -> None:
    async def share(choice: Choice) -> int:
        worked_out = 0
        for task in [task for task in tasks if "flights" in (task.tools or ())][:10]:
            calls, _ = await grounded(task, ("flights",), choice=choice)
            worked_out += calls[0] is not None
        return worked_out

    assert asyncio.run(share(Choice.EVIDENCE)) == 10
    assert asyncio.run(share(Choice.RANDOM)) <= 5


def test_by_ports_only_a_preferred_answer_is_used(tasks: list[Task]) -> None:
    task = of_template(tasks, "cheapest")

    async def from_answer(choice: Choice, prefer: dict[str, OutputPort]) -> int:
        pool = await make_pool(TRAVEL, task, num_corpus=30)
        bare = replace(pool, records=tuple(r for r in pool.records if not _names_a_flight(r)))
        found = 0
        for seed in range(6):
            async with await Trial.open(TRAVEL, task) as trial:
                tools = {tool.name: tool for tool in trial.tools}
                rng = random.Random(seed)
                assert await ground(trial, tools["flights"], pool, rng=rng) is not None
                booked = await ground(trial, tools["book"], bare, rng=rng, choice=choice, prefer=prefer)
                found += booked is not None
        return found

    port = {"flight": OutputPort(0, "F#")}
    assert asyncio.run(from_answer(Choice.EVIDENCE, {})) == 6
    assert asyncio.run(from_answer(Choice.PORTS, {})) == 0
    assert asyncio.run(from_answer(Choice.PORTS, port)) == 6


def _names_a_flight(record: Record) -> bool:
    return any(re.fullmatch(r"F\d+", str(value)) for _, value in record.values)


def test_a_call_that_ends_the_episode_can_be_refused() -> None:
    environment = load_environment("sql_desk")
    task = next(iter(environment.tasks("train")))

    async def run() -> None:
        pool = await make_pool(environment, task, num_corpus=8)
        async with await Trial.open(environment, task) as trial:
            submit = next(tool for tool in trial.tools if tool.name == "submit")
            rng = random.Random(0)
            assert await ground(trial, submit, pool, rng=rng) is None, "nobody dictates a query"
            query = next(tool for tool in trial.tools if tool.name == "query")
            asked = await ground(trial, query, pool, rng=rng, may_ask=True)
            assert asked is not None and not trial.finished
            assert await ground(trial, submit, pool, rng=rng, may_finish=False) is None
            assert not trial.finished and trial.executed == [asked.executed]
            assert await ground(trial, submit, pool, rng=rng) is not None
            assert trial.finished and trial.executed[1].arguments() == asked.executed.arguments()
            assert await ground(trial, submit, pool, rng=rng) is None

    asyncio.run(run())


def test_what_the_assistant_writes_is_asked_for_by_a_question_and_its_answer_can_be_told() -> None:
    environment = load_environment("sql_desk")
    bases = list(islice(environment.tasks("train"), 6))

    async def asked(task: Task) -> GroundedCall | None:
        pool = await make_pool(environment, task, num_corpus=8)
        async with await Trial.open(environment, task) as trial:
            query = next(tool for tool in trial.tools if tool.name == "query")
            rng = random.Random(1)
            assert await ground(trial, query, pool, rng=rng) is None
            return await ground(trial, query, pool, rng=rng, may_ask=True)

    calls = [call for task in bases if (call := asyncio.run(asked(task))) is not None]
    assert len(calls) >= 4
    for call in calls:
        assert "select" not in call.question.lower() and len(call.question) > 20
        assert [source.provenance for source in call.sources] == [Provenance.WRITTEN]
        assert answer_cells(call.executed.result.text)


def test_the_corpus_is_played_once_and_never_holds_the_task_itself() -> None:
    class Counting(TravelDesk):
        opened = 0

        async def open(self, task: Task, *, seed: int = 0) -> Any:
            Counting.opened += 1
            return await super().open(task, seed=seed)

        def tasks(self, split: str) -> Iterator[Task]:
            return islice(super().tasks(split), 5, 9)

    world = Counting()

    async def run() -> list[tuple[tuple[str, Example], ...]]:
        return list(await asyncio.gather(*(gold_corpus(world, num_tasks=4) for _ in range(3))))

    first, *others = asyncio.run(run())
    assert Counting.opened == 4 and all(other is first for other in others)
    task = next(world.tasks("train"))
    pool = asyncio.run(make_pool(world, task, num_corpus=4))
    corpus = [example for task_id, example in first if task_id != task.task_id]
    assert sum(record.evidence == "corpus" for record in pool.records) == len(corpus) < len(first)


def test_proposals_fit_the_schema_and_follow_names_types_and_shapes() -> None:
    tool = spec("stay", {"hotel_id": STRING, "nights": {**INTEGER, "minimum": 1, "maximum": 3}})
    task = Task(
        environment="x", split="train", template="t", prompt=(), verifier="v",
        state='{"hotels": [{"id": "H1", "price": 90}], "notes": ["H2 is full"], "code": "Z9"}',
    )  # fmt: skip
    pool = ValuePool.of(task, corpus=[Example("stay", {"hotel_id": "H77", "nights": 2})])
    found = proposals(tool, pool.records, pool, rng=random.Random(0), wanted={})
    assert found and found[0].arguments["hotel_id"] == "H1"
    assert all(1 <= proposal.arguments["nights"] <= 3 for proposal in found)
    assert "Z9" not in {proposal.arguments["hotel_id"] for proposal in found}


def test_with_no_other_reason_a_search_is_for_a_word_that_is_there() -> None:
    tool = spec("search", {"keyword": STRING})
    task = Task(
        environment="x", split="train", template="t", prompt=(), verifier="v",
        state='{"tweets": [{"says": "engine purring well"}], "classes": ["TwitterApi"], "mode": "."}',
    )  # fmt: skip
    pool = ValuePool.of(task)
    found = proposals(tool, pool.records, pool, rng=random.Random(0), wanted={})
    assert {proposal.arguments["keyword"] for proposal in found} <= {"engine", "purring", "well"} and found
