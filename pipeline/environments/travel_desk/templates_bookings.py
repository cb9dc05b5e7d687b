"""Templates around what the customer already holds: cancel, move, upgrade, or refuse to."""

from __future__ import annotations

from data.messages import assistant
from pipeline.environments.gold import Plan, call
from pipeline.environments.travel_desk.desk import Case, Desk
from pipeline.environments.travel_desk.offers import FlightRule, cheapest, earliest
from pipeline.environments.travel_desk.template import (
    CANCELLING,
    PLAIN,
    UPGRADING,
    Goal,
    Template,
    booking_to,
    done,
    look_up_bookings,
    look_up_flights,
    miles_of_member,
)
from pipeline.environments.travel_desk.world import UPGRADE_MILES

NOTICE_DAYS = 3


def _cancel_case(desk: Desk, ahead: int) -> Case:
    route = desk.route()
    booking, _ = desk.hold_flight(route)
    for _ in range(desk.rng.randint(1, 2)):
        desk.hold_flight(desk.route(offset=desk.rng.randint(-3, 3)))
    today = f"{desk.month} {desk.day_number - ahead}"
    text = desk.rng.choice(
        ("Cancel my flight to {}.", "Please cancel my {} flight.", "I can't go to {}, cancel it.")
    )
    case = Case(
        f"Today is {today}. {text.format(route.dst)}", CANCELLING, {"city": route.dst, "ahead": ahead}
    )
    if ahead >= NOTICE_DAYS:
        desk.expect_change(booking, status="cancelled")
    else:
        case.answer, case.evidence = "REFUSE late", [["bookings", {}]]
    return case


def _draw_cancel(desk: Desk) -> Case:
    desk.day_number += 5
    return _cancel_case(desk, desk.rng.randint(NOTICE_DAYS, 7))


def _draw_late(desk: Desk) -> Case:
    desk.day_number += 5
    return _cancel_case(desk, desk.rng.randint(1, NOTICE_DAYS - 1))


def _plan_cancel(goal: Goal) -> Plan:
    booking = booking_to((yield from look_up_bookings()), goal["city"])
    if goal["ahead"] >= NOTICE_DAYS:
        yield call("cancel", booking=booking.id)
        yield done()
    else:
        yield assistant("REFUSE late")


def _change_case(desk: Desk, prompt: str, *, offset: int, rule: FlightRule) -> Case:
    route = desk.route()
    booking, held = desk.hold_flight(route, min_price=0 if offset else 200)
    desk.hold_flight(desk.route(offset=desk.rng.randint(-3, 5)))
    new = route._replace(day=desk.day(offset))
    offers = desk.offer_flights(new, given=lambda found: cheapest(found)[0].price < held.price or offset != 0)
    if offset == 0:  # the held flight is on offer, too
        offers = [*offers, held]
    desk.expect_change(booking, ref=rule(offers)[0].id)
    return Case(prompt.format(city=route.dst, day=new.day), PLAIN, {"route": new.query(), "city": route.dst})


def _draw_move(desk: Desk) -> Case:
    text = desk.rng.choice(
        (
            "Move my {city} flight to the earliest on {day}.",
            "I want to fly to {city} on {day} instead, the earliest.",
        )
    )
    return _change_case(desk, text, offset=desk.rng.randint(1, 5), rule=earliest)


def _plan_move(goal: Goal) -> Plan:
    booking = booking_to((yield from look_up_bookings()), goal["city"])
    offers = yield from look_up_flights(goal["route"])
    yield call("change", booking=booking.id, flight=earliest(offers)[0].id)
    yield done()


def _draw_swap(desk: Desk) -> Case:
    text = desk.rng.choice(
        (
            "Swap my {city} flight for the cheapest on {day}.",
            "I fly to {city} on {day}. Take the cheapest that day.",
        )
    )
    return _change_case(desk, text, offset=0, rule=cheapest)


def _plan_swap(goal: Goal) -> Plan:
    booking = booking_to((yield from look_up_bookings()), goal["city"])
    offers = yield from look_up_flights(goal["route"])
    yield call("change", booking=booking.id, flight=cheapest(offers)[0].id)
    yield done()


def _upgrade_case(desk: Desk, miles: int) -> Case:
    route = desk.route()
    booking, _ = desk.hold_flight(route)
    desk.hold_flight(desk.route(offset=2))
    desk.member["miles"] = miles
    case = Case(f"Upgrade my {route.dst} flight on {route.day}.", UPGRADING, {"city": route.dst})
    if miles >= UPGRADE_MILES:
        desk.expect_change(booking, business=True)
        desk.expect_miles(miles - UPGRADE_MILES)
    else:
        case.answer, case.evidence = "REFUSE miles", [["profile", {}]]
    return case


def _draw_upgrade(desk: Desk) -> Case:
    return _upgrade_case(desk, desk.rng.randrange(UPGRADE_MILES, 9900, 100))


def _draw_no_miles(desk: Desk) -> Case:
    return _upgrade_case(desk, desk.rng.randrange(500, UPGRADE_MILES, 100))


def _plan_upgrade(goal: Goal) -> Plan:
    miles = yield from miles_of_member()
    if miles < UPGRADE_MILES:
        yield assistant("REFUSE miles")
        return
    booking = booking_to((yield from look_up_bookings()), goal["city"])
    yield call("upgrade", booking=booking.id)
    yield done()


BOOKING_TEMPLATES = (
    Template(
        "cancel",
        "the booking to the city named",
        ("bookings", "cancel"),
        _draw_cancel,
        _plan_cancel,
        ("dates",),
    ),
    Template(
        "cancel_late",
        "too close to departure: refuse",
        ("bookings",),
        _draw_late,
        _plan_cancel,
        ("refuse", "dates"),
        extra_tools=("cancel",),
    ),
    Template(
        "move_earliest",
        "the booking named to the first departure of another day",
        ("bookings", "flights", "change"),
        _draw_move,
        _plan_move,
        ("choose", "change"),
    ),
    Template(
        "upgrade",
        "miles suffice: the booking named",
        ("profile", "bookings", "upgrade"),
        _draw_upgrade,
        _plan_upgrade,
        ("loyalty",),
    ),
    Template(
        "upgrade_no_miles",
        "miles do not suffice: refuse",
        ("profile",),
        _draw_no_miles,
        _plan_upgrade,
        ("refuse", "loyalty"),
        extra_tools=("bookings", "upgrade"),
    ),
    Template(
        "swap_cheapest",
        "the booking named to the lowest price of its day",
        ("bookings", "flights", "change"),
        _draw_swap,
        _plan_swap,
        ("choose", "change"),
        unseen=True,
    ),
)
