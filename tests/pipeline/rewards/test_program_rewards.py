"""Every reward a program computes: its formula, its parts, what it makes of episodes that prove nothing."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from data.messages import ParseStatus, ToolStatus
from data.trajectories import RewardBy, Termination, Trajectory
from pipeline.checks.matching import Call
from pipeline.errors import ConfigError, JudgeError
from pipeline.rewards import REWARDS, build_reward, helped_by_gold, needs_gold
from pipeline.rewards.base import (
    Measured,
    ProgramReward,
    Score,
    chosen_total,
    rescored,
    with_score,
)
from pipeline.rewards.overlong import overlong_penalty
from tests.pipeline.rewards.samples import episode, task
from tests.samples import call

ROME, BOOK = call("search", city="Rome"), call("book", offer=1)
GOLD = {task().task_id: (Call("search", {"city": "Rome"}), Call("book", {"offer": 1}))}
OPTIONS: dict[str, dict[str, Any]] = {"overlong": {"limit": 100, "buffer": 50}, "math": {}}
CALLS = ("call_match", "call_graded", "call_f1")
PROGRAMS = (
    *CALLS,
    "verified",
    "code",
    "search",
    "sql",
    "data_analysis",
    "end_state",
    "efficient",
    "tool_cost",
    "three_dimensions",
    "overlong",
    "math",
)

JUDGED = {"judge", "judge_pairs", "checklist", "rubrics"}


def score(row: dict[str, Any] | str, item: Trajectory, *, private: Any = None, gold: Any = GOLD) -> Score:
    made = build_reward({"name": row} if isinstance(row, str) else row, gold=gold)
    assert isinstance(made, ProgramReward)
    copy = pickle.loads(pickle.dumps(made))
    found = made(task(private), item)
    assert found == copy(task(private), item)
    return found


def parts(found: Score) -> dict[str, float]:
    return {part.name: part.value for part in found.parts}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("ending", [Termination.INFRA_FAILURE, Termination.CANCELLED])
def test_an_episode_that_says_nothing_of_the_agent_has_no_score(name: str, ending: Termination) -> None:
    found = score({"name": name, **OPTIONS.get(name, {})}, episode(ROME, reward=None, termination=ending))
    assert found == Score(total=None)


def test_every_program_reward_is_tried_here() -> None:
    assert set(PROGRAMS) | {"weighted"} | JUDGED == set(REWARDS)


def test_verified_is_the_verifiers_total() -> None:
    assert score("verified", episode(ROME, reward=0.4)) == Score(0.4, (), False)


def test_code_is_the_pass_rate_less_a_penalty_for_steps() -> None:
    row = {"name": "code", "cost": "steps", "cost_limit": 200.0, "penalty": 0.1}
    found = score(row, episode("done", reward=0.0, parts={"hidden": 0.75, "steps": 100.0}))
    assert found.total == pytest.approx(0.7) and found.success is False
    assert parts(found) == {"pass_rate": 0.75, "cost": 0.5}
    slow = score(row, episode("done", reward=1.0, parts={"hidden": 1.0, "steps": 1e9}))
    assert slow.total == pytest.approx(0.9) and slow.success


def test_a_component_the_verifier_does_not_give_is_a_wrong_recipe() -> None:
    with pytest.raises(ConfigError, match="'hidden', and verifier v/1 of environment desk gives: state"):
        score("code", episode("done", parts={"state": 1.0}))


def test_an_exhausted_budget_scores_what_the_task_says() -> None:
    cut = episode(ROME, reward=0.0, termination=Termination.TURN_BUDGET)
    for name in ("code", "sql", "end_state"):
        assert score(name, cut).total == 0.0


def test_search_is_exact_match_less_cost() -> None:
    private = {"answer": ["Rome", "Roma"]}
    found = score("search", episode(ROME, ROME, "<answer>The Rome.</answer>"), private=private)
    assert found.total == pytest.approx(0.9)
    assert parts(found) == {"em": 1.0, "f1": 1.0, "searches": 2.0, "unanswered": 0.0}
    partly = score({"name": "search", "measure": "f1", "cost": 0.0}, episode("Rome town"), private=private)
    assert partly.total == pytest.approx(2 / 3)
    proven = score(
        {"name": "search", "measure": "success"}, episode(ROME, "Rome", reward=0.0), private=private
    )
    assert proven.total == -0.05
    cut = episode(ROME, "Rome", reward=0.0, termination=Termination.TOKEN_BUDGET)
    assert parts(score("search", cut, private=private))["unanswered"] == 1.0
    with pytest.raises(ConfigError, match="needs texts under 'answer' in the private part"):
        score("search", episode("Rome"), private={"goal": "Rome"})


def test_sql_takes_off_excess_work_of_right_queries_only() -> None:
    row = {"name": "sql", "penalty": 0.2}
    for ratio, expected in ((1.5, 0.9), (0.9, 1.0), (1e9, 0.8)):
        found = score(row, episode("x", parts={"success": 1.0, "cost_ratio": ratio}))
        assert found.total == pytest.approx(expected)
    wrong = episode("x", reward=0.0, parts={"success": 0.0, "cost_ratio": 1e9})
    assert score(row, wrong).total == 0.0 and parts(score(row, wrong))["excess"] == 0.0
    assert score(row, episode("x", parts={"success": 1.0})).total == 1.0


def test_data_analysis_has_four_dimensions() -> None:
    private = {"points": ["1200", "North"]}
    row = {"name": "data_analysis", "points": "points", "max_words": 10}
    full = score(row, episode("Revenue was 1,200 in the North."), private=private)
    assert full.total == pytest.approx(1.0)
    half = score(row, episode("Revenue was 1200, up 37 percent."), private=private)
    assert parts(half) == {"correct": 1.0, "complete": 0.5, "grounded": 0.5, "readable": 1.0}
    assert half.total == pytest.approx(0.5 + 0.15 + 0.05 + 0.1)
    long = score(row, episode(("1200 North " * 8).strip()), private=private)
    assert parts(long)["readable"] == pytest.approx(0.4)
    assert score(row, episode("Ask somebody else.", reward=0.0), private=private).total == 0.0


def test_call_match_is_all_or_nothing() -> None:
    assert score("call_match", episode(BOOK, ROME)).total == 1.0
    assert (
        score("call_match", episode(ROME)).total
        == 0.0
        == score("call_match", episode(ROME, BOOK, BOOK)).total
    )
    assert score("call_match", episode("no"), gold={task().task_id: ()}).total == 1.0
    own = {"name": "call_match", "gold_key": "calls"}
    assert (
        score(own, episode(ROME), private={"calls": [["search", {"city": "Rome"}]]}, gold=None).total == 1.0
    )
    with pytest.raises(ConfigError, match="compares with gold calls and task"):
        score("call_match", episode(ROME), gold=None)
    with pytest.raises(ConfigError, match="has no calls under 'calls'"):
        score(own, episode(ROME))


def test_call_graded_is_format_plus_correctness() -> None:
    gold = {task().task_id: (Call("search", {"city": "Rome", "month": 2}),)}
    found = score("call_graded", episode(ROME), gold=gold)
    assert found.total == pytest.approx(1.75) and parts(found)["correctness"] == pytest.approx(0.75)
    assert score("call_graded", episode(ROME, BOOK)).total == 4.0
    broken = episode(ROME, call("book", status=ParseStatus.NOT_JSON, raw="<"))
    assert score("call_graded", broken).total == -3.0
    assert score("call_graded", episode("no"), gold={task().task_id: ()}).total == 1.0
    assert score("call_graded", episode(ROME), gold={task().task_id: ()}).total == -2.0


def test_call_f1_balances_solving_and_calling() -> None:
    assert score("call_f1", episode(ROME, BOOK)).total == 1.0
    assert score("call_f1", episode(ROME, ROME, BOOK, BOOK)).total == pytest.approx(2 / 3)
    row = {"name": "call_f1", "solved": "solved", "required": "required"}
    nine = episode(*[ROME] * 9, parts={"solved": 3.0, "required": 3.0})
    assert score(row, nine, gold=None).total == pytest.approx(0.5)
    assert score("call_f1", episode("no"), gold={task().task_id: ()}).total == 1.0
    with pytest.raises(ConfigError, match="both solved and required"):
        build_reward({"name": "call_f1", "solved": "solved"})


def test_end_state_is_the_named_component() -> None:
    assert score("end_state", episode("x", reward=0.0, parts={"state": 1.0})) == Score(
        1.0, score("end_state", episode("x", parts={"state": 1.0})).parts, False
    )


def test_efficient_takes_off_turns_and_format_errors() -> None:
    found = score("efficient", episode(ROME, BOOK, "Done."))
    assert found.total == pytest.approx(1 - 0.1 * 3 / 10)
    counted = score({"name": "efficient", "relative": False}, episode(ROME, BOOK, "Done."))
    assert counted.total == pytest.approx(0.7)
    broken = score("efficient", episode(call("fly", city="Rome"), reward=0.0))
    assert broken.total == pytest.approx(-0.51) and parts(broken)["format_error"] == 1.0


def test_tool_cost_counts_what_was_executed_and_reports_giving_up() -> None:
    row = {"name": "tool_cost", "weight": 0.1, "costs": {"search": 2}}
    found = score(row, episode(ROME, BOOK, call("fly"), "Done."))
    assert found.total == pytest.approx(0.7) and parts(found)["tool_cost"] == 3.0
    quit_ = score(row, episode(ROME, "I stop.", reward=0.0))
    assert quit_.total == pytest.approx(-0.2) and parts(quit_)["early_finish"] == 1.0
    assert score(row | {"only_success": True}, episode(ROME, "I stop.", reward=0.0)).total == 0.0
    with pytest.raises(ConfigError, match="the cost of 'search' must be a number"):
        build_reward({"name": "tool_cost", "costs": {"search": True}})


def test_three_dimensions_defines_every_part() -> None:
    failed = (call("book", offer=2), ToolStatus.TOOL_ERROR)
    found = score("three_dimensions", episode(ROME, failed, BOOK, "Done.", tokens=400))
    values = parts(found)
    assert values["effective"] == pytest.approx(2 / 3) and values["recovery"] == 1.0
    assert values["coherence"] == 1.0 and values["process"] == pytest.approx(0.4 * 2 / 3 + 0.6)
    assert values["efficiency"] == pytest.approx((2 / 3 + 0.6 + 0.6) / 3)
    assert found.total == pytest.approx(0.5 + 0.3 * values["process"] + 0.2 * values["efficiency"])
    assert score("three_dimensions", episode("I do nothing.", reward=0.0)).total == 0.0


def test_dapo_overlong_oracles() -> None:
    for length, expected in ((18_432, -0.5), (16_384, 0.0), (100, 0.0), (20_480, -1.0), (99_999, -1.0)):
        assert overlong_penalty(length, limit=20_480, buffer=4_096) == expected
    assert score({"name": "overlong", "limit": 100, "buffer": 50}, episode("x", tokens=75)).total == 0.5


def test_doing_nothing_never_pays() -> None:
    """The null agent: no reward gives it more than 0 unless the verifier called it a success."""
    null = episode("", reward=0.0, parts={"hidden": 0.0, "state": 0.0, "success": 0.0})
    private = {"answer": "x"}
    gold = {task(private).task_id: GOLD[task().task_id]}
    for name in PROGRAMS:
        row = {"name": name, **OPTIONS.get(name, {})}
        total = score(row, null, private=private, gold=gold).total
        assert total is not None and total <= 0.0, name


def test_weighted_sums_and_keeps_every_part() -> None:
    row = {
        "name": "weighted",
        "parts": [
            {"weight": 0.5, "reward": {"name": "verified"}},
            {"weight": 2, "reward": {"name": "tool_cost", "weight": 0.1}},
        ],
    }
    made = build_reward(row, gold=GOLD)
    (found,) = asyncio.run(made.score(task(), [episode(ROME, BOOK)]))
    assert found.total == pytest.approx(0.5 + 2 * 0.8)
    assert helped_by_gold(row) and not needs_gold(row) and needs_gold({"name": "call_match"})
    assert not needs_gold({"name": "call_match", "gold_key": "calls"})
    assert parts(found)["verified"] == 1.0 and parts(found)["tool_cost/tool_cost"] == 2.0


class Broken(ProgramReward):
    """A user's reward that breaks on one episode."""

    name = "broken"

    def measure(self, task_: Any, trajectory: Trajectory) -> Measured:
        """Divide by the number of calls."""
        return Measured(1 / sum(len(turn.tool_calls) for turn in trajectory.turns), {"one": 1.0})


def test_scores_are_components_beside_the_verified_total() -> None:
    group = [
        episode(ROME, reward=0.0),
        episode("no", reward=1.0, index=1),
        episode(ROME, reward=None, index=2),
    ]
    row = {"name": "tests.pipeline.rewards.test_program_rewards:Broken"}
    scored, failed, infra = asyncio.run(rescored(task(), group, build_reward(row)))
    assert scored.reward is not None and scored.reward.total == 0.0 and scored.success is False
    assert [part.name for part in scored.reward.components] == ["reward/broken", "reward/broken/one"]
    assert chosen_total(scored, "broken") == 1.0
    assert failed.success and chosen_total(failed, "broken") is None
    assert failed.labels == ("reward_failed:broken",) and "ZeroDivisionError" in failed.error
    assert infra is group[2] and chosen_total(infra, "broken") is None
    again = with_score(failed, "broken", Score(0.5), by=RewardBy.MODEL)
    assert again.labels == () and chosen_total(again, "broken") == 0.5


def test_an_exhausted_budget_never_pays_partial_credit() -> None:
    cut = episode(ROME, BOOK, reward=0.0, termination=Termination.TURN_BUDGET)
    for name in ("call_match", "call_f1", "call_graded", "three_dimensions"):
        reward = build_reward({"name": name}, gold=GOLD)
        (capped,) = asyncio.run(rescored(task(), [cut], reward))
        assert chosen_total(capped, name) == 0.0, name
        assert asyncio.run(reward.score(task(), [cut]))[0].total != 0.0


def test_a_reward_that_loses_a_score_is_refused() -> None:
    class Short(ProgramReward):
        name = "short"

        def measure(self, task_: Any, trajectory: Trajectory) -> Measured:
            return Measured(1.0, {})

        async def score(self, task_: Any, group: Any) -> list[Score]:
            return []

    with pytest.raises(JudgeError, match="gave 0 scores for 1"):
        asyncio.run(rescored(task(), [episode(ROME)], Short()))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"name": "codes"}, "unknown reward 'codes'; there are verified, .*did you mean 'code'"),
        ({"name": "code", "speed": 1}, "reward code has no option 'speed'; its options: passed, cost"),
        ({"name": "overlong"}, "reward overlong needs the option 'limit', 'buffer'"),
        ({"name": "code", "penalty": "high"}, r"reward code\.penalty"),
        ({"name": "search", "tools": "search"}, r"reward search\.tools.*got 'search'"),
        ({"name": "weighted", "parts": []}, "needs parts of different names"),
        ({"name": "weighted", "parts": [{"reward": {"name": "verified"}}]}, "a part is"),
        ({"name": "nowhere:Reward"}, "there is no module 'nowhere'"),
    ],
)
def test_a_wrong_row_names_what_is_wrong(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_reward(row)


def test_one_harmless_call_earns_no_process() -> None:
    """Giving up before as many calls as gold is doing nothing; failing after as many is trying."""
    gave_up = score("three_dimensions", episode(ROME, "Done.", reward=0.0))
    assert gave_up.total == 0.0 and parts(gave_up)["process"] == 0.0
    tried = score("three_dimensions", episode(ROME, BOOK, "Done.", reward=0.0))
    assert tried.total == pytest.approx(0.3) and parts(tried)["process"] == 1.0
