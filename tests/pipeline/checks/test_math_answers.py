"""Mathematical equality on the real library, in its real child process."""

from __future__ import annotations

import threading

import pytest

from pipeline.checks import math_answers
from pipeline.checks.math_answers import MathLimits, MathVerdict, compare_answers
from pipeline.errors import ConfigError, JudgeError

EQUAL, DIFFERENT = MathVerdict(equal=True), MathVerdict(equal=False)


@pytest.mark.parametrize(
    ("reference", "given", "expected"),
    [
        ("1/2", r"So it is $\boxed{\frac{1}{2}}$.", EQUAL),
        (r"\frac{1}{2}", "0.5", EQUAL),
        ("1024", "The answer is 1,024.", EQUAL),
        ("$x^2+1$", "$1+x^2$", EQUAL),
        (r"\{1, 2\}", r"$\{2, 1\}$", EQUAL),
        ("41", "The answer is 42", DIFFERENT),
        ("42", "I do not know", DIFFERENT),
        ("42", "", DIFFERENT),
        ("42", "__import__('os').system('touch planted')", DIFFERENT),
    ],
)
def test_answers_are_compared_as_mathematics(reference: str, given: str, expected: MathVerdict) -> None:
    assert compare_answers([reference], given) == expected


def test_any_reference_may_be_met_from_any_thread() -> None:
    found: list[MathVerdict] = []
    worker = threading.Thread(target=lambda: found.append(compare_answers(["7", "42"], "42")))
    worker.start()
    worker.join()
    assert found == [EQUAL]


def test_an_answer_that_takes_for_ever_is_wrong_and_the_next_one_is_judged() -> None:
    hostile = r"$\boxed{9^{9^{9^{9}}}}$"
    verdict = compare_answers(["3"], hostile, limits=MathLimits(cpu_seconds=1))
    assert not verdict.equal
    assert compare_answers(["3"], "3") == EQUAL


def test_a_child_killed_from_outside_is_a_failed_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare_answers(["3"], "3") == EQUAL
    child = math_answers._CHECKER._child
    assert child is not None
    monkeypatch.setattr(child, "poll", lambda: None)  # it dies between the look and the request
    child.kill()
    with pytest.raises(JudgeError, match="ended with status -9"):
        compare_answers(["3"], "3")
    assert compare_answers(["3"], "3") == EQUAL


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="cpu_seconds must be at least 1"):
        MathLimits(cpu_seconds=0)
