import pytest

from data.errors import ConfigError
from data.messages import ParseStatus, ToolStatus
from data.trajectories import Termination, Trajectory
from filters.base import ItemFilter
from filters.efficiency import Efficiency, demonstrated_lengths
from filters.valid_calls import ValidCalls
from filters.verified_outcome import VerifiedOutcome
from pipeline.checks.attempts import attempts, num_counted, tools_by_turn
from tests.samples import TOOLS, call, segment, spec, trajectory

SEARCH = call("search", city="Rome")
BOOK = call("book", offer=1)


def verdict_of(filter_: ItemFilter, item: Trajectory) -> tuple[bool, str, float | None]:
    ((_, verdict),) = filter_([item])
    return verdict.keep, verdict.reason, verdict.score


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (call("", status=ParseStatus.NOT_JSON, raw="<tool_call>{"), "not_json"),
        (call("", status=ParseStatus.NOT_A_CALL, raw="[1]"), "not_a_call"),
        (call("", status=ParseStatus.TRUNCATED, raw="<tool_call>"), "truncated"),
        (call("search", status=ParseStatus.SALVAGEABLE, raw="```"), "salvageable"),
        (call("fly", city="Rome"), "unknown_tool"),
        (call("search"), "bad_arguments"),
        (call("search", city=3), "bad_arguments"),
        (call("search", city="Rome", month=1), "bad_arguments"),
        (call("book", offer=True), "bad_arguments"),
    ],
)
def test_valid_calls_rejects_with_the_parse_status_of_the_first_bad_call(bad: object, reason: str) -> None:
    item = trajectory(SEARCH, bad, BOOK, "Done.")  # type: ignore[arg-type]
    keep, found, score = verdict_of(ValidCalls(), item)
    assert (keep, found) == (False, reason) and score == pytest.approx(2 / 3)


def test_valid_calls_keeps_good_calls_and_dialogues_without_any() -> None:
    assert verdict_of(ValidCalls(), trajectory(SEARCH, BOOK, "Done.")) == (True, "ok", 1.0)
    assert verdict_of(ValidCalls(), trajectory("I cannot do that.", reward=1.0)) == (True, "ok", 1.0)


def test_calls_are_checked_against_the_tools_of_their_own_segment() -> None:
    """Two segments show different tools; `search` is known in the first only."""
    base = trajectory(SEARCH, SEARCH, "Done.")
    first, second = segment(base.turns[:4]), segment(base.turns, tools=(spec("book", offer="integer"),))
    item = base.model_copy(update={"segments": (first, second)})
    assert tools_by_turn(item)[2] == TOOLS and tools_by_turn(item)[4] == second.tools
    ((_, verdict),) = ValidCalls()([item])
    assert (verdict.keep, verdict.reason, verdict.score) == (False, "unknown_tool", 0.5)
    assert verdict.detail.startswith("turn 4:")


def test_dialogues_without_tokens_keep_their_recorded_status() -> None:
    item = trajectory(call("fly", city="Rome"), "Done.").model_copy(update={"segments": ()})
    assert verdict_of(ValidCalls(), item) == (True, "ok", 1.0)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (trajectory("Done."), (True, "ok", 1.0)),
        (trajectory("Done.", reward=0.99), (False, "failed", 0.99)),
        (trajectory("Done.", reward=0.0, termination=Termination.TURN_BUDGET), (False, "failed", 0.0)),
        (trajectory("Done.", reward=None), (False, "no_reward", None)),
        (trajectory("Done.", reward=None, termination=Termination.CANCELLED), (False, "no_reward", None)),
    ],
)
def test_verified_outcome_never_calls_an_infrastructure_failure_failed(
    item: Trajectory, expected: tuple[bool, str, float | None]
) -> None:
    assert verdict_of(VerifiedOutcome(), item) == expected


def test_verified_outcome_threshold() -> None:
    assert verdict_of(VerifiedOutcome(threshold=0.5), trajectory("Done.", reward=0.5)) == (True, "ok", 0.5)
    with pytest.raises(ConfigError, match="NaN"):
        VerifiedOutcome(threshold=float("nan"))


def efficiency(gold: int | None, **options: float) -> Efficiency:
    return Efficiency(gold_length=lambda task: gold, **options)


def test_efficiency_compares_with_gold() -> None:
    two = trajectory(SEARCH, BOOK, "Done.")
    four = trajectory(SEARCH, SEARCH, SEARCH, BOOK, "Done.")
    assert verdict_of(efficiency(2), two) == (True, "ok", 1.0)
    assert verdict_of(efficiency(2), four) == (False, "too_many_calls", 0.5)
    assert verdict_of(efficiency(3), four) == (True, "ok", 0.75)
    assert verdict_of(efficiency(2, max_ratio=2), four) == (True, "ok", 0.5)
    assert verdict_of(efficiency(None), four) == (True, "no_gold_length", None)
    assert verdict_of(efficiency(0), trajectory("No call needed.")) == (True, "ok", 1.0)
    assert verdict_of(efficiency(0), trajectory(SEARCH, "Done.")) == (False, "too_many_calls", 0.0)
    with pytest.raises(ConfigError, match=r"max_ratio must be at least 1, got 0\.5"):
        efficiency(1, max_ratio=0.5)


def test_recovery_from_an_injected_error_costs_nothing() -> None:
    injected = trajectory(SEARCH, (BOOK, ToolStatus.TOOL_ERROR), BOOK, "Done.")
    twice = trajectory(SEARCH, (BOOK, ToolStatus.TOOL_ERROR), (BOOK, ToolStatus.INFRA_ERROR), BOOK, "Done.")
    looked_again = trajectory(SEARCH, (BOOK, ToolStatus.TOOL_ERROR), SEARCH, call("book", offer=2), "Done.")
    for item in (injected, twice, looked_again):
        assert num_counted(list(attempts(item))) == 2
        assert verdict_of(efficiency(2, max_ratio=1), item) == (True, "ok", 1.0)


def test_waste_after_an_error_and_malformed_calls_still_count() -> None:
    wasteful = trajectory((BOOK, ToolStatus.TOOL_ERROR), *[SEARCH] * 6, BOOK, "Done.")
    assert num_counted(list(attempts(wasteful))) == 7
    malformed = trajectory(SEARCH, call("book", status=ParseStatus.NOT_JSON), BOOK, "Done.")
    assert num_counted(list(attempts(malformed))) == 3
    gave_up = trajectory(SEARCH, (BOOK, ToolStatus.TOOL_ERROR), "Sorry.", reward=0.0)
    assert num_counted(list(attempts(gave_up))) == 1


def test_gold_length_comes_from_the_shortest_successful_demonstration() -> None:
    pool = [
        trajectory(SEARCH, BOOK, task="a", synthesizer="demonstration"),
        trajectory(SEARCH, SEARCH, BOOK, task="a", synthesizer="demonstration"),
        trajectory(BOOK, task="a", synthesizer="demonstration", reward=0.0),
        trajectory(BOOK, task="b"),
    ]
    assert demonstrated_lengths(pool) == {"a": 2}
