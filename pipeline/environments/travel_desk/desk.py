"""Desk: draws one random world and keeps the end state that the right actions lead to.

Everything a template needs: routes, offers under a condition, bookings, and `expect_*` to write down what
must change. All values come from one seeded generator. Not covered: prompts and gold plans (`templates_*`).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.environments.travel_desk.offers import Flight, Hotel, flight_offer, hotel_offer

CITIES = (
    "Oslo", "Rome", "Paris", "Berlin", "Madrid", "London", "Vienna", "Dublin", "Athens", "Lisbon",
    "Boston", "Miami", "Dallas", "Tokyo", "Delhi", "Cairo", "Lima", "Milan", "Prague", "Seoul",
)  # fmt: skip
MONTHS = ("March", "April", "May", "June", "July")
AIRLINES = ("Nova", "Polar", "Sun", "Star")


class Route(NamedTuple):
    """One way of travel."""

    src: str
    dst: str
    day: str

    def query(self) -> dict[str, Any]:
        """Arguments of the look-up."""
        return self._asdict()


@dataclass(slots=True)
class Case:
    """What a template makes of a desk: texts, and what gold needs to know."""

    prompt: str
    system: str
    goal: dict[str, Any] = field(default_factory=dict)
    answer: str = "DONE"
    ask: str = ""
    evidence: list[list[Any]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)


class Desk:
    """One random world in the making."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._used: set[str] = set()
        self._cities = iter(rng.sample(CITIES, len(CITIES)))
        self.month = rng.choice(MONTHS)
        self.day_number = rng.randint(4, 22)
        self.member: dict[str, Any] = {"air": rng.choice(AIRLINES), "miles": rng.randrange(500, 9900, 100)}
        self.flights: list[dict[str, Any]] = []
        self.hotels: list[dict[str, Any]] = []
        self.bookings: list[dict[str, Any]] = []
        self.next_booking = rng.randint(20, 60)
        self._expected: list[Callable[[list[dict[str, Any]], dict[str, Any]], None]] = []

    def city(self) -> str:
        """A city not used yet."""
        return next(self._cities)

    def day(self, offset: int = 0) -> str:
        """The day of the main trip, or `offset` days later."""
        return f"{self.month} {self.day_number + offset}"

    def route(self, *, src: str = "", dst: str = "", offset: int = 0) -> Route:
        """A way from and to new cities unless given."""
        return Route(src or self.city(), dst or self.city(), self.day(offset))

    def offer_flights(
        self, route: Route, *, num: int = 3, given: Callable[[list[Flight]], bool] = bool
    ) -> list[Flight]:
        """`num` flights with distinct prices and times for which `given` holds, and one of another day."""
        while True:
            records = self._draw_flights(route, num)
            offers = [flight_offer(record) for record in records]
            if given(offers):
                break
        other_day = f"{self.month} {int(route.day.split()[1]) + self.rng.choice((-1, 1))}"
        self.flights += records + self._draw_flights(route._replace(day=other_day), 1)
        return offers

    def offer_hotels(
        self, city: str, *, num: int = 3, given: Callable[[list[Hotel]], bool] = bool
    ) -> list[Hotel]:
        """`num` hotels with distinct prices and stars for which `given` holds."""
        while True:
            prices, stars = self.rng.sample(range(40, 200, 5), num), self.rng.sample(range(1, 6), num)
            offers = [Hotel("", star, price) for star, price in zip(stars, prices, strict=True)]
            if given(offers):
                break
        records = [
            {"id": self._new_id("H", 10, 99), "city": city, "stars": offer.stars, "price": offer.price}
            for offer in offers
        ]
        self.hotels += records
        return [hotel_offer(record) for record in records]

    def mark_full(self, offer: Flight) -> None:
        """Booking this flight will fail."""
        for record in self.flights:
            record["full"] = record["full"] or record["id"] == offer.id

    def hold_flight(self, route: Route, *, min_price: int = 0) -> tuple[str, Flight]:
        """An existing booking of a flight on `route`: (booking id, flight)."""
        [record] = self._draw_flights(route, 1)
        while record["price"] < min_price:
            [record] = self._draw_flights(route, 1)
        self.flights.append(record)
        return self._hold(record["id"], 0), flight_offer(record)

    def hold_hotel(self, city: str, nights: int) -> str:
        """An existing booking of a hotel; its id."""
        [offer] = self.offer_hotels(city, num=1)
        return self._hold(offer.id, nights)

    def expect_booking(self, ref: str, *, nights: int = 0) -> None:
        """The end state holds a new booking."""
        record = {"id": "", "ref": ref, "nights": nights, "business": False, "status": "booked"}
        self._expected.append(lambda bookings, member: bookings.append(record))

    def expect_change(self, booking: str, **values: Any) -> None:
        """In the end state an existing booking has these values."""
        self._expected.append(
            lambda bookings, member: next(b for b in bookings if b["id"] == booking).update(values)
        )

    def expect_miles(self, miles: int) -> None:
        """The end state's miles."""
        self._expected.append(lambda bookings, member: member.update(miles=miles))

    def state(self) -> dict[str, Any]:
        """The initial state; records in an order that says nothing about the answer."""
        return {
            "flights": self.rng.sample(self.flights, len(self.flights)),
            "hotels": self.rng.sample(self.hotels, len(self.hotels)),
            "bookings": self.rng.sample(self.bookings, len(self.bookings)),
            "member": self.member,
            "next": self.next_booking,
        }

    def expected(self) -> dict[str, Any]:
        """`bookings` and `member` of the end state."""
        bookings, member = copy.deepcopy(self.bookings), dict(self.member)
        for change in self._expected:
            change(bookings, member)
        return {"bookings": bookings, "member": member}

    def _new_id(self, letter: str, low: int, high: int) -> str:
        while True:
            key = f"{letter}{self.rng.randint(low, high)}"
            if key not in self._used:
                self._used.add(key)
                return key

    def _hold(self, ref: str, nights: int) -> str:
        key = f"B{self.next_booking}"
        self.next_booking += 1
        self.bookings.append({"id": key, "ref": ref, "nights": nights, "business": False, "status": "booked"})
        return key

    def _draw_flights(self, route: Route, num: int) -> list[dict[str, Any]]:
        prices = self.rng.sample(range(60, 400, 10), num)
        times: Sequence[int] = self.rng.sample(range(30, 138), num)
        return [
            {
                "id": self._new_id("F", 100, 999),
                **route.query(),
                "time": f"{time // 6:02d}:{time % 6}0",
                "direct": self.rng.random() < 0.5,
                "air": self.rng.choice(AIRLINES),
                "price": price,
                "full": False,
            }
            for price, time in zip(prices, times, strict=True)
        ]
