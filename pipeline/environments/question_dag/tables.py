"""Invented tables of six subjects: what the questions that need no model are about.

Each subject has three kinds of thing, each thing of a later kind belongs to one of the kind before (a ship to
its port). A thing has a name made of syllables, two numbers and a word. A world is a word such as "train/3";
the splits use different worlds, so that nothing learnt by heart in training answers a held-out question. No
text is taken from anywhere and no thing exists. Not covered: things that change.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
Tables = dict[str, dict[str, Row]]
"""Kind to name to row; a row holds numbers, a word, and the name it belongs to under the kind's own name."""

SIZES = (6, 13, 20)
"""Things of the first, second and third kind of a subject."""
_SYLLABLES = (
    "ba", "bri", "cho", "dar", "dro", "el", "fen", "gol", "gru", "hes", "ib", "jor", "ka", "lum", "mar", "mi",
    "nor", "nu", "or", "pe", "qua", "ri", "sul", "ta", "thi", "ul", "va", "vor", "wen", "xi", "yar", "ze",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing: numbers with their ranges, a word with its values, the kind it belongs to."""

    name: str
    plural: str
    numbers: dict[str, tuple[int, int]]
    word: str
    values: tuple[str, ...]
    parent: str = ""
    of: str = ""
    """How things are said to belong: `ships based at` a port."""


def _k(name: str, plural: str, first: str, second: str, word: str, parent: str = "", of: str = "") -> Kind:
    """`first` and `second` are written "crew 10 90", `word` "rig sloop ketch"."""
    numbers = {}
    for text in (first, second):
        label, low, high = text.split()
        numbers[label] = (int(low), int(high))
    label, *values = word.split()
    return Kind(name, plural, numbers, label, tuple(values), parent, of)


SUBJECTS: dict[str, tuple[Kind, ...]] = {
    "harbour": (
        _k("port", "ports", "berths 4 60", "depth 6 40", "coast north south east west"),
        _k("ship", "ships", "crew 8 95", "length 20 190", "rig sloop ketch brig barque", "port", "based at"),
        _k("voyage", "voyages", "days 3 80", "cargo 12 600", "season spring summer", "ship", "made by"),
    ),
    "mining": (
        _k("mineral", "minerals", "hardness 1 99", "price 20 900", "colour red green grey violet"),
        _k("mine", "mines", "shafts 2 40", "output 30 950", "terrain hill marsh ridge", "mineral", "for"),
        _k("load", "loads", "weight 5 300", "toll 2 75", "cover canvas tin none", "mine", "from"),
    ),
    "workshop": (
        _k("alloy", "alloys", "density 20 99", "cost 15 700", "finish dull bright brushed"),
        _k("machine", "machines", "power 5 400", "mass 40 980", "drive belt chain gear", "alloy", "made of"),
        _k("part", "parts", "teeth 6 90", "width 2 70", "shape round oval square", "machine", "of"),
    ),
    "sky": (
        _k("star", "stars", "brightness 1 99", "distance 4 800", "tint blue white amber"),
        _k("planet", "planets", "moons 1 40", "orbit 30 900", "ground ice rock sand", "star", "around"),
        _k("crater", "craters", "span 3 250", "age 10 990", "rim sharp worn broken", "planet", "on"),
    ),
    "orchard": (
        _k("valley", "valleys", "area 10 500", "rainfall 20 180", "soil clay chalk loam"),
        _k("grove", "groves", "trees 20 800", "workers 2 45", "fruit pear plum quince fig", "valley", "in"),
        _k("press", "presses", "barrels 4 200", "volume 10 350", "motor water steam hand", "grove", "at"),
    ),
    "archive": (
        _k("hall", "halls", "rooms 2 40", "shelves 30 700", "style plain vaulted domed"),
        _k("cabinet", "cabinets", "drawers 4 60", "keys 1 12", "wood oak ash elm", "hall", "kept in"),
        _k("scroll", "scrolls", "lines 20 900", "seals 1 15", "ink black brown red", "cabinet", "stored in"),
    ),
}  # fmt: skip
KINDS: dict[str, Kind] = {kind.name: kind for kinds in SUBJECTS.values() for kind in kinds}


@functools.lru_cache(maxsize=256)
def make_tables(subject: str, world: str) -> Tables:
    """The tables of a subject in a world; shared, so never change them."""
    rng = random.Random(f"question_dag/{subject}/{world}")
    names = iter(_names(rng, sum(SIZES)))
    tables: Tables = {}
    for kind, size in zip(SUBJECTS[subject], SIZES, strict=True):
        parents = list(tables.get(kind.parent, ()))
        tables[kind.name] = {next(names): _row(kind, rng, parents) for _ in range(size)}
    return tables


def _row(kind: Kind, rng: random.Random, parents: list[str]) -> Row:
    row: Row = {label: rng.randint(*span) for label, span in kind.numbers.items()}
    row[kind.word] = rng.choice(kind.values)
    return row | ({kind.parent: rng.choice(parents)} if parents else {})


def _names(rng: random.Random, number: int) -> list[str]:
    """Distinct names of 4 to 10 letters."""
    names: dict[str, None] = {}
    while len(names) < number:
        word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((2, 3, 3))))
        if len(word) >= 4:
            names[word.capitalize()] = None
    return list(names)
