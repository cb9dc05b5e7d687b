"""The subjects of sql_desk: what their tables, columns and things are called.

Every subject has four tables in the same roles (who, what, what happened, staff), each with names of its own,
so that a template is written once and asked about all of them. `flights` is kept for the unseen split. Not
covered: rows (`data`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Names by role. Plurals and verbs are words of the questions, the rest are names in SQL."""

    name: str
    # who: id, name, place, first day, contact (may be NULL)
    who: str
    who_id: str
    who_name: str
    place: str
    since: str
    contact: str
    # what: id, title, kind, price
    what: str
    what_id: str
    title: str
    kind: str
    price: str
    # event: id, who, what, day, amount, score (may be NULL), status (may be NULL)
    event: str
    event_id: str
    event_who: str
    event_what: str
    day: str
    amount: str
    score: str
    status: str
    # staff: id, name, boss (may be NULL), pay
    staff: str
    staff_id: str
    staff_name: str
    boss: str
    pay: str
    # words
    whos: str
    a_who: str
    whats: str
    events: str
    staffs: str
    kinds: tuple[str, ...]
    things: tuple[str, ...]
    statuses: tuple[str, str, str]
    """The last one voids an event."""

    def names(self) -> dict[str, str]:
        """Every name and word that is one text, for formatting; `void` is the voiding status."""
        texts = {name: value for name, value in asdict(self).items() if isinstance(value, str)}
        return {**texts, "void": self.statuses[2]}


_SHOP = Domain(
    name="shop",
    who="customer", who_id="id", who_name="name", place="city", since="joined", contact="phone",
    what="product", what_id="id", title="title", kind="category", price="price",
    event="purchase", event_id="id", event_who="customer_id", event_what="product_id",
    day="day", amount="quantity", score="rating", status="status",
    staff="employee", staff_id="id", staff_name="name", boss="boss_id", pay="salary",
    whos="customers", a_who="customer", whats="products", events="purchases", staffs="employees",
    kinds=("garden", "kitchen", "office", "sport"),
    things=("lamp", "chair", "kettle", "rope", "desk", "ball", "rake", "tray"),
    statuses=("paid", "shipped", "returned"),
)  # fmt: skip
_CLINIC = Domain(
    name="clinic",
    who="patient", who_id="pid", who_name="full_name", place="town", since="registered", contact="mobile",
    what="treatment", what_id="tid", title="label", kind="field", price="fee",
    event="visit", event_id="vid", event_who="pid", event_what="tid",
    day="visited_on", amount="hours", score="pain", status="outcome",
    staff="doctor", staff_id="did", staff_name="full_name", boss="chief_id", pay="wage",
    whos="patients", a_who="patient", whats="treatments", events="visits", staffs="doctors",
    kinds=("heart", "skin", "bones", "eyes"),
    things=("scan", "massage", "check", "therapy", "test", "wrap", "drill", "bath"),
    statuses=("done", "follow-up", "cancelled"),
)  # fmt: skip
_LIBRARY = Domain(
    name="library",
    who="member", who_id="member_no", who_name="member_name", place="district", since="signed_up",
    contact="email",
    what="book", what_id="book_no", title="book_title", kind="genre", price="value",
    event="loan", event_id="loan_no", event_who="member_no", event_what="book_no",
    day="lent_on", amount="weeks", score="stars", status="state",
    staff="librarian", staff_id="staff_no", staff_name="staff_name", boss="head_no", pay="income",
    whos="members", a_who="member", whats="books", events="loans", staffs="librarians",
    kinds=("crime", "poetry", "history", "travel"),
    things=("harbour", "winter", "letters", "voyage", "garden", "shadow", "atlas", "songs"),
    statuses=("open", "back", "lost"),
)  # fmt: skip
_GYM = Domain(
    name="gym",
    who="athlete", who_id="athlete_id", who_name="athlete", place="quarter", since="start_date",
    contact="sponsor",
    what="course", what_id="course_id", title="course_name", kind="level", price="cost",
    event="booking", event_id="booking_id", event_who="athlete_ref", event_what="course_ref",
    day="booked_for", amount="places", score="effort", status="result",
    staff="trainer", staff_id="trainer_id", staff_name="trainer", boss="reports_to", pay="monthly_pay",
    whos="athletes", a_who="athlete", whats="courses", events="bookings", staffs="trainers",
    kinds=("easy", "medium", "hard", "expert"),
    things=("rowing", "yoga", "boxing", "climbing", "cycling", "dance", "spinning", "judo"),
    statuses=("attended", "late", "missed"),
)  # fmt: skip
_FLIGHTS = Domain(
    name="flights",
    who="passenger", who_id="pax_id", who_name="pax", place="home", since="enrolled", contact="mail",
    what="route", what_id="route_id", title="route_code", kind="region", price="fare",
    event="ticket", event_id="ticket_id", event_who="pax_id", event_what="route_id",
    day="flown_on", amount="seats", score="grade", status="stage",
    staff="pilot", staff_id="pilot_id", staff_name="pilot_name", boss="captain_id", pay="yearly_pay",
    whos="passengers", a_who="passenger", whats="routes", events="tickets", staffs="pilots",
    kinds=("north", "south", "east", "west"),
    things=("express", "shuttle", "loop", "hopper", "link", "bridge", "arc", "line"),
    statuses=("flown", "upgraded", "refunded"),
)  # fmt: skip

SEEN_DOMAINS = (_SHOP, _CLINIC, _LIBRARY, _GYM)
UNSEEN_DOMAINS = (_FLIGHTS,)
DOMAINS = {domain.name: domain for domain in (*SEEN_DOMAINS, *UNSEEN_DOMAINS)}
