"""What search_desk asks: a start and a path of relations, in words; one, two or three documents to read.

`compare` starts at the older of two entities. `unanswerable` asks for what the document does not say; the
right answer is then the typed refusal. A question never holds its answer. Not covered: counting, lists.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.environments.search_desk.world import World

REFUSAL = "REFUSE"
MAX_PAIRS = 1500
_HINTS = {"company<founder": "founded office seat", "work<author": "manuscript kept set"}
"""Words that tell the documents which point to somebody from the document about them."""


@dataclass(frozen=True, slots=True)
class Question:
    """`start`: kind of the first entity; `path`: relations to follow; `{x}` (and `{y}`) name the start."""

    name: str
    text: str
    start: str
    path: tuple[str, ...]
    tags: tuple[str, ...] = ()
    compare: bool = False
    unanswerable: bool = False
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One question drawn in a world: its words, its answer, and the way there.

    `way`: (what to search for, title to read), in order; every one of these documents is needed.
    """

    text: str
    answer: str
    way: tuple[tuple[str, str], ...]


QUESTIONS = (
    Question("author", "Who is {x} by?", "work", ("author",)),
    Question("birthplace", "In which city was {x} born?", "person", ("birthplace",)),
    Question("school", "Where did {x} study?", "person", ("school",)),
    Question("founder", "Who founded {x}?", "company", ("founder",)),
    Question("setting", "In which city is {x} set?", "work", ("setting",)),
    Question("birth_country", "In which country was {x} born?", "person", ("birthplace", "country")),
    Question("school_city", "In which city is the school {x} went to?", "person", ("school", "city")),
    Question(
        "author_birthplace", "In which city was the author of {x} born?",
        "work", ("author", "birthplace"),
    ),
    Question("author_school", "Where did the author of {x} study?", "work", ("author", "school")),
    Question("author_year", "In which year was the author of {x} born?", "work", ("author", "year")),
    Question("founder_school", "Where did the founder of {x} study?", "company", ("founder", "school")),
    Question(
        "seat_river", "Which river runs through the city where {x} has its seat?",
        "company", ("seat", "river"),
    ),
    Question("setting_country", "In which country is {x} set?", "work", ("setting", "country")),
    Question("school_country", "In which country is {x}?", "school", ("city", "country")),
    Question(
        "author_country", "In which country was the author of {x} born?",
        "work", ("author", "birthplace", "country")
    ),
    Question(
        "founder_river", "Which river runs through the birthplace of the founder of {x}?", "company",
        ("founder", "birthplace", "river"),
    ),
    Question(
        "birth_money", "What is the money called in the country where {x} was born?", "person",
        ("birthplace", "country", "currency"),
    ),
    Question(
        "author_school_city", "In which city is the school the author of {x} went to?", "work",
        ("author", "school", "city"),
    ),
    Question(
        "seat_money", "What is the money called in the country where {x} has its seat?", "company",
        ("seat", "country", "currency"),
    ),
    Question(
        "older_birthplace", "In which city was the older of {x} and {y} born?",
        "person", ("birthplace",), compare=True
    ),
    Question("older_work", "Who made the older of {x} and {y}?", "work", ("author",), compare=True),
    Question(
        "older_company", "Which river runs through the seat of the older of {x} and {y}?", "company",
        ("seat", "river"), compare=True,
    ),
    Question(
        "author_company", "Which company was founded by the author of {x}?",
        "work", ("author", "company<founder"),
    ),
    Question("founder_work", "Which work is by the founder of {x}?", "company", ("founder", "work<author")),
    Question(
        "no_birthplace", "In which city was {x} born?",
        "person", ("birthplace",), ("refuse",), unanswerable=True,
    ),
    Question(
        "author_school_country", "In which country is the school the author of {x} went to?", "work",
        ("author", "school", "city", "country"), unseen=True,
    ),
    Question(
        "older_school_country", "In which country is the older of the schools {x} and {y}?", "school",
        ("city", "country"), compare=True, unseen=True,
    ),
    Question(
        "founder_work_setting", "In which city is the work by the founder of {x} set?", "company",
        ("founder", "work<author", "setting"), unseen=True,
    ),
)  # fmt: skip


def draw_cases(question: Question, world: World, rng: random.Random) -> Iterator[Case]:
    """Every case of a question in a world, in a random order; pairs are sampled."""
    titles = list(world.by_kind[question.start])
    rng.shuffle(titles)
    starts: Iterator[tuple[str, ...]] = ((title,) for title in titles)
    if question.compare:
        starts = iter(dict.fromkeys(tuple(rng.sample(titles, 2)) for _ in range(MAX_PAIRS)))
    for names in starts:
        case = _case(question, world, names)
        if case is not None:
            yield case


def interleave(streams: list[Iterator[tuple[Question, Case]]]) -> Iterator[tuple[Question, Case]]:
    """Taking turns until all are used up."""
    for row in itertools.zip_longest(*streams):
        yield from (item for item in row if item is not None)


def _case(question: Question, world: World, names: tuple[str, ...]) -> Case | None:
    """None where the path does not lead anywhere, to several, or the words would tell."""
    text = question.text.format(x=names[0], y=names[-1])
    years = [world.entities[name].facts.get("year", "") for name in names]
    if len(set(years)) < len(names):
        return None
    title = min(zip(years, names, strict=True))[1]
    if question.unanswerable:
        missing = question.path[0] not in world.entities[title].facts
        return Case(text, REFUSAL, ((title, title),)) if missing else None
    way = [(name, name) for name in names]
    for relation, following in itertools.zip_longest(question.path, question.path[1:], fillvalue=""):
        try:
            before, title = title, world.fact(title, relation)
        except (LookupError, ValueError):
            return None
        if "<" in relation:
            way.append((f"{before} {_HINTS[relation]}", title))
        elif following and "<" not in following:  # who is asked about from the other side need not be read
            way.append((title, title))
    return None if title.lower() in text.lower() else Case(text, title, tuple(way))
