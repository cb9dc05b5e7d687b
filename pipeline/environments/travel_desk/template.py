"""What a template is, and the pieces that gold plans share.

A template is a prompt, a world in which it has one right outcome, a decision rule in words, the gold tool
sequence, and a plan that plays it from observations. No two templates share both rule and sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.messages import ToolStatus, Turn, assistant
from pipeline.environments.gold import Plan, call, last_result
from pipeline.environments.travel_desk.desk import Case, Desk, Route
from pipeline.environments.travel_desk.offers import (
    Booked,
    Flight,
    FlightRule,
    HotelRule,
    read_bookings,
    read_flights,
    read_hotels,
)

Step = Generator[Turn, Sequence[Turn], Any]
Goal = Mapping[str, Any]

PLAIN = "End with DONE."
BOOKING = "End with DONE. Missing day, from or to: ASK it. All over budget: REFUSE budget."
CANCELLING = "End with DONE. Under 3 days ahead: REFUSE late."
UPGRADING = "End with DONE. An upgrade needs 5000 miles, else REFUSE miles."
ASKING = "End with ANSWER and the id or price."


@dataclass(frozen=True, slots=True)
class Template:
    """See the module docstring. `tools` are those a task must show; gold calls are `calls`, in order."""

    name: str
    rule: str
    calls: tuple[str, ...]
    draw: Callable[[Desk], Case]
    plan: Callable[[Goal], Plan]
    tags: tuple[str, ...] = ()
    extra_tools: tuple[str, ...] = ()
    """Tools to show although gold does not call them (a refused booking must have been possible)."""
    unseen: bool = False

    @property
    def tools(self) -> tuple[str, ...]:
        """Tools that every task of the template shows."""
        return tuple(dict.fromkeys((*self.calls, *self.extra_tools)))


def done() -> Turn:
    """The gold agent's closing words."""
    return assistant("DONE")


def look_up_flights(route: Mapping[str, Any]) -> Generator[Turn, Sequence[Turn], list[Flight]]:
    """Ask for flights; their offers."""
    turns = yield call("flights", src=route["src"], dst=route["dst"], day=route["day"])
    return read_flights(last_result(turns).text)


def book_flight(route: Mapping[str, Any], rule: FlightRule) -> Step:
    """Book the best flight by `rule`; the next best where one is full."""
    offers = yield from look_up_flights(route)
    yield from book_first(rule(offers))


def book_first(ranked: Sequence[Flight]) -> Step:
    """Book the first of `ranked` that is not full."""
    for offer in ranked:
        turns = yield call("book", flight=offer.id)
        if last_result(turns).status is ToolStatus.OK:
            return


def book_room(city: str, nights: int, rule: HotelRule) -> Step:
    """Book the best hotel by `rule`."""
    turns = yield call("hotels", city=city)
    [best, *_] = rule(read_hotels(last_result(turns).text))
    yield call("room", hotel=best.id, nights=nights)


def look_up_bookings() -> Generator[Turn, Sequence[Turn], list[Booked]]:
    """Ask for the customer's bookings."""
    turns = yield call("bookings")
    return read_bookings(last_result(turns).text)


def booking_to(bookings: Sequence[Booked], city: str) -> Booked:
    """The flight booking with this destination."""
    return next(booking for booking in bookings if f" to {city} " in booking.text)


def own_airline() -> Generator[Turn, Sequence[Turn], str]:
    """Ask for the member's airline."""
    turns = yield call("profile")
    return last_result(turns).text.split(",")[0]


def miles_of_member() -> Generator[Turn, Sequence[Turn], int]:
    """Ask for the member's miles."""
    turns = yield call("profile")
    return int(last_result(turns).text.split()[1])


def ways(desk: Desk, route: Route) -> str:
    """A route in words, one of two ways."""
    return desk.rng.choice(
        (f"from {route.src} to {route.dst} on {route.day}", f"{route.src} to {route.dst}, {route.day}")
    )
