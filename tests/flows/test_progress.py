"""The counts and the alarm of a stage: what the infrastructure broke is seen, however it ended."""

from __future__ import annotations

import pytest

from data.trajectories import Blame, Termination
from flows.stages.progress import Meter
from pipeline.errors import EngineError, EnvironmentFailure
from tests.samples import trajectory


@pytest.mark.parametrize(
    ("termination", "blame", "error"),
    [
        (Termination.INFRA_FAILURE, Blame.INFRASTRUCTURE, EngineError),
        (Termination.TIME_BUDGET, Blame.TOOL, EnvironmentFailure),
        (Termination.TIME_BUDGET, Blame.INFRASTRUCTURE, EngineError),
        (Termination.CANCELLED, Blame.INFRASTRUCTURE, EngineError),
    ],
)
def test_an_episode_without_a_reward_is_unfinished_until_an_attempt_has_one(
    termination: Termination, blame: Blame, error: type[Exception]
) -> None:
    meter = Meter(2)
    broken = trajectory(termination=termination, reward=None).model_copy(update={"blame": blame})
    meter.add(broken)
    assert meter.broken_in_a_row == 1 and len(meter.unfinished) == 1
    assert isinstance(meter.failure(), error)
    meter.add(trajectory())
    assert meter.broken_in_a_row == 0 and not meter.unfinished


def test_a_straggler_is_let_go_where_its_group_has_a_reward() -> None:
    cut = trajectory(termination=Termination.CANCELLED, reward=None)
    meter = Meter(2)
    meter.add(cut)
    meter.let_go({"another"})
    assert list(meter.unfinished.values()) == [cut] and "cancelled=1" in meter.line()
    assert "tries them again, or give groups more time (policy.group_seconds)" in str(meter.failure())
    broken = trajectory(termination=Termination.INFRA_FAILURE, reward=None)
    meter.add(broken.model_copy(update={"rollout_index": 5, "error": "the server died"}))
    meter.let_go({cut.group_id})
    assert meter.stragglers == 1 and len(meter.unfinished) == 1
    assert str(meter.failure()).endswith(
        "reward; the last: the server died. The same command tries them again"
    )


def test_a_stage_whose_number_is_a_bound_or_unknown_says_so() -> None:
    bound, unknown = Meter(6, at_most=True), Meter(0, at_most=True)
    for meter in (bound, unknown):
        meter.add(trajectory())
    assert bound.line().startswith("1 of at most 6 episodes, ") and "left" not in bound.line()
    assert unknown.line().startswith("1 episodes, ") and "left" not in unknown.line()


def test_the_line_says_rates_solved_endings_and_time_left() -> None:
    now = [0.0]
    meter = Meter(20, clock=lambda: now[0])
    used = trajectory().usage.model_copy(update={"generated_tokens": 50})
    for reward, ending in [
        (1.0, Termination.FINISHED),
        (0.0, Termination.FINISHED),
        (0.0, Termination.TURN_BUDGET),
        (0.0, Termination.TURN_BUDGET),
        (None, Termination.INFRA_FAILURE),
    ]:
        meter.add(trajectory(reward=reward, termination=ending).model_copy(update={"usage": used}))
    now[0] = 10.0
    assert meter.line() == (
        "5/20 episodes, 25 tokens/s, 0.5 episodes/s, solved 25%, 30 s left, turn_budget=2 infra_failure=1"
    )


def test_the_line_says_why_plans_made_no_task_and_waits_for_none_of_them() -> None:
    meter = Meter(4)
    assert "nothing to do" in meter.line()
    for reason in ("too_few_calls", "too_few_calls", "round_trip"):
        meter.give_up(reason)
    assert meter.line().endswith("3 plans made no task: too_few_calls=2 round_trip=1")
    meter.add(trajectory())
    assert ", 0 s left;" in meter.line()
