"""What a value looks like: an id, a date, a price, a file name. Decided by patterns alone.

An id mixes letters and digits in one token (F12, ORD-0042, a UUID). Plain numbers are numbers, even where
they serve as ids: that is for names and observation to say. Not covered: units (`lines` keeps "3 nights" as
the path "nights").
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

Scalar = str | int | float | bool


class Shape(StrEnum):
    """How a value is written."""

    FLAG = "flag"
    """true or false."""
    NUMBER = "number"
    """A number without unit."""
    MONEY = "money"
    """A number with a currency sign; the value is the number."""
    QUANTITY = "quantity"
    """A number before a word: "3 nights"; the value is the number."""
    ID = "id"
    """One token of letters and digits."""
    DATE = "date"
    """A day, with or without time: 2026-05-14, May 14, 05/14/2026."""
    TIME = "time"
    """A time of day."""
    EMAIL = "email"
    """A mail address."""
    URL = "url"
    """A web address."""
    FILE = "file"
    """A file name or path with an ending."""
    WORD = "word"
    """Another single token."""
    TEXT = "text"
    """Anything else."""


class Field(NamedTuple):
    """One value of a result, e.g. Field("flights[].id", "F12", "string", Shape.ID)."""

    path: str
    value: Scalar
    type: str
    shape: Shape


MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)\b"
)
DATE = (
    rf"(?:\d{{4}}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d{{1,6}})?(?:Z|[+-]\d\d:?\d\d)?)?"
    rf"|{MONTH} \d{{1,2}}(?:, \d{{4}})?|\d{{1,2}} {MONTH}(?: \d{{4}})?|\d{{1,2}}/\d{{1,2}}/\d{{2,4}})"
)
TIME = r"\d{1,2}:\d\d(?::\d\d)?(?: ?[AaPp][Mm])?"
MONEY = r"[$€£¥] ?\d[\d,]{0,15}(?:\.\d{1,4})?"
EMAIL = r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}"
URL = r"https?://[^\s\"'<>]{1,500}"
FILE = r"(?:[\w-]{1,64}/){0,8}[\w-]{1,64}\.[A-Za-z][A-Za-z0-9]{0,4}"
UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
ID = rf"(?:{UUID}|(?=[\w-]{{0,40}}\d)(?=[\w-]{{0,40}}[A-Za-z])[A-Za-z0-9][\w-]{{1,40}})"
"""Both lookaheads are bounded, so a token is tried in constant time."""
NUMBER = r"-?(?:0|[1-9]\d{0,17})(?:\.\d{1,17})?"

_PATTERNS = tuple(
    (shape, re.compile(pattern))
    for shape, pattern in (
        (Shape.DATE, DATE),
        (Shape.TIME, TIME),
        (Shape.MONEY, MONEY),
        (Shape.EMAIL, EMAIL),
        (Shape.URL, URL),
        (Shape.NUMBER, NUMBER),
        (Shape.ID, ID),
        (Shape.FILE, FILE),
        (Shape.WORD, r"\S{1,80}"),
    )
)
_DIGITS = re.compile(r"\d{1,40}")
_HEX = re.compile(r"[0-9a-fA-F-]{8,40}")


def field(path: str, value: Scalar) -> Field:
    """`value` at `path`; its type and shape are read off it."""
    return Field(path, value, type_of(value), shape_of(value))


def shape_of(value: Scalar) -> Shape:
    """The shape of a whole value; strings longer than 500 characters are text unseen."""
    if isinstance(value, bool):
        return Shape.FLAG
    if isinstance(value, int | float):
        return Shape.NUMBER
    if len(value) > 500:
        return Shape.TEXT
    return next((shape for shape, pattern in _PATTERNS if pattern.fullmatch(value)), Shape.TEXT)


def type_of(value: Scalar) -> str:
    """JSON Schema's name of the value's type."""
    if isinstance(value, bool):
        return "boolean"
    return "integer" if isinstance(value, int) else "number" if isinstance(value, float) else "string"


def pattern_of(identifier: str) -> str:
    """The pattern ids of one kind share: F12 -> F#, ORD-0042 -> ORD-#; "hex#" for UUIDs and hashes."""
    if _HEX.fullmatch(identifier) and not identifier.isdigit():
        return "hex#"
    return _DIGITS.sub("#", identifier)


def number_of(text: str) -> int | float:
    """The number written in `text`, which matches NUMBER, MONEY or has thousands commas."""
    plain = text.lstrip("$€£¥ ").replace(",", "")
    return float(plain) if "." in plain else int(plain)
