"""The API graph: what executed calls confirm or remove, made anew for other failures, and legal chains."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest

from data import canonical
from data.messages import ToolSpec, Turn
from data.tasks import Task
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.base import Environment
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.grounding.evidence import make_pool
from synthesizers.hardgen.api_graph import ApiGraph, Constraint, Need, Prerequisite, narrowed_tools
from synthesizers.hardgen.chains import Chain, Maker, Step, Unmade, depth, draw_steps
from synthesizers.hardgen.synthesizer import HardGen
from synthesizers.worlds import plannable, whole_world
from tests.synthesizers.hardgen.lab import BOTH, ENGINE, VAULT, shelf


class World:
    """An environment with its graph."""

    def __init__(
        self,
        renderer: ChatMLRenderer,
        name: str,
        targets: set[str],
        *,
        at: int = 0,
        probes: int = 2,
        **options: Any,
    ) -> None:
        self.environment: Environment = load_environment(name)
        self.hardgen = HardGen(
            environment=self.environment,
            engine=ENGINE,
            renderer=renderer,
            failures=BOTH,
            store=shelf(self.environment, dict.fromkeys(BOTH, targets), count=probes, skip=at),
            observed=32,
            **options,
        )
        self.base: Task = whole_world(next(islice(self.environment.tasks("train"), at, None)))

    def graph(self) -> ApiGraph:
        async def made() -> ApiGraph:
            await self.hardgen.prepare([self.base])
            tools = await self.hardgen.graphs.tools(self.base)
            return await self.hardgen.graphs.of(tools, self.hardgen.failure_set)

        return asyncio.run(made())

    def chain(self, graph: ApiGraph, steps: list[Step], *, seed: int = 0) -> Chain:
        async def made() -> Chain:
            maker = Maker(
                environment=plannable(self.environment),
                task=self.base,
                graph=graph,
                pool=await make_pool(self.environment, self.base, num_corpus=12),
                rng=random.Random(seed),
            )
            return await maker.with_forced(await maker.make(steps))

        return asyncio.run(made())


@pytest.fixture(scope="module")
def vault(renderer: ChatMLRenderer) -> World:
    return World(renderer, VAULT, {"open_box"})


@pytest.fixture(scope="module")
def graph(vault: World) -> ApiGraph:
    return vault.graph()


def pairs(graph: ApiGraph, need: Need) -> set[tuple[str, str, str]]:
    return {(one.source, one.target, one.parameter) for one in graph.prerequisites if one.need is need}


def test_prerequisites_are_confirmed_or_removed_by_executed_calls(graph: ApiGraph) -> None:
    assert pairs(graph, Need.STATE) == {("sign_in", "open_box", "")}
    assert pairs(graph, Need.DATA) == {("boxes", "open_box", "box")}
    assert all(0 < one.confirmed <= one.tried for one in graph.prerequisites)
    [refuted] = graph.removed
    assert (refuted.source, refuted.target, refuted.confirmed) == (
        "sign_in",
        "boxes",
        0,
    ) and refuted.tried > 0
    assert graph.binding == {("open_box", "box")}


def test_constraints_are_what_the_tool_takes_not_what_its_schema_says(vault: World, graph: ApiGraph) -> None:
    found = {one.parameter: one for one in graph.constraints}
    assert (found["force"].minimum, found["force"].maximum) == (1, 7)
    assert found["mode"].refused == ('"never"',)
    schema = canonical.loads(graph.specs["open_box"].parameters)["properties"]
    assert schema["force"]["minimum"] == 1 and schema["force"]["maximum"] == 7
    assert schema["mode"]["enum"] == ["slow", "fast"]


def test_a_schema_is_narrowed_for_the_tool_that_refused_only() -> None:
    text = '{"type":"object","properties":{"n":{"type":"integer","minimum":0}}}'
    tools = (ToolSpec(name="a", parameters=text), ToolSpec(name="b", parameters=text))
    one, other = narrowed_tools(tools, [Constraint("a", "n", maximum=9)])
    assert canonical.loads(one.parameters)["properties"]["n"] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 9,
    }
    assert other == tools[1]


def test_a_link_of_equal_words_that_execution_refutes_is_removed(renderer: ChatMLRenderer) -> None:
    targets = {"book", "room", "change", "cancel", "upgrade", "flights"}
    made = World(renderer, "travel_desk", targets, probes=30).graph()
    assert ("bookings", "room", "nights") in {(p.source, p.target, p.parameter) for p in made.removed}
    assert {
        ("flights", "book", "flight"),
        ("hotels", "room", "hotel"),
        ("bookings", "cancel", "booking"),
    } <= (pairs(made, Need.DATA))
    assert ("room", "nights", 1, 30) in {
        (c.tool, c.parameter, c.minimum, c.maximum) for c in made.constraints
    }


@pytest.mark.slow
def test_an_engine_starts_after_doors_and_brake(renderer: ChatMLRenderer) -> None:
    pytest.importorskip("bfcl_eval")
    environment = load_environment("bfcl_multi_turn")
    at = next(
        place for place, task in enumerate(environment.tasks("train")) if "startEngine" in str(task.private)
    )
    made = World(renderer, "bfcl_multi_turn", {"startEngine"}, at=at, probes=1).graph()
    assert made.targets == ("startEngine",)
    assert {("lockDoors", "startEngine", ""), ("pressBrakePedal", "startEngine", "")} <= pairs(
        made, Need.STATE
    )


def test_the_same_failures_have_the_same_graph_and_others_another(
    vault: World, graph: ApiGraph, renderer: ChatMLRenderer
) -> None:
    again = World(renderer, VAULT, {"open_box"})
    assert again.graph() is graph and graph.failures == again.hardgen.failure_set.digest  # type: ignore[union-attr]
    moved = World(renderer, VAULT, {"boxes"})
    other = moved.graph()
    assert other is not graph and other.failures != graph.failures
    assert other.targets == ("boxes",) and not other.prerequisites


def test_what_a_judge_believes_has_to_be_confirmed_by_a_call(renderer: ChatMLRenderer) -> None:
    def believes(turns: Sequence[Turn], tools: Any) -> str:
        asked = turns[1].text
        feeds = "open_box" in asked and -1 < asked.find("sign_in") < asked.find("open_box")
        names = {"value": "<line>", "parameter": "box"} if feeds else {"value": "", "parameter": ""}
        return canonical.dumps({"reason": "x", "feeds": feeds, **names})

    judge = ScriptedChat(believes, name="judge", max_asks=1)
    world = World(renderer, VAULT, {"open_box"}, chats={"edge_judge": judge})
    made = world.graph()
    assert judge.asked and pairs(made, Need.DATA) == {("boxes", "open_box", "box")}
    assert ("sign_in", "open_box", "box") in {(p.source, p.target, p.parameter) for p in made.removed}
    assert world.graph() is made


def test_every_drawn_chain_is_legal(graph: ApiGraph) -> None:
    wider = ApiGraph(
        "x",
        ("t",),
        tuple(ToolSpec(name=name) for name in "abcdet"),
        (
            Prerequisite("a", "b", Need.DATA, "p", "f", 1, 1),
            Prerequisite("c", "b", Need.DATA, "p", "f", 1, 1),
            Prerequisite("b", "t", Need.DATA, "q", "f", 1, 1),
            Prerequisite("d", "t", Need.STATE, tried=2, confirmed=2),
            Prerequisite("e", "d", Need.STATE, tried=2, confirmed=2),
        ),
        binding=frozenset({("b", "p"), ("t", "q")}),
    )
    for one, target in ((graph, "open_box"), (wider, "t")):
        for seed in range(40):
            steps = draw_steps(one, target, rng=random.Random(seed), states=True)
            executed: list[str] = []
            for step in steps:
                assert one.is_callable(step.tool, executed)
                assert {feed.source for feed in step.feeds.values()} <= set(executed)
                executed.append(step.tool)
            assert executed[-1] == target and len(set(executed)) == len(executed) <= 8
    assert not wider.is_callable("b", []) and wider.is_callable("b", ["c"])
    assert wider.distance("a", "t") == 2 and wider.distance("t", "a") == float("inf")
    with pytest.raises(Unmade, match="no_legal_chain"):
        draw_steps(wider, "t", rng=random.Random(0), states=True, max_calls=3)


def test_a_circle_of_prerequisites_makes_no_chain() -> None:
    tools = (ToolSpec(name="a"), ToolSpec(name="b"))
    circle = (
        Prerequisite("a", "b", Need.DATA, "p", "f", 1, 1),
        Prerequisite("b", "a", Need.DATA, "p", "f", 1, 1),
    )
    graph = ApiGraph("x", ("a",), tools, circle, binding=frozenset({("a", "p"), ("b", "p")}))
    with pytest.raises(Unmade, match="no_legal_chain"):
        draw_steps(graph, "a", rng=random.Random(0))


def test_a_call_that_the_end_does_not_need_is_taken_back(vault: World, graph: ApiGraph) -> None:
    steps = draw_steps(graph, "open_box", rng=random.Random(1), states=True)
    assert [step.tool for step in steps] == ["boxes", "sign_in", "open_box"]
    chain = vault.chain(graph, steps)
    assert chain.names == ("boxes", "sign_in", "open_box") and chain.needed_for_state == {1}
    without_box = [Step("boxes"), Step("sign_in"), Step("open_box")]
    for seed in range(4):
        loose = vault.chain(graph, without_box, seed=seed)
        used = any(source.of is not None for source in loose.target.sources)
        assert ("boxes" in loose.names) is used


def test_a_state_prerequisite_is_no_prerequisite_where_the_world_meets_it(
    vault: World, graph: ApiGraph
) -> None:
    state = {**vault.base.state_value(), "logged": True}
    open_world = vault.base.model_copy(update={"state": canonical.dumps(state), "task_id": ""})
    vault_open = World.__new__(World)
    vault_open.environment, vault_open.base = vault.environment, Task.model_validate(open_world.model_dump())
    chain = vault_open.chain(graph, draw_steps(graph, "open_box", rng=random.Random(1), states=True))
    assert chain.names == ("boxes", "open_box") and not chain.needed_for_state


def test_depth_is_what_a_chain_takes_where_answers_fill_what_they_can() -> None:
    links = [("list", "pick", "item"), ("find", "list", "place"), ("find", "pick", "place")]
    needs = tuple(
        Prerequisite(source, target, Need.DATA, parameter, "id") for source, target, parameter in links
    )
    tools = tuple(ToolSpec(name=name) for name in ("find", "list", "pick", "other"))
    graph = ApiGraph("", ("pick",), tools, needs, binding=frozenset({("pick", "item")}))
    assert [depth(graph, name) for name in ("pick", "list", "find", "other")] == [3, 2, 1, 1]
    assert depth(graph, "pick", avoid={"find"}) == 2
    assert depth(graph, "pick", avoid={"list"}) == 0, "what binds has no other source"


def test_what_one_tool_set_shows_of_two_tools_counts_in_another(renderer: ChatMLRenderer) -> None:
    """Worlds of an environment show different tools; a state prerequisite is learned once for all."""
    world = World(renderer, VAULT, {"open_box"})

    async def made() -> tuple[ApiGraph, ApiGraph]:
        await world.hardgen.prepare([world.base])
        graphs = world.hardgen.graphs
        tools = await graphs.tools(world.base)
        whole = await graphs.of(tools, world.hardgen.failure_set)
        pair = {
            name for one in whole.prerequisites if one.need is Need.STATE for name in (one.source, one.target)
        }
        fewer = [tool for tool in tools if tool.name in pair | {"open_box"}]
        return whole, await graphs.of(fewer, world.hardgen.failure_set)

    whole, fewer = asyncio.run(made())
    states = {one for one in whole.prerequisites if one.need is Need.STATE}
    assert len(fewer.tools) < len(whole.tools) and states
    assert states <= set(fewer.prerequisites), "gold of worlds with more tools"
