"""The desk's rules as predicates over a whole dialogue, for synthesizers that review what they plan.

A predicate gets the initial state, the calls in order as {name, arguments, text, ok}, and all that the user
said; it answers what is broken, or "". The desk's tools never enforce these rules. Not covered: dialogues
that the desk's own tasks judge (`verify`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.environments.travel_desk.desk import MONTHS
from pipeline.environments.travel_desk.templates_bookings import NOTICE_DAYS
from pipeline.environments.travel_desk.world import UPGRADE_MILES

Calls = Sequence[Mapping[str, Any]]
_BUDGET = re.compile(r"\b(?:at most|no more than|up to|under|budget(?: is| of)?) \$?(\d+)", re.IGNORECASE)
_TODAY = re.compile(r"\btoday is (\w+) (\d+)", re.IGNORECASE)


def budget(state: Mapping[str, Any], calls: Calls, said: str) -> str:
    """No flight dearer than what the user named as the most."""
    named = _BUDGET.search(said)
    if named is None:
        return ""
    prices = {flight["id"]: flight["price"] for flight in state["flights"]}
    for call in calls:
        flight = call["arguments"].get("flight")
        if call["ok"] and call["name"] in ("book", "change") and prices.get(flight, 0) > int(named[1]):
            return f"{flight} costs ${prices[flight]}, the user said at most ${named[1]}"
    return ""


def notice(state: Mapping[str, Any], calls: Calls, said: str) -> str:
    """No flight cancelled less than NOTICE_DAYS ahead of the day that the user says it is."""
    today = _TODAY.search(said)
    if today is None or today[1].capitalize() not in MONTHS:
        return ""
    bookings = {booking["id"]: booking for booking in state["bookings"]}
    flights = {flight["id"]: flight for flight in state["flights"]}
    for call in calls:
        key = call["arguments"].get("booking") if call["name"] == "cancel" and call["ok"] else None
        flight = flights.get(bookings[key]["ref"]) if key in bookings else None
        if flight is None:
            continue
        month, day = flight["day"].split()
        if month == today[1].capitalize() and int(day) - int(today[2]) < NOTICE_DAYS:
            return f"{key} leaves on {flight['day']}, less than {NOTICE_DAYS} days ahead"
    return ""


def miles(state: Mapping[str, Any], calls: Calls, said: str) -> str:
    """No upgrade without UPGRADE_MILES on the account at that time."""
    left = state["member"]["miles"]
    for call in calls:
        if call["name"] == "upgrade" and call["ok"]:
            if left < UPGRADE_MILES:
                return f"an upgrade needs {UPGRADE_MILES} miles, there are {left}"
            left -= UPGRADE_MILES
    return ""


POLICIES = (budget, notice, miles)
