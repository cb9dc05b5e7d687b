"""GRPO-RoC and the instance filter against the paper's numbers, and against what its released code does."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from data.errors import ConfigError
from data.messages import ToolResult, ToolStatus, Turn, assistant, text_parts, tool, user
from data.trajectories import Termination, Trajectory
from rl.advantages import advantages, verified_total
from rl.selection import (
    SelectionSettings,
    draw_clean,
    penalty_of,
    roc_counts,
    select_rollouts,
    varied_groups,
)
from tests.rl.builders import trajectory

ROC = SelectionSettings()


def answered(*results: tuple[str, ToolStatus], texts: Sequence[str] = ("done",)) -> tuple[Turn, ...]:
    """A dialogue with these tool results, then these words of the assistant."""
    said = [
        tool(ToolResult(call_id=f"c{number}", name="f", parts=text_parts(text), status=status))
        for number, (text, status) in enumerate(results)
    ]
    return (user("do it"), *said, *(assistant(text) for text in texts))


def group_of(
    rewards: Sequence[float | None], *, name: str = "g", errors: Sequence[int] = ()
) -> list[Trajectory]:
    """Rollouts of one group; each has four results, of which `errors[i]` (else 1) failed."""
    made = []
    for index, reward in enumerate(rewards):
        failed = errors[index] if errors else 1
        statuses = [ToolStatus.TOOL_ERROR] * failed + [ToolStatus.OK] * (4 - failed)
        end = Termination.INFRA_FAILURE if reward is None else Termination.FINISHED
        turns = answered(*(("seen", status) for status in statuses))
        made.append(trajectory(reward=reward, group=name, index=index, turns=turns, termination=end))
    return made


@pytest.mark.parametrize(("positives", "kept"), [(1, (1, 15)), (3, (2, 14)), (5, (2, 14)), (7, (4, 12))])
def test_counts_of_32_rollouts_of_which_16_are_kept(positives: int, kept: tuple[int, int]) -> None:
    assert roc_counts(positives, 32 - positives, 16) == kept


def test_counts_where_the_released_code_fails_its_own_assertion() -> None:
    assert roc_counts(5, 25, 15) == (2, 13)
    assert roc_counts(3, 4, 3) == (1, 2)


def test_counts_always_add_up() -> None:
    for total, keep in itertools.product(range(1, 20), range(1, 20)):
        for positives in range(total + 1):
            kept = roc_counts(positives, total - positives, keep)
            assert sum(kept) == min(keep, total)
            assert 0 <= kept.positives <= positives and 0 <= kept.negatives <= total - positives
            assert kept.positives >= min(2, keep // 2, positives)
            assert kept.negatives >= min(2, keep // 2, total - positives)


def test_penalty_oracles() -> None:
    four = [("seen", ToolStatus.OK)] * 3 + [("no", ToolStatus.TOOL_ERROR)]
    turns = answered(*four, texts=["a </answer>", "b </answer>", "c"])
    assert penalty_of(trajectory(turns=turns), answer="</answer>") == pytest.approx(0.25 + 1 / 3)
    assert penalty_of(trajectory(turns=answered(texts=["x </answer>"])), answer="</answer>") == 0.5
    assert penalty_of(trajectory(turns=answered(texts=["x"])), answer="</answer>") == 1.5
    assert penalty_of(trajectory(turns=answered())) == 0.5


def test_the_word_error_in_a_result_that_is_ok_is_no_error() -> None:
    told = answered(("mean squared error: 0.1", ToolStatus.OK))
    failed = answered(("not found", ToolStatus.TOOL_ERROR))
    assert penalty_of(trajectory(turns=told)) == 0.0 and penalty_of(trajectory(turns=failed)) == 1.0


def test_successes_are_drawn_in_proportion_to_one_over_their_penalty() -> None:
    penalties = [0.25, 0.5, 1.0, 2.0]
    weights = [1 / penalty for penalty in penalties]
    expected = [0.0] * 4
    for first, second in itertools.permutations(range(4), 2):
        chance = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        expected[first] += chance
        expected[second] += chance
    rng = random.Random(0)
    drawn = Counter(index for _ in range(20_000) for index in draw_clean(penalties, 2, rng))
    for index in range(4):
        assert drawn[index] / 20_000 == pytest.approx(expected[index], abs=0.012)
    assert expected[3] > 0.1  # sorting would never keep it


def test_spotless_successes_come_first_and_evenly() -> None:
    rng = random.Random(0)
    drawn = Counter(index for _ in range(3000) for index in draw_clean([0.0, 0.5, 0.0, 0.0], 2, rng))
    assert drawn[1] == 0 and all(drawn[index] / 3000 == pytest.approx(2 / 3, abs=0.04) for index in (0, 2, 3))
    then = Counter(index for _ in range(1000) for index in draw_clean([0.0, 0.5, 0.0, 2.0], 3, rng))
    assert then[0] == then[2] == 1000 and then[1] / 1000 == pytest.approx(0.8, abs=0.05)


def test_failures_are_drawn_evenly_whatever_went_wrong_in_them() -> None:
    group = group_of([0.0] * 6 + [1.0] * 2, errors=[0, 1, 2, 3, 4, 4, 1, 1])
    drawn: Counter[int] = Counter()
    for seed in range(3000):
        kept, _ = select_rollouts(group, ROC, keep=4, seed=str(seed))
        drawn.update(item.rollout_index for item in kept if not item.success)
    assert all(drawn[index] / 3000 == pytest.approx(2 / 6, abs=0.04) for index in range(6))


def test_a_selection_is_a_function_of_seed_and_group() -> None:
    one, other = group_of([1.0] * 4 + [0.0] * 4), group_of([1.0] * 4 + [0.0] * 4, name="h")
    kept, _ = select_rollouts([*one, *other], ROC, keep=4, seed="s")
    again, _ = select_rollouts([*other, *one], ROC, keep=4, seed="s")
    assert {item.trajectory_id for item in kept} == {item.trajectory_id for item in again}
    others = [select_rollouts(one, ROC, keep=4, seed=str(seed))[0] for seed in range(8)]
    assert len({tuple(item.rollout_index for item in chosen) for chosen in others}) > 1


def test_failed_rollouts_leave_first_and_short_groups_are_kept_and_told_of() -> None:
    group = group_of([1.0, None, 0.0, 1.0, None, 0.0, 0.0, 1.0])
    kept, report = select_rollouts(group, ROC, keep=4, seed="s")
    rewarded = [item for item in kept if item.reward is not None]
    assert len(rewarded) == 4 and sum(item.reward is None for item in kept) == 2
    assert (report.rollouts, report.kept, report.short_groups) == (6, 4, [])
    short, report = select_rollouts(group_of([1.0, None, 0.0]), ROC, keep=4, seed="s")
    assert len(short) == 3 and report.short_groups == ["g"] and report.kept == 2


def test_a_group_that_all_or_nobody_solved_is_kept_like_any_other() -> None:
    """The released code removes such groups first; their advantages are 0 anyway, and counted as such."""
    for reward in (0.0, 1.0):
        kept, report = select_rollouts(group_of([reward] * 8), ROC, keep=4, seed="s")
        assert (len(kept), report.kept, report.left_out_groups) == (4, 4, [])
        assert set(advantages(kept).values.values()) == {0.0} and advantages(kept).zero_variance_groups == 1


def test_advantages_are_over_what_was_kept() -> None:
    group = group_of([1.0] * 2 + [0.0] * 6)
    kept, _ = select_rollouts(group, ROC, keep=4, seed="s")
    values = advantages(kept).values
    assert len(values) == 4 and sum(values.values()) == pytest.approx(0.0)
    assert max(values.values()) == pytest.approx(0.5 / (1 / 3) ** 0.5, abs=1e-4)


def test_cleaner_successes_are_kept_more_often() -> None:
    group = group_of([1.0] * 8 + [0.0] * 8, errors=[1, 4] * 8)
    reports = [select_rollouts(group, ROC, keep=8, seed=str(seed))[1] for seed in range(200)]
    assert all(report.penalty == pytest.approx(0.625) for report in reports)
    assert sum(report.kept_penalty for report in reports) / 200 < 0.55


def test_groups_of_the_largest_spread_are_kept_and_the_others_named() -> None:
    groups = {"flat": [1.0, 1.0], "half": [0.0, 1.0], "close": [0.0, 0.1], "lone": [1.0, None]}
    batch = [item for name, rewards in groups.items() for item in group_of(rewards, name=name)]
    kept, left_out = varied_groups(batch, 0.5, verified_total)
    assert {item.group_id for item in kept} == {"half", "close"} and left_out == ["flat", "lone"]
    assert varied_groups(batch, 1.0, verified_total) == (batch, [])
    assert {item.group_id for item in varied_groups(batch, 0.01, verified_total)[0]} == {"half"}


@pytest.mark.parametrize(("wrong", "said"), [({"kind": "best"}, "roc"), ({"oversample": 1}, "at least 2")])
def test_settings_that_make_no_selection_are_refused(wrong: dict, said: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=said):
        SelectionSettings(**wrong)
