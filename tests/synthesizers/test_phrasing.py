"""Requests and closings: what they say, what they must not say, and who may write them."""

from __future__ import annotations

import asyncio
import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import canonical
from data.messages import ToolCall, ToolResult, ToolSpec, assistant, text_parts, user
from pipeline.chat.scripted import ScriptedChat
from synthesizers.execution import Executed
from synthesizers.grounding.calls import ArgumentSource, GroundedCall, OutputPort, Provenance, sources_of
from synthesizers.phrasing.back_translation import BACK_TRANSLATOR, back_translate, translation_request
from synthesizers.phrasing.clauses import Slot, clause_of
from synthesizers.phrasing.referring import goes_unsaid
from synthesizers.phrasing.requests import (
    PhrasingError,
    TurnCalls,
    phrase_closing,
    phrase_request,
    phrase_supply,
    request_problem,
)
from synthesizers.phrasing.saying import values_to_say
from synthesizers.phrasing.twins import are_twins, twins_of
from synthesizers.phrasing.vocabulary import VERBS
from synthesizers.phrasing.wording import answerable, leaks_tool_name, mentions, secret_names


def spec(name: str, description: str, **properties: Any) -> ToolSpec:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return ToolSpec(name=name, description=description, parameters=canonical.dumps(parameters))


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
TOOLS = (
    spec("flights", "List flights.", src=STRING, dst=STRING, day=STRING),
    spec("book", "Book a flight.", flight=STRING),
    spec("room", "Book a hotel.", hotel=STRING, nights=INTEGER),
    spec("bookings", "List my bookings."),
    spec("change", "Move a booking to a flight.", booking=STRING, flight=STRING),
    spec("cancel", "Cancel a booking.", booking=STRING),
    spec("profile", "My airline and miles."),
)
BY_NAME = {tool.name: tool for tool in TOOLS}
LIST = "F12 Nova 07:10 direct $90\nF77 Sun 20:30 1 stop $360\nF40 Sun 12:00 direct $120"


def played(*calls: tuple[str, dict[str, Any], str], changes: bool = True) -> list[GroundedCall]:
    """Calls with their results, sources decided as grounding does."""
    history: list[Executed] = []
    made = []
    for name, arguments, text in calls:
        call = ToolCall(call_id="c", name=name, arguments=canonical.dumps(arguments))
        result = ToolResult(call_id="c", name=name, parts=text_parts(text))
        looks = name in ("flights", "bookings", "profile") or not changes
        executed = Executed(call, result, "a", "a" if looks else "b")
        made.append(GroundedCall(executed, sources_of(executed, BY_NAME[name], history)))
        history.append(executed)
    return made


def turn(
    calls: list[GroundedCall], *, of: slice = slice(None), unmentioned: tuple[int, ...] = ()
) -> TurnCalls:
    """The turn of the calls in the slice; those before it were made in earlier turns."""
    history = [call.executed for call in calls[: of.stop]]
    return TurnCalls(calls[of], TOOLS, history, unmentioned)


SEARCH = ("flights", {"src": "Oslo", "dst": "Rome", "day": "May 4"}, LIST)
LAST = slice(1, None)


def requests(made: TurnCalls, *, seeds: int = 12, **options: Any) -> list[str]:
    return [phrase_request(made, rng=random.Random(seed), **options) for seed in range(seeds)]


def test_a_request_says_what_only_the_user_knows_and_no_tool_name() -> None:
    for text in requests(turn(played(("room", {"hotel": "H12", "nights": 3}, "booked B2")))):
        assert "eserve hotel H12 for 3 nights" in text
        assert not re.search(r"\b(book|room|flights)\b", text, re.IGNORECASE)


def test_seeds_vary_the_frame_and_equal_seeds_do_not() -> None:
    made = turn(played(SEARCH))
    texts = requests(made, seeds=40)
    assert len(set(texts)) >= 6 and texts == requests(made, seeds=40)
    assert all("from Oslo to Rome on May 4" in text for text in texts)


def test_a_value_of_an_earlier_result_is_pointed_at_not_said() -> None:
    made = turn(played(SEARCH, ("book", {"flight": "F12"}, "booked B1")), of=LAST)
    texts = requests(made)
    assert not any("F12" in text for text in texts)
    assert {re.search(r"the (.*) flight", text)[1] for text in texts} <= {"cheapest", "earliest", "$90"}  # type: ignore[index]


def test_within_one_turn_only_a_criterion_known_before_points_at_a_result() -> None:
    calls = played(SEARCH, ("book", {"flight": "F40"}, "booked B1"))
    for text in requests(turn(calls)):
        assert "the last flight on the list" in text and "$120" not in text and "12:00" not in text


def test_the_only_one_of_its_kind_is_that_one_until_there_are_two() -> None:
    one = played(("book", {"flight": "F1"}, "booked B7"), ("cancel", {"booking": "B7"}, "cancelled B7"))
    assert all(
        re.search(r"(that booking|the booking you just \w+)", text) for text in requests(turn(one, of=LAST))
    )
    two = played(
        ("book", {"flight": "F1"}, "booked B7"),
        ("book", {"flight": "F2"}, "booked B8"),
        ("cancel", {"booking": "B7"}, "cancelled B7"),
    )
    for text in requests(turn(two, of=slice(2, None))):
        assert "the booking you made for F1" in text


def test_fields_with_names_tell_rows_apart() -> None:
    rows = [("H1", "Plaza", 90, 3), ("H2", "Ritz", 300, 5), ("H3", "Inn", 120, 4)]
    found = canonical.dumps([dict(zip(("id", "name", "price", "stars"), row, strict=True)) for row in rows])
    search = ("flights", SEARCH[1], found)
    third = played(search, ("room", {"hotel": "H3", "nights": 2}, "booked B1"))
    told = {text.split("the hotel ")[1].split(" for 2")[0] for text in requests(turn(third, of=LAST))}
    assert told == {"called Inn", "whose price is 120"}
    assert all("the last hotel on the list" in text for text in requests(turn(third)))
    first = played(search, ("room", {"hotel": "H1", "nights": 2}, "booked B1"))
    assert all(re.search("the cheapest hotel|the lowest stars", text) for text in requests(turn(first)))


def test_a_value_within_a_field_is_told_apart_and_one_that_cannot_be_found_is_said() -> None:
    paths = '{"matches": ["./F1.txt", "./F2.txt", "./F3.txt"]}'
    calls = played(("flights", SEARCH[1], paths), ("book", {"flight": "F2.txt"}, "booked B1"))
    assert calls[1].sources[0].provenance is Provenance.OUTPUT
    assert all("the second flight on the list" in text for text in requests(turn(calls, of=LAST)))
    lost = calls[1].sources[0]._replace(value="F99")
    made = turn([calls[0], calls[1]._replace(sources=(lost,))], of=LAST)
    assert all("F99" in text for text in requests(made))


def test_a_nested_call_is_not_mentioned_but_what_it_needs_is_said() -> None:
    calls = played(SEARCH, ("book", {"flight": "F12"}, "booked B1"))
    for text in requests(turn(calls, unmentioned=(0,))):
        assert re.search(r"eserve the (cheapest|earliest) flight from Oslo to Rome on May 4", text), text
        assert "show" not in text.lower() and "options" not in text
    silent = played(("bookings", {}, "B7 F1 Oslo to Rome May 4"), ("cancel", {"booking": "B7"}, "done"))
    for text in requests(turn(silent, unmentioned=(0,))):
        assert "reservations" not in text
        assert re.search(r"(call off|drop) my booking", text.lower())


def test_a_user_tells_his_own_records_apart_without_a_look_up_being_mentioned() -> None:
    lines = "B7 F1 Oslo to Rome May 4\nB8 F2 Oslo to Lima May 9"
    calls = played(("bookings", {}, lines), ("cancel", {"booking": "B8"}, "done"))
    assert all("the Lima booking" in text for text in requests(turn(calls, unmentioned=(0,))))


def test_a_place_is_pointed_at_by_the_record_it_stands_in() -> None:
    """ "The Oslo destination" would be taken for Oslo, and it is Prague."""
    text = "B57 F908 Oslo to Prague June 18\nB58 F761 Athens to Lisbon June 16"
    made = turn(
        played(
            ("bookings", {}, text),
            ("flights", {"src": "Oslo", "dst": "Prague", "day": "June 19"}, LIST),
        ),
        of=LAST,
    )
    for request in requests(made):
        assert not re.search(r"Oslo|Prague|Athens", request), request
        assert re.search(r"(?:source|destination) of (?:B57|F908)", request), request


def test_two_changes_are_put_in_order() -> None:
    made = turn(
        played(("book", {"flight": "F1"}, "booked B7"), ("room", {"hotel": "H2", "nights": 2}, "booked B8"))
    )
    assert all(re.search(r"\bthen\b|after that", request, re.IGNORECASE) for request in requests(made))


@pytest.mark.parametrize(
    ("name", "description", "arguments", "unsaid"),
    [
        ("bookings", "List my bookings.", {}, True),
        ("nearest", "Finds the nearest tire shop.", {}, False),
        ("nearest", "Finds the nearest tire shop.", {"city": "Oslo"}, True),
    ],
)
def test_a_look_up_goes_unsaid_where_the_user_gives_what_it_needs_or_it_is_his_own(
    name: str, description: str, arguments: dict[str, Any], unsaid: bool
) -> None:
    executed = played(("profile", {}, "x"))[0].executed
    sources = tuple(ArgumentSource(key, value, Provenance.USER) for key, value in arguments.items())
    tool = spec(name, description, **dict.fromkeys(arguments, STRING))
    assert goes_unsaid(GroundedCall(executed, sources), tool) is unsaid


def test_twins_are_tools_that_one_request_fits() -> None:
    tools = (
        spec("posting_get_login_status", "Get the login status."),
        spec("ticket_get_login_status", "Get the login status of the currently authenticated user."),
        spec("liter_to_gallon", "Convert the liter to gallon.", value=INTEGER),
        spec("gallon_to_liter", "Convert the gallon to liter.", value=INTEGER),
        spec("google_temperature", "Get the outside temperature."),
        spec("web_temperature", "Get the outside temperature."),
    )
    twins = [(a.name, b.name) for i, a in enumerate(tools) for b in tools[i + 1 :] if are_twins(a, b)]
    assert twins == [(tools[0].name, tools[1].name), (tools[4].name, tools[5].name)]
    assert twins_of([tools[0].name], tools) == {tools[1].name}


@pytest.mark.parametrize(
    ("name", "arguments", "answer", "told"),
    [
        ("profile", {}, "Nova, 6500 miles", ("Nova", "6500")),
        ("flights", {"src": "Rome", "dst": "Oslo", "day": "May 3"}, "F12 Nova 07:10 direct $90", ("F12",)),
        ("flights", {"src": "Rome", "dst": "Oslo", "day": "May 3"}, LIST, ("F12", "F77", "F40")),
        ("profile", {"user": "Nova"}, "Nova, 6500 miles", ("6500",)),
        ("cancel", {"booking": "B7"}, "cancelled B7", ()),
    ],
)
def test_a_reply_must_hold_what_a_short_answer_tells_and_the_user_did_not(
    name: str, arguments: dict[str, Any], answer: str, told: tuple[str, ...]
) -> None:
    (call,) = played((name, arguments, answer))
    assert values_to_say([call.executed], f"I found this: {answer}") == told
    assert values_to_say([call.executed], "Done.") == ()


def test_several_calls_make_one_request() -> None:
    calls = played(("profile", {}, "Nova, 100 miles"), SEARCH, ("room", {"hotel": "H1", "nights": 1}, "B2"))
    for text in requests(turn(calls)):
        places = [text.index(part) for part in ("airline", "from Oslo", "H1 for 1 night")]
        assert places == sorted(places)


def test_what_is_left_out_is_not_said_and_is_supplied_later() -> None:
    made = turn(played(SEARCH))
    for text in requests(made, left_out="day"):
        assert "May" not in text and "Oslo" in text and "Rome" in text
    [source] = [source for source in made.calls[0].sources if source.name == "day"]
    supplied = {phrase_supply(source, made, rng=random.Random(seed)) for seed in range(20)}
    assert len(supplied) > 2 and all(mentions(text, "May 4") for text in supplied)


def test_closings_say_what_was_found_or_that_it_is_done() -> None:
    rng = random.Random(0)
    assert "F12 Nova 07:10 direct $90; F77" in phrase_closing(turn(played(SEARCH)), rng=rng)
    booked = phrase_closing(
        turn(played(("book", {"flight": "F1"}, "booked B7"))), rng=rng, must_say=("B7", "x9")
    )
    assert booked.endswith("booked B7 (x9)") and ("one" in booked or "set" in booked)
    long = "\n".join(f"F{number} Nova 07:10 direct $90" for number in range(30))
    assert "30 of them, first F0 Nova" in phrase_closing(turn(played(("flights", SEARCH[1], long))), rng=rng)


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("Reserve F12.", "F12", True),
        ("Reserve F12.", "F1", False),
        ("for three nights", 3, True),
        ("for 13 nights", 3, False),
        ("pay 1,200 now", 1200.0, True),
        ("to ROME on  May\n4", "May 4", True),
        ("a and b", ["a", "b"], True),
        ("a and c", ["a", "b"], False),
        ("nothing", True, True),
        ("run 'ls -a'", "ls -a", True),
    ],
)
def test_mentions(text: str, value: Any, said: bool) -> None:
    assert mentions(text, value) is said


def test_answerable_asks_for_the_users_values_only() -> None:
    sources = [
        ArgumentSource("a", "Rome", Provenance.USER),
        ArgumentSource("b", "F12", Provenance.OUTPUT, OutputPort(0)),
        ArgumentSource("c", 10, Provenance.DEFAULT),
    ]
    assert answerable("to Rome", sources) and not answerable("to Oslo F12", sources)


def test_a_leak_is_a_whole_word_whatever_its_case_or_separator() -> None:
    assert leaks_tool_name("Use Find Flights now", ["find_flights"])
    assert leaks_tool_name("call find_flights(x)", ["find_flights"])
    assert not leaks_tool_name("find the flights, rebook them", ["find_flights", "book"])
    assert not leaks_tool_name("open 'book'", ["book"], said=["book"])
    assert not leaks_tool_name("convert the gallon 10 to liter", ["gallon_to_liter"], said=[10])


_WORDS = st.sampled_from(
    [
        *sorted(VERBS)[::12],
        *["list", "flight", "flights", "tweet", "file", "data", "a", "my", "the", "of", "user"],
    ]
)
"""Words of descriptions, and of names."""
_NAMES = st.lists(_WORDS, min_size=1, max_size=3).map("_".join)
_VALUES = st.one_of(
    st.integers(0, 10_000),
    st.text("abcXYZ 019._-'", min_size=1, max_size=90).filter(lambda text: text.strip() != ""),
    st.lists(st.text("abc1", min_size=1, max_size=6), min_size=1, max_size=3),
)


@settings(max_examples=60)
@given(
    names=st.lists(_NAMES, min_size=1, max_size=5, unique=True),
    description=st.lists(_WORDS, max_size=8).map(" ".join),
    parameters=st.dictionaries(_NAMES, _VALUES, max_size=3),
    seed=st.integers(0, 9),
)
def test_no_tool_name_leaks_and_every_user_value_is_said(
    names: list[str], description: str, parameters: dict[str, Any], seed: int
) -> None:
    tools = [spec(name, description, **{key: {} for key in parameters}) for name in names]
    call = ToolCall(call_id="c", name=names[0], arguments=canonical.dumps(parameters))
    executed = Executed(call, ToolResult(call_id="c", name=names[0], parts=text_parts("ok")), "a", "b")
    made = TurnCalls([GroundedCall(executed, sources_of(executed, tools[0], []))], tools, [executed])
    try:
        text = phrase_request(made, rng=random.Random(seed))
    except PhrasingError:
        pytest.fail(f"no request for {names} {description!r} {parameters}")
    assert not leaks_tool_name(text, names, said=list(parameters.values()))
    assert all(mentions(text, value) for value in parameters.values())


def test_a_request_that_cannot_be_worded_is_an_error_never_a_hole() -> None:
    tools = [spec(word, "Please.", x=STRING) for word in ("please", "could", "can", "i", "now", "help", "me")]
    tools += [spec(word, "", x=STRING) for word in ("you", "would", "need", "like")]
    call = ToolCall(call_id="c", name="please", arguments='{"x":"F1"}')
    executed = Executed(call, ToolResult(call_id="c", name="please", parts=text_parts("ok")), "a", "b")
    made = TurnCalls([GroundedCall(executed, sources_of(executed, tools[0], []))], tools, [executed])
    for seed in range(10):
        try:
            assert request_problem(phrase_request(made, rng=random.Random(seed)), made) == ""
        except PhrasingError as error:
            assert "tool" in str(error)


# The model's counterpart.

CALLS = played(
    SEARCH, ("book", {"flight": "F12"}, "booked B1"), ("room", {"hotel": "H9", "nights": 2}, "booked B2")
)
DIALOGUE = [user("What flies from Oslo to Rome on May 4?"), assistant("Three flights.")]
GOOD = "Take the cheapest one, and hotel H9 for two nights."

GOLDEN = """Dialogue so far:
user: What flies from Oslo to Rome on May 4?
assistant: Three flights.

Wanted, in order:
1. Book a flight. Point at the flight as "the cheapest flight", not by "F12".
2. Book a hotel. Values to say: "H9" (the hotel), 2 (the nights).
Do not write: room, change, profile"""


def ask(*replies: str) -> tuple[Any, ScriptedChat]:
    chat = ScriptedChat(list(replies), max_asks=1)
    made = turn(CALLS, of=LAST)
    told = asyncio.run(back_translate(chat, made, dialogue=DIALOGUE, rng=random.Random(2)))
    return told, chat


def reply(text: str) -> str:
    return json.dumps({"request": text})


def test_the_role_is_told_what_to_say_and_what_not() -> None:
    request = translation_request(turn(CALLS, of=LAST), dialogue=DIALOGUE, rng=random.Random(2))
    system, question = BACK_TRANSLATOR.turns(request)
    assert question.text == GOLDEN
    assert system.text.startswith("You write what a user says") and "---" not in system.text


def test_a_good_reply_is_taken_as_it_is() -> None:
    told, chat = ask(reply(GOOD))
    assert told == (GOOD, "") and len(chat.asked) == 1


def test_a_reply_that_names_a_tool_is_asked_for_again_with_the_problem() -> None:
    told, chat = ask(reply("Take the cheapest one and a room in hotel H9 for 2 nights."), reply(GOOD))
    assert told.request == GOOD
    again = chat.asked[1][1].text
    assert "names the tool 'room'" in again and "a room in hotel H9" in again


def test_a_plain_word_of_a_tools_own_description_is_no_secret() -> None:
    said = "Book the cheapest one and hotel H9 for 2 nights."
    assert ask(reply(said))[0].request == said
    tools = [
        ToolSpec(name=name, description=text, parameters="{}")
        for name, text in (("book", "Book a flight."), ("room", "Book a hotel."), ("set_seat", "Set seat."))
    ]
    assert secret_names(tools) == ["room", "set_seat"]


def test_a_second_bad_reply_gives_no_request_but_a_reason() -> None:
    told, chat = ask(reply("Take hotel H9."), reply("Take the cheapest one."))
    assert told.request is None and "hotel='H9'" in told.reason and len(chat.asked) == 2
    told, _ = ask("no json")
    assert told.request is None and told.reason


def test_a_reply_may_not_say_what_is_kept_back() -> None:
    made = turn(played(SEARCH))
    assert "left out" in request_problem("From Oslo to Rome on May 4.", made, left_out="day")
    assert request_problem("From Oslo to Rome.", made, left_out="day") == ""
    assert "day='May 4'" in request_problem("From Oslo to Rome.", made)
    assert request_problem(" ", made) == "it is empty"


@pytest.mark.parametrize(
    ("description", "parameter", "said"),
    [
        ("Reserve the book with this shelf mark.", "mark", "reserve the book with that one"),
        ("Read a document by its title.", "title", "read a document by that one"),
        ("Move a file in the main folder.", "folder", "move a file in that one"),
        ("Show the flight to a city.", "city", "show me the flight to that one"),
        ("Cancel a booking.", "booking", "cancel that one"),
    ],
)
def test_a_reference_takes_the_place_of_a_whole_noun(description: str, parameter: str, said: str) -> None:
    tool = spec("zz", description, **{parameter: STRING})
    slot = Slot(parameter, "A12", "that one", reference=True)
    assert clause_of(tool, [slot], names=["zz"], rng=random.Random(0)).filled() == said


@pytest.mark.parametrize(
    ("name", "description", "parameter", "said"),
    [
        (
            "zz",
            "Find files whose name or text holds a text.",
            "text",
            "find files whose name or text holds text A12",
        ),
        ("list", "Names in a folder.", "folder", "tell me the names in folder A12"),
        ("zz", "Orders of a customer.", "customer", "tell me the orders of customer A12"),
        ("zz", "Checks in a guest.", "guest", "check in guest A12"),
        ("search", "Search the encyclopaedia.", "query", "browse the encyclopaedia for A12"),
    ],
)
def test_a_description_becomes_a_sentence_that_asks_for_what_the_tool_does(
    name: str, description: str, parameter: str, said: str
) -> None:
    tool = spec(name, description, **{parameter: STRING})
    slot = Slot(parameter, "A12", "A12")
    assert clause_of(tool, [slot], names=[name], rng=random.Random(0)).filled() == said


@pytest.mark.parametrize("text", ["{}", '{{"text": "{}"}}'])
def test_a_name_among_the_names_of_a_text_is_said(text: str) -> None:
    """ "That destination" would mean any of them."""
    prose = "Ada Berg, born in Oslo, moved to Rome and met Carl Holm there."
    calls = played(
        ("profile", {}, text.format(prose)),
        ("flights", {"src": "Paris", "dst": "Rome", "day": "May 4"}, LIST),
    )
    assert calls[1].sources[1].provenance is Provenance.OUTPUT
    assert all("to Rome" in request for request in requests(turn(calls, of=LAST)))
