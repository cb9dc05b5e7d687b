"""Who is asking: what they want when there is a choice, how much they want done, and how they talk.

Written as data, without names of people. Without a model a persona picks rows, the number of sub-goals and
the frame around a request; with one, its description is in the prompts. Not covered: languages other than
English.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from synthesizers.grounding.reading import Row

_MARGIN = 1.3
"""How much more than what it takes first a persona would pay (ours): room for the next best."""
_STEP = 10
"""Dollars that a limit is rounded up to."""
_MONEY = re.compile(r"\$\s?(\d[\d,]*(?:\.\d+)?)")
_TIME = re.compile(r"(?<![\d:])(\d{1,2}):(\d\d)(?![\d:])")


class Persona(NamedTuple):
    """`wants`: cheap | dear | early | late | first | last | any. `budget`: tight | open. `patience`: the most
    sub-goals of a dialogue. `style`: plain | polite | brief | chatty."""

    name: str
    wants: str
    budget: str
    patience: int
    style: str

    def described(self) -> str:
        """One paragraph for a prompt."""
        return (
            f"{_WANTS[self.wants]} {_BUDGET[self.budget]} Has patience for about {self.patience} things in "
            f"one conversation. {_STYLE[self.style]}"
        )

    def choose(self, rows: Sequence[Row], *, rng: random.Random) -> int:
        """Which of several rows this persona takes: its index."""
        texts = [" ".join(str(field.value) for field in row.fields) for row in rows]
        if self.wants in ("cheap", "dear"):
            return _extreme([_number(_MONEY, text) for text in texts], most=self.wants == "dear")
        if self.wants in ("early", "late"):
            return _extreme([_number(_TIME, text) for text in texts], most=self.wants == "late")
        if self.wants == "any":
            return rng.randrange(len(rows))
        return len(rows) - 1 if self.wants == "last" else 0

    def limit(self, row: Row) -> int | None:
        """What a persona that watches its money would pay at most for a row it takes; None for no limit."""
        price = price_of(row)
        return None if self.budget != "tight" or price is None else -int(-price * _MARGIN // _STEP) * _STEP

    def framed(self, text: str, *, first: bool, rng: random.Random) -> str:
        """A request in this persona's manner; words that name no tool and no value."""
        before, after = _FRAMES[self.style]
        opening = rng.choice(before) if first else ""
        return f"{opening}{text}{rng.choice(after)}"


PERSONAS = (
    Persona("saver", "cheap", "tight", 3, "plain"),
    Persona("early_bird", "early", "open", 2, "brief"),
    Persona("night_owl", "late", "open", 3, "chatty"),
    Persona("splurger", "dear", "open", 3, "polite"),
    Persona("quick_errand", "first", "open", 1, "brief"),
    Persona("planner", "cheap", "tight", 4, "polite"),
    Persona("undecided", "any", "open", 4, "chatty"),
    Persona("last_in_line", "last", "open", 2, "plain"),
    Persona("assistant_of_a_team", "first", "tight", 4, "plain"),
    Persona("night_shift", "late", "tight", 2, "brief"),
    Persona("first_timer", "any", "tight", 2, "polite"),
    Persona("regular", "early", "open", 4, "plain"),
)
_WANTS = {
    "cheap": "Takes the cheapest of several offers.",
    "dear": "Takes the most expensive of several offers.",
    "early": "Takes what comes earliest.",
    "late": "Takes what comes latest.",
    "first": "Takes the first on a list.",
    "last": "Takes the last on a list.",
    "any": "Has no fixed preference among offers.",
}
_BUDGET = {"tight": "Watches every expense.", "open": "Does not worry about money."}
_STYLE = {
    "plain": "Writes in plain short sentences.",
    "polite": "Writes politely and in full sentences.",
    "brief": "Writes as few words as possible.",
    "chatty": "Writes warmly, with a word about the day.",
}
_FRAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "plain": (("",), ("",)),
    "polite": (("Hello. ", "Good day. ", "Good morning. "), ("", " Thank you.", " Many thanks.")),
    "brief": (("",), ("",)),
    "chatty": (
        ("Hi there! ", "Hey, busy day here. ", "Hello, me again. "),
        ("", " That would help a lot.", " You are a great help."),
    ),
}


def draw_persona(rng: random.Random) -> Persona:
    """One of PERSONAS."""
    return rng.choice(PERSONAS)


def price_of(row: Row) -> float | None:
    """The amount of dollars a row shows, or None."""
    return _number(_MONEY, " ".join(str(field.value) for field in row.fields))


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float("".join(found.groups()).replace(",", "")) if found else None


def _extreme(numbers: Sequence[float | None], *, most: bool) -> int:
    """Index of the least or most; the first row where not every row has a number."""
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return 0
    return numbers.index(max(known) if most else min(known))
