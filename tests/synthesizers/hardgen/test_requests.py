"""The hard request mentions nothing of the chain, whoever wrote it; the macro tool holds nothing of it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from data import canonical
from data.messages import ToolSpec
from pipeline.chat.scripted import ScriptedChat
from pipeline.environments.base import Environment
from pipeline.environments.registry import load_environment
from synthesizers.execution import Trial
from synthesizers.grounding.calls import GroundedCall, OutputPort, Provenance, sources_of
from synthesizers.hardgen.api_graph import ApiGraph, Need, Prerequisite
from synthesizers.hardgen.chains import Chain, Unmade, is_positional, reference
from synthesizers.hardgen.macro import Macro, fold
from synthesizers.hardgen.making import named, reply_problem
from synthesizers.hardgen.requests import hard_problem, inner_problem, write_request
from synthesizers.hardgen.roles import ToolReply
from synthesizers.worlds import plannable, whole_world


class Desk:
    """A chain in a world of travel_desk: the flights of a route, and one of them booked."""

    def __init__(self, template: str = "cheapest", *, pick: int | None = None) -> None:
        self.environment: Environment = plannable(load_environment("travel_desk", templates=[template]))
        self.base = whole_world(next(iter(self.environment.tasks("train"))))
        flight = next(one for one in self.base.state_value()["flights"])
        self.route = {key: flight[key] for key in ("src", "dst", "day")}
        self.graph, self.chain = asyncio.run(self._made(pick))

    async def _made(self, pick: int | None) -> tuple[ApiGraph, Chain]:
        async with await Trial.open(self.environment, self.base) as trial:
            feeds = (Prerequisite("flights", "book", Need.DATA, "flight", "F#", 1, 1),)
            graph = ApiGraph("x", ("book",), trial.tools, feeds)
            listed = await trial.attempt("flights", self.route)
            rows = listed.result.text.splitlines()
            prices = [int(row.rsplit("$", 1)[1]) for row in rows]
            place = prices.index(min(prices)) if pick is None else pick
            booked = await trial.attempt("book", {"flight": rows[place].split()[0]})
            specs = graph.specs
            said = " ".join(self.route.values())
            calls = [
                GroundedCall(listed, sources_of(listed, specs["flights"], [])),
                GroundedCall(booked, sources_of(booked, specs["book"], [listed], said=said)),
            ]
            return graph, Chain(calls, trial.state, tuple(trial.executed))


@pytest.fixture(scope="module")
def desk() -> Desk:
    return Desk()


def request(desk: Desk, **options: ScriptedChat) -> str:
    macro = fold(desk.chain, desk.graph)
    written = write_request(macro, desk.chain, desk.graph, rng=random.Random(3), **options)  # type: ignore[arg-type]
    return asyncio.run(written).text


def test_a_chain_is_folded_into_what_only_the_user_knows(desk: Desk) -> None:
    macro = fold(desk.chain, desk.graph)
    assert macro.name == "book_adv" and macro.description == "Book a flight."
    assert [one.name for one in macro.arguments] == ["flight", "src", "dst", "day"]
    assert [one.reference for one in macro.arguments] == [True, False, False, False]
    assert macro.arguments[0].text == "the cheapest flight"
    found = desk.chain.target.executed.arguments()["flight"]
    assert found not in str(macro) and found not in macro.spec.parameters
    assert "List" not in macro.spec.parameters and canonical.loads(macro.spec.parameters)["required"]


def test_the_request_asks_for_the_end_only(desk: Desk) -> None:
    text = request(desk)
    assert "the cheapest flight" in text and all(value in text for value in desk.route.values())
    assert desk.chain.target.executed.arguments()["flight"] not in text
    assert not inner_problem(text, desk.chain, desk.graph)


@pytest.mark.parametrize(
    "tail",
    [
        "List the flights first.",
        "Show me what there is, too.",
        "Look up the flights and take that one.",
        "Find one and reserve it.",
        "It is {found}.",
        "Use flights for that.",
        "Check the bookings tool book_adv.",
    ],
)
def test_a_request_that_mentions_an_inner_call_is_refused(desk: Desk, tail: str) -> None:
    found = desk.chain.target.executed.arguments()["flight"]
    text = f"{request(desk)} {tail.format(found=found)}"
    macro = fold(desk.chain, desk.graph)
    assert hard_problem(text, macro, desk.chain, desk.graph)


@pytest.mark.parametrize(
    ("changes", "text", "mentioned"),
    [
        (True, "Unlock it and book the cheapest flight.", True),
        (False, "Unlock it and book the cheapest flight.", False),
        (False, "Unlock the gate and book the cheapest flight.", True),
        (True, "Book the cheapest flight.", False),
    ],
)
def test_a_change_is_mentioned_by_its_verb(desk: Desk, changes: bool, text: str, mentioned: bool) -> None:
    made = desk.chain.calls[0].executed
    call = made.call.model_copy(update={"name": "sesame", "arguments": "{}"})
    inner = GroundedCall(made._replace(call=call, before="a", after="b" if changes else "a"), ())
    sesame = ToolSpec(name="sesame", description="Unlock the gate for a while.")
    graph = replace(desk.graph, tools=(*desk.graph.tools, sesame))
    target = desk.chain.target._replace(sources=())
    chain = Chain([inner, target], "", desk.chain.history)
    assert bool(inner_problem(text, chain, graph)) is mentioned


def test_a_request_that_leaves_a_value_or_the_way_to_point_out_is_refused(desk: Desk) -> None:
    macro, text = fold(desk.chain, desk.graph), request(desk)
    assert not hard_problem(text, macro, desk.chain, desk.graph)
    for left_out in (desk.route["day"], "the cheapest"):
        assert hard_problem(text.replace(left_out, "a"), macro, desk.chain, desk.graph)


def test_a_value_that_no_criterion_picks_out_makes_no_request() -> None:
    desk = Desk()
    rows = desk.chain.calls[0].executed.result.text.splitlines()
    prices = [int(row.rsplit("$", 1)[1]) for row in rows]
    times = [row.split()[2] for row in rows]
    middle = [
        place
        for place in range(len(rows))
        if prices[place] not in (min(prices), max(prices)) and times[place] not in (min(times), max(times))
    ]
    for place in middle:
        other = Desk(pick=place)
        [source] = other.chain.target.of(Provenance.OUTPUT)
        assert is_positional(reference(source, other.chain.calls, other.graph))
        with pytest.raises(Unmade, match="no_way_to_ask"):
            fold(other.chain, other.graph)


def test_nobody_wants_a_change_that_the_end_can_do_without(desk: Desk) -> None:
    changed = Chain([desk.chain.calls[1], desk.chain.calls[1]], "", desk.chain.history)
    with pytest.raises(Unmade, match="unasked_change"):
        fold(changed, desk.graph)
    needed = Chain(list(changed.calls), "", desk.chain.history, needed_for_state=frozenset({0}))
    with pytest.raises(Unmade, match="unasked_change"):  # the very thing that the later call works on
        fold(needed, desk.graph)


def test_a_look_up_with_nothing_to_go_by_stays_unasked(desk: Desk) -> None:
    call = desk.chain.calls[0]
    bare = call._replace(sources=())
    with pytest.raises(Unmade, match="nothing_to_go_by"):
        fold(Chain([bare, desk.chain.calls[1]], "", desk.chain.history), desk.graph)


def test_a_chat_is_shown_the_macro_tool_only_and_asked_once_more(desk: Desk) -> None:
    good = request(desk)
    bad = f"{good} List all flights first."
    chat = ScriptedChat([canonical.dumps({"request": text}) for text in (bad, good)], name="writer")
    assert request(desk, chat=chat) == good
    first, second = ("\n".join(turn.text for turn in asked) for asked in chat.asked)
    assert "book_adv" in first and "flights" not in first and "List" not in first
    assert desk.chain.target.executed.arguments()["flight"] not in first
    assert "not usable: it speaks of how it is done" in second
    stubborn = ScriptedChat([canonical.dumps({"request": bad})] * 2, name="writer")
    with pytest.raises(Unmade, match="mentions_inner_call"):
        request(desk, chat=stubborn)


def test_a_tool_maker_names_the_tool_and_may_name_no_other(desk: Desk) -> None:
    def reply(name: str, description: str) -> str:
        return canonical.dumps({"name": name, "description": description})

    good = reply("reserve_seat", "Reserve a seat on a flight.")
    chat = ScriptedChat([reply("book", "Reserve a seat on a flight."), good], name="maker")
    macro = asyncio.run(named(fold(desk.chain, desk.graph), desk.chain, desk.graph, chat))
    assert isinstance(macro, Macro) and macro.name == "reserve_seat" and len(chat.asked) == 2
    for name, description in (
        ("reserve_seat", "List the flights and book one of them."),
        ("flights", "Reserve a seat on a flight."),
    ):
        assert reply_problem(ToolReply(name=name, description=description), desk.chain, desk.graph)
    stubborn = ScriptedChat([reply("book", "Reserve a seat on a flight.")] * 2, name="maker")
    with pytest.raises(Unmade, match="macro_rejected"):
        asyncio.run(named(fold(desk.chain, desk.graph), desk.chain, desk.graph, stubborn))


def test_two_things_of_a_kind_are_not_told_apart_by_the_kind(desk: Desk) -> None:
    target = desk.chain.target
    [source] = target.of(Provenance.OUTPUT)
    other = source._replace(name="flight_id", value="F1", provenance=Provenance.USER, of=None)
    both = target._replace(sources=(source, other))
    with pytest.raises(Unmade, match="no_way_to_ask"):
        fold(Chain([desk.chain.calls[0], both], "", desk.chain.history), desk.graph)


def test_two_values_of_two_rows_are_not_pointed_at_together(desk: Desk) -> None:
    listed = desk.chain.calls[0]
    rows = listed.executed.result.text.splitlines()
    ids = [row.split()[0] for row in rows]
    booked = desk.chain.target
    [source] = booked.of(Provenance.OUTPUT)
    other = source._replace(name="second", value=next(one for one in ids if one != source.value))
    both = booked._replace(sources=(source, other._replace(of=OutputPort(0, "F#"))))
    with pytest.raises(Unmade, match="two_rows"):
        fold(Chain([listed, both], "", desk.chain.history), desk.graph)
