"""The made-up encyclopaedia: a seeded invented world of people, places, companies, schools and works.

Every name is put together from syllables, so no model can know a fact and no licence applies to a text. A
world is a number; the splits use different worlds, so that nothing learnt by heart in training answers a
held-out question. Texts hold distractors: other cities and years beside the asked ones, shared family names,
works of like titles. Not covered: long documents, facts that change, contradictions between documents.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

_SYLLABLES = (
    "ba", "bri", "cho", "dar", "dro", "el", "fen", "gol", "gru", "hesh", "ib", "jor", "ka", "kel", "lum",
    "mar", "mi", "nor", "nu", "or", "pe", "qua", "ri", "sha", "sul", "ta", "thi", "ul", "va", "vor", "wen",
    "xi", "yar", "ze",
)  # fmt: skip
_PROFESSIONS = ("painter", "poet", "engineer", "singer", "botanist", "judge", "clockmaker", "sailor")
_KINDS = ("novel", "opera", "film", "poem", "play")
_THINGS = (
    "Lanterns",
    "Bells",
    "Gardens",
    "Shadows",
    "Letters",
    "Rivers",
    "Masks",
    "Towers",
    "Songs",
    "Winters",
)
_PRODUCTS = ("pumps", "glass", "clocks", "rope", "paint", "sails", "lamps", "paper")
_FORMS = ("Works", "Brothers", "Company", "Mills")
NUM = {"country": 20, "city": 160, "school": 150, "person": 820, "company": 360, "work": 720}
NO_BIRTHPLACE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Entity:
    """One document and its facts: relation to the name of another entity, a word, or a year."""

    title: str
    kind: str
    text: str
    facts: dict[str, str]


@dataclass(frozen=True, slots=True)
class World:
    """Entities by title, and titles by kind, in a fixed order."""

    entities: dict[str, Entity]
    by_kind: dict[str, tuple[str, ...]]

    def fact(self, title: str, relation: str) -> str:
        """What the document says; `relation` may be reversed (`company<founder`): the one that points here.

        Raises LookupError where there is none, or not exactly one.
        """
        kind, reverse, forward = relation.partition("<")
        if not reverse:
            return self.entities[title].facts[relation]
        [found] = [
            other for other in self.by_kind[kind] if self.entities[other].facts.get(forward) == title
        ] or [""]
        if not found:
            raise LookupError(f"no {kind} has {title} as {forward}")
        return found


@functools.lru_cache(maxsize=4)
def make_world(number: int) -> World:
    """The `number`-th world."""
    return _Maker(random.Random(f"search_desk/{number}")).make()


class _Maker:
    """Draws one world."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._used: set[str] = set()
        self._words: set[str] = set()
        self._entities: dict[str, Entity] = {}
        self._families = tuple(self._own_word() for _ in range(150))
        self._names = {kind: [self._name(kind) for _ in range(count)] for kind, count in NUM.items()}
        self._rivers = [self._word(2) for _ in range(70)]
        self._currencies = [self._word(2).lower() for _ in range(NUM["country"])]

    def make(self) -> World:
        for kind in NUM:
            for index, name in enumerate(self._names[kind]):
                facts, sentences = getattr(self, f"_{kind}")(name, index)
                text = " ".join(sentence for sentence in sentences if sentence)
                self._entities[name] = Entity(name, kind, text, facts)
        return World(self._entities, {kind: tuple(names) for kind, names in self._names.items()})

    def _country(self, name: str, index: int) -> tuple[dict[str, str], list[str]]:
        facts = {"capital": self._names["city"][index], "currency": self._currencies[index]}
        lead = self._one(
            f"{name} is a country whose capital is {facts['capital']}.",
            f"The capital of the country {name} is {facts['capital']}.",
        )
        neighbour = f"To the north lies {self._other('country', name)}."
        return facts, [lead, f"Its money is called the {facts['currency']}.", neighbour]

    def _city(self, name: str, index: int) -> tuple[dict[str, str], list[str]]:
        countries = self._names["country"]
        country = countries[index] if index < len(countries) else self.rng.choice(countries)
        facts = {"country": country, "river": self.rng.choice(self._rivers), "year": self._year(900, 1700)}
        lead = self._one(f"{name} is a city in {country}.", f"The city of {name} lies in {country}.")
        return facts, [
            lead,
            f"The river {facts['river']} runs through it.",
            f"It was founded in {facts['year']} and fell to fire in {self._year(1701, 1790)}.",
        ]

    def _school(self, name: str, index: int) -> tuple[dict[str, str], list[str]]:
        facts = {"city": self._any("city"), "year": self._year(1650, 1850)}
        return facts, [
            f"{name} is a school in {facts['city']}, opened in {facts['year']}.",
            f"It is often compared with {self._other('school', name)}.",
        ]

    def _person(self, name: str, index: int) -> tuple[dict[str, str], list[str]]:
        facts = {"year": self._year(1800, 1960), "school": self._any("school")}
        job, lived = self.rng.choice(_PROFESSIONS), self._any("city")
        if self.rng.random() < NO_BIRTHPLACE_SHARE:
            lead = f"{name}, a {job}, was born in {facts['year']}."
        else:
            facts["birthplace"] = self._any("city")
            lead = self._one(
                f"{name} is a {job} who was born in {facts['birthplace']} in {facts['year']}.",
                f"Born in {facts['birthplace']} in {facts['year']}, {name} became a {job}.",
            )
        return facts, [lead, f"{name} studied at {facts['school']} and later lived in {lived}."]

    def _company(self, name: str, index: int) -> tuple[dict[str, str], list[str]]:
        facts = {"founder": self._any("person"), "seat": self._any("city"), "year": self._year(1820, 1990)}
        return facts, [
            f"{name} makes {self.rng.choice(_PRODUCTS)} and has its seat in {facts['seat']}.",
            f"{facts['founder']} founded it in {facts['year']}.",
            f"An office in {self._any('city')} was closed in {self._year(1991, 2010)}.",
        ]

    def _work(self, name: str, index: int) -> tuple[dict[str, str], list[str]]:
        facts = {"author": self._any("person"), "setting": self._any("city"), "year": self._year(1830, 1999)}
        kind = self.rng.choice(_KINDS)
        return facts, [
            f"{name} is a {kind} of {facts['year']} by {facts['author']}, set in {facts['setting']}.",
            f"The manuscript is kept in {self._any('city')}.",
        ]

    def _name(self, kind: str) -> str:
        rng = self.rng
        while True:
            if kind == "person":
                name = f"{self._word(2)} {rng.choice(self._families)}"
            elif kind == "work":
                name = f"{rng.choice(_THINGS)} of {rng.choice(self._families)}"
            elif kind == "company":
                name = f"{self._own_word()} {rng.choice(_FORMS)}"
            else:
                name = self._own_word() + (" Academy" if kind == "school" else "")
            if name not in self._used:
                self._used.add(name)
                return name

    def _own_word(self) -> str:
        """A word of three syllables that stands in no other name, so that a name finds its document."""
        while True:
            word = self._word(3)
            if word not in self._words:
                self._words.add(word)
                return word

    def _word(self, syllables: int) -> str:
        return "".join(self.rng.choice(_SYLLABLES) for _ in range(syllables)).capitalize()

    def _year(self, low: int, high: int) -> str:
        return str(self.rng.randint(low, high))

    def _any(self, kind: str) -> str:
        return self.rng.choice(self._names[kind])

    def _other(self, kind: str, name: str) -> str:
        return self.rng.choice([other for other in self._names[kind] if other != name])

    def _one(self, *texts: str) -> str:
        return self.rng.choice(texts)
