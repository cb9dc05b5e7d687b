"""ASTRA chains without a chat: transitions, candidates, reading requests back, tools that are down once."""

from __future__ import annotations

import asyncio
import random
from itertools import islice
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import ToolSpec, ToolStatus
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.agents import ListedAgent
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import OUTAGE_METRIC, is_blueprint, read_blueprint
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.errors import EnvironmentFailure
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.astra import chains
from synthesizers.astra.chains import AstraChains
from synthesizers.astra.chains_graph import (
    MAX_LENGTH,
    observed_chains,
    random_chain,
    transitions_of,
)
from synthesizers.astra.chains_reading import ProgramReader
from synthesizers.astra.chains_sets import learn_sets
from synthesizers.base import Made
from synthesizers.graph.observations import Step
from synthesizers.hints import with_hints
from tests.samples import spec
from tests.synthesizers.sources import check_sources
from tests.tiny import make_tiny_tokenizer

SEEN = [("a", "b", "c"), ("a", "b"), ("a", "b", "d"), ("c", "d"), ("d",)]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def desk() -> Environment:
    return load_environment("travel_desk")


@pytest.fixture(scope="module")
def bases(desk: Environment) -> list[Task]:
    return list(islice(desk.tasks("train"), 12))


def synthesised(desk: Environment, renderer: ChatMLRenderer, bases: list[Task], **options: Any) -> list[Made]:
    settings = {"observed": 24, **options}

    async def run() -> list[Made]:
        maker = AstraChains(environment=desk, engine=None, renderer=renderer, **settings)  # type: ignore[arg-type]
        return [record async for record in maker.synthesize(bases)]

    return asyncio.run(run())


@pytest.fixture(scope="module")
def made(desk: Environment, renderer: ChatMLRenderer, bases: list[Task]) -> list[Made]:
    return synthesised(desk, renderer, bases, failures=0.5)


def test_arguments_come_from_where_their_sources_say(made: list[Made]) -> None:
    tasks = [record for record in made if isinstance(record, Task)]
    assert any(call.sources for task in tasks for turn in read_blueprint(task).turns for call in turn.calls)
    for task in tasks:
        check_sources(task)


def test_transitions_count_who_followed_whom() -> None:
    graph = transitions_of(SEEN)
    assert graph.seen("a", "b") == 3 and graph.seen("b", "c") == 1 and graph.seen("d", "a") == 0
    assert graph.lengths == {2: 2, 3: 2} and "d" not in graph.starts
    walks = [graph.walk(random.Random(seed), length=3) for seed in range(300)]
    assert set(walks) == {("a", "b", "c"), ("a", "b", "d"), ("c", "d")}
    share = sum(walk[0] == "a" for walk in walks) / len(walks)
    assert 0.65 < share < 0.85, "three of the four chains with a transition start at a"


def test_depth_first_paths_are_all_paths_of_two_to_five_tools() -> None:
    graph = transitions_of(SEEN)
    assert set(graph.paths()) == {
        *{("a", "b"), ("a", "b", "c"), ("a", "b", "d"), ("a", "b", "c", "d")},
        *{("b", "c"), ("b", "d"), ("b", "c", "d"), ("c", "d")},
    }
    line = transitions_of([tuple("abcdefgh")])
    assert max(map(len, line.paths())) == MAX_LENGTH and ("a", "b", "c", "d", "e") in line.paths()


def test_chains_are_cut_where_the_tool_set_changes_and_failed_calls_are_no_steps() -> None:
    steps = [
        Step("ls", {}, "a"),
        Step("ls", {"a": True}, "b"),
        Step("post", {}, "", ok=False),
        Step("cat", {}, "c"),
        Step("post", {}, "1"),
    ]
    set_of = {"ls": "files", "cat": "files", "post": "web"}
    assert list(observed_chains(steps, set_of)) == [("files", ("ls", "cat")), ("web", ("post",))]


def test_random_chains_ask_for_no_edge() -> None:
    drawn = {random_chain("abcd", random.Random(seed), length=3) for seed in range(200)}
    assert all(len(set(chain)) == 3 for chain in drawn) and len(drawn) == 24


def test_sets_of_bfcl_are_its_classes() -> None:
    environment = load_environment("bfcl_multi_turn")
    sets = asyncio.run(learn_sets(environment, observed=4))
    assert {"GorillaFileSystem", "TwitterAPI"} <= set(sets)
    for tool_set in sets.values():
        followed = {name for after in tool_set.transitions.followers.values() for name in after}
        assert followed <= set(tool_set.tools), "a chain never crosses tool sets"


def test_a_step_needs_a_port_or_to_have_been_seen(desk: Environment) -> None:
    desk_set = asyncio.run(learn_sets(desk, observed=12))["travel_desk"]
    assert desk_set.unlinked(("flights", "book")) == ""
    assert desk_set.unlinked(("upgrade", "profile")) == "upgrade > profile"
    assert desk_set.signature_walk(random.Random(3), length=2)


TOOLS = [
    spec("flights", src="string", dst="string").model_copy(update={"description": "List flights."}),
    spec("book", flight="string").model_copy(update={"description": "Book a flight."}),
    spec("cancel", booking="string").model_copy(update={"description": "Cancel a booking."}),
]


@pytest.mark.parametrize(
    ("request_", "chain"),
    [
        ("Show me flight options from Oslo to Rome, then reserve the cheapest flight.", ("flights", "book")),
        ("Could you reserve flight F12, and after that call off that booking?", ("book", "cancel")),
        ("hey, Show me flight options from Oslo to Rome. cheers", ("flights",)),
        ("What is the weather?", ()),
        ('Call off booking B1 saying "show me flight options, then reserve".', ("cancel",)),
    ],
)
def test_a_request_is_read_back_into_tools(request_: str, chain: tuple[str, ...]) -> None:
    assert ProgramReader(TOOLS).read(request_).chain == chain


def test_tools_that_fit_alike_are_no_reading() -> None:
    twins = [
        spec("alpha", x="string").model_copy(update={"description": "Fetch weather."}),
        spec("beta", x="string").model_copy(update={"description": "Fetch weather."}),
    ]
    assert "alpha or beta" in ProgramReader(twins).read("Get me the weather.").unclear


def test_the_order_of_a_name_tells_opposites_apart() -> None:
    both = [
        spec(f"{one}_to_{other}", amount="number").model_copy(
            update={"description": f"Converts the {one} to {other}."}
        )
        for one, other in (("gallon", "liter"), ("liter", "gallon"))
    ]
    request = "Convert the liter 5 to gallon, and then convert the gallon that you find to liter."
    assert ProgramReader(both).read(request).chain == ("liter_to_gallon", "gallon_to_liter")


def described(tool: ToolSpec, description: str) -> ToolSpec:
    return tool.model_copy(update={"description": description})


def test_what_is_told_is_read_as_the_tool_that_tells_it() -> None:
    find = described(spec("find", title="string"), "Shelf mark of a book.")
    reserve = described(spec("reserve", mark="string"), "Reserve the book with this shelf mark.")
    reader = ProgramReader((find, reserve))
    for start in ("Tell me", "Could you tell me", "I'd like you to tell me", "hey, please tell me"):
        text = f"{start} the shelf mark of a book called Dune, then book the book with that mark."
        assert reader.read(text).chain == ("find", "reserve"), text


def test_a_users_own_two_tools_make_chains(renderer: ChatMLRenderer) -> None:
    desk = load_environment("examples.own_tools.library_desk:load")
    made = synthesised(desk, renderer, list(desk.tasks("train")), plans=2)
    tasks = [record for record in made if isinstance(record, Task)]
    assert len(tasks) == 8
    assert all(record.success for record in made if isinstance(record, Trajectory))


def test_every_plan_becomes_a_verified_task_or_a_reason(made: list[Made], bases: list[Task]) -> None:
    tasks = [record for record in made if isinstance(record, Task)]
    taught = [record for record in made if isinstance(record, Trajectory)]
    given_up = [record for record in made if isinstance(record, Verdict) and "/" in record.trajectory_id]
    assert len(tasks) + len(given_up) == len(bases) and len(taught) == len(tasks) >= 4
    assert all(is_blueprint(task) and "round_trip:program" in task.tags for task in tasks)
    assert {task.parents[0] for task in tasks} <= {base.task_id for base in bases}
    assert all(one.success and one.synthesizer == "astra_chains" for one in taught)
    assert {verdict.reason for verdict in given_up} <= {
        "stuck",
        "round_trip",
        "independent_calls",
        "unlinked",
    }
    scored = [record for record in made if isinstance(record, Verdict) and record.filter == "astra_score"]
    assert {verdict.trajectory_id for verdict in scored} == {one.trajectory_id for one in taught}
    for task in tasks:
        first = read_blueprint(task).turns[0]
        called = dict.fromkeys(call.name for call in first.calls)
        shown = [tool for tool in task.tools or () if tool in called]
        assert set(shown) == set(called) and first.text_by == "template"
        assert all(source.provenance for call in first.calls for source in call.sources)


def test_what_is_kept_plays_again_to_the_same_results(desk: Environment, made: list[Made]) -> None:
    tasks = {record.task_id: record for record in made if isinstance(record, Task)}
    for one in made:
        if isinstance(one, Trajectory):
            task = tasks[one.task_id]
            again = asyncio.run(play(desk, task, desk.gold(task)))
            assert again.success
            assert [turn.text for turn in again.turns] == [turn.text for turn in one.turns]


def test_a_tool_that_is_down_refuses_once_and_gold_calls_it_again(
    desk: Environment, made: list[Made]
) -> None:
    recovering = [record for record in made if isinstance(record, Task) and "recover" in record.tags]
    assert recovering
    for task in recovering:
        blueprint = read_blueprint(task)
        gold = asyncio.run(play(desk, task, desk.gold(task)))
        failed = [turn.result for turn in gold.turns if turn.result and turn.result.status != "ok"]
        assert [result.name for result in failed] == [
            call.name
            for turn in blueprint.turns
            for call in turn.calls
            if call.status is ToolStatus.TOOL_ERROR
        ]
        assert all(result.metrics[0].name == OUTAGE_METRIC for result in failed)
        assert {result.text for result in failed} == {outage.text for outage in blueprint.outages}


def test_giving_up_at_an_outage_fails(desk: Environment, made: list[Made]) -> None:
    task = next(record for record in made if isinstance(record, Task) and "recover" in record.tags)
    gold = asyncio.run(play(desk, task, desk.gold(task)))
    failed = {turn.result.call_id for turn in gold.turns if turn.result and turn.result.status != "ok"}
    said = [turn for turn in gold.turns if turn.role == "assistant"]
    without_retry, skip = [], set[str]()
    for turn in said:
        names = {call.name for call in turn.tool_calls}
        if names & skip:
            continue
        skip |= {call.name for call in turn.tool_calls if call.call_id in failed}
        without_retry.append(turn)
    outcome = asyncio.run(play(desk, task, ListedAgent(without_retry)))
    assert outcome.success is False


def test_an_outage_is_not_executed_and_survives_a_snapshot(desk: Environment, made: list[Made]) -> None:
    task = next(record for record in made if isinstance(record, Task) and "recover" in record.tags)
    blueprint = read_blueprint(task)
    outage = next((one for one in blueprint.outages if one.turn == 0), None)
    if outage is None:
        pytest.skip("the first recovering task is down in a later turn only")
    planned = [call for call in blueprint.turns[0].calls if call.name == outage.name]
    arguments = planned[0].model_dump()["arguments"]

    async def tried() -> list[str]:
        session, other = await desk.open(task), await desk.open(task)
        before = session.snapshot()
        first = await session.call(outage.name, canonical.loads(arguments), "a")
        again = await session.call(outage.name, canonical.loads(arguments), "a")
        kept = session.snapshot()
        session.restore(before)
        restored = await session.call(outage.name, canonical.loads(arguments), "b")
        other.restore(kept)
        later = await other.call(outage.name, canonical.loads(arguments), "c")
        await session.close()
        await other.close()
        return [first.text, again.text, restored.text, "down" if later.text == outage.text else "up"]

    assert asyncio.run(tried()) == [outage.text, outage.text, outage.text, "up"]


def test_the_same_seed_makes_the_same_records(
    desk: Environment, renderer: ChatMLRenderer, bases: list[Task], made: list[Made]
) -> None:
    again = synthesised(desk, renderer, bases, failures=0.5)
    ids = [sorted(map(str, records)) for records in (made, again)]
    assert [len(one) for one in ids] == [len(made)] * 2
    tasks = [{one.task_id for one in records if isinstance(one, Task)} for records in (made, again)]
    assert tasks[0] == tasks[1]


def test_random_chains_yield_less(
    desk: Environment, renderer: ChatMLRenderer, bases: list[Task], made: list[Made]
) -> None:
    other = synthesised(desk, renderer, bases, failures=0.5, random_choice=True)
    tasks = [sum(isinstance(one, Task) for one in records) for records in (made, other)]
    assert tasks[1] < tasks[0]


def test_requests_that_read_as_other_chains_are_given_up(
    desk: Environment, renderer: ChatMLRenderer, bases: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ProgramReader.read

    def last_only(self: ProgramReader, request: str) -> Any:
        found = read(self, request)
        return found._replace(chain=found.chain[-1:])

    monkeypatch.setattr(ProgramReader, "read", last_only)
    records = synthesised(desk, renderer, bases[:4])
    assert not [one for one in records if isinstance(one, Task)]
    assert "round_trip" in {one.reason for one in records if isinstance(one, Verdict)}


def test_a_hint_per_turn_names_the_tools_and_is_left_out_of_the_task(
    desk: Environment, renderer: ChatMLRenderer, bases: list[Task]
) -> None:
    maker = AstraChains(environment=desk, engine=None, renderer=renderer, observed=12, server_only=0.0)  # type: ignore[arg-type]

    async def planned() -> list[Any]:
        await maker.prepare(bases)
        return [await maker.plan(base, random.Random(index)) for index, base in enumerate(bases[:6])]

    made = [one for one in asyncio.run(planned()) if one.task is not None]
    assert made
    for task, _, _, hints in made:
        turns = read_blueprint(task).turns
        assert len(hints) == len(turns) and all(
            turn.calls[0].name in hint for turn, hint in zip(turns, hints, strict=True)
        )
        assert with_hints(task, hints).prompt[-1].text.endswith(hints[0])
        assert not any(hint in task.private for hint in hints)


def test_impossible_options_are_named(desk: Environment, renderer: ChatMLRenderer) -> None:
    for options, message in (
        ({"failures": 1.5}, "failures is a share between 0 and 1"),
        ({"candidates": "all"}, "walks or paths"),
        ({"distractors": -1}, "at least 0"),
        ({"chats": {"chain_reader_1": ScriptedChat([])}}, "more readers than one"),
    ):
        with pytest.raises(ConfigError, match=message):
            AstraChains(environment=desk, engine=None, renderer=renderer, **options)  # type: ignore[arg-type]


def test_a_world_that_breaks_is_no_reason_to_give_a_plan_up(
    desk: Environment, renderer: ChatMLRenderer, bases: list[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*_: Any, **__: Any) -> Any:
        raise EnvironmentFailure("the world is down")

    monkeypatch.setattr(chains, "run_chain", down)
    with pytest.raises(EnvironmentFailure, match="down"):
        synthesised(desk, renderer, bases[:3])


def test_paths_are_candidates_too(desk: Environment, renderer: ChatMLRenderer, bases: list[Task]) -> None:
    records = synthesised(desk, renderer, bases[:4], candidates="paths", server_only=0.0, augment=False)
    tasks = [one for one in records if isinstance(one, Task)]
    assert tasks and all("chain" in task.tags and "augmented:none" in task.tags for task in tasks)
