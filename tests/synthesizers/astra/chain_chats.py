"""A scripted chat that plays every role of ASTRA's chains on the travel desk, and ways for it to go wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from data import canonical
from data.messages import ToolSpec, Turn
from pipeline.chat.scripted import ScriptedChat

PHRASES = {
    "List flights.": ("flights", "look up planes"),
    "List hotels.": ("hotels", "look up places to sleep"),
    "Book a flight.": ("book", "reserve a seat"),
    "Book a hotel.": ("room", "reserve a bed"),
    "List my bookings.": ("bookings", "look up what I have reserved"),
    "Move a booking to a flight.": ("change", "move my reservation"),
    "Cancel a booking.": ("cancel", "call it off"),
    "My airline and miles.": ("profile", "look up my membership"),
    "Upgrade a booking.": ("upgrade", "get me a better class"),
}
PAIRS = [
    {"task": "Find a plane and take it.", "chain": ["flights", "book"]},
    {"task": "Take a plane, then call it off.", "chain": ["flights", "book", "cancel"]},
    {"task": "Nonsense.", "chain": ["fly", "book"]},
]
_ROLES = {
    "You know one tool set": "chain_proposer",
    "You check whether a chain": "chain_validator",
    "You write what a user says": "back_translator",
    "You read what a user asks": "chain_reader",
    "You rewrite what a user says": "augmenter",
    "You rate tasks": "task_scorer",
    "You judge how an assistant": "query_judge",
    "You judge one turn": "round_judge",
    "You judge the final answer": "answer_judge",
}


def role_of(turns: Sequence[Turn]) -> str:
    """Which role a prompt is of."""
    return next(role for start, role in _ROLES.items() if turns[0].text.startswith(start))


def answer(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> str:
    """What a good chat says in every role."""
    return canonical.dumps(_reply(role_of(turns), turns[1].text))


def chat(**by_role: Any) -> ScriptedChat:
    """The good chat, but for roles whose reply (a text, or JSON) is given."""

    def said(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> str:
        given = by_role.get(role_of(turns))
        if given is None:
            return answer(turns, tools)
        return given if isinstance(given, str) else canonical.dumps(given)

    return ScriptedChat(said, name="roles", max_asks=2)


SHARED = chat()


def shared() -> ScriptedChat:
    """One chat for all syntheses of a test, which counts what it is asked; a recipe names it."""
    return SHARED


def _reply(role: str, text: str) -> dict[str, Any]:
    grades = {"reasoning": "It fits.", "understanding": "yes", "planning": "yes"}
    replies: dict[str, dict[str, Any]] = {
        "chain_proposer": {"pairs": PAIRS},
        "chain_validator": {"reason": "One needs the other.", "is_valid": True},
        "task_scorer": {"reasoning": "Fine.", "rating": 4},
        "query_judge": grades,
        "round_judge": {**grades, "planning": "partly"},
        "answer_judge": {"reasoning": "Right.", "correctness": "yes", "summary": "partly", "urls_fit": True},
    }
    if role == "back_translator":
        return {"request": _request(text)}
    if role == "chain_reader":
        return {"reason": "As it says.", "chain": _read(text)}
    if role == "augmenter":
        return {"request": f"Hello there! {re.findall('Request: (.*)', text)[0]}"}
    return replies[role]


def _request(text: str) -> str:
    asked = re.split(r"^\d+\. ", text.split("Do not write")[0], flags=re.MULTILINE)[1:]
    wishes = []
    for part in asked:
        values = re.findall(r'"?([^ "][^"]*?)"? \(the ', part.partition("Values to say:")[2])
        hints = re.findall(r'as "([^"]*)"', part)
        does = re.split(r" Values to say:| Point at", part.strip())[0].strip()
        wishes.append(" ".join([PHRASES[does][1], *values, *hints]))
    return "Please " + ", then ".join(wishes) + "."


def _read(text: str) -> list[str]:
    request = re.findall("Request: (.*)", text)[0]
    places = {name: request.find(words) for name, words in PHRASES.values() if words in request}
    return sorted(places, key=lambda name: places[name])
