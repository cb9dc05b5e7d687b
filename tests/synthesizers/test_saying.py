"""What a reply must tell, and what a request asks for where an answer is too long to be told."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from data.messages import ToolCall, ToolResult, Turn, assistant, text_parts
from data.tasks import Task
from pipeline.engines.base import Engine
from pipeline.environments.blueprint import Expects, PlannedTurn, read_blueprint
from pipeline.environments.gold import PlannedGold
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.renderers.base import Renderer
from pipeline.renderers.load import load_renderer
from synthesizers import load_synthesizer
from synthesizers.astra.chains_writing import round_trip
from synthesizers.execution import Executed
from synthesizers.phrasing.requests import TurnCalls, phrase_closing, phrase_request, request_problem
from synthesizers.phrasing.saying import MOST_TOLD, told_of, values_to_say
from tests.synthesizers.test_phrasing import LIST, SEARCH, played, turn
from tests.tiny import make_tiny_tokenizer

LONG = "\n".join(f"F{number} Nova 07:10 direct $90" for number in range(10, 10 + MOST_TOLD + 1))
TWO_WORDS = "What are its first two words?"
TWEETS = [{"id": 1, "user": f"user {number}", "text": "x" * 40} for number in range(2)]


def looked_up(answer: Any, *, name: str = "get_it", **given: Any) -> Executed:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    call = ToolCall(call_id="c", name=name, arguments=json.dumps(given))
    return Executed(call, ToolResult(call_id="c", name=name, parts=text_parts(text)), "a", "a")


@pytest.mark.parametrize(
    ("answer", "values", "question", "asked"),
    [
        (LIST, ("F12", "F77", "F40"), "", ""),
        (LONG, (), "Which one comes last?", "F18"),
        ("name | age\nBob Moss | 41\nEve Hill | 20", ("Bob Moss", "Eve Hill"), "", ""),
        ("customer(id, name)\nvisit(id, day)", ("customer", "visit"), "", ""),
        ({"files": ["notes.txt", "old"]}, ("notes.txt", "old"), "", ""),
        ({"files": ["old"]}, ("old",), "", ""),
        ({"files": [f"{number}.txt" for number in range(20)]}, (), "Which one comes last?", "19.txt"),
        ({"files": ["a/long/path/to/a_report_of_sales.txt"]}, ("a_report_of_sales.txt",), "", ""),
        ({"shop": "456 Oakwood Avenue, Rivermist, 83214"}, ("456 Oakwood Avenue",), "", ""),
        (TWEETS, ("user 0", "user 1"), "", ""),
        ([{"a": [1]}] * 12, (), "How many are there?", "12"),
        ({"tweets": 3, "likes": 12, "replies": 7}, (), "What is the tweets?", "3"),
        ({"a": {"b": "x1"}}, ("x1",), "", ""),
        (
            {"content": "Innovation ignites growth."},
            (),
            "What are its first two words?",
            "Innovation ignites",
        ),
        ({"text": "Line 1: Intro\nLine 2: More"}, (), "What are its first three words?", "Line 1: Intro"),
        ({"id": 5, "state": "open", "text": "x" * 30}, (), "What is the id?", "5"),
        ({"AAPL": 1.5, "GOOG": 2.5, "MSFT": 7.5}, (), "What is the AAPL?", "1.5"),
        (
            "Innovation ignites growth and much else.",
            (),
            "What are its first two words?",
            "Innovation ignites",
        ),
        ({"login_status": True}, (), "Yes or no?", "yes"),
        ({"login_status": False}, (), "Yes or no?", "no"),
        ("round(100.0 * sum(state IS 'lost'), 1)\n17.5", ("17.5",), "", ""),
        ("count(*)\n3", ("3",), "", ""),
        ("null", (), "", ""),
        ("nothing found", (), "", ""),
        ("", (), "", ""),
    ],
)
def test_what_an_answer_tells(answer: Any, values: tuple[str, ...], question: str, asked: str) -> None:
    told = told_of([looked_up(answer)])
    assert (told.values, told.question, told.answer) == (values, question, asked)


def test_what_the_user_said_is_no_news_and_a_change_tells_nothing() -> None:
    told = told_of([looked_up({"id": 7, "state": "open"}, id=7)])
    assert told.all == ("open",)
    assert told_of([looked_up({"terminal": "hello there"}, text="hello there")]).all == ()
    assert told_of([looked_up({"authentication": True}, name="authenticate")]).all == ()
    changed = looked_up({"id": 7})._replace(after="b")
    assert told_of([changed]).all == ()


def test_only_the_last_call_is_asked_about() -> None:
    both = told_of([looked_up(LONG), looked_up({"content": "Innovation ignites growth."})])
    assert both.question == TWO_WORDS and both.values == ()
    first = told_of([looked_up({"id": 5, "state": "open", "text": "x" * 30}), looked_up(LIST)])
    assert (first.values, first.question) == (("5", "F12", "F77", "F40"), "")
    book = looked_up("booked B7")._replace(after="b")
    assert told_of([looked_up(LONG), book]) == told_of([book])


def _turn(answer: str) -> TurnCalls:
    return turn(played((*SEARCH[:2], answer)))


def test_a_request_asks_the_question_and_the_reply_answers_it() -> None:
    made, rng = _turn(LONG), random.Random(0)
    for seed in range(20):
        assert phrase_request(made, rng=random.Random(seed)).endswith(" Which one comes last?")
    plain = "Please show me flight options from Oslo to Rome on May 4."
    assert request_problem(plain, made) == "it does not ask: Which one comes last?"
    reply = phrase_closing(made, rng=rng)
    assert reply.endswith("(F18)")
    asked = [call.executed for call in made.calls]
    assert values_to_say(asked, reply, request=f"{plain} Which one comes last?") == ("F18",)
    assert values_to_say(asked, reply, request=plain) == values_to_say(asked, reply) == ()


def test_a_question_is_no_call_for_the_program_that_reads() -> None:
    made = _turn(json.dumps({"bookings": 3, "trips": 12, "rooms": 7}))
    text = phrase_request(made, rng=random.Random(0))
    assert text.endswith("What is the bookings?")
    assert asyncio.run(round_trip(text, ("flights",), made, ())) == ""


def _plans(name: str, renderer: Renderer, bases: list[Task]) -> Iterator[Task]:
    method = load_synthesizer(name)(
        environment=load_environment("travel_desk"), engine=cast(Engine, None), renderer=renderer
    )

    async def run() -> list[Task]:
        return [record async for record in method.synthesize(bases) if isinstance(record, Task)]

    yield from asyncio.run(run())


def _but_done(turns: tuple[PlannedTurn, ...], at: int) -> Iterator[Turn]:
    """Gold, which says no more than DONE in turn `at`."""
    for place, planned in enumerate(turns):
        for made in planned.calls:
            yield assistant("", ToolCall(call_id="gold", name=made.name, arguments=made.arguments))
        yield assistant("DONE" if place == at else planned.reply)


@pytest.mark.parametrize("name", ["astra_chains", "director_actor", "magnet"])
def test_done_is_no_answer_to_a_look_up(name: str, tmp_path: Path) -> None:
    world = load_environment("travel_desk")
    bases = list(islice(world.tasks("train"), 6))
    looked = 0
    for task in _plans(name, load_renderer(make_tiny_tokenizer(tmp_path)), bases):
        turns = read_blueprint(task).turns
        for at, planned in enumerate(turns):
            asks = any(call.mentioned and not call.changes and call.status == "ok" for call in planned.calls)
            if planned.expects is Expects.ACT and asks:
                played_ = asyncio.run(play(world, task, PlannedGold(cast(Any, _but_done(turns, at)))))
                assert not played_.success, (planned.text, planned.reply)
                looked += 1
    assert looked >= 3
