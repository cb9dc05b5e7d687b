"""Templates around one flight: which one to book, whether to book, what to ask first."""

from __future__ import annotations

from collections.abc import Sequence

from data.messages import assistant
from pipeline.environments.gold import Plan, call
from pipeline.environments.travel_desk.desk import Case, Desk
from pipeline.environments.travel_desk.offers import (
    Flight,
    FlightRule,
    cheapest,
    cheapest_direct,
    cheapest_of,
    earliest,
    earliest_within,
    latest_direct,
)
from pipeline.environments.travel_desk.template import (
    ASKING,
    BOOKING,
    PLAIN,
    Goal,
    Template,
    book_flight,
    done,
    look_up_flights,
    own_airline,
    ways,
)


def _draw_known(desk: Desk) -> Case:
    wanted, *_ = desk.offer_flights(desk.route())
    desk.expect_booking(wanted.id)
    text = desk.rng.choice(("Book flight {}.", "Please book {}.", "I want to fly with {}.", "Get me on {}."))
    return Case(text.format(wanted.id), PLAIN, {"flight": wanted.id})


def _plan_known(goal: Goal) -> Plan:
    yield call("book", flight=goal["flight"])
    yield done()


def _draw_choice(desk: Desk, word: str, rule: FlightRule) -> Case:
    route = desk.route()
    offers = desk.offer_flights(route, given=lambda found: bool(rule(found)))
    desk.expect_booking(rule(offers)[0].id)
    return Case(f"Book the {word} flight {ways(desk, route)}.", BOOKING, {"route": route.query()})


def _draw_cheapest(desk: Desk) -> Case:
    return _draw_choice(desk, "cheapest", cheapest)


def _plan_cheapest(goal: Goal) -> Plan:
    yield from book_flight(goal["route"], cheapest)
    yield done()


def _draw_earliest(desk: Desk) -> Case:
    return _draw_choice(desk, "earliest", earliest)


def _plan_earliest(goal: Goal) -> Plan:
    yield from book_flight(goal["route"], earliest)
    yield done()


def _draw_direct(desk: Desk) -> Case:
    return _draw_choice(desk, "cheapest direct", cheapest_direct)


def _plan_direct(goal: Goal) -> Plan:
    yield from book_flight(goal["route"], cheapest_direct)
    yield done()


def _draw_latest_direct(desk: Desk) -> Case:
    return _draw_choice(desk, "latest direct", latest_direct)


def _plan_latest_direct(goal: Goal) -> Plan:
    yield from book_flight(goal["route"], latest_direct)
    yield done()


def _budget_prompt(desk: Desk, offers_within: bool) -> Case:
    route, budget = desk.route(), desk.rng.randrange(100, 300, 10)
    offers = desk.offer_flights(
        route, given=lambda found: bool(earliest_within(budget)(found)) == offers_within
    )
    prompt = f"Book the earliest flight {ways(desk, route)}, at most ${budget}."
    case = Case(prompt, BOOKING, {"route": route.query(), "budget": budget})
    if offers_within:
        desk.expect_booking(earliest_within(budget)(offers)[0].id)
    else:
        case.answer, case.evidence = "REFUSE budget", [["flights", route.query()]]
    return case


def _plan_budget(goal: Goal) -> Plan:
    offers = yield from look_up_flights(goal["route"])
    fitting = earliest_within(goal["budget"])(offers)
    if fitting:
        yield call("book", flight=fitting[0].id)
    yield done() if fitting else assistant("REFUSE budget")


def _draw_loyalty(desk: Desk) -> Case:
    route, air = desk.route(), desk.member["air"]

    def decides(found: Sequence[Flight]) -> bool:
        return bool(cheapest_of(air)(found)) and cheapest(found)[0].air != air

    offers = desk.offer_flights(route, given=decides)
    desk.expect_booking(cheapest_of(air)(offers)[0].id)
    return Case(
        f"Book the cheapest flight of my airline, {ways(desk, route)}.", BOOKING, {"route": route.query()}
    )


def _plan_loyalty(goal: Goal) -> Plan:
    air = yield from own_airline()
    yield from book_flight(goal["route"], cheapest_of(air))
    yield done()


def _draw_ask(desk: Desk) -> Case:
    route = desk.route()
    offers = desk.offer_flights(route)
    desk.expect_booking(cheapest(offers)[0].id)
    missing, reply = desk.rng.choice((("day", route.day), ("from", route.src), ("to", route.dst)))
    said = {"day": f"on {route.day}", "from": f"from {route.src}", "to": f"to {route.dst}"}
    words = " ".join(said[part] for part in ("from", "to", "day") if part != missing)
    ask = f"ASK {missing}"
    goal = {"route": route.query(), "ask": ask}
    return Case(f"Book the cheapest flight {words}.", BOOKING, goal, ask=ask, replies=[f"{reply}."])


def _plan_ask(goal: Goal) -> Plan:
    yield assistant(goal["ask"])
    yield from book_flight(goal["route"], cheapest)
    yield done()


def _draw_full(desk: Desk) -> Case:
    route = desk.route()
    first, second, *_ = cheapest(desk.offer_flights(route))
    desk.mark_full(first)
    desk.expect_booking(second.id)
    return Case(f"Book the cheapest flight {ways(desk, route)}.", BOOKING, {"route": route.query()})


def _draw_compare(desk: Desk) -> Case:
    offers = desk.offer_flights(desk.route())
    said = ", ".join(f"{offer.id} costs ${offer.price}" for offer in offers)
    prices = {offer.id: offer.price for offer in offers}
    answer = f"ANSWER {cheapest(offers)[0].id}"
    return Case(f"{said}. Which is cheapest?", ASKING, {"prices": prices}, answer=answer)


def _plan_compare(goal: Goal) -> Plan:
    prices = goal["prices"]
    yield assistant(f"ANSWER {min(prices, key=prices.__getitem__)}")


def _draw_price(desk: Desk) -> Case:
    route, air = desk.route(), desk.rng.choice(("Nova", "Polar", "Sun", "Star"))
    offers = desk.offer_flights(route, given=lambda found: len(cheapest_of(air)(found)) == 1)
    goal = {"route": route.query(), "air": air}
    return Case(
        f"What does {air} cost {ways(desk, route)}?",
        ASKING,
        goal,
        answer=f"ANSWER {cheapest_of(air)(offers)[0].price}",
        evidence=[["flights", route.query()]],
    )


def _plan_price(goal: Goal) -> Plan:
    offers = yield from look_up_flights(goal["route"])
    yield assistant(f"ANSWER {cheapest_of(goal['air'])(offers)[0].price}")


def _draw_two_cities(desk: Desk) -> Case:
    one = desk.route()
    other = desk.route(src=one.src)
    offers = desk.offer_flights(one, num=2) + desk.offer_flights(other, num=2)
    desk.expect_booking(cheapest(offers)[0].id)
    prompt = f"Fly me from {one.src} on {one.day} to {one.dst} or {other.dst}, whichever is cheapest."
    return Case(prompt, BOOKING, {"routes": [one.query(), other.query()]})


def _plan_two_cities(goal: Goal) -> Plan:
    offers: list[Flight] = []
    for route in goal["routes"]:
        offers += yield from look_up_flights(route)
    yield call("book", flight=cheapest(offers)[0].id)
    yield done()


_SEARCH_BOOK = ("flights", "book")

FLIGHT_TEMPLATES = (
    Template("known_flight", "the flight named", ("book",), _draw_known, _plan_known),
    Template("cheapest", "lowest price", _SEARCH_BOOK, _draw_cheapest, _plan_cheapest, ("choose",)),
    Template("earliest", "first departure", _SEARCH_BOOK, _draw_earliest, _plan_earliest, ("choose",)),
    Template(
        "cheapest_direct",
        "lowest price of the direct ones",
        _SEARCH_BOOK,
        _draw_direct,
        _plan_direct,
        ("choose",),
    ),
    Template(
        "within_budget",
        "first departure within the budget",
        _SEARCH_BOOK,
        lambda desk: _budget_prompt(desk, True),
        _plan_budget,
        ("choose", "budget"),
    ),
    Template(
        "over_budget",
        "none within the budget: refuse",
        ("flights",),
        lambda desk: _budget_prompt(desk, False),
        _plan_budget,
        ("refuse", "budget"),
        extra_tools=("book",),
    ),
    Template(
        "own_airline",
        "lowest price of the member's airline",
        ("profile", *_SEARCH_BOOK),
        _draw_loyalty,
        _plan_loyalty,
        ("choose", "loyalty"),
    ),
    Template(
        "ask_missing",
        "ask for what is missing, then lowest price",
        _SEARCH_BOOK,
        _draw_ask,
        _plan_ask,
        ("ask", "choose", "follow_up"),
    ),
    Template(
        "full_flight",
        "lowest price is full: next lowest",
        ("flights", "book", "book"),
        _draw_full,
        _plan_cheapest,
        ("recover", "choose"),
    ),
    Template(
        "compare",
        "lowest of three prices told",
        (),
        _draw_compare,
        _plan_compare,
        ("no_call",),
        extra_tools=_SEARCH_BOOK,
    ),
    Template("price", "price of the airline named", ("flights",), _draw_price, _plan_price, ("look_up",)),
    Template(
        "two_cities",
        "lowest price over two destinations",
        ("flights", "flights", "book"),
        _draw_two_cities,
        _plan_two_cities,
        ("choose",),
        unseen=True,
    ),
    Template(
        "latest_direct",
        "last departure of the direct ones",
        _SEARCH_BOOK,
        _draw_latest_direct,
        _plan_latest_direct,
        ("choose",),
        unseen=True,
    ),
)
