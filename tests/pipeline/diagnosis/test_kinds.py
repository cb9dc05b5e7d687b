import pytest

from data.messages import ParseStatus, ToolCall, ToolStatus, assistant
from data.trajectories import Termination, Trajectory
from pipeline.checks.attempts import attempts
from pipeline.diagnosis.claims import first_claim, identifiers, past_forms
from pipeline.diagnosis.kinds import FailureKind, Match, SuccessKind, compare, find
from tests.samples import call, trajectory, turns_of_calls

SEARCH = call("search", city="Rome")
BOOK = call("book", offer=1)
CANCEL = call("cancel", offer=1)
CALLS = [SEARCH, BOOK]
GOLD = turns_of_calls(CALLS)
TOLD = (*GOLD, assistant("ANSWER 210"))
BROKEN = call("", status=ParseStatus.NOT_JSON, raw="<tool_call>{")


def failed(*steps: object, **options: object) -> Trajectory:
    return trajectory(*steps, reward=0.0, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "kind", "step"),
    [
        (trajectory(SEARCH, reward=None), FailureKind.INFRA, None),
        (trajectory("Hi.", reward=None, termination=Termination.CANCELLED), FailureKind.INFRA, None),
        (failed(SEARCH, BROKEN, "Sorry."), FailureKind.PARSE, 2),
        (failed(call("", status=ParseStatus.TRUNCATED, raw="<tool_call>")), FailureKind.PARSE, 1),
        (failed(call("book", status=ParseStatus.SALVAGEABLE, raw="```")), FailureKind.FORMAT, 1),
        (failed(call("", status=ParseStatus.NOT_A_CALL, raw="[]")), FailureKind.FORMAT, 1),
        (failed(call("fly", to="Rome"), "Sorry."), FailureKind.UNKNOWN_TOOL, 1),
        (failed(call("search", town="Rome"), "Sorry."), FailureKind.SCHEMA, 1),
        (failed(SEARCH, CANCEL, "Done."), FailureKind.WRONG_TOOL, 2),
        (failed(call("search", city="Oslo"), BOOK, "Done."), FailureKind.WRONG_ARGUMENT, 1),
        (failed(SEARCH, "Done."), FailureKind.MISSING_CALL, None),
        (failed(SEARCH, BOOK, CANCEL, "Done."), FailureKind.EXTRA_CALL, 3),
        (failed("I cannot."), FailureKind.GAVE_UP, None),
        (failed(SEARCH, SEARCH, SEARCH, "Done."), FailureKind.LOOP, 3),
        (failed("a", "a", termination=Termination.REPETITION), FailureKind.LOOP, None),
        (failed(SEARCH, "Hm.", termination=Termination.TURN_BUDGET), FailureKind.BUDGET, None),
        (failed("Hm.", termination=Termination.CONTEXT_OVERFLOW), FailureKind.BUDGET, None),
        (failed(SEARCH, (BOOK, ToolStatus.TOOL_ERROR), "Sorry."), FailureKind.TOOL_ERROR, 2),
        (failed(SEARCH, BOOK, "Booked Oslo."), FailureKind.WRONG_ANSWER, None),
        (failed(BOOK, SEARCH, "Done."), FailureKind.ORDER, 1),
        (failed(SEARCH, "Booked it."), FailureKind.HALLUCINATED_RESULT, 2),
        (failed("You are on F123."), FailureKind.HALLUCINATED_RESULT, 1),
        (failed(SEARCH, (BOOK, ToolStatus.TOOL_ERROR), "Booked."), FailureKind.HALLUCINATED_RESULT, 3),
        (failed("<tool_response>\nbooked\n</tool_response>"), FailureKind.HALLUCINATED_RESULT, 1),
        (failed("ANSWER $210"), FailureKind.HALLUCINATED_RESULT, 1),
        (failed(SEARCH, "Booked it.", CANCEL, "Done."), FailureKind.HALLUCINATED_RESULT, 2),
        (failed(SEARCH, CANCEL, "Booked it."), FailureKind.WRONG_TOOL, 2),
    ],
)
def test_kind_and_first_failing_step(item: Trajectory, kind: FailureKind, step: int | None) -> None:
    finding = find(item, GOLD)
    assert (finding.kind, finding.step) == (kind, step)


def test_a_malformed_call_that_was_recovered_from_is_not_the_failure() -> None:
    finding = find(failed(BROKEN, SEARCH, CANCEL, "Done."), GOLD)
    assert (finding.kind, finding.step) == (FailureKind.WRONG_TOOL, 3)
    finding = find(failed(SEARCH, BROKEN, BROKEN, "Sorry."), GOLD)
    assert (finding.kind, finding.step) == (FailureKind.PARSE, 2)


def test_without_gold_only_the_record_speaks() -> None:
    assert find(failed(SEARCH, CANCEL, "Done.")).kind is FailureKind.UNEXPLAINED
    assert find(failed("I cannot.")).kind is FailureKind.UNEXPLAINED
    assert find(failed(BROKEN)).kind is FailureKind.PARSE


def test_a_task_that_needs_no_call_is_not_given_up() -> None:
    assert find(failed("Wrong words."), ()).kind is FailureKind.WRONG_ANSWER


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (trajectory(SEARCH, BOOK, "Done."), SuccessKind.CLEAN),
        (trajectory(SEARCH, (BOOK, ToolStatus.TOOL_ERROR), BOOK, "Done."), SuccessKind.RECOVERED),
        (trajectory(BROKEN, SEARCH, BOOK, "Done."), SuccessKind.RECOVERED),
        (trajectory(SEARCH, SEARCH, BOOK, "Done."), SuccessKind.ROUNDABOUT),
    ],
)
def test_kinds_of_success(item: Trajectory, kind: SuccessKind) -> None:
    assert find(item, GOLD).kind is kind


def matches(made: list[ToolCall], gold: list[ToolCall]) -> list[Match]:
    return [departure.match for departure in compare(list(attempts(trajectory(*made))), gold)]


def test_calls_match_as_a_multiset_in_any_order() -> None:
    assert matches([BOOK, SEARCH], [SEARCH, BOOK]) == []
    assert matches([SEARCH], [SEARCH, SEARCH]) == [Match.MISSING_CALL]
    assert matches([SEARCH, SEARCH], [SEARCH]) == [Match.EXTRA_CALL]
    spaced = ToolCall(call_id="", name="search", arguments='{ "city":"Rome" }')
    assert matches([spaced], [SEARCH]) == []


def test_departures_name_tool_and_argument() -> None:
    (departure,) = compare(list(attempts(trajectory(call("book", offer=2)))), [BOOK])
    assert departure.match is Match.WRONG_ARGUMENT and departure.arguments == ("offer",)
    (departure,) = compare(list(attempts(trajectory(CANCEL))), [BOOK])
    assert departure.match is Match.WRONG_TOOL and departure.arguments == ()


def test_order_is_the_failure_only_where_nothing_else_differs() -> None:
    """The typed answer is gold's; calls that gold makes in one turn have no order among themselves."""
    assert find(failed(BOOK, SEARCH, "ANSWER 210"), TOLD).kind is FailureKind.ORDER
    assert find(failed(BOOK, SEARCH, "ANSWER 99"), TOLD).kind is FailureKind.WRONG_ANSWER
    assert find(failed(SEARCH, BOOK, "ANSWER 99"), TOLD).kind is FailureKind.WRONG_ANSWER
    together = (assistant("", SEARCH, BOOK), assistant("", CANCEL))
    assert find(failed(BOOK, SEARCH, CANCEL, "Done."), together).kind is FailureKind.WRONG_ANSWER
    finding = find(failed(BOOK, CANCEL, SEARCH, "Done."), together)
    assert (finding.kind, finding.step) == (FailureKind.ORDER, 2)
    assert find(trajectory(BOOK, SEARCH, "Done."), GOLD).kind is SuccessKind.CLEAN


@pytest.mark.parametrize(
    "words",
    [
        "I could not book it: it can be booked on Monday.",
        "Shall it be booked?",
        "If it is booked, you will hear.",
        "Nothing was booked.",
        "Done.",
        "The 13th, 10am, for 12-night stays; mp3, COVID-19, 2026-05-01.",
        "I found 3 offers for $210.",
        "ANSWER soon",
    ],
)
def test_words_that_claim_nothing(words: str) -> None:
    assert first_claim(failed(words)) is None
    assert find(failed(words), GOLD).kind is FailureKind.GAVE_UP


def test_what_was_seen_or_done_is_no_claim() -> None:
    """Said by the user, sent as an argument, answered by a tool; an effect after its tool worked."""
    assert first_claim(trajectory("F123 it is.", prompt="Take F123.")) is None
    assert first_claim(trajectory(call("search", city="f123"), "F123 it is.")) is None
    assert first_claim(trajectory(BOOK, "Booked.")) is None
    assert first_claim(trajectory((BOOK, ToolStatus.TOOL_ERROR), BOOK, "Booked.")) is None
    assert first_claim(trajectory("Booked.", prompt="What have I booked?")) is None
    assert first_claim(trajectory(SEARCH, "ANSWER 210")) is None  # it may have been computed
    assert first_claim(trajectory("ANSWER 210", prompt="Say 210.")) is None
    assert first_claim(trajectory(SEARCH, "Canceled.")) == 4


def test_the_words_of_claims() -> None:
    assert list(identifiers("B-27x F123, 3fa9; x2 a1 12 12th one-2 ab-12")) == ["b-27x", "f123", "3fa9"]
    assert past_forms("cancel") == ("canceled", "cancelled")
    assert (past_forms("move"), past_forms("copy"), past_forms("do")) == (("moved",), ("copied",), ())
