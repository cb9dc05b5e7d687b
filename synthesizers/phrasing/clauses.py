"""One call as an imperative clause: "reserve flight F12", from the tool's description and its arguments.

The description's first sentence gives verb and objects; an argument takes the place of the object that its
parameter is named after ("a booking" -> "booking B24") or follows with a preposition fit for its name ("from
Oslo"). Where the description uses a tool's name as a word, another word of everyday English stands in.
English only; a description in another language is followed by its arguments. Not covered: joining clauses
(`requests`), references to results (`referring`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from data.messages import ToolSpec
from synthesizers.grounding.reading import parts_of, singular, words
from synthesizers.grounding.scoring import Parameters
from synthesizers.phrasing.headings import imperative
from synthesizers.phrasing.vocabulary import (
    CREATES,
    KINDS,
    PREPOSITIONS,
    SYNONYMS,
)
from synthesizers.phrasing.wording import leaked_tool_name, name_in, parts_of_name

_DETERMINER = r"(?:(?:a|an|the|one|my|your|any|some|another|this|specified|multiple)\s+)?"
_QUALITY = r"(?:(?:final|specific|specified|given|particular|certain|new|existing|desired)\s+)?"
_COMPOUND = (
    r"(?:(?:an?|the|this|that|my|your|its|their)\s+)"
    r"(?:(?!(?:of|in|on|at|to|for|from|with|by|as|and|or|is|are|than|that|which)\b)\w+\s+){0,2}"
)
"""A determiner and words that may belong to the noun behind them: "this shelf " of "this shelf mark"."""
_LEADING = re.compile(r"^(?:a|an|the|one|my|your|any|some|this|specified|specific)\s+", re.IGNORECASE)
_INDEFINITE = re.compile(r"an? ", re.IGNORECASE)
_IDLE = re.compile(r"\b(a|the) (?:specific|specified|given|particular) ", re.IGNORECASE)
_OR_ELSE = re.compile(r"^ or (?:an? |the )?\w+")
_SOMETHING = ("take care of this", "do this for me", "handle this one", "see to it")
"""What is asked for where a description says nothing but the tool's name."""
_LONG = 60
"""A value longer than this comes after a colon, at the end of its clause."""
_BARE = re.compile(
    r"[A-Z][a-z]+(?: [A-Z]?[a-z]*\d*)*|[\w@#$-]*\d[\w:-]*|[A-Z]+\d*|-?\d[\d.,:/-]*\d|[\w.+-]+@[\w.-]+\w"
)


@dataclass(slots=True)
class Slot:
    """A value that a clause says: `text` is how. `name` is the parameter's; a reference is said as it is."""

    name: str
    value: Any
    text: str
    reference: bool = False

    @property
    def parts(self) -> list[str]:
        """The words of the parameter's name, written out, without numbering."""
        return parts_of(self.name)


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
    clause = Clause(imperative(tool.description), list(slots))
    placed = set(_put_pairs(clause))
    rest = [index for index in range(len(slots)) if index not in placed and not _put_in(clause, index)]
    rest.sort(key=lambda index: len(slots[index].text) > _LONG)
    head = unnamed(_IDLE.sub(r"\1 ", clause.text), names, rng=rng).strip()
    if not re.search(r"[^\W\d_]", head):
        head = f"{rng.choice(_SOMETHING)} {head}".strip()
    whole = head + _adjuncts(clause, rest, Parameters.of(tool).properties)
    clause.text = _with_articles(unnamed(whole, names, rng=rng))
    return clause


def adjuncts_of(tool: ToolSpec, slots: Sequence[Slot]) -> Clause:
    """The values alone, each with its preposition: " from Oslo to Rome"."""
    clause = Clause("", list(slots))
    clause.text = _adjuncts(clause, list(range(len(slots))), Parameters.of(tool).properties)
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
    if not isinstance(value, str) or _BARE.fullmatch(text):
        return text
    return f'"{text}"' if "'" in text or len(text) > _LONG or " " in text else f"'{text}'"


def noun_of(parameter: str) -> str:
    """What a parameter is about: "flight" for flight_id, "one" where its name does not say."""
    parts = [singular(part) for part in parts_of(parameter)]
    telling = [part for part in parts if part not in KINDS] or [part for part in parts if part == "name"]
    return " ".join(telling) if telling and all(len(part) > 2 for part in telling) else "one"


def unnamed(text: str, names: Sequence[str], *, rng: random.Random) -> str:
    """`text` with every tool name in it replaced by other words, or left out where there are none."""
    for _ in range(32):
        name = leaked_tool_name(text, names)
        if not name:
            return text
        found = name_in(text, name)
        assert found is not None
        text = text[: found.start()] + _otherwise(parts_of_name(name), rng) + text[found.end() :]
        text = re.sub(r" {2,}", " ", text)
    return re.sub(r"[^\x00 \d]+", "", text)


def _otherwise(parts: Sequence[str], rng: random.Random) -> str:
    """Other words for a name: a synonym of its first word that has one, an article between two words."""
    lower = [part.lower() for part in parts]
    for place, word in enumerate(lower):
        if word in SYNONYMS:
            return " ".join([*lower[:place], rng.choice(SYNONYMS[word]), *lower[place + 1 :]])
    if len(lower) > 1:
        return " ".join([lower[0], "the", *lower[1:]])
    return f"{singular(lower[0])} list" if singular(lower[0]) != lower[0] else ""


def _put_pairs(clause: Clause) -> Iterator[int]:
    """Put two values of one kind where the clause speaks of two: "two files" -> "files a and b"."""
    for one, other in combinations(range(len(clause.slots)), 2):
        first, second = clause.slots[one], clause.slots[other]
        if not first.parts or bool in (type(first.value), type(second.value)):
            continue
        if len(first.name) == len(second.name) == 1 and "two numbers" in clause.text:
            clause.text = clause.text.replace("two numbers", f"\x00{one}\x00 and \x00{other}\x00", 1)
            yield from (one, other)
            return
        if first.parts != second.parts or not isinstance(first.value, str | int):
            continue
        for noun in _entities(first.parts):
            plural = next((word for word in words(clause.text) if singular(word) == noun != word), "")
            found = plural and re.search(rf"\b(?:the |two |both )*{re.escape(plural)}\b", clause.text)
            if found:
                pair = f"{plural} \x00{one}\x00 and \x00{other}\x00"
                clause.text = clause.text[: found.start()] + pair + clause.text[found.end() :]
                yield from (one, other)
                return


def _entities(parts: Sequence[str]) -> list[str]:
    """The nouns a parameter may be about, the most telling first."""
    telling = [part for part in parts if part not in KINDS] or list(parts)
    return list(dict.fromkeys((" ".join(telling), telling[-1], telling[0]))) if telling else []


def _put_in(clause: Clause, index: int) -> bool:
    """Put a value where the clause speaks of its kind of thing; False where it does not."""
    slot = clause.slots[index]
    if isinstance(slot.value, dict | bool) or not slot.parts:
        return False
    whole = isinstance(slot.value, int | float | list)
    for noun in _entities(slot.parts)[: 1 if whole else None]:
        pattern = rf"\b{_DETERMINER}{_QUALITY}{re.escape(noun)}\b(?! \x00)"
        every = list(re.finditer(pattern, clause.text, re.IGNORECASE))
        found = next((one for one in every if _INDEFINITE.match(one[0])), next(iter(every), None))
        if found is not None and slot.reference:
            whole_phrase = rf"\b{_COMPOUND}{re.escape(noun)}\b(?! \x00)"
            found = re.search(whole_phrase, clause.text, re.IGNORECASE) or found
        if found is None or found.start() == 0:
            continue
        phrase = found[0]
        if len(slot.text) > _LONG and not slot.reference:
            new, said = f"this {_LEADING.sub('', phrase)}", False
        else:
            new, said = _replaced(phrase, noun, clause, index), True
        after = clause.text[found.end() :]
        clause.text = clause.text[: found.start()] + new + (_OR_ELSE.sub("", after) if said else after)
        return said
    return False


def _replaced(phrase: str, noun: str, clause: Clause, index: int) -> str:
    """The object with its value: "flight F12", "a new file called 'a.txt'", or the reference alone."""
    slot, mark = clause.slots[index], f"\x00{index}\x00"
    indefinite = _INDEFINITE.match(phrase)
    if slot.reference:
        return mark
    is_name = any(part in ("name", "title") for part in slot.parts)
    if clause.text.split(" ")[0] in CREATES and is_name and indefinite:
        return f"{phrase} called {mark}"
    if indefinite or re.match(r"(?:one|specified|specific|any|some|another) ", phrase, re.IGNORECASE):
        return f"the {noun} {mark}" if is_name else f"{noun} {mark}"
    return f"{phrase} {mark}"


def _adjuncts(clause: Clause, rest: Sequence[int], properties: Mapping[str, Any]) -> str:
    """The values not said yet, each with a preposition; a preposition said twice in a row becomes "and"."""
    text, before = "", ""
    for index in rest:
        preposition, said = _adjunct(clause, index, properties)
        same = preposition == before and preposition not in ("", ":")
        text += f" and{said}" if same else f"{preposition if preposition == ':' else ' ' + preposition}{said}"
        before = preposition
    return text.replace("  ", " ")


def _adjunct(clause: Clause, index: int, properties: Mapping[str, Any]) -> tuple[str, str]:
    """(preposition, " value") of one argument."""
    slot, mark = clause.slots[index], f"\x00{index}\x00"
    parts = slot.parts or ["value"]
    label = " ".join(parts)
    preposition = next((PREPOSITIONS[part] for part in reversed(parts) if part in PREPOSITIONS), "")
    if isinstance(slot.value, bool):
        option = _option(slot.name, properties)
        return ("with" if slot.value else "without"), f" {option}"
    if len(slot.text) > _LONG and not slot.reference:
        known = preposition or label in clause.text.lower()
        return (":", f" {mark}") if known else ("with", f" this {label}: {mark}")
    if isinstance(slot.value, int) and not slot.reference and parts[-1] != singular(parts[-1]):
        unit = " ".join([*parts[:-1], singular(parts[-1])]) if slot.value == 1 else label
        return "for", f" {mark} {unit}"
    if preposition or slot.reference:
        return preposition or "with", f" {mark}"
    if label in ("value", "input"):
        return ":", f" {mark}"
    return "with", f" {label} = {mark}" if len(label) == 1 else f" {label} {mark}"


def _option(name: str, properties: Mapping[str, Any]) -> str:
    """What a switch is about: its name, or its description's first words where the name is one letter."""
    label = " ".join(parts_of(name))
    if len(label) > 2:
        return f"the {label} option"
    described = str(properties.get(name, {}).get("description", "")).split(".")[0].split(",")[0]
    plain = re.sub(r"^(?:whether to|if true,?|show|display|include)\s+", "", described.lower()).strip()
    return plain or f"option {label}"


def _with_articles(text: str) -> str:
    """ "a exponent" -> "an exponent", "an dish" -> "a dish": after words were exchanged."""
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)
    return re.sub(r"\b([Aa])n (?=[b-df-gj-np-tv-z])", r"\1 ", text)


def _listed(items: Sequence[str]) -> str:
    if not items:
        return "none"
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
