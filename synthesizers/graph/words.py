"""Words of names and descriptions, split and made comparable: CamelCase, snake_case, plurals.

English only; where names are in another language, observation and judges are what is left.
"""

from __future__ import annotations

import functools
import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_STOP = """
    a an and any are as at be by can each for from get has have if in into is it its of on one or other per
    set that the their then this to use used using was what when where which who will with you your
"""
STOP = frozenset(_STOP.split())
KINDS = {
    **dict.fromkeys(("id", "identifier", "key", "ref", "reference"), "id"),
    **dict.fromkeys(("number", "no", "num"), "number"),
    "code": "code",
    **dict.fromkeys(("name", "title", "label"), "name"),
    **dict.fromkeys(("status", "state", "success"), "status"),
    **dict.fromkeys(("type", "kind", "mode", "format"), "type"),
    **dict.fromkeys(("count", "total", "amount", "quantity", "size"), "count"),
    **dict.fromkeys(("content", "description", "text", "message", "line", "string", "quoted"), "text"),
    **dict.fromkeys(("value", "result", "data", "info", "information", "detail", "output", "response"), ""),
    **dict.fromkeys(("item", "list", "array", "entry", "record", "object", "input", "option"), ""),
}
"""Words that say which aspect of a thing is meant, not which thing; "" where they say nothing. Ours."""
_VERBS = """
    add analyze apply authenticate book buy calc calculate cancel change check close compare compute convert
    create delete determine display do estimate evaluate fetch filter find generate get identify list look
    lookup make modify move obtain open order place predict process provide query rate read recommend remove
    reserve resolve retrieve return run save schedule search see send set show solve sort start stop submit
    track update view write
"""
VERBS = frozenset(_VERBS.split())
"""First words of tool names that say what is done, not to what. Ours."""
_SILENT = "add cancel close delete remove reset send set start stop submit update write"
SILENT = frozenset(_SILENT.split())
"""Tools that begin so are taken to answer nothing to carry on, where nothing is known of results. Ours."""
_PREPOSITIONS = "about as at between by for from given in into near of on per through to using via with"
PREPOSITIONS = frozenset(_PREPOSITIONS.split())


@functools.lru_cache(maxsize=100_000)
def words(text: str) -> tuple[str, ...]:
    """Lower-case singular words in order, without stop words and digits; reads 2,000 characters at most."""
    found = (_singular(word.casefold()) for word in _WORD.findall(text[:2_000]))
    return tuple(word for word in found if word not in STOP and len(word) > 1)


@functools.lru_cache(maxsize=100_000)
def port_words(name: str) -> tuple[str, ...]:
    """The words of a port's name; unlike in `words`, "from" and "to" stay: they tell two ports apart."""
    found = (_singular(word.casefold()) for word in _WORD.findall(name[:200]))
    return tuple(word for word in found if word in ("from", "to") or (word not in STOP and len(word) > 1))


def parts(text: str) -> tuple[str, ...]:
    """All words of a name in order, lower-case, as they are written."""
    return tuple(word.casefold() for word in _WORD.findall(text[:2_000]))


def nouns(name: str) -> tuple[str, ...]:
    """The words of a tool's name that say what it deals with; verbs and words of KINDS are left out."""
    return tuple(word for word in words(name) if word not in VERBS and word not in KINDS)


def _singular(word: str) -> str:
    if len(word) < 4 or word.endswith(("ss", "us", "is", "series")):
        return word
    if word != "movies" and word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") else word
