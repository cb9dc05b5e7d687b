"""What sql_desk asks: question and gold query, written once for all subjects.

Names of the subject and drawn values (`v_...`) are filled into both. A question says which columns come in
which order, how ties are broken and what counts where a value is missing, so that one result is right on
every database of the subject. Not covered: business terms (`terms`).
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.environments.sql_desk.data import TODAY, Data


@dataclass(frozen=True, slots=True)
class Template:
    """`values`: names of VALUES to draw. `answer`: one value that is hard to guess comes out."""

    name: str
    questions: tuple[str, ...]
    sql: str
    values: tuple[str, ...]
    tags: tuple[str, ...]
    answer: bool = False
    unseen: bool = False


def _year_start(rng: random.Random, data: Data) -> str:
    days = (TODAY - datetime.date(2026, 1, 1)).days - 360
    return (datetime.date(2026, 1, 1) + datetime.timedelta(days=rng.randrange(days))).isoformat()


def _recent_day(rng: random.Random, data: Data, *, low: int, high: int) -> str:
    return (TODAY - datetime.timedelta(days=rng.randint(low, high))).isoformat()


VALUES: dict[str, Callable[[random.Random, Data], object]] = {
    "v_place": lambda rng, data: rng.choice(data.places),
    "v_kind": lambda rng, data: rng.choice(data.domain.kinds),
    "v_low": lambda rng, data: rng.randint(8, 30),
    "v_high": lambda rng, data: rng.randint(40, 90),
    "v_since": _year_start,
    "v_from": lambda rng, data: _recent_day(rng, data, low=260, high=500),
    "v_to": lambda rng, data: _recent_day(rng, data, low=20, high=240),
    "v_who": lambda rng, data: rng.choice(data.who[:-2])[1],
    "v_staff": lambda rng, data: rng.choice(data.staff[:5])[1],
    "v_title": lambda rng, data: rng.choice(data.what[:-1])[1],
    "v_status": lambda rng, data: rng.choice(data.domain.statuses),
    "v_n": lambda rng, data: rng.randint(2, 5),
    "v_score": lambda rng, data: rng.randint(2, 4),
    "v_pay": lambda rng, data: rng.randrange(2500, 5000, 50),
    "v_gap": lambda rng, data: rng.randrange(50, 1500, 50),
}

_JOINED = "{event} e JOIN {who} w ON w.{who_id} = e.{event_who} JOIN {what} t ON t.{what_id} = e.{event_what}"

TEMPLATES = (
    Template(
        "filter",
        ("{title} of {whats} of {kind} {v_kind} with {price} above {v_low} and below {v_high}?",
         "Which {kind} {v_kind} {whats} have a {price} over {v_low} and under {v_high}? Give {title}."),
        "SELECT {title} FROM {what} WHERE {kind} = '{v_kind}' AND {price} > {v_low} AND {price} < {v_high}",
        ("v_kind", "v_low", "v_high"), ("filter",),
    ),
    Template(
        "filter_since",
        ("{who_name} of {whos} in {v_place} with {since} after {v_since}?",
         "List {who_name} of each {a_who} from {v_place} whose {since} is later than {v_since}."),
        "SELECT {who_name} FROM {who} WHERE {place} = '{v_place}' AND {since} > '{v_since}'",
        ("v_place", "v_since"), ("filter", "dates"),
    ),
    Template(
        "between",
        ("How many {events} have {day} from {v_from} to {v_to}, both included?",
         "Count the {events} from {v_from} up to and including {v_to}."),
        "SELECT count(*) FROM {event} WHERE {day} BETWEEN '{v_from}' AND '{v_to}'",
        ("v_from", "v_to"), ("dates",),
    ),
    Template(
        "null_contact",
        ("{who_name} of {whos} without {contact} who are in {v_place} or have {since} before {v_since}?",),
        "SELECT {who_name} FROM {who} WHERE {contact} IS NULL "
        "AND ({place} = '{v_place}' OR {since} < '{v_since}')",
        ("v_place", "v_since"), ("null",),
    ),
    Template(
        "not_status",
        ("How many {events} since {v_from} are not {v_status}? Those without {status} count too.",
         "Count {events} with {day} {v_from} or later whose {status} is missing or not {v_status}."),
        "SELECT count(*) FROM {event} WHERE {day} >= '{v_from}' AND {status} IS NOT '{v_status}'",
        ("v_status", "v_from"), ("null", "dates"),
    ),
    Template(
        "average_zero",
        ("Average {score} of {events} since {v_from}, a missing {score} counting as 0?",),
        "SELECT avg(coalesce({score}, 0)) FROM {event} WHERE {day} >= '{v_from}'",
        ("v_from",), ("null", "aggregate"), True,
    ),
    Template(
        "average_known",
        ("Average {score} of {events} with {amount} above 1 since {v_from}, leaving out missing ones?",),
        "SELECT avg({score}) FROM {event} WHERE {amount} > 1 AND {day} >= '{v_from}'",
        ("v_from",), ("null", "aggregate"), True,
    ),
    Template(
        "join_titles",
        ("Every different {title} in the {events} of {v_who}?", "Each {title} of {v_who}'s {events}, once."),
        "SELECT DISTINCT t.{title} FROM " + _JOINED + " WHERE w.{who_name} = '{v_who}'",
        ("v_who",), ("join", "duplicates"),
    ),
    Template(
        "distinct_who",
        ("How many different {whos} have {events} of {kind} {v_kind} since {v_from}?",),
        "SELECT count(DISTINCT e.{event_who}) FROM " + _JOINED
        + " WHERE t.{kind} = '{v_kind}' AND e.{day} >= '{v_from}'",
        ("v_kind", "v_from"), ("join", "duplicates"),
    ),
    Template(
        "revenue",
        ("Total of {amount} times {price} over {events} of {kind} {v_kind} since {v_from}?",
         "Sum {price} times {amount} of {v_kind} {whats} in {events} from {v_from} on."),
        "SELECT sum(e.{amount} * t.{price}) FROM " + _JOINED
        + " WHERE t.{kind} = '{v_kind}' AND e.{day} >= '{v_from}'",
        ("v_kind", "v_from"), ("join", "aggregate"), True,
    ),
    Template(
        "group_amount",
        ("{kind} and total {amount} of {events} since {v_from}, for each {kind}?",),
        "SELECT t.{kind}, sum(e.{amount}) FROM " + _JOINED + " WHERE e.{day} >= '{v_from}' GROUP BY t.{kind}",
        ("v_from",), ("group", "join"),
    ),
    Template(
        "group_month",
        ("Month (YYYY-MM) and number of {events} from {v_from} to {v_to}, oldest month first?",),
        "SELECT substr({day}, 1, 7) AS month, count(*) FROM {event} "
        "WHERE {day} BETWEEN '{v_from}' AND '{v_to}' GROUP BY month ORDER BY month",
        ("v_from", "v_to"), ("group", "dates", "order"),
    ),
    Template(
        "having",
        ("{who_name} of {whos} with at least {v_n} {events} since {v_from}?",
         "Which {whos} have {v_n} or more {events} from {v_from} on? Give {who_name}."),
        "SELECT w.{who_name} FROM " + _JOINED + " WHERE e.{day} >= '{v_from}' "
        "GROUP BY w.{who_id} HAVING count(*) >= {v_n}",
        ("v_n", "v_from"), ("group", "having", "join"),
    ),
    Template(
        "top_price",
        ("{title} and {price} of the {v_n} {whats} with the highest {price} up to {v_high}, highest first, "
         "ties by {title}?",),
        "SELECT {title}, {price} FROM {what} WHERE {price} <= {v_high} "
        "ORDER BY {price} DESC, {title} LIMIT {v_n}",
        ("v_n", "v_high"), ("top", "order"),
    ),
    Template(
        "top_all_ties",
        ("{title} of {whats} with the most {events} from {v_from} to {v_to}, all where several tie?",),
        "WITH c AS (SELECT t.{title} AS name, count(*) AS n FROM " + _JOINED
        + " WHERE e.{day} BETWEEN '{v_from}' AND '{v_to}' GROUP BY t.{what_id}) "
        "SELECT name FROM c WHERE n = (SELECT max(n) FROM c)",
        ("v_from", "v_to"), ("top", "ties"),
    ),
    Template(
        "best_who",
        ("Which {a_who} has the highest sum of {amount} times {price}, {v_from} to {v_to}? Ties: first name.",
         "{who_name} with the largest sum of {price} times {amount} from {v_from} to {v_to} (ties: first)?"),
        "SELECT w.{who_name} FROM " + _JOINED + " WHERE e.{day} BETWEEN '{v_from}' AND '{v_to}' "
        "GROUP BY w.{who_id} ORDER BY sum(e.{amount} * t.{price}) DESC, w.{who_name} LIMIT 1",
        ("v_from", "v_to"), ("top", "join", "group"), True,
    ),
    Template(
        "never",
        ("{title} of {whats} with {price} below {v_high} that have no {events} since {v_to}?",),
        "SELECT {title} FROM {what} t WHERE {price} < {v_high} AND NOT EXISTS (SELECT 1 FROM {event} e "
        "WHERE e.{event_what} = t.{what_id} AND e.{day} >= '{v_to}')",
        ("v_high", "v_to"), ("anti_join",),
    ),
    Template(
        "boss_pay",
        ("{staff_name} of {staffs} whose {pay} is above {v_pay} and at least {v_gap} above their boss's?",),
        "SELECT s.{staff_name} FROM {staff} s JOIN {staff} b ON b.{staff_id} = s.{boss} "
        "WHERE s.{pay} >= b.{pay} + {v_gap} AND s.{pay} > {v_pay}",
        ("v_pay", "v_gap"), ("self_join",),
    ),
    Template(
        "reports",
        ("{staff_name} of {staffs} whose boss is {v_staff}?", "Who has {v_staff} as boss? ({staff_name})"),
        "SELECT s.{staff_name} FROM {staff} s JOIN {staff} b ON b.{staff_id} = s.{boss} "
        "WHERE b.{staff_name} = '{v_staff}'",
        ("v_staff",), ("self_join",),
    ),
    Template(
        "latest",
        ("{who_name} and last {day} of {events} before {v_to}, for each {a_who} in {v_place} with any?",),
        "SELECT w.{who_name}, max(e.{day}) FROM " + _JOINED
        + " WHERE w.{place} = '{v_place}' AND e.{day} < '{v_to}' GROUP BY w.{who_id}",
        ("v_place", "v_to"), ("group", "dates"),
    ),
    Template(
        "rank_in_kind",
        ("{kind}, {title} of the {whats} with the highest {price} of each {kind}, from {v_low} to {v_high}, "
         "ties all?",),
        "SELECT {kind}, {title} FROM (SELECT {kind}, {title}, rank() OVER (PARTITION BY {kind} "
        "ORDER BY {price} DESC) AS place FROM {what} WHERE {price} BETWEEN {v_low} AND {v_high}) "
        "WHERE place = 1",
        ("v_low", "v_high"), ("window", "ties"),
    ),
    Template(
        "above_average",
        ("{title} of {whats} with {price} over {v_low}, under {v_high}, over the average of their {kind}?",),
        "SELECT t.{title} FROM {what} t WHERE t.{price} > {v_low} AND t.{price} < {v_high} AND t.{price} > "
        "(SELECT avg(o.{price}) FROM {what} o WHERE o.{kind} = t.{kind})",
        ("v_low", "v_high"), ("subquery",),
    ),
    Template(
        "share",
        ("Percent of {events} since {v_from} with {status} {v_status}, of all since then, to 1 decimal?",),
        "SELECT round(100.0 * sum({status} IS '{v_status}') / count(*), 1) FROM {event} "
        "WHERE {day} >= '{v_from}'",
        ("v_status", "v_from"), ("aggregate", "null"), True,
    ),
    Template(
        "running",
        ("{day} and running total of {amount} over {events} of {v_who}, by {day} then {event_id}?",),
        "SELECT e.{day}, sum(e.{amount}) OVER (ORDER BY e.{day}, e.{event_id}) FROM " + _JOINED
        + " WHERE w.{who_name} = '{v_who}' ORDER BY e.{day}, e.{event_id}",
        ("v_who",), ("window", "order"), unseen=True,
    ),
    Template(
        "both_kinds",
        ("{who_name} of {whos} with {events} since {v_from} of {kind} {v_kind} and of another {kind}, too?",),
        "SELECT w.{who_name} FROM " + _JOINED + " WHERE e.{day} >= '{v_from}' GROUP BY w.{who_id} "
        "HAVING sum(t.{kind} = '{v_kind}') > 0 AND count(DISTINCT t.{kind}) > 1",
        ("v_kind", "v_from"), ("having", "join"), unseen=True,
    ),
    Template(
        "second_price",
        ("{title} of {v_kind} {whats} with the second highest different {price} below {v_high}, ties all?",),
        "SELECT {title} FROM {what} WHERE {kind} = '{v_kind}' AND {price} = "
        "(SELECT DISTINCT {price} FROM {what} WHERE {kind} = '{v_kind}' AND {price} < {v_high} "
        "ORDER BY {price} DESC LIMIT 1 OFFSET 1)",
        ("v_kind", "v_high"), ("subquery", "ties"), unseen=True,
    ),
)  # fmt: skip


def fill(template: Template, rng: random.Random, data: Data) -> tuple[str, str]:
    """A question and its gold query."""
    names = data.domain.names() | {name: str(VALUES[name](rng, data)) for name in template.values}
    return rng.choice(template.questions).format(**names), template.sql.format(**names)
