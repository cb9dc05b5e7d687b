"""One call as an imperative clause: "reserve flight F12", from the tool's description and its arguments.

The description's first sentence gives verb and objects; an argument takes the place of the object that its
parameter is named after ("a booking" -> "booking B24") or follows with a preposition fit for its name ("from
Oslo"). Where the description uses the tool's own name as a word, another word of everyday English stands in.
English only; a description in another language is followed by its arguments. Not covered: joining clauses
(`phrasing`), references to results (`referring`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data import canonical
from data.messages import ToolSpec
from synthesizers.reading import singular, words
from synthesizers.wording import leaked_tool_name

_LOOK_UPS = {
    "list": "show me", "display": "show me", "show": "show me", "get": "get me", "fetch": "get me",
    "retrieve": "get me", "return": "tell me", "view": "show me", "see": "show me", "provide": "give me",
}  # fmt: skip
_VERBS = frozenset(
    [
        "activate",
        "add",
        "adjust",
        "analyze",
        "answer",
        "append",
        "apply",
        "approve",
        "archive",
        "ask",
        "assign",
        "authenticate",
        "block",
        "book",
        "buy",
        "calculate",
        "call",
        "cancel",
        "change",
        "check",
        "clear",
        "close",
        "comment",
        "compare",
        "compute",
        "confirm",
        "connect",
        "convert",
        "copy",
        "count",
        "create",
        "deactivate",
        "delete",
        "deliver",
        "describe",
        "detect",
        "determine",
        "disable",
        "display",
        "divide",
        "download",
        "edit",
        "enable",
        "estimate",
        "evaluate",
        "exchange",
        "execute",
        "exit",
        "extract",
        "fetch",
        "fill",
        "filter",
        "find",
        "finish",
        "follow",
        "gauge",
        "generate",
        "get",
        "give",
        "hand",
        "identify",
        "import",
        "increase",
        "insert",
        "invite",
        "invoke",
        "join",
        "like",
        "link",
        "list",
        "load",
        "lock",
        "log",
        "look",
        "make",
        "mark",
        "measure",
        "mention",
        "merge",
        "message",
        "modify",
        "move",
        "multiply",
        "name",
        "notify",
        "open",
        "order",
        "pay",
        "perform",
        "place",
        "plan",
        "play",
        "post",
        "predict",
        "press",
        "print",
        "process",
        "provide",
        "purchase",
        "query",
        "quote",
        "rate",
        "read",
        "rebook",
        "recommend",
        "record",
        "refund",
        "register",
        "release",
        "remove",
        "rename",
        "replace",
        "reply",
        "report",
        "request",
        "reserve",
        "reset",
        "resolve",
        "restart",
        "retrieve",
        "retweet",
        "return",
        "review",
        "rotate",
        "round",
        "run",
        "save",
        "schedule",
        "search",
        "see",
        "select",
        "sell",
        "send",
        "set",
        "share",
        "show",
        "sign",
        "simulate",
        "solve",
        "sort",
        "split",
        "start",
        "stop",
        "store",
        "submit",
        "subtract",
        "suggest",
        "summarize",
        "swap",
        "switch",
        "tag",
        "tell",
        "track",
        "trade",
        "transfer",
        "translate",
        "turn",
        "unblock",
        "unfollow",
        "unlock",
        "update",
        "upgrade",
        "upload",
        "use",
        "verify",
        "view",
        "visit",
        "withdraw",
        "write",
    ]
)
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "book": ("reserve",), "reserve": ("book",), "cancel": ("call off", "drop"), "drop": ("cancel", "call
    off"), "change": ("switch",), "move": ("shift", "switch"), "bookings": ("reservations",), "trips":
    ("bookings",), "flights": ("flight options",), "hotels": ("hotel options",), "room": ("hotel stay",),
    "upgrade": ("bump up",), "profile": ("membership details",), "find": ("look for",), "search": ("look",),
    "query": ("SQL",), "submit": ("hand in", "turn in"), "answer": ("result",), "tables": ("table layout",),
    "lookup": ("look",), "sort": ("order",), "comment": ("remark",), "mention": ("tag",), "retweet":
    ("repost",), "echo": ("write",), "mean": ("average",), "list": ("show",), "show": ("list",), "get":
    ("give",), "read": ("look at",), "write": ("put",), "open": ("bring up",), "close": ("shut",), "add":
    ("sum up",), "subtract": ("take away",), "divide": ("split",), "multiply": ("take the product of",),
    "count": ("tally",), "order": ("ask for",), "send": ("pass on",), "delete": ("remove",), "remove": ("take
    out",), "create": ("make",), "make": ("set up",), "update": ("revise",), "edit": ("revise",), "run":
    ("carry out",), "execute": ("run",), "start": ("begin",), "stop": ("end",), "check": ("look at",),
    "view": ("look at",), "buy": ("purchase",), "purchase": ("buy",), "sell": ("get rid of",), "post":
    ("publish",), "copy": ("duplicate",), "rename": ("give another name to",), "diff": ("difference",),
    "files": ("file list",), "power": ("exponent",), "calculate": ("work out",), "compute": ("work out",),
    "translate": ("put",), "convert": ("turn",), "logarithm": ("log",), "percentage": ("share",),
    "increment": ("raise",), "decrement": ("lower",),
}  # fmt: skip
_ABBREVIATIONS = {
    "src": "source", "dst": "destination", "dir": "directory", "num": "number", "qty": "quantity",
    "amt": "amount", "msg": "message", "desc": "description", "addr": "address", "loc": "location",
}  # fmt: skip
_PREPOSITIONS: Mapping[str, str] = {
    **dict.fromkeys(("from", "source", "origin", "departure", "start", "begin", "since"), "from"),
    **dict.fromkeys(("to", "destination", "dest", "target", "arrival", "end", "until", "recipient",
    "receiver"), "to"), **dict.fromkeys(("day", "date"), "on"),
    **dict.fromkeys(("city", "location", "place", "country", "town", "area", "region", "folder"), "in"),
    **dict.fromkeys(("time", "address", "email", "hour"), "at"),
    **dict.fromkeys(("keyword", "query", "pattern", "term", "topic", "price", "customer", "person"), "for"),
    **dict.fromkeys(("content", "message", "text", "body", "comment", "description", "resolution"), "saying"),
    **dict.fromkeys(("name", "title"), "called"),
}  # fmt: skip
_KINDS = ("id", "name", "number", "code", "key", "no")
_CREATES = ("create", "make", "add", "post", "write", "open", "register", "set")
_CUT = re.compile(
    r"\s*(?:[;:(\[]|\s-\s|,?\s(?:if|in case|such as|e\.g\.|i\.e\.|which|that|using|based on|given|where|when|"
    r"so that|by providing|with the given|for the (?:authenticated|current) user|of any extension|"
    r"(?:for|from|of) (?:a|the) (?:specified|given|particular))\b|, (?!and\b)).*$",
    re.IGNORECASE | re.DOTALL,
)
_OPENERS = re.compile(
    r"^(?:this|the)?\s*(?:tool|function|method|api|endpoint|command|operation)?\s*(?:is\s+)?"
    r"(?:used to|allows? (?:you|users?|the user) to|(?:tool|function|method) (?:to|for)|will|can|to)\s+",
    re.IGNORECASE,
)
_FOLLOWERS = frozenset(
    [
        "a",
        "an",
        "the",
        "all",
        "any",
        "one",
        "my",
        "your",
        "this",
        "each",
        "some",
        "new",
        "two",
        "up",
        "out",
        "in",
        "on",
        "for",
        "to",
        "from",
        "into",
        "specified",
        "current",
        "specific",
        "available",
        "multiple",
    ]
)
_LONG = 60
"""A value longer than this comes after a colon, at the end of its clause."""
_ARTICLES = r"(?:(?:a|an|the|one|my|your|any|some|another|the
final|this)\s+)?(?:(?:specific|specified|given|particular|certain|new|existing|desired)\s+)?"  # noqa: E501


@dataclass(slots=True)
class Slot:
    """A value that a clause says: `text` is how. `name` is the parameter's; references stand as they are."""

    name: str
    value: Any
    text: str
    reference: bool = False


@dataclass(slots=True)
class Clause:
    """An imperative with its values still as marks, so that wording can change without touching them."""

    text: str
    slots: list[Slot] = field(default_factory=list)

    def filled(self) -> str:
        """The clause with its values."""
        return re.sub(r"\x00(\d+)\x00", lambda mark: self.slots[int(mark[1])].text, self.text)


def clause_of(tool: ToolSpec, slots: Sequence[Slot], *, names: Sequence[str], rng: random.Random) -> Clause:
    """The clause of a call; `names` are the tool names it must not hold."""
    clause = Clause(_head(tool.description), list(slots))
    rest = [index for index in range(len(slots)) if not _put_in(clause, index)]
    rest.sort(key=lambda index: len(slots[index].text) > _LONG)
    clause.text += _adjuncts(clause, rest, _properties(tool))
    clause.text = unnamed(clause.text, names, rng=rng)
    return clause


def adjuncts_of(tool: ToolSpec, slots: Sequence[Slot]) -> Clause:
    """The values alone, each with its preposition: " from Oslo to Rome"."""
    clause = Clause("", list(slots))
    clause.text = _adjuncts(clause, list(range(len(slots))), _properties(tool))
    return clause


def shown_value(value: Any) -> str:
    """A value as a person writes it: names, numbers and ids bare, other text in quotes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return _listed([shown_value(item) for item in value])
    if isinstance(value, dict):
        return _listed([f"{' '.join(words(key))} {shown_value(item)}" for key, item in value.items()])
    text = str(value)
    bare = re.fullmatch(
        r"[A-Z][a-z]+(?: [A-Z]?[a-z]*\d*)*|[\w@#$-]*\d[\w:-]*|[A-Z]+\d*|-?\d[\d.,:/-]*\d", text
    )
    if not isinstance(value, str) or (bare and text == text.strip()):
        return text
    return f'"{text}"' if "'" in text or len(text) > _LONG or " " in text else f"'{text}'"


def noun_of(parameter: str) -> str:
    """What a parameter is about, for references: "flight" for flight_id, "one" where its name does not
    say."""
    parts = [singular(_ABBREVIATIONS.get(word, word)) for word in words(parameter) if not word.isdigit()]
    telling = [part for part in parts if part not in ("id", "key", "no")]
    return " ".join(telling) if telling and all(len(part) > 2 for part in telling) else "one"


def unnamed(text: str, names: Sequence[str], *, rng: random.Random) -> str:
    """`text` with every tool name in it replaced by another word, or left out where there is none."""
    for _ in range(32):
        name = leaked_tool_name(text, names)
        if not name:
            return text
        parts = [part for part in re.split(r"[\W_]+", name) if part]
        pattern = r"[\W_]+".join(map(re.escape, parts))
        found = re.search(rf"(?<![^\W_]){pattern}(?![^\W_])", text, re.IGNORECASE)
        assert found is not None
        text = text[: found.start()] + _otherwise(parts, rng) + text[found.end() :]
        text = re.sub(r"\s{2,}", " ", text).strip()
    return re.sub(r"[^\x00-\x20\d]+", " ", text).strip()


def _otherwise(parts: Sequence[str], rng: random.Random) -> str:
    """Other words for a name: a synonym of its first word that has one, an article between two words."""
    lower = [part.lower() for part in parts]
    for place, word in enumerate(lower):
        if word in _SYNONYMS:
            return " ".join([*lower[:place], rng.choice(_SYNONYMS[word]), *lower[place + 1 :]])
    if len(lower) > 1:
        return " ".join([lower[0], "the", *lower[1:]])
    return f"{singular(lower[0])} list" if singular(lower[0]) != lower[0] else ""


def _head(description: str) -> str:
    """The description's first sentence as an imperative, short; "" where there is none."""
    first = re.split(r"(?<=[\w)\"'])[.!](?:\s|$)", description.strip(), maxsplit=1)[0].strip(" .\n")
    first = _OPENERS.sub("", re.sub(r"\s+", " ", first))
    cut = _CUT.sub("", first)
    first = cut if len(cut.split()) > 1 else first
    verb, _, rest = first.partition(" ")
    base, follower = _base(verb.lower()), rest.split(" ")[0].lower()
    if base in _LOOK_UPS and rest:
        return f"{_LOOK_UPS[base]} {rest}"
    if base in _VERBS or (follower in _FOLLOWERS and verb.lower() not in _FOLLOWERS):
        return f"{base} {rest}".strip()
    if not first:
        return "help me"
    lowered = first if verb.isupper() and len(verb) > 1 else first[:1].lower() + first[1:]
    return f"tell me {lowered}"


def _base(verb: str) -> str:
    for ending, new in (("ies", "y"), ("es", "e"), ("es", ""), ("s", "")):
        if verb.endswith(ending) and verb[: -len(ending)] + new in _VERBS:
            return verb[: -len(ending)] + new
    return verb


def _put_in(clause: Clause, index: int) -> bool:
    """Put a value where the clause speaks of its kind of thing; False where it does not."""
    slot = clause.slots[index]
    parts = [_ABBREVIATIONS.get(word, word) for word in words(slot.name) if not word.isdigit()]
    entity = [part for part in parts if part not in _KINDS] or parts
    kind = parts[-1] if parts else ""
    creates = clause.text.split(" ")[0] in _CREATES
    for noun in (" ".join(entity), entity[-1] if entity else "", entity[0] if entity else ""):
        found = noun and re.search(rf"\b{_ARTICLES}{re.escape(noun)}\b(?! \x00)", clause.text, re.IGNORECASE)
        if not found or isinstance(slot.value, list | dict | bool) or found.start() == 0:
            continue
        if creates and kind in ("name", "title") and found[0].lower().startswith(("a ", "an ")):
            new = f"{found[0]} called \x00{index}\x00"
        elif creates and kind not in _KINDS:
            return False
        elif len(slot.text) > _LONG:
            clause.text = clause.text[: found.start()] + _demonstrative(found[0]) + clause.text[found.end() :]
            return False
        else:
            bare = slot.reference or (noun in _PREPOSITIONS and not slot.reference and kind == noun)
            new = f"\x00{index}\x00" if bare else f"{_named(found[0], noun)} \x00{index}\x00"
        clause.text = clause.text[: found.start()] + new + clause.text[found.end() :]
        return True
    return False


def _named(phrase: str, noun: str) -> str:
    return noun if phrase.lower().startswith(("a ", "an ", "the ", "one ")) or phrase == noun else phrase


def _demonstrative(phrase: str) -> str:
    return "this " + re.sub(r"^(?:a|an|the|one|my|your|any|some|this)\s+", "", phrase, flags=re.IGNORECASE)


def _adjuncts(clause: Clause, rest: Sequence[int], properties: Mapping[str, Any]) -> str:
    """The values not said yet, each with a preposition, " with" once and "and" after it."""
    text, withs = "", 0
    for index in rest:
        slot = clause.slots[index]
        parts = [_ABBREVIATIONS.get(word, word) for word in words(slot.name) if not word.isdigit()] or [
            "value"
        ]
        label, mark = " ".join(parts), f"\x00{index}\x00"
        preposition = next((_PREPOSITIONS[part] for part in reversed(parts) if part in _PREPOSITIONS), "")
        if isinstance(slot.value, bool):
            text += f" {'with' if slot.value else 'without'} {_option(slot.name, properties)}"
        elif len(slot.text) > _LONG and not slot.reference:
            text += f": {mark}" if preposition or label in clause.text.lower() else f", {label}: {mark}"
        elif isinstance(slot.value, int) and not slot.reference and parts[-1] != singular(parts[-1]):
            unit = singular(label) if slot.value == 1 else label
            text += f" for {mark} {unit}"
        elif preposition:
            text += f" {preposition} {mark}"
        elif slot.reference:
            text += f" with {mark}" if not withs else f" and {mark}"
            withs += 1
        else:
            text += f"{' with' if not withs else ' and'} {label} {mark}"
            withs += 1
    return text


def _option(name: str, properties: Mapping[str, Any]) -> str:
    """What a switch is about: its name, or its description's first words where the name is one letter."""
    label = " ".join(words(name))
    if len(label) > 2:
        return label
    described = str(properties.get(name, {}).get("description", "")).split(".")[0].split(",")[0]
    plain = re.sub(r"^(?:whether to|if true,?|show|display|include)\s+", "", described.lower()).strip()
    return plain or label


def _properties(tool: ToolSpec) -> dict[str, Any]:
    return canonical.loads(tool.parameters).get("properties") or {}


def _listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "none"
