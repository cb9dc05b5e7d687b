"""What a text or a JSON value holds, as rows of named values: how grounding and phrasing look at results.

A row is what belongs together: the scalar fields of one JSON object, one line of plain text. Values of a row
may be used together, and a row is what a reference such as "the 20:30 one" picks out. Not covered: which
parameter a value fits (`proposals`), tool signatures (`graph`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from data import canonical
from pipeline.errors import RecordError
from synthesizers.graph.shapes import Scalar
from synthesizers.phrasing.vocabulary import ABBREVIATIONS

_WORD = re.compile(r"[$#@]?[A-Za-z0-9_][\w.:@/-]*[\w/]|[A-Za-z0-9_]")
_IDENTIFIER = re.compile(r"([A-Za-z]{1,4})[-_]?\d+")
_CELLS = re.compile(r"\s*\|\s*|\t")
_MAX_CHARS = 100_000
"""A longer text is read as lines."""
_MAX_ROWS = 400
"""Rows read of one value; what a longer result holds beyond them is not used."""


class Field(NamedTuple):
    """A value and where it stands: `path` as in `flights[2].price`, or `[1].0` for a word of a line."""

    path: str
    name: str
    """The last key of the path; "" for an element of a list or a word of a line."""
    value: Scalar


class Row(NamedTuple):
    """What belongs together. `kind` is the singular noun of what holds the row, "" where nothing says."""

    path: str
    kind: str
    fields: tuple[Field, ...]


def rows_of(text: str) -> tuple[Row, ...]:
    """The rows of a tool's answer: JSON, a Python literal (some tools print those), or lines of text."""
    value = decoded(text)
    if isinstance(value, dict | list):
        return rows_in(value)
    return tuple(_lines(text)) if isinstance(value, str) else (_lone("", value),)


def rows_in(value: Any) -> tuple[Row, ...]:
    """The rows of a JSON value, outer ones first."""
    return tuple(row for row, _ in zip(_walk(value, path="", kind=""), range(_MAX_ROWS), strict=False))


def decoded(text: str) -> Any:
    """The JSON value or Python literal that `text` is, else `text`."""
    stripped = text.strip()
    if not stripped or len(stripped) > _MAX_CHARS or stripped[0] not in "{[\"'-0123456789tfnTFN(":
        return text
    try:
        return canonical.loads(stripped)
    except (ValueError, RecordError):
        pass
    try:
        value = ast.literal_eval(stripped)
        return canonical.loads(canonical.dumps(list(value) if isinstance(value, tuple) else value))
    except (ValueError, SyntaxError, RecordError, MemoryError, RecursionError):
        return text


def shape(value: Any) -> str:
    """How a value is written, digits and letters made alike: "F9" for F320, "a 9" for June 13, "int" for 3.

    The short letter prefix of an identifier is kept: B24 is no F320.
    """
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "int" if isinstance(value, int) else "float"
    if not isinstance(value, str):
        return type(value).__name__
    if identifier := _IDENTIFIER.fullmatch(value):
        return f"{identifier[1]}9"
    plain = re.sub(r"\d+", "9", re.sub(r"[^\W\d_]+", "a", value[:80]))
    return re.sub(r"a(?:[ _'-]a)+", "a+", plain)


def words(name: str) -> tuple[str, ...]:
    """The lower-case words of an identifier: `tweetId`, `tweet_id`, `TWEET-ID` -> ("tweet", "id")."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[a-z]+|\d+", spaced.lower()))


def parts_of(name: str) -> list[str]:
    """The words of an identifier, abbreviations written out, numbering (1, A) left out."""
    plain = [word for word in words(name) if not word.isdigit()]
    longer = [word for word in plain if len(word) > 1] or plain
    return " ".join(ABBREVIATIONS.get(word, word) for word in longer).split()


def singular(noun: str) -> str:
    """The singular of a plain English plural; other words stay."""
    if noun.endswith("ies") and len(noun) > 4:
        return noun[:-3] + "y"
    if noun.endswith(("sses", "shes", "ches", "xes")):
        return noun[:-2]
    if noun.endswith("s") and not noun.endswith(("ss", "us", "is")) and len(noun) > 2:
        return noun[:-1]
    return noun


def _walk(value: Any, *, path: str, kind: str, key: str = "") -> Iterator[Row]:
    if isinstance(value, dict):
        yield from _object(value, path=path, kind=kind, key=key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            here = f"{path}[{index}]"
            if isinstance(item, dict | list):
                yield from _walk(item, path=here, kind=kind)
            elif item is not None:
                yield Row(here, kind, (Field(here, "", item),))


def _object(value: dict[str, Any], *, path: str, kind: str, key: str) -> Iterator[Row]:
    """The object's own row (with the key it is kept under, as field `key`), then those within."""
    fields, deeper = [], []
    for name, item in value.items():
        here = f"{path}.{name}" if path else name
        if isinstance(item, dict | list):
            deeper.append((name, item, here))
        elif item is not None:
            fields.append(Field(here, name, item))
    if fields:
        own = [Field(f"{path}.key" if path else "key", "key", key)] if key else []
        yield Row(path, kind, tuple(own + fields))
    scalars = {name: item for name, item in value.items() if isinstance(item, str | int | float)}
    if len(scalars) == len(value) > 1 and len({shape(item) for item in scalars.values()}) == 1:
        yield from (_entry(f"{path}.{name}", kind, name, item) for name, item in scalars.items())
    keyed = len(deeper) == len(value) and all(isinstance(item, dict) for _, item, _ in deeper)
    for name, item, here in deeper:
        noun = kind if keyed and kind else singular((words(name) or ("",))[-1])
        yield from _walk(item, path=here, kind=noun, key=name if isinstance(item, dict) else "")


def _lines(text: str) -> Iterator[Row]:
    """One row per line that says anything; cells where the line has any, words otherwise."""
    for index, line in enumerate(text.splitlines()[:_MAX_ROWS]):
        cells = _CELLS.split(line.strip()) if _CELLS.search(line.strip()) else _WORD.findall(line)
        fields = [Field(f"[{index}].{place}", "", cell) for place, cell in enumerate(cells) if cell]
        if fields:
            yield Row(f"[{index}]", "", tuple(fields))


def _entry(path: str, kind: str, key: str, value: Scalar) -> Row:
    """An entry of a map: values all alike under keys that may be data themselves."""
    return Row(path, kind, (Field(f"{path}.key", "key", key), Field(path, "id", value)))


def _lone(path: str, value: Scalar) -> Row:
    return Row(path, "", (Field(path, "", value),))
