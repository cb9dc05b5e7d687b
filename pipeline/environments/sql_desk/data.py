"""The rows of a generated database: seeded by its name, small, with NULLs, duplicates and ties.

A database is named `subject/key` ("shop/train7") and is the same wherever it is made. Not covered: what is
asked about it (`templates`).
"""

from __future__ import annotations

import datetime
import functools
import random
import sqlite3
from dataclasses import dataclass
from typing import Any

from pipeline.environments.sql_desk.domains import DOMAINS, Domain

TODAY = datetime.date(2031, 6, 30)
_FIRST = (
    "Ada", "Bo", "Cleo", "Dov", "Esa", "Fay", "Gus", "Hana", "Ivo", "Jun", "Kai", "Lea", "Mio", "Nia", "Ota",
    "Pia", "Quin", "Ria", "Sol", "Tova", "Uma", "Vik", "Wen", "Yara",
)  # fmt: skip
_LAST = (
    "Abel", "Brandt", "Cole", "Drew", "Egan", "Frost", "Grove", "Hale", "Irwin", "Jarvis", "Kemp", "Lund",
    "Marsh", "Nolan", "Orr", "Pryce", "Quill", "Rowe", "Stone", "Thorn", "Upton", "Vance", "Wolfe", "York",
)  # fmt: skip
_PLACES = (
    "Alder", "Birch", "Cedar", "Dunes", "Elm", "Fern", "Glen", "Heath", "Iris", "Juniper", "Knoll", "Larch",
)  # fmt: skip
_WORDS = (
    "amber", "blue", "calm", "dry", "early", "fine", "grand", "high", "iron", "light", "mild", "noble",
    "old", "plain", "quick", "red", "silver", "tall",
)  # fmt: skip
_NUM_WHO, _NUM_WHAT, _NUM_EVENTS, _NUM_STAFF, _NUM_PLACES = 22, 14, 70, 9, 5

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Data:
    """Rows by role, and the places in use."""

    domain: Domain
    places: list[str]
    who: Rows
    what: Rows
    events: Rows
    staff: Rows


@functools.lru_cache(maxsize=64)
def make_data(name: str) -> Data:
    """The rows of the database `subject/key`."""
    domain, rng = DOMAINS[name.split("/")[0]], random.Random(f"sql_desk/{name}")
    places = rng.sample(_PLACES, _NUM_PLACES)
    people = rng.sample([f"{first} {last}" for first in _FIRST for last in _LAST], _NUM_WHO + _NUM_STAFF)
    who = [
        (
            key,
            people[key - 1],
            rng.choice(places),
            _day(rng, 2200, 300),
            _maybe(rng, f"c-{rng.randint(100, 999)}"),
        )
        for key in range(1, _NUM_WHO + 1)
    ]
    titles = rng.sample([f"{word} {thing}" for word in _WORDS for thing in domain.things], _NUM_WHAT)
    what = [
        (key, title, rng.choice(domain.kinds), rng.choice((*range(4, 100), *range(20, 40))))
        for key, title in enumerate(titles, 1)
    ]
    return Data(domain, places, who, what, _events(rng, domain), _staff(rng, people[_NUM_WHO:]))


def make_twin(name: str, twin: str) -> Data:
    """Database `twin` with the people and places of `name`: who is asked about is there, with another story.

    Without it a query that only a name tells apart would find nothing in any twin, as a wrong one does.
    """
    own, other = make_data(name), make_data(twin)
    places = dict(zip(other.places, own.places, strict=True))
    who = [
        (key, named[1], places[place], since, contact)
        for (key, _, place, since, contact), named in zip(other.who, own.who, strict=True)
    ]
    staff = [(row[0], named[1], *row[2:]) for row, named in zip(other.staff, own.staff, strict=True)]
    return Data(own.domain, own.places, who, other.what, other.events, staff)


@functools.lru_cache(maxsize=1024)
def make_image(name: str, twin: str = "") -> bytes:
    """The SQLite database `subject/key`, or its `twin`, serialised."""
    data = make_twin(name, twin) if twin else make_data(name)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA page_size = 1024")
    connection.execute("BEGIN")
    for statement in create_statements(data.domain):
        connection.execute(statement)
    for table, rows in (
        (data.domain.who, data.who),
        (data.domain.what, data.what),
        (data.domain.event, data.events),
        (data.domain.staff, data.staff),
    ):
        connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    connection.execute("COMMIT")
    image = connection.serialize()
    connection.close()
    return image


def create_statements(domain: Domain) -> list[str]:
    """The CREATE TABLE statements."""
    names = domain.names()
    return [
        text.format(**names)
        for text in (
            "CREATE TABLE {who} ({who_id} INTEGER PRIMARY KEY, {who_name} TEXT, {place} TEXT, {since} TEXT, "
            "{contact} TEXT)",
            "CREATE TABLE {what} ({what_id} INTEGER PRIMARY KEY, {title} TEXT, {kind} TEXT, {price} INTEGER)",
            "CREATE TABLE {event} ({event_id} INTEGER PRIMARY KEY, "
            "{event_who} INTEGER REFERENCES {who}({who_id}), "
            "{event_what} INTEGER REFERENCES {what}({what_id}), "
            "{day} TEXT, {amount} INTEGER, {score} INTEGER, {status} TEXT)",
            "CREATE TABLE {staff} ({staff_id} INTEGER PRIMARY KEY, {staff_name} TEXT, "
            "{boss} INTEGER REFERENCES {staff}({staff_id}), {pay} INTEGER)",
        )
    ]


def _events(rng: random.Random, domain: Domain) -> Rows:
    """The last two of who and the last of what never occur."""
    rows: Rows = []
    for key in range(1, _NUM_EVENTS + 1):
        who, what = rng.randint(1, _NUM_WHO - 2), rng.randint(1, _NUM_WHAT - 1)
        if rows and rng.random() < 0.1:
            who, what = rows[-1][1], rows[-1][2]
        status = _maybe(rng, rng.choices(domain.statuses, (5, 3, 2))[0], share=0.15)
        rows.append(
            (key, who, what, _day(rng, 540, 0), rng.randint(1, 5), _maybe(rng, rng.randint(1, 5)), status)
        )
    return rows


def _staff(rng: random.Random, people: list[str]) -> Rows:
    return [
        (key, name, rng.randint(1, key - 1) if key > 1 else None, rng.randrange(2000, 6000, 50))
        for key, name in enumerate(people, 1)
    ]


def _maybe(rng: random.Random, value: Any, *, share: float = 0.3) -> Any:
    return None if rng.random() < share else value


def _day(rng: random.Random, most: int, least: int) -> str:
    return (TODAY - datetime.timedelta(days=rng.randint(least, most))).isoformat()
