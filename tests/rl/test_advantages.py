"""Advantages against the hand-derived oracles."""

from __future__ import annotations

import pytest

from data.errors import ConfigError
from data.messages import ToolResult, ToolStatus, assistant, text_parts, tool, user
from data.trajectories import Termination, Trajectory
from rl.advantages import (
    AdvantageKind,
    AdvantageReport,
    SingletonRule,
    advantages,
    group_advantages,
    verified_total,
)
from tests.rl.builders import trajectory


def test_grpo_divides_by_the_unbiased_std() -> None:
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_dr_grpo_only_centres() -> None:
    assert group_advantages([1, 0, 0, 0], AdvantageKind.DR_GRPO) == [0.75, -0.25, -0.25, -0.25]


def test_rloo_centres_over_the_others() -> None:
    assert group_advantages([1, 0, 0, 0.5], AdvantageKind.RLOO) == pytest.approx([5 / 6, -0.5, -0.5, 1 / 6])


@pytest.mark.parametrize("kind", list(AdvantageKind))
def test_equal_rewards_give_exactly_zero(kind: AdvantageKind) -> None:
    assert group_advantages([0.1, 0.1, 0.1], kind) == [0.0, 0.0, 0.0]


def test_a_group_of_one_is_plain_reinforce() -> None:
    assert group_advantages([0.7]) == [0.7]


def test_failed_rollouts_leave_before_centring_and_are_counted() -> None:
    failed = trajectory(reward=None, index=2, termination=Termination.INFRA_FAILURE)
    good, bad = trajectory(reward=1.0, index=0), trajectory(reward=0.0, index=1)
    report = advantages([good, bad, failed], kind=AdvantageKind.DR_GRPO)
    assert report.values == {good.trajectory_id: 0.5, bad.trajectory_id: -0.5}
    assert (report.without_reward, report.groups, report.zero_variance_groups) == (1, 1, 0)
    assert report.reward_mean == 0.5 and report.reward_std == pytest.approx(0.5**0.5)


def test_groups_are_centred_apart_and_equal_ones_reported() -> None:
    rows = [trajectory(reward=1.0, group="a", index=i) for i in range(2)]
    rows += [trajectory(reward=float(i), group="b", index=i) for i in range(2)]
    report = advantages(rows, kind=AdvantageKind.DR_GRPO)
    assert [report.values[row.trajectory_id] for row in rows] == [0.0, 0.0, -0.5, 0.5]
    assert (report.zero_variance_groups, report.zero_variance_share) == (1, 0.5)


def test_a_planned_group_of_one_is_refused_unless_asked_for() -> None:
    lone = trajectory(reward=0.25)
    with pytest.raises(ConfigError, match="has 1 trajectory"):
        advantages([lone])
    assert advantages([lone], singletons=SingletonRule.DROP).dropped_singletons == 1
    assert advantages([lone], singletons=SingletonRule.REINFORCE).values == {lone.trajectory_id: 0.25}


def test_a_group_shrunk_by_failures_is_dropped_and_counted() -> None:
    failed = trajectory(reward=None, index=1, termination=Termination.INFRA_FAILURE)
    report = advantages([trajectory(index=0), failed])
    assert report.values == {} and report.dropped_singletons == 1


def test_the_value_that_is_centred_may_be_another_than_the_verifiers() -> None:
    """A verified trajectory whose judge failed leaves the group; success is counted all the same."""
    group = [trajectory(reward=float(index == 0), index=index) for index in range(4)]
    chosen = dict(zip((item.trajectory_id for item in group), (0.0, 2.0, 1.0, None), strict=True))
    report = advantages(group, kind=AdvantageKind.DR_GRPO, value=lambda item: chosen[item.trajectory_id])
    assert list(report.values.values()) == [-1.0, 1.0, 0.0]
    assert (report.without_reward, report.judge_failures) == (1, 1)
    assert report.reward_mean == 1.0 and report.success_rate == 0.25


def test_failed_calls_in_successes_are_counted_by_status() -> None:
    def answered(reward: float | None, *statuses: ToolStatus) -> Trajectory:
        said = ToolResult(call_id="c", name="look", parts=text_parts("error: none"))
        turns = [user("q")]
        for status in statuses:
            turns += [assistant(""), tool(said.model_copy(update={"status": status}))]
        return trajectory(reward=reward, turns=(*turns, assistant("done")))

    ok, failed = ToolStatus.OK, ToolStatus.TOOL_ERROR
    report = AdvantageReport()
    rows = [answered(1.0, ok, ok, failed), answered(1.0), answered(0.0, failed), answered(None, failed)]
    report.describe(rows, verified_total)
    assert report.success_errors == pytest.approx(1 / 3) and report.calls_mean == pytest.approx(4 / 3)
    assert report.figures()["success_errors"] == report.success_errors
    report.describe([answered(0.0, failed)], verified_total)
    assert (report.success_errors, report.calls_mean) == (0.0, 1.0)
