"""A program that reads a request back into the tools it asks for: the way back of the round trip, without a
model.

It knows the documents of the tools shown and a thesaurus of everyday verbs, not the chain. The request is cut
at its joints ("and", ", then", sentence ends); a piece goes to the tool whose name, description and
parameters share the most telling words with it; a piece that says nothing of its own belongs to the one
before. Two tools that fit equally well make the request ambiguous, which is a reading without a chain. Not
covered: what a person would understand (`chains_roles`, the readers that are models).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from data import canonical
from data.messages import ToolSpec
from synthesizers.grounding.reading import singular, words
from synthesizers.phrasing.headings import imperative
from synthesizers.phrasing.vocabulary import LOOK_UPS, SYNONYMS, VERBS

_STOP = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "to",
        "in",
        "on",
        "at",
        "for",
        "with",
        "and",
        "or",
        "is",
        "are",
        "it",
        "its",
        "this",
        "that",
        "my",
        "your",
        "me",
        "you",
        "i",
        "d",
        "hey",
        "can",
        "could",
        "would",
        "please",
        "now",
        "then",
        "next",
        "ok",
        "thanks",
        "great",
        "like",
        "need",
        "by",
        "from",
        "as",
        "be",
        "if",
        "given",
        "any",
        "all",
        "one",
        "some",
        "which",
        "what",
        "so",
        "do",
    ]
)
_JOINT = re.compile(r"((?:,? and after that|,? and then|, then|, and|,| and)\s+|[.?!](?:\s+|$)|\s*\n\s*)")
_WEAK = re.compile(r"(?:, and|,| and)\s+")
_OTHERS = [other for others in SYNONYMS.values() for other in others]
_STARTS = VERBS | {phrase.split()[0] for phrase in (*LOOK_UPS.values(), *_OTHERS)} | {"put", "get", "mind"}
"""First words of a wish; what follows a weak joint without one belongs to the piece before it."""
_QUOTED = re.compile(r"\"[^\"]*\"|(?<!\w)'[^']*'(?!\w)")
_NAME, _HEAD, _DESCRIPTION, _PARAMETER = 2.0, 1.5, 1.0, 0.7
"""Weights of a word by where a tool's document has it. Ours."""
_VERB = 1.0
"""What a piece gains that starts with the verb of a tool's description, or another word for it. Ours."""
_ENOUGH = 0.8
"""Score below which a piece asks for nothing. Ours."""
_CLEAR = 1e-6
"""Least lead of the best tool over the second. Ours."""


_ORDER = 0.5
"""What a tool gains whose name's words stand in the piece in their order. Ours."""


class Reading(NamedTuple):
    """The tools read, in order; `unclear` says of which piece two tools fit equally, "" of none."""

    chain: tuple[str, ...]
    unclear: str = ""


class ProgramReader:
    """Reads requests for one set of shown tools."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._profiles = {tool.name: _profile(tool) for tool in tools}
        self._verbs = {tool.name: _verbs(tool) for tool in tools}
        spread = Counter(word for profile in self._profiles.values() for word in profile)
        count = len(self._profiles)
        self._rarity = {word: math.log((1 + count) / times) + 0.1 for word, times in spread.items()}

    def read(self, request: str) -> Reading:
        """The chain that a request asks for."""
        chain: list[str] = []
        for piece in _pieces(request):
            ranked = sorted(self._scores(piece).items(), key=lambda item: -item[1])
            if not ranked or ranked[0][1] < _ENOUGH:
                continue
            if len(ranked) > 1 and ranked[0][1] - ranked[1][1] < _CLEAR:
                return Reading(tuple(chain), f"{piece!r}: {ranked[0][0]} or {ranked[1][0]}")
            chain.append(ranked[0][0])
        return Reading(tuple(chain))

    def _scores(self, piece: str) -> dict[str, float]:
        said = _stems(piece)
        start = next((word for word in words(piece) if word not in _STOP), "")
        scores = {
            name: sum(profile[word] * self._rarity[word] for word in said if word in profile)
            for name, profile in self._profiles.items()
        }
        order = [singular(word) for word in words(piece)]
        return {
            name: score
            + (_VERB if score and start in self._verbs[name] else 0.0)
            + (_ORDER if _in_order(name, order) else 0.0)
            for name, score in scores.items()
        }


def _in_order(name: str, order: Sequence[str]) -> bool:
    """Whether a name of several words stands in a piece in its order: "gallon ... to liter"."""
    parts = [singular(word) for word in words(name) if word not in _STOP]
    if len(parts) < 2 or any(part not in order for part in parts):
        return False
    places = [order.index(part) for part in parts]
    return places == sorted(places)


def _profile(tool: ToolSpec) -> dict[str, float]:
    """Words that speak for a tool, with how strongly."""
    found: dict[str, float] = {}
    first, _, rest = tool.description.partition(".")
    properties: Mapping[str, object] = canonical.loads(tool.parameters).get("properties") or {}
    placed = [
        (_stems(" ".join(words(tool.name))), _NAME),
        (_synonyms(words(tool.name)), _NAME),
        (_stems(first), _HEAD),
        (_stems(rest[:400]), _DESCRIPTION),
        (_stems(" ".join(" ".join(words(name)) for name in properties)), _PARAMETER),
    ]
    for stems, weight in placed:
        for stem in stems:
            found[stem] = max(found.get(stem, 0.0), weight)
    return found


def _verbs(tool: ToolSpec) -> set[str]:
    """The first word of a description, other words for it, and how one asks where it is no verb: "tell"."""
    verb = singular(next(iter(words(tool.description[:200])), ""))
    others = (*SYNONYMS.get(verb, ()), LOOK_UPS.get(verb, ""), imperative(tool.description[:200]))
    return {verb, *(words(other)[0] for other in others if words(other))}


def _synonyms(parts: Sequence[str]) -> set[str]:
    return {stem for part in parts for other in SYNONYMS.get(part, ()) for stem in _stems(other)}


def _pieces(request: str) -> Iterator[str]:
    """Parts of a request between its joints; quoted text is nobody's wish and is left out."""
    parts = _JOINT.split(_QUOTED.sub(" ", request))
    piece = parts[0]
    for joint, after in zip(parts[1::2], parts[2::2], strict=True):
        first = (words(after) or ("",))[0]
        if _WEAK.fullmatch(joint) and first not in _STARTS:
            piece += joint + after
            continue
        yield piece.strip()
        piece = after
    yield piece.strip()


def _stems(text: str) -> set[str]:
    return {singular(word) for word in words(text) if word not in _STOP and not word.isdigit()}
