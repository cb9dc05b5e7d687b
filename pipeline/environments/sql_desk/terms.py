"""Business terms: labels that mean nothing by themselves, defined in a handbook the agent must look into.

Which label has which meaning, and with which numbers, is drawn for every handbook anew, so a question about
"amber customers" can only be answered after `lookup`. Each handbook also defines labels that are not asked
for, and the same label for other things. Not covered: definitions that build on each other.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.environments.sql_desk.data import TODAY, Data
from pipeline.environments.sql_desk.domains import DOMAINS, Domain
from pipeline.environments.sql_desk.templates import VALUES

_LABELS = ("amber", "core", "delta", "green", "key", "prime", "silver", "zeta")
MAX_DOCUMENTS = 2


class Meaning(NamedTuple):
    """In words, and as a condition on the table of who, aliased `w`; `{n}` is the handbook's number."""

    words: str
    condition: str
    numbers: tuple[int, ...]


_VALID = "({status} IS NULL OR {status} <> '{void}')"
_MEANINGS = (
    Meaning(
        "has a {event} with {day} in the last {n} days (today minus {n} days counts) that is not {void}",
        "{who_id} IN (SELECT {event_who} FROM {event} WHERE {day} >= date('{today}', '-{n} days') AND "
        + _VALID
        + ")",
        (30, 45, 60, 75, 90, 120),
    ),
    Meaning(
        "has a total {amount} of at least {n} over {events} that are not {void}",
        "{who_id} IN (SELECT {event_who} FROM {event} WHERE " + _VALID + " GROUP BY {event_who} "
        "HAVING sum({amount}) >= {n})",
        (6, 7, 8, 9, 10, 11),
    ),
    Meaning(
        "has at least {n} {events}, and a {contact}",
        "{contact} IS NOT NULL AND {who_id} IN (SELECT {event_who} FROM {event} GROUP BY {event_who} "
        "HAVING count(*) >= {n})",
        (2, 3, 4, 5),
    ),
    Meaning(
        "has no {event} with {day} in the last {n} days (today minus {n} days counts)",
        "{who_id} NOT IN (SELECT {event_who} FROM {event} WHERE {day} >= date('{today}', '-{n} days'))",
        (60, 90, 120, 150, 180),
    ),
    Meaning(
        "has a {event} of a {what} with {price} of {n} or more",
        "{who_id} IN (SELECT e.{event_who} FROM {event} e JOIN {what} t ON t.{what_id} = e.{event_what} "
        "WHERE t.{price} >= {n})",
        (40, 50, 60, 70, 80),
    ),
)


@dataclass(frozen=True, slots=True)
class TermTemplate:
    """A question about who a label covers; `{is_term}` stands for the label's condition."""

    name: str
    question: str
    sql: str


TERM_TEMPLATES = (
    TermTemplate(
        "term_list",
        "{who_name} of the {label} {whos} in {v_place} or with {since} before {v_since}?",
        "SELECT {who_name} FROM {who} WHERE {is_term} AND ({place} = '{v_place}' OR {since} < '{v_since}')",
    ),
    TermTemplate(
        "term_count",
        "How many {label} {whos} have {since} after {v_since}?",
        "SELECT count(*) FROM {who} WHERE {is_term} AND {since} > '{v_since}'",
    ),
    TermTemplate(
        "term_sum",
        "Total {amount} of all {events} of {label} {whos} since {v_from}?",
        "SELECT sum({amount}) FROM {event} WHERE {day} >= '{v_from}' AND {event_who} IN "
        "(SELECT {who_id} FROM {who} WHERE {is_term})",
    ),
)
TERM_VALUES = ("v_place", "v_since", "v_from")


@dataclass(frozen=True, slots=True)
class Handbook:
    """Documents by title, and the condition of every label of who."""

    documents: dict[str, str]
    conditions: dict[str, str]


@functools.lru_cache(maxsize=1024)
def make_handbook(name: str) -> Handbook:
    """The handbook `subject/key`."""
    domain, rng = DOMAINS[name.split("/")[0]], random.Random(f"sql_desk/book/{name}")
    names = domain.names() | {"today": TODAY.isoformat()}
    labels = rng.sample(_LABELS, len(_MEANINGS))
    documents, conditions = {}, {}
    for label, meaning in zip(labels, rng.sample(_MEANINGS, len(_MEANINGS)), strict=True):
        values = names | {"n": str(rng.choice(meaning.numbers))}
        documents[f"{label} {domain.a_who}"] = (
            f"{label} {domain.a_who}: a {domain.a_who} who {meaning.words.format(**values)}."
        )
        conditions[label] = meaning.condition.format(**values)
    for label in labels[:3]:
        documents |= _other_things(rng, label, domain)
    titles = rng.sample(sorted(documents), len(documents))
    return Handbook({title: documents[title] for title in titles}, conditions)


def find_documents(book: Handbook, term: str) -> list[str]:
    """The documents whose titles share the most words with the term, at most MAX_DOCUMENTS."""
    words = {_stem(word) for word in term.lower().split()}
    scored = [(len(words & {_stem(word) for word in title.split()}), title) for title in book.documents]
    found = sorted((item for item in scored if item[0]), key=lambda item: -item[0])
    return [book.documents[title] for _, title in found[:MAX_DOCUMENTS]]


def fill_term(template: TermTemplate, rng: random.Random, data: Data, book: Handbook) -> tuple[str, str]:
    """A question and its gold query."""
    label = rng.choice(sorted(book.conditions))
    names = data.domain.names() | {name: str(VALUES[name](rng, data)) for name in TERM_VALUES}
    values = names | {"label": label, "is_term": book.conditions[label]}
    return template.question.format(**values), template.sql.format(**values)


def _other_things(rng: random.Random, label: str, domain: Domain) -> dict[str, str]:
    return {
        f"{label} {domain.staff}": f"{label} {domain.staff}: earns {rng.randrange(3000, 5000, 100)} or more.",
        f"{label} {domain.what}": f"{label} {domain.what}: has {domain.price} below {rng.randint(10, 40)}.",
    }


def _stem(word: str) -> str:
    return word.strip(".,?!'\"").removesuffix("s")
