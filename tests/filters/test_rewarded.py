"""The filter that scores by a chosen reward."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from data.trajectories import RewardBy, Trajectory
from data.verdicts import Verdict
from filters import build_filters
from filters.base import ItemFilter, Judgement, run_filters
from filters.rewarded import Rewarded
from pipeline.errors import ConfigError, JudgeError
from pipeline.rewards.base import Score, chosen_total
from tests.pipeline.rewards.samples import episode, task
from tests.samples import call

ROME = call("search", city="Rome")
TASKS = {task().task_id: task()}


def of_task(item: Trajectory) -> Trajectory:
    return item.model_copy(update={"task_id": task().task_id})


class FakeJudge:
    """A judge that counts how often it is asked and fails on the second rollout."""

    name, by, per_group = "fake", RewardBy.MODEL, False

    def __init__(self) -> None:
        self.asked = 0

    async def score(self, task_: Any, group: Any) -> list[Score]:
        await asyncio.sleep(0)
        self.asked += len(group)
        return [
            Score(None, error="JudgeError: no answer") if item.rollout_index == 1 else Score(0.25)
            for item in group
        ]

    async def close(self) -> None:
        return None


def test_trajectories_are_kept_by_the_chosen_reward_and_carry_its_parts() -> None:
    row = {"name": "reward", "reward": {"name": "tool_cost", "weight": 0.1}, "threshold": 0.85}
    (filter_,) = build_filters([row], tasks=TASKS.get)
    pool = [episode(ROME), episode(ROME, ROME, index=1), episode(reward=None, index=2)]
    kept, low, infra = filter_([of_task(item) for item in pool])
    assert (kept.verdict.keep, kept.verdict.reason, kept.verdict.score) == (True, "ok", 0.9)
    assert (low.verdict.keep, low.verdict.reason, low.verdict.score) == (False, "low_reward", 0.8)
    assert (infra.verdict.keep, infra.verdict.reason, infra.verdict.score) == (False, "no_reward", None)
    assert chosen_total(kept.trajectory, "tool_cost") == 0.9
    assert kept.trajectory.reward is not None and kept.trajectory.reward.total == 1.0


def test_a_failed_judge_is_no_low_reward_and_judges_are_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = FakeJudge()
    monkeypatch.setattr("filters.rewarded.build_reward", lambda row, gold: judge)
    filter_ = Rewarded(tasks=TASKS.get, reward={"name": "fake"}, threshold=0.2)
    pool = [of_task(episode(ROME, index=index)) for index in range(3)]
    verdicts: list[Verdict] = []
    kept = list(run_filters(pool, [filter_], verdicts.append))
    again = list(filter_(pool))
    assert [verdict.reason for verdict in verdicts] == ["ok", "judge_failed", "ok"] and judge.asked == 3
    assert [chosen_total(item, "fake") for item in kept] == [0.25, 0.25]
    assert [item.verdict.reason for item in again] == ["ok", "judge_failed", "ok"]


def test_where_most_judgements_fail_the_run_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = FakeJudge()
    monkeypatch.setattr("filters.rewarded.build_reward", lambda row, gold: judge)
    filter_ = Rewarded(tasks=TASKS.get, reward={"name": "fake"}, threshold=0.2)
    pool = [of_task(episode(ROME, index=index)) for index in (1, 0)] * 20
    assert len(list(filter_(pool))) == 40, "half of them is not most"
    filter_ = Rewarded(tasks=TASKS.get, reward={"name": "fake"}, threshold=0.2)
    with pytest.raises(JudgeError, match="2 of 3 judgements of reward fake failed; the last: JudgeError: no"):
        list(filter_([of_task(episode(ROME, index=index)) for index in (1, 1, 0)]))


async def _inside_a_loop(filter_: Any, pool: list[Trajectory]) -> list[Any]:
    return list(filter_(pool))


def test_it_runs_inside_an_event_loop() -> None:
    (filter_,) = build_filters([{"name": "reward", "reward": {"name": "verified"}}], tasks=TASKS.get)
    (found,) = asyncio.run(_inside_a_loop(filter_, [of_task(episode(ROME))]))
    assert found.verdict.keep


def test_wrong_settings_are_refused() -> None:
    (filter_,) = build_filters([{"name": "reward", "reward": {"name": "verified"}}], tasks={}.get)
    with pytest.raises(ConfigError, match="not in the store; `trajsmith synth` and the gateway keep both"):
        list(filter_([of_task(episode(ROME))]))
    with pytest.raises(ConfigError, match="unknown reward 'cod'"):
        build_filters([{"name": "reward", "reward": {"name": "cod"}}], tasks={}.get)
    with pytest.raises(ConfigError, match="must be a number, got NaN"):
        Rewarded(tasks={}.get, reward={"name": "verified"}, threshold=float("nan"))


def test_parts_survive_a_chain_that_reads_the_pool_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(ItemFilter):
        """A later filter that needs the whole pool first."""

        name = "counting"

        def measure(self, trajectories: Any) -> None:
            """Read it."""
            self.seen = [chosen_total(item, "fake") for item in trajectories]

        def judge(self, trajectory: Trajectory) -> Judgement:
            """Keep."""
            return Judgement(True)

    judge = FakeJudge()
    monkeypatch.setattr("filters.rewarded.build_reward", lambda row, gold: judge)
    chain = [Rewarded(tasks=TASKS.get, reward={"name": "fake"}, threshold=0.2), counting := Counting()]
    pool = [of_task(episode(ROME, index=index)) for index in range(3)]
    verdicts: list[Verdict] = []
    kept = list(run_filters(pool, chain, verdicts.append))
    assert [chosen_total(item, "fake") for item in kept] == counting.seen == [0.25, 0.25]
    assert judge.asked == 3 and len(verdicts) == 5
