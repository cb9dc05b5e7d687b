"""Final answers and process measures."""

from __future__ import annotations

import pytest

from data.messages import ToolStatus, assistant, user
from data.trajectories import Termination
from pipeline.checks.answers import exact_match, final_answer, numbers_in, states, token_f1
from pipeline.checks.attempts import attempts
from pipeline.checks.process import (
    finished_early,
    has_format_error,
    num_effective,
    recovery_share,
    repetition_share,
    roc_penalty,
)
from tests.samples import call, trajectory


def test_exact_match_and_f1_follow_squad() -> None:
    assert exact_match("The Eiffel-Tower!", ["eiffeltower"]) and not exact_match("", [""])
    assert not exact_match("Rome", ["Paris", "Roma"])
    assert token_f1("the tall tower", ["tower", "a very tall tower"]) == pytest.approx(0.8)
    assert token_f1("", ["x"]) == 0.0 == token_f1("x", [])
    assert exact_match("the  Kaba, Mills!", ["Kaba Mills"]) and not exact_match("Kaba", ["Kaba Mills"])
    assert token_f1("Mills of a Kaba", ["Kaba Mills"]) == pytest.approx(0.8)
    assert exact_match("“Kaba” — Mills…", ["kaba mills"]) and exact_match("\uff2baba", ["Kaba"])
    assert not exact_match("the", ["the"])  # nothing is left of either


def test_the_final_answer_is_the_last_turns_and_only_of_an_answer() -> None:
    assert final_answer([user("?"), assistant("<answer>a</answer> no, <answer> b </answer>")]) == "b"
    assert (
        final_answer([assistant("ANSWER: 42")]) == "42"
        and final_answer([assistant("It is 42")]) == "It is 42"
    )
    assert final_answer([assistant("", call("f"))]) == "" == final_answer([assistant("x"), user("y")])
    assert final_answer([]) == ""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I looked it up.\nANSWER Kaba", "Kaba"),
        ("**ANSWER:** Kaba", "Kaba"),
        ("> Answer: Kaba", "Kaba"),
        ("ANSWER Kaba\nANSWER Mills", "Mills"),
        ("ANSWER Sales rose.\nThe north leads.", "Sales rose.\nThe north leads."),
        ("<answer>Kaba</answer>\nANSWER Mills", "Kaba"),
        ("Answering that took two calls.", "Answering that took two calls."),
        ("ANSWERS vary", "ANSWERS vary"),
    ],
)
def test_where_an_answer_is_marked(text: str, answer: str) -> None:
    assert final_answer([assistant(text)]) == answer


def test_points_are_stated_by_value_or_as_whole_words() -> None:
    assert states("Revenue was 1,200.0 euros.", "1200") and not states("Revenue was 12003", "1200")
    assert states("It fell in the North Sea", "north sea") and not states("northern seas", "north sea")
    assert numbers_in("from 3 to -4.5, v2 and 1,000") == [3.0, -4.5, 1000.0]


def test_errors_are_read_from_the_status_not_from_words() -> None:
    said = call("search", city="mean squared error")
    calls = list(attempts(trajectory(said, (call("book", offer=1), ToolStatus.TOOL_ERROR), "Done.")))
    assert num_effective(calls) == 1 and not has_format_error(calls)
    assert recovery_share(calls) == 0.0 and recovery_share(calls[:1]) is None


def test_repair_counts_within_the_window() -> None:
    failed, other, again = (
        (call("book", offer=1), ToolStatus.TOOL_ERROR),
        call("search", city="R"),
        call("book", offer=2),
    )
    assert recovery_share(list(attempts(trajectory(failed, other, again)))) == 1.0
    assert recovery_share(list(attempts(trajectory(failed, other, other, other, again)))) == 0.0
    assert repetition_share(list(attempts(trajectory(other, other, again)))) == 0.5


def test_giving_up_early_is_ending_unsuccessfully_with_fewer_calls_than_gold() -> None:
    gave_up = trajectory("I stop.", reward=0.0)
    assert finished_early(gave_up, num_calls=1, required=2) and not finished_early(
        gave_up, num_calls=2, required=2
    )
    assert finished_early(gave_up, num_calls=0, required=None)
    assert not finished_early(gave_up, num_calls=1, required=None)
    assert not finished_early(trajectory("ok", reward=1.0), num_calls=0, required=2)
    cut = trajectory("...", reward=0.0, termination=Termination.TURN_BUDGET)
    assert not finished_early(cut, num_calls=0, required=2)


def test_roc_penalty_oracles() -> None:
    assert roc_penalty(num_calls=4, num_errors=1, num_answers=2, num_turns=3) == pytest.approx(0.25 + 1 / 3)
    assert roc_penalty(num_calls=0, num_errors=0, num_answers=1, num_turns=1) == 0.5
    assert roc_penalty(num_calls=2, num_errors=0, num_answers=0, num_turns=2) == 1.0
