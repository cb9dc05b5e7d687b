"""Graphs of real worlds have the edges a person expects, and not those a person would deny."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from importlib.util import find_spec
from itertools import islice

import pytest

from data.messages import ToolSpec
from pipeline.environments.bfcl import dataset
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from synthesizers.graph.build import build_graph
from synthesizers.graph.dependency import Evidence, SignatureGraph
from synthesizers.graph.observations import Step, steps_of
from synthesizers.graph.signatures import signatures_of

needs_bfcl = pytest.mark.skipif(
    find_spec("bfcl_eval") is None, reason="bfcl_eval is not installed; run: make bfcl-setup"
)


def watched(name: str, count: int, **options: object) -> SignatureGraph:
    environment = load_environment(name, **options)
    tools: dict[str, ToolSpec] = {}
    episodes: list[list[Step]] = []

    async def play_all() -> None:
        for task in islice(environment.tasks("train"), count):
            session = await environment.open(task)
            tools.update({tool.name: tool for tool in session.tools if tool.name not in tools})
            await session.close()
            episodes.append(steps_of((await play(environment, task, environment.gold(task))).turns))

    asyncio.run(play_all())
    results: dict[str, list[str]] = defaultdict(list)
    for step in (step for episode in episodes for step in episode if step.ok):
        results[step.name].append(step.result)
    return build_graph(signatures_of(tools.values(), results=results), observations=episodes)


def ports(graph: SignatureGraph, source: str, target: str, evidence: Evidence) -> set[tuple[str, str]]:
    edge = graph.edge(source, target)
    links = edge.links if edge else ()
    return {(link.output, link.input) for link in links if link.evidence is evidence}


def test_travel_desk() -> None:
    graph = watched("travel_desk", 60)
    assert ports(graph, "flights", "book", Evidence.OBSERVED) == {("F#", "flight")}
    assert ports(graph, "flights", "change", Evidence.OBSERVED) == {("F#", "flight")}
    assert ports(graph, "flights", "book", Evidence.SCHEMA) == {("F#", "flight")}
    assert ports(graph, "hotels", "room", Evidence.OBSERVED) == {("H#", "hotel")}
    for target in ("cancel", "change", "upgrade"):
        assert ports(graph, "bookings", target, Evidence.OBSERVED) == {("B#", "booking")}
    for source, target in (
        ("hotels", "book"),
        ("flights", "room"),
        ("flights", "cancel"),
        ("profile", "book"),
    ):
        assert graph.edge(source, target) is None, (source, target)
    assert any(walk[:3] == ("bookings", "flights", "book") for walk in graph.walks(300))
    assert graph.links() == watched("travel_desk", 60).links()


def test_sql_desk() -> None:
    graph = watched("sql_desk", 30)
    assert ("entry", "sql") in ports(graph, "tables", "query", Evidence.OBSERVED)
    edge = graph.edge("tables", "query")
    assert edge is not None
    assert not any(link.whole for link in edge.links), "names of tables are parts of a query"
    assert {output for output, _ in ports(graph, "query", "answer", Evidence.OBSERVED)}
    assert graph.edge("query", "tables") is None


@needs_bfcl
def test_documents_of_bfcl() -> None:
    signatures = [
        signature
        for name in ("TravelAPI", "TradingBot", "TicketAPI")
        for signature in signatures_of(
            dataset.documented_tools(name), category=name, returns=dataset.documented_answers(name)
        )
    ]
    graph = build_graph(signatures)
    for source, target, output, wanted in (
        ("authenticate_travel", "book_flight", "access_token", "access_token"),
        ("register_credit_card", "book_flight", "card_id", "card_id"),
        ("book_flight", "cancel_booking", "booking_id", "booking_id"),
        ("place_order", "cancel_order", "order_id", "order_id"),
        ("get_symbol_by_name", "get_stock_info", "symbol", "symbol"),
        ("create_ticket", "close_ticket", "id", "ticket_id"),
    ):
        assert (output, wanted) in ports(graph, source, target, Evidence.SCHEMA), (source, target)
    history = ports(graph, "get_booking_history", "get_flight_cost", Evidence.SCHEMA)
    assert ("booking_history.travel_from", "travel_from") in history
    assert ("booking_history.travel_from", "travel_to") not in history
    crossing = [edge for edge in graph.edges if ("ticket" in edge.source) != ("ticket" in edge.target)]
    assert crossing == [], "candidates stay in their class"


@needs_bfcl
def test_episodes_of_bfcl() -> None:
    graph = watched("bfcl_multi_turn", 40)
    assert any(Evidence.OBSERVED in edge.evidence for edge in graph.edges)
