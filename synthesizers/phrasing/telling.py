"""A tool's answer as something to tell: short values, names of rows, or a question for one thing of it.

Read as JSON (an object, a list of them, an object around one list), as lines that begin with what they are
about, or as prose. What the call was given is no news. Not covered: which answers are to be told (`saying`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.environments.blueprint import MAX_MUST_SAY
from synthesizers.graph.fields import fields_of
from synthesizers.grounding.reading import decoded, rows_of, words
from synthesizers.phrasing.wording import mentions

FEW = 2
"""Telling values of a row that are all repeated. Ours."""
_SENTENCE = 3
"""Words from which on a line whose only capital is the first letter is a sentence. Ours."""
MOST_WORDS = 4
"""Words that a user has quoted to him. Ours."""
_TELLING = re.compile(r"[A-Z0-9$#@]")
_HEAD = re.compile(r"\s*([A-Za-z_]\w*)(?=[(|\t:]|\s*\|)|\s*(\S*[A-Z0-9$#@]\S*)")
"""What a line is about: a name before a bracket or a cell's end, or a first word that looks like a name."""
_PIECE = re.compile(r"[^/\\,;|]+")
_VALUE_BELOW = re.compile(r"[^\n|\t]+\n[ ]*(-?[\w.$:/-]+)")
_ASKS = frozenset(("get", "is", "has", "can", "check", "estimate", "find", "search", "list", "show", "view"))
"""Words of a tool's name by which its yes or no is an answer, not the outcome of something done. Ours."""
_NUMBERS = ("", "first word", "first two words", "first three words", "first four words")


class Question(NamedTuple):
    """What a request asks in so many words, and the answer to it."""

    text: str = ""
    answer: str = ""


class Answer(NamedTuple):
    """`values`: all that is to be told. Where there are none, `question` asks for one thing, and `first` is
    what a reply holds that cannot be asked for."""

    values: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    question: Question = Question()


def read_telling(text: str, *, given: str, tool: str, most: int) -> Answer:
    """What an answer tells. `given`: the call's arguments as text; `tool`: its name; `most` rows are told."""

    def is_new(value: Any) -> bool:
        return bool(re.search(r"\w", str(value))) and not mentions(given, str(value))

    value, asks = _unwrapped(decoded(text)), bool(_ASKS & set(words(tool)))
    if value is None or isinstance(value, bool):
        value = {"": value}
    if isinstance(value, dict):
        return _record(_named(value), is_new, asks=asks)
    if isinstance(value, list):
        return _items(value, is_new, most=most)
    return _lines(value, is_new, most=most) if isinstance(value, str) else _single(str(value), is_new)


def value_below(text: str) -> str:
    """The value of a table of one column and one row, whatever its heading; "" for anything else."""
    found = _VALUE_BELOW.fullmatch(text.strip())
    return found[1] if found else ""


def _unwrapped(value: Any) -> Any:
    """The list or object that an object is wrapped around; the one element of a list."""
    while True:
        if isinstance(value, dict):
            inner = [item for item in value.values() if isinstance(item, dict | list)]
            if len(inner) != 1 or (isinstance(inner[0], dict) and len(value) > 1):
                return value
            value = inner[0]
        elif isinstance(value, list) and len(value) == 1:
            value = value[0]
        else:
            return value


def _named(value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(what it is called, value) of an object's scalars, those of inner objects behind its own."""
    own = [(key, item) for key, item in value.items() if not isinstance(item, dict | list)]
    inner = [pair for item in value.values() if isinstance(item, dict) for pair in _named(item)]
    return [(key, item) for key, item in [*own, *inner] if item is not None]


def _record(fields: Sequence[tuple[str, Any]], is_new: Callable[[Any], bool], *, asks: bool) -> Answer:
    telling = [(key, str(item)) for key, item in fields if not isinstance(item, bool) and is_new(item)]
    short = [(key, item) for key, item in telling if len(item) <= MAX_MUST_SAY]
    if len(telling) == 1 and not short:
        return _single(telling[0][1], is_new)
    if short and len(telling) <= FEW and len(short) == len(telling):
        return Answer(tuple(item for _, item in short))
    for key, item in short:
        return Answer(first=(item,), question=Question(f"What is the {_label(key)}?", item))
    yes = [item for _, item in fields if isinstance(item, bool)]
    if asks and len(yes) == 1 and not telling:
        return Answer(question=Question("Yes or no?", "yes" if yes[0] else "no"))
    return Answer()


def _items(items: Sequence[Any], is_new: Callable[[Any], bool], *, most: int) -> Answer:
    """A list: what each is called, where it has a name of its own."""
    if items and all(isinstance(item, dict) for item in items):
        key, names = _naming(items)
        last = f"What is the {_label(key)} of the last one?"
    else:
        names = [] if any(isinstance(item, dict | list) for item in items) else [str(item) for item in items]
        last = "Which one comes last?"
    return _rows(names, len(items), is_new, most=most, last=last)


def _naming(items: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """The key by which objects are told apart, and what each has there; names before numbers."""
    for kinds in ((str,), (int, float)):
        for key in items[0]:
            held = [item.get(key) for item in items]
            plain = all(isinstance(each, kinds) and not isinstance(each, bool) for each in held)
            names = [str(each) for each in held]
            if plain and len(set(names)) == len(names) and all(_is_name(name) for name in names):
                return key, names
    return "", []


def _lines(text: str, is_new: Callable[[Any], bool], *, most: int) -> Answer:
    """Lines of text: a table or rows that begin with what they are about, one row, or prose."""
    lines = [line for line in text.splitlines() if line.strip()]
    if alone := value_below(text):
        return _single(alone, is_new)
    if len(lines) == 1:
        return _line(lines[0], is_new)
    fields = fields_of(text)
    if len(lines) > 1 and fields and all(field.path.startswith("[].") for field in fields):
        column = fields[0].path
        names = [str(field.value) for field in fields if field.path == column]
        return _rows(names, len(lines) - 1, is_new, most=most, last="Which one comes last?")
    heads = [_HEAD.match(line) for line in lines]
    if lines and all(heads):
        names = [(head[1] or head[2]).strip(",.;:") for head in heads if head]
        if len(set(names)) == len(names):
            return _rows(names, len(lines), is_new, most=most, last="Which one comes last?")
    return Answer(question=_quoted(lines[0] if lines else "", is_new))


def _line(line: str, is_new: Callable[[Any], bool]) -> Answer:
    """One row of words: those that look like names or numbers. A sentence is quoted."""
    values = [str(field.value) for row in rows_of(line) for field in row.fields]
    looks = [value for value in values if _TELLING.search(value)]
    sentence = len(values) >= _SENTENCE and all(value.isalpha() and value == values[0] for value in looks)
    telling = [] if sentence else [value for value in looks if is_new(value)]
    if telling and all(len(value) <= MAX_MUST_SAY for value in telling[:FEW]):
        return Answer(tuple(telling if len(telling) <= FEW else telling[:1]))
    return Answer() if 1 < len(values) < _SENTENCE and not looks else _single(line.strip(), is_new)


def _rows(names: Sequence[str], count: int, is_new: Callable[[Any], bool], *, most: int, last: str) -> Answer:
    """Several rows: all their names where they are few, else the last one or how many there are."""
    named = len(names) == count > 0 and all(map(_is_name, names))
    told = tuple(dict.fromkeys(filter(is_new, names))) if named else ()
    if told and count <= most:
        return Answer(told)
    if named and is_new(names[-1]):
        return Answer(question=Question(last, names[-1]))
    return Answer(question=Question("How many are there?", str(count))) if count > 1 else Answer()


def _single(text: str, is_new: Callable[[Any], bool]) -> Answer:
    """One value: itself, the longest part of a path or an address, or how a text begins."""
    if len(text) <= MAX_MUST_SAY:
        return Answer((text,) if is_new(text) else ())
    parts = [part.strip() for part in _PIECE.findall(text)] if "\n" not in text else []
    whole = len(parts) > 1 and all(len(part.split()) <= MOST_WORDS for part in parts)
    names = [part for part in parts if whole and _is_name(part) and is_new(part)]
    if names:
        return Answer((max(names, key=len),))
    return Answer(question=_quoted(text, is_new))


def _quoted(text: str, is_new: Callable[[Any], bool]) -> Question:
    """The question for the first words of a text; none where they are no news."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    for number in range(MOST_WORDS, 0, -1):
        said = " ".join(first.split()[:number]).strip(" .,;:!?\"'()[]-")
        if len(first.split()) >= number and 1 < len(said) <= MAX_MUST_SAY and is_new(said):
            return Question(f"What {'is its' if number == 1 else 'are its'} {_NUMBERS[number]}?", said)
    return Question()


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_MUST_SAY and "\n" not in text


def _label(key: str) -> str:
    return key if key.isupper() else " ".join(words(key)) or key
