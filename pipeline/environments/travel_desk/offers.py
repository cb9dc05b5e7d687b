"""Flights and hotels on offer as both sides see them: the generator from records, gold from tool results.

Decides the ranking rules of the templates; gold and the expected end state apply the same rule to what each
knows, and executing gold proves that they agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_FLIGHT = re.compile(r"^(F\d+) (\w+) (\d\d:\d\d) (direct|1 stop) \$(\d+)$", re.MULTILINE)
_HOTEL = re.compile(r"^(H\d+) (\d) stars \$(\d+)$", re.MULTILINE)
_BOOKING = re.compile(r"^(B\d+) ([FH]\d+) (.*)$", re.MULTILINE)


class Flight(NamedTuple):
    """A flight on offer; price in dollars."""

    id: str
    air: str
    time: str
    direct: bool
    price: int


class Hotel(NamedTuple):
    """A hotel on offer; price in dollars a night."""

    id: str
    stars: int
    price: int


class Booked(NamedTuple):
    """A booking of the customer; `text` describes it."""

    id: str
    ref: str
    text: str


def read_flights(text: str) -> list[Flight]:
    """The flights in a tool result."""
    return [
        Flight(key, air, time, stops == "direct", int(price))
        for key, air, time, stops, price in _FLIGHT.findall(text)
    ]


def read_hotels(text: str) -> list[Hotel]:
    """The hotels in a tool result."""
    return [Hotel(key, int(stars), int(price)) for key, stars, price in _HOTEL.findall(text)]


def read_bookings(text: str) -> list[Booked]:
    """The bookings in a tool result."""
    return [Booked(*found) for found in _BOOKING.findall(text)]


def flight_offer(record: Mapping[str, Any]) -> Flight:
    """A record of the state as an offer."""
    return Flight(record["id"], record["air"], record["time"], record["direct"], record["price"])


def hotel_offer(record: Mapping[str, Any]) -> Hotel:
    """A record of the state as an offer."""
    return Hotel(record["id"], record["stars"], record["price"])


FlightRule = Callable[[Sequence[Flight]], list[Flight]]
HotelRule = Callable[[Sequence[Hotel]], list[Hotel]]


def cheapest(offers: Sequence[Flight]) -> list[Flight]:
    """By price."""
    return sorted(offers, key=lambda offer: offer.price)


def earliest(offers: Sequence[Flight]) -> list[Flight]:
    """By departure."""
    return sorted(offers, key=lambda offer: offer.time)


def latest(offers: Sequence[Flight]) -> list[Flight]:
    """By departure, last first."""
    return earliest(offers)[::-1]


def cheapest_direct(offers: Sequence[Flight]) -> list[Flight]:
    """Direct ones by price."""
    return cheapest([offer for offer in offers if offer.direct])


def latest_direct(offers: Sequence[Flight]) -> list[Flight]:
    """Direct ones, last first."""
    return latest([offer for offer in offers if offer.direct])


def earliest_within(budget: int) -> FlightRule:
    """By departure among those that cost at most `budget`."""
    return lambda offers: earliest([offer for offer in offers if offer.price <= budget])


def cheapest_of(air: str) -> FlightRule:
    """By price among the airline's own."""
    return lambda offers: cheapest([offer for offer in offers if offer.air == air])


def cheapest_hotel(offers: Sequence[Hotel]) -> list[Hotel]:
    """By price a night."""
    return sorted(offers, key=lambda offer: offer.price)


def best_hotel(offers: Sequence[Hotel]) -> list[Hotel]:
    """Most stars first."""
    return sorted(offers, key=lambda offer: -offer.stars)


def best_hotel_within(price: int) -> HotelRule:
    """Most stars first among those of at most `price` a night."""
    return lambda offers: best_hotel([offer for offer in offers if offer.price <= price])
