"""Templates around hotels and whole trips: two to eight calls."""

from __future__ import annotations

from pipeline.environments.gold import Plan, call
from pipeline.environments.travel_desk.desk import Case, Desk, Route
from pipeline.environments.travel_desk.offers import (
    FlightRule,
    HotelRule,
    best_hotel,
    best_hotel_within,
    cheapest,
    cheapest_hotel,
    cheapest_of,
    earliest,
    latest,
)
from pipeline.environments.travel_desk.template import (
    PLAIN,
    Goal,
    Template,
    book_flight,
    book_room,
    done,
    look_up_bookings,
    own_airline,
    ways,
)


def _want_room(desk: Desk, city: str, rule: HotelRule) -> int:
    offers = desk.offer_hotels(city, given=lambda found: bool(rule(found)))
    nights = desk.rng.randint(2, 6)
    desk.expect_booking(rule(offers)[0].id, nights=nights)
    return nights


def _want_flight(desk: Desk, route: Route, rule: FlightRule) -> None:
    offers = desk.offer_flights(route, given=lambda found: bool(rule(found)))
    desk.expect_booking(rule(offers)[0].id)


def _draw_hotel(desk: Desk) -> Case:
    city, price = desk.city(), desk.rng.randrange(80, 160, 10)
    nights = _want_room(desk, city, best_hotel_within(price))
    text = desk.rng.choice(
        (
            f"Book the best hotel in {city} up to ${price} for {nights} nights.",
            f"{nights} nights in {city}: the hotel with most stars, at most ${price}.",
        )
    )
    return Case(text, PLAIN, {"city": city, "nights": nights, "price": price})


def _plan_hotel(goal: Goal) -> Plan:
    yield from book_room(goal["city"], goal["nights"], best_hotel_within(goal["price"]))
    yield done()


def _draw_trip(desk: Desk) -> Case:
    route = desk.route()
    _want_flight(desk, route, cheapest)
    nights = _want_room(desk, route.dst, cheapest_hotel)
    prompt = f"Cheapest flight {ways(desk, route)}, and the cheapest hotel there for {nights} nights."
    return Case(prompt, PLAIN, {"route": route.query(), "nights": nights})


def _plan_trip(goal: Goal) -> Plan:
    yield from book_flight(goal["route"], cheapest)
    yield from book_room(goal["route"]["dst"], goal["nights"], cheapest_hotel)
    yield done()


def _draw_follow_up(desk: Desk) -> Case:
    route = desk.route()
    _want_flight(desk, route, latest)
    nights = _want_room(desk, route.dst, best_hotel)
    goal = {"route": route.query(), "nights": nights}
    reply = desk.rng.choice(
        ("Also the best hotel there, {} nights.", "And {} nights in the hotel with most stars.")
    )
    return Case(f"Book the latest flight {ways(desk, route)}.", PLAIN, goal, replies=[reply.format(nights)])


def _plan_follow_up(goal: Goal) -> Plan:
    yield from book_flight(goal["route"], latest)
    yield done()
    yield from book_room(goal["route"]["dst"], goal["nights"], best_hotel)
    yield done()


def _draw_full_return(desk: Desk) -> Case:
    out = desk.route()
    back = desk.route(src=out.dst, dst=out.src, offset=desk.rng.randint(2, 6))
    first, second, *_ = earliest(desk.offer_flights(out))
    desk.mark_full(first)
    desk.expect_booking(second.id)
    _want_flight(desk, back, earliest)
    prompt = f"Earliest flight {ways(desk, out)}, and the earliest back on {back.day}."
    return Case(prompt, PLAIN, {"out": out.query(), "back": back.query()})


def _plan_full_return(goal: Goal) -> Plan:
    yield from book_flight(goal["out"], earliest)
    yield from book_flight(goal["back"], earliest)
    yield done()


def _draw_return_stay(desk: Desk) -> Case:
    out, nights = desk.route(), 0
    _want_flight(desk, out, earliest)
    nights = _want_room(desk, out.dst, cheapest_hotel)
    back = desk.route(src=out.dst, dst=out.src, offset=nights)
    _want_flight(desk, back, latest)
    prompt = (
        f"Earliest flight {ways(desk, out)}, the latest back on {back.day}, "
        f"and the cheapest hotel for the {nights} nights."
    )
    return Case(prompt, PLAIN, {"out": out.query(), "back": back.query(), "nights": nights})


def _plan_return_stay(goal: Goal) -> Plan:
    yield from book_flight(goal["out"], earliest)
    yield from book_flight(goal["back"], latest)
    yield from book_room(goal["out"]["dst"], goal["nights"], cheapest_hotel)
    yield done()


def _draw_member_stay(desk: Desk) -> Case:
    out, rule = desk.route(), cheapest_of(desk.member["air"])
    _want_flight(desk, out, rule)
    nights = _want_room(desk, out.dst, best_hotel)
    back = desk.route(src=out.dst, dst=out.src, offset=nights)
    _want_flight(desk, back, rule)
    prompt = (
        f"With my airline, cheapest both ways: {ways(desk, out)}, back on {back.day}. "
        f"And the best hotel for the {nights} nights."
    )
    return Case(prompt, PLAIN, {"out": out.query(), "back": back.query(), "nights": nights})


def _plan_member_stay(goal: Goal) -> Plan:
    air = yield from own_airline()
    yield from book_flight(goal["out"], cheapest_of(air))
    yield from book_flight(goal["back"], cheapest_of(air))
    yield from book_room(goal["out"]["dst"], goal["nights"], best_hotel)
    yield done()


def _draw_new_trip(desk: Desk) -> Case:
    old = desk.route()
    flight, _ = desk.hold_flight(old)
    hotel = desk.hold_hotel(old.dst, desk.rng.randint(2, 6))
    desk.expect_change(flight, status="cancelled")
    desk.expect_change(hotel, status="cancelled")
    new = desk.route(src=old.src, offset=desk.rng.randint(0, 4))
    _want_flight(desk, new, cheapest_of(desk.member["air"]))
    nights = _want_room(desk, new.dst, cheapest_hotel)
    prompt = (
        f"Cancel all I booked for {old.dst}. Instead {ways(desk, new)}, the cheapest of my airline, "
        f"and the cheapest hotel for {nights} nights."
    )
    return Case(prompt, PLAIN, {"city": old.dst, "route": new.query(), "nights": nights})


def _plan_new_trip(goal: Goal) -> Plan:
    air = yield from own_airline()
    for booking in (yield from look_up_bookings()):
        if goal["city"] in booking.text:
            yield call("cancel", booking=booking.id)
    yield from book_flight(goal["route"], cheapest_of(air))
    yield from book_room(goal["route"]["dst"], goal["nights"], cheapest_hotel)
    yield done()


_FLIGHT, _HOTEL = ("flights", "book"), ("hotels", "room")

TRIP_TEMPLATES = (
    Template("hotel", "most stars within a price", _HOTEL, _draw_hotel, _plan_hotel, ("choose", "budget")),
    Template("trip", "lowest prices", (*_FLIGHT, *_HOTEL), _draw_trip, _plan_trip, ("choose",)),
    Template(
        "add_hotel",
        "last departure; most stars when asked later",
        (*_FLIGHT, *_HOTEL),
        _draw_follow_up,
        _plan_follow_up,
        ("choose", "follow_up"),
    ),
    Template(
        "full_return",
        "first departures both ways, one full: next",
        ("flights", "book", "book", *_FLIGHT),
        _draw_full_return,
        _plan_full_return,
        ("recover", "choose", "dates"),
    ),
    Template(
        "return_stay",
        "first departure out, last back, lowest hotel price",
        (*_FLIGHT, *_FLIGHT, *_HOTEL),
        _draw_return_stay,
        _plan_return_stay,
        ("choose", "dates"),
    ),
    Template(
        "member_stay",
        "member's airline both ways, most stars",
        ("profile", *_FLIGHT, *_FLIGHT, *_HOTEL),
        _draw_member_stay,
        _plan_member_stay,
        ("choose", "loyalty", "dates"),
    ),
    Template(
        "new_trip",
        "cancel one city, then member's airline and lowest hotel price",
        ("profile", "bookings", "cancel", "cancel", *_FLIGHT, *_HOTEL),
        _draw_new_trip,
        _plan_new_trip,
        ("choose", "loyalty", "change"),
    ),
)
