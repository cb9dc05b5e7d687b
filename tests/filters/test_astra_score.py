"""ASTRA's seven parts: what a program counts, what judges grade, and that a failed judge gives no score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from data import canonical
from data.errors import ConfigError
from data.messages import ToolSpec, ToolStatus, Turn
from data.trajectories import Trajectory
from filters import build_filters
from filters.astra_parts import (
    conciseness,
    in_other_language,
    rounds,
    strange_urls,
    tool_success,
)
from filters.astra_score import AstraScore
from pipeline.chat.scripted import ScriptedChat
from pipeline.checks.language import latin_language, same_language, script_of
from tests.samples import call, trajectory

ASK = call("search", city="Rome")
BOOK = call("book", offer=1)
FAILED = (BOOK, ToolStatus.TOOL_ERROR)
DONE = "I booked offer 1 for you."
YES = {"reasoning": "Good.", "understanding": "yes", "planning": "yes"}
ANSWER = {"reasoning": "Good.", "correctness": "yes", "summary": "yes", "urls_fit": True}


def judge(*, query: Any = YES, later: Any = YES, answer: Any = ANSWER) -> ScriptedChat:
    """A chat that plays all three judges; a text is said as it is."""

    def said(turns: Sequence[Turn], tools: Sequence[ToolSpec]) -> str:
        start = turns[0].text
        reply = query if "begins" in start else later if "in the middle" in start else answer
        return reply if isinstance(reply, str) else canonical.dumps(reply)

    return ScriptedChat(said, max_asks=2)


def parts(scored: Trajectory) -> dict[str, float]:
    return {score.name.removeprefix("astra/"): score.value for score in scored.scores}


@pytest.mark.parametrize(("reading", "expected"), [("paper", 2 / 3), ("code", 2.5 / 3)])
def test_a_failed_call_counts_nothing_in_the_paper_and_half_in_the_code(
    reading: Any, expected: float
) -> None:
    assert tool_success(trajectory(ASK, FAILED, BOOK, DONE), failed_call=reading) == pytest.approx(expected)


def test_infrastructure_is_no_failed_call_and_no_call_is_full_marks() -> None:
    assert tool_success(trajectory(ASK, (BOOK, ToolStatus.INFRA_ERROR), DONE)) == 1.0
    assert tool_success(trajectory(DONE)) == conciseness(trajectory(DONE)) == 1.0


def test_conciseness_counts_calls_that_ask_again_and_hear_the_same() -> None:
    assert conciseness(trajectory(ASK, ASK, BOOK, ASK, DONE)) == 0.5
    assert conciseness(trajectory(FAILED, BOOK, DONE)) == 1.0, "a retry after an error repeats nothing"


def test_addresses_in_the_answer_must_stand_before_it() -> None:
    known = trajectory(ASK, "See https://rome.example/a.", prompt="Look at https://rome.example/a please.")
    assert strange_urls(known) == []
    assert strange_urls(trajectory(ASK, "See https://rome.example/b.")) == ["https://rome.example/b"]


def test_an_answer_in_another_language_is_noticed() -> None:
    german = "Ich habe das Angebot für Sie gebucht und es ist alles bereit."
    assert in_other_language(trajectory(BOOK, german, prompt="Can you book the offer for me please?"))
    assert not in_other_language(trajectory(BOOK, DONE, prompt="Can you book the offer for me please?"))
    assert not in_other_language(trajectory(BOOK, "DONE", prompt="Can you book the offer for me please?"))


def test_every_assistant_turn_is_a_round() -> None:
    assert rounds(trajectory(ASK, BOOK, DONE)) == [2, 4, 6]


def test_without_judges_only_what_a_program_counts() -> None:
    [(scored, verdict)] = AstraScore(threshold=0.8)([trajectory(ASK, FAILED, BOOK, DONE)])
    assert parts(scored) == pytest.approx({"tool_success": 2 / 3, "conciseness": 1.0, "total": 5 / 6})
    assert scored.labels == ("astra_score:program",)
    assert (verdict.keep, verdict.reason, verdict.detail) == (
        True,
        "ok",
        "program: tool_success, conciseness",
    )
    [(scored, verdict)] = AstraScore()([trajectory(ASK, "See https://nowhere.example.")])
    assert parts(scored)["final_answer"] == 0.0
    assert (verdict.keep, verdict.reason) == (False, "low_score")


def test_seven_parts_with_judges() -> None:
    half = {**YES, "planning": "partly"}
    chat = judge(query=half, later={**YES, "understanding": "no"}, answer={**ANSWER, "summary": "no"})
    [(scored, verdict)] = AstraScore(chat=chat, threshold=0.5)([trajectory(ASK, BOOK, DONE)])
    assert parts(scored) == pytest.approx(
        {
            "query_understanding": 1.0,
            "query_planning": 0.5,
            "context_understanding": 0.0,
            "context_planning": 1.0,
            "tool_success": 1.0,
            "conciseness": 1.0,
            "final_answer": 0.5,
            "total": 5 / 7,
        }
    )
    assert verdict.keep and verdict.score == pytest.approx(5 / 7) and scored.labels == ("astra_score:judged",)
    assert len(chat.asked) == 4, "query, two later rounds, answer"


def test_a_strange_address_is_the_judges_to_allow() -> None:
    item = trajectory(ASK, "See https://en.wikipedia.example/Rome.")
    for fits, expected in ((True, 1.0), (False, 0.0)):
        [(scored, _)] = AstraScore(chat=judge(answer={**ANSWER, "urls_fit": fits}))([item])
        assert parts(scored)["final_answer"] == expected


def test_another_language_is_nothing_whatever_the_judge_says() -> None:
    german = "Ich habe das Angebot für Sie gebucht und es ist alles bereit."
    item = trajectory(BOOK, german, prompt="Can you book the offer for me please?")
    [(scored, _)] = AstraScore(chat=judge())([item])
    assert parts(scored)["final_answer"] == 0.0


@pytest.mark.parametrize("failing", ["query", "later", "answer"])
@pytest.mark.parametrize("reply", ["I think it is fine.", '{"reasoning": "", "understanding": 1}'])
def test_a_failed_judge_gives_no_score_and_never_a_full_one(failing: str, reply: str) -> None:
    [(scored, verdict)] = AstraScore(chat=judge(**{failing: reply}), threshold=0.0)([trajectory(ASK, DONE)])
    assert (verdict.keep, verdict.reason, verdict.score) == (False, "judge_failed", None)
    assert scored.scores == () and scored.labels == ()


def test_a_record_without_reward_is_not_judged_and_a_pool_is_judged_once() -> None:
    chat = judge()
    filter_ = AstraScore(chat=chat)
    pool = [trajectory(ASK, DONE, identifier="a"), trajectory(ASK, reward=None, identifier="b")]
    assert [verdict.reason for _, verdict in filter_(pool)] == ["ok", "no_reward"]
    asked = len(chat.asked)
    assert [verdict.reason for _, verdict in filter_(pool)] == ["ok", "no_reward"]
    assert len(chat.asked) == asked


def test_rows_of_a_recipe_and_their_mistakes() -> None:
    [filter_] = build_filters([{"name": "astra_score", "threshold": 0.5, "failed_call": "code"}])
    assert filter_.name == "astra_score"
    for options, message in (
        ({"threshold": 2.0}, "between 0 and 1"),
        ({"failed_call": "half"}, "failed_call"),
        ({"chats": {"judge": judge()}}, "no judge judge"),
    ):
        with pytest.raises(ConfigError, match=message):
            AstraScore(**options)  # type: ignore[arg-type]


def test_languages() -> None:
    assert script_of("Забронируйте, пожалуйста, рейс") == "CYRILLIC" and script_of("F12") == ""
    assert script_of("请帮我订机票") == "CJK" and script_of("フライトを予約") == "CJK"
    assert latin_language("Please book the flight that is the cheapest for me") == "en"
    assert latin_language("Bitte buchen Sie den Flug und das Hotel für mich") == "de"
    assert latin_language("Merci de réserver le vol pour Rome et un hôtel dans le centre") == "fr"
    assert latin_language("B24 F12 Oslo") == ""
    assert not same_language("Please book the flight for me", "请帮我订一张去罗马的机票")
    assert same_language("Please book the flight for me", "OK")
