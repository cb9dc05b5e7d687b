"""Edges and their evidence: schema with planted false friends, observation, judge; building and rewiring."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import (
    ToolCall,
    ToolResult,
    ToolSpec,
    ToolStatus,
    assistant,
    system,
    text_parts,
    tool,
    user,
)
from pipeline.chat.scripted import ScriptedChat
from synthesizers.graph import matching
from synthesizers.graph.build import build_graph, draw_candidates
from synthesizers.graph.dependency import Evidence, SignatureGraph
from synthesizers.graph.judge import EDGE_JUDGE, edge_question, judged_links
from synthesizers.graph.observations import Step, observed_links, steps_of, telling
from synthesizers.graph.ports import PortOrigin, Signature
from synthesizers.graph.shapes import Shape
from synthesizers.graph.signatures import signature_of
from tests.synthesizers.graph.signs import sign

GOLDEN = Path(__file__).parent / "edge_judge.golden.txt"


def links(*signatures: Signature) -> set[tuple[str, str, str, str]]:
    graph = build_graph(signatures)
    return {(link.source, link.target, link.output, link.input) for link in graph.links()}


SEARCH = sign(
    "search_flights",
    "origin:string",
    "flight_id:string price:number flight_status:string direct:boolean travel_from:string rate:number",
)


def test_the_same_thing_and_aspect_is_a_link() -> None:
    assert links(SEARCH, sign("book_flight", "flight_id:string")) == {
        ("search_flights", "book_flight", "flight_id", "flight_id")
    }
    assert links(SEARCH, sign("reserve", "flight:string")) == {
        ("search_flights", "reserve", "flight_id", "flight")
    }


@pytest.mark.parametrize(
    ("takes", "why"),
    [
        ("flight_id:array_of_boolean", "an unknown type is no string"),
        ("rate:string", "same name, other type"),
        ("direct:boolean", "a truth value carries no reference"),
        ("query:string", "same type, unrelated name"),
        ("flight_number:string", "another aspect of the same thing"),
        ("travel_to:string", "from is not to"),
        ("flight_price_limit_policy:string", "a word in common is not the same thing"),
    ],
)
def test_false_friends_are_no_links(takes: str, why: str) -> None:
    assert links(SEARCH, sign("other_tool", takes)) == set(), why


def test_false_friends_are_links_once_types_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "fits", lambda output, wanted: True)
    assert links(SEARCH, sign("other_tool", "rate:string")), "the planted bug must show in the test above"


def test_integers_fit_numbers_and_elements_fit_their_kind() -> None:
    assert links(sign("a_tool", "", "price:integer"), sign("b_tool", "price:number"))
    assert not links(sign("a_tool", "", "price:number"), sign("b_tool", "price:integer"))
    stocks = ToolSpec(name="list_stocks")
    answer = {"properties": {"stocks": {"type": "array", "items": {"type": "string"}}}}
    listed = signature_of(stocks, returns=answer)
    assert links(listed, sign("buy", "stock:string"))
    assert not links(listed, sign("buy", "stock:integer"))


def test_a_bare_id_is_named_after_its_object_or_its_tool() -> None:
    create = sign("create_ticket", "", "id:integer description:string")
    assert links(create, sign("close", "ticket_id:integer")) == {
        ("create_ticket", "close", "id", "ticket_id")
    }
    answer = {
        "properties": {"flights": {"type": "array", "items": {"properties": {"id": {"type": "string"}}}}}
    }
    nested = signature_of(ToolSpec(name="search"), returns=answer)
    assert nested.outputs[0].path == "flights[].id"
    assert links(nested, sign("book", "flight_id:string")) == {
        ("search", "book", "flights[].id", "flight_id")
    }
    assert not links(nested, sign("book", "hotel_id:string"))


def test_units_need_a_rare_word_and_enums_two_shared_values() -> None:
    dated = signature_of(
        ToolSpec(name="one"),
        returns={
            "properties": {"date": {"type": "string", "format": "date", "description": "Departure day."}}
        },
    )
    takes = {
        "properties": {"begin": {"type": "string", "format": "date", "description": "Day of departure."}}
    }
    wanted = signature_of(ToolSpec(name="two", parameters=canonical.dumps(takes)))
    assert links(dated, wanted) == {("one", "two", "date", "begin")}
    takes["properties"]["begin"]["description"] = "Birthday."
    assert not links(dated, signature_of(ToolSpec(name="two", parameters=canonical.dumps(takes))))

    def choice(*values: str) -> dict[str, object]:
        return {"properties": {"x": {"type": "string", "enum": list(values)}}}

    given = signature_of(ToolSpec(name="one"), returns=choice("usd", "eur"))
    currencies = choice("usd", "eur", "gbp") | {"type": "object"}
    assert links(given, signature_of(ToolSpec(name="two", parameters=canonical.dumps(currencies))))
    one_shared = choice("usd", "up") | {"type": "object"}
    other = signature_of(ToolSpec(name="two", parameters=canonical.dumps(one_shared).replace('"x"', '"y"')))
    assert not links(given, other)


def test_return_fields_are_documented_else_observed_else_guessed() -> None:
    spec = ToolSpec(name="get_user_id_by_email", description="Returns the account record of a user.")
    guessed = signature_of(spec)
    assert [(port.path, port.origin) for port in guessed.outputs] == [
        ("user_id", PortOrigin.GUESSED),
        ("account_record", PortOrigin.GUESSED),
    ]
    observed = signature_of(spec, results=["U12", "U7 Bob 3"])
    assert {(port.path, port.origin) for port in observed.outputs} >= {("U#", PortOrigin.OBSERVED)}
    both = signature_of(
        spec, returns={"properties": {"id": {"type": "string"}}}, results=['{"id": 3, "b": 1}']
    )
    assert [(port.path, port.type, port.origin) for port in both.outputs] == [
        ("id", "string", PortOrigin.DOCUMENTED),
        ("b", "integer", PortOrigin.OBSERVED),
    ]
    assert signature_of(ToolSpec(name="delete_user")).outputs == ()


def test_parameters_become_ports() -> None:
    takes = {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date", "description": "When."},
            "seats": {"type": "integer", "default": 1, "enum": [1, 2]},
            "odd": True,
            "either": {"type": ["string", "null"]},
        },
        "required": ["day"],
    }
    day, seats, odd, either = signature_of(ToolSpec(name="x", parameters=canonical.dumps(takes))).inputs
    assert (day.type, day.format, day.required, day.shape, day.description) == (
        "string",
        "date",
        True,
        Shape.DATE,
        "When.",
    )
    assert (seats.default_value(), seats.enum, seats.required) == (1, ("1", "2"), False)
    assert (odd.type, either.type) == ("any", "string")
    with pytest.raises(ConfigError, match="JSON Schema object"):
        signature_of(ToolSpec(name="x", parameters="[]"))


def uses(*steps: Step) -> set[tuple[str, str, str, str, bool]]:
    return {(a.source, a.target, a.output, a.input, a.whole) for a in observed_links([steps])}


FLIGHTS = Step("flights", {"src": "Paris"}, "F12 Sun 09:30 $210", said="to Miami")


def test_a_value_of_a_result_used_later_is_evidence() -> None:
    assert uses(FLIGHTS, Step("book", {"flight": "F12"}, "booked B24")) == {
        ("flights", "book", "F#", "flight", True)
    }
    nested = Step("book", {"order": {"legs": ["F12"]}}, "")
    assert uses(FLIGHTS, nested) == {("flights", "book", "F#", "order", True)}
    part = Step("note", {"text": "take F12 please"}, "")
    assert uses(FLIGHTS, part) == {("flights", "note", "F#", "text", False)}


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((FLIGHTS, Step("book", {"flight": "F9"}, "")), "another value"),
        ((FLIGHTS, Step("book", {"flight": "F1"}, "")), "a part of a value"),
        ((FLIGHTS, Step("book", {"flight": "F12"}, "", said="Book F12.")), "the user said it"),
        ((FLIGHTS._replace(ok=False), Step("book", {"flight": "F12"}, "")), "an error's text"),
        ((Step("book", {"flight": "F12"}, "F12 is full"), Step("drop", {"flight": "F12"}, "")), "an echo"),
        ((Step("count", {}, '{"n": 5}'), Step("room", {"nights": 5}, "")), "a small number"),
        ((Step("count", {}, '{"n": 210}'), Step("pay", {"sum": 210}, "")), "one number may be chance"),
        ((Step("a", {}, '{"ok": true, "s": "done"}'), Step("b", {"x": True, "y": "done"}, "")), "trivial"),
        ((FLIGHTS, Step("flights", {"src": "F12"}, "")), "the same tool"),
    ],
)
def test_what_is_no_evidence(steps: tuple[Step, ...], why: str) -> None:
    assert uses(*steps) == set(), why


def test_two_numbers_are_evidence_and_counted() -> None:
    episodes = [[Step("price", {}, f'{{"n": {n}}}'), Step("pay", {"sum": float(n)}, "")] for n in (210, 330)]
    [link] = observed_links(episodes)
    assert (link.times, link.evidence, link.whole) == (2, Evidence.OBSERVED, True)


def test_values_compare_by_what_they_say() -> None:
    assert telling(210) == telling(210.0) == telling("210") == "210"
    assert telling(" F12 ") == telling("f12")
    trivial: list[object] = [True, None, 0, 1, -9, "", "a", "None", "done", [], {}]
    assert all(telling(value) == "" for value in trivial)


def test_steps_are_read_from_a_dialogue() -> None:
    call = ToolCall(call_id="c", name="book", arguments='{"flight":"F1"}')
    result = ToolResult(call_id="c", name="book", parts=text_parts("full"), status=ToolStatus.TOOL_ERROR)
    turns = [system("Desk."), user("Book F1."), assistant("", call), tool(result), assistant("No.")]
    assert steps_of(turns) == [Step("book", {"flight": "F1"}, "full", False, "\nDesk.\nBook F1.")]


def test_candidates_stay_in_their_category_and_follow_the_seed() -> None:
    signatures = [sign(f"t{n}", category="ab"[n % 2]) for n in range(100)]
    pairs = list(draw_candidates(signatures, seed=1))
    assert len(pairs) == len({(a.name, b.name) for a, b in pairs}) == 100 * 30
    assert all(a.category == b.category and a.name != b.name for a, b in pairs)
    assert pairs == list(draw_candidates(signatures, seed=1)) != list(draw_candidates(signatures, seed=2))
    assert len(list(draw_candidates(signatures[:8]))) == 8 * 3, "all others where there are fewer than 30"


def test_observed_links_need_no_candidate_and_unknown_tools_are_left_out() -> None:
    tools = [sign("flights", "src:string", category="a"), sign("book", "flight:string", category="b")]
    episodes = [[FLIGHTS, Step("book", {"flight": "F12"}, ""), Step("gone", {"x": "F12"}, "")]]
    [edge] = build_graph(tools, observations=episodes).edges
    assert (edge.source, edge.target, set(edge.evidence)) == ("flights", "book", {Evidence.OBSERVED})


def test_graphs_refuse_two_of_a_name_and_foreign_links() -> None:
    with pytest.raises(ConfigError, match="two signatures are named 'a'"):
        SignatureGraph([sign("a"), sign("a")], [])
    graph = build_graph([SEARCH, sign("book", "flight_id:string")])
    with pytest.raises(ConfigError, match="two different tools"):
        graph.with_links([graph.links()[0]._replace(target="x")])
    with pytest.raises(ConfigError, match="no tool 'x'"):
        graph.successors("x")


def test_rewired_keeps_out_degrees_and_is_seeded() -> None:
    word = [letter * 3 for letter in "bcdfghjklmnpqrtvwxyzao"]
    tools = [
        sign(f"t{n}", f"{word[n]}:string", f"{word[n + 1]}:string {word[n + 2]}:string") for n in range(20)
    ]
    graph = build_graph(tools)
    other = graph.rewired(seed=3)
    assert [len(other.successors(name)) for name in other.signatures] == [
        len(graph.successors(name)) for name in graph.signatures
    ]
    assert {link.evidence for link in other.links()} == {Evidence.RANDOM}
    assert other.links() == graph.rewired(seed=3).links() != graph.rewired(seed=4).links()
    shared = set(graph.digraph.edges) & set(other.digraph.edges)
    assert len(shared) < len(graph.edges) / 2


def test_the_judge_makes_links_of_ports_that_exist_only() -> None:
    book = sign("book_flight", "flight:string")
    said = {
        "origin": '{"reason":"r","feeds":true,"value":"flight_id","parameter":"flight"}',
        "invented": '{"reason":"r","feeds":true,"value":"flight_id","parameter":"wings"}',
        "unnamed": '{"reason":"r","feeds":true,"value":"flight_id","parameter":""}',
        "no": '{"reason":"r","feeds":false,"value":"","parameter":""}',
        "broken": "yes",
    }
    sources = [sign(name, "", "flight_id:string") for name in said]
    chat = ScriptedChat(
        lambda turns, tools: next(said[name] for name in said if f"First tool: {name}\n" in turns[1].text),
        max_asks=1,
    )
    judged = asyncio.run(judged_links([(source, book) for source in sources], chat))
    assert [(link.source, link.output, link.input, link.evidence) for link in judged.links] == [
        ("origin", "flight_id", "flight", Evidence.JUDGED)
    ]
    assert (judged.asked, judged.refused, judged.unreadable) == (5, 1, 2)
    graph = build_graph([*sources, book]).with_links(judged.links)
    edge = graph.edge("origin", "book_flight")
    assert edge is not None
    assert edge.evidence == {Evidence.SCHEMA, Evidence.JUDGED}


def test_the_judges_prompt_is_golden() -> None:
    answer = {
        "properties": {
            "flight_id": {"type": "string", "description": "Number of the flight."},
            "price": {"type": "number"},
        }
    }
    source = signature_of(ToolSpec(name="search", description="Find flights."), returns=answer)
    target = sign("book", "flight:string", description="Book a flight.")
    shown = "\n===\n".join(turn.text for turn in EDGE_JUDGE.turns(edge_question(source, target)))
    shown += "\n######\n" + EDGE_JUDGE.turns(edge_question(sign("book_flight"), target))[1].text + "\n"
    assert shown == GOLDEN.read_text()
