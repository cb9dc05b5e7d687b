"""Calibration of judges against verified outcomes, on scores whose quality is known."""

from __future__ import annotations

import random

import pytest

from data.trajectories import RewardBy, Trajectory
from pipeline.errors import ConfigError
from pipeline.rewards.base import Score, with_score
from pipeline.rewards.calibration import auc, calibrate, spearman, without_length
from tests.pipeline.rewards.samples import episode


def judged(count: int, *, quality: float, by_length: float, seed: int = 0) -> list[Trajectory]:
    """Episodes whose judge sees `quality` of the outcome and `by_length` of the answer's length."""
    generator, found = random.Random(seed), []
    for index in range(count):
        success = generator.random() < 0.5
        words = generator.randint(1, 40)
        total = quality * success + by_length * words / 40 + (1 - quality) * generator.random()
        item = episode("w " * words, reward=float(success), index=index, template=f"t{index % 20}")
        found.append(with_score(item, "judge", Score(total), by=RewardBy.MODEL))
    return found


def test_auc_counts_ties_half_and_equals_the_pairwise_count() -> None:
    scores, outcomes = [0.9, 0.5, 0.5, 0.1], [True, True, False, False]
    assert auc(scores, outcomes) == (1 + 1 + 0.5 + 1) / 4
    with pytest.raises(ValueError, match="successes and failures"):
        auc([1.0], [True])


def test_a_good_judge_and_one_that_guesses() -> None:
    good = calibrate(judged(300, quality=0.45, by_length=0.0), "judge")
    assert good.auc.value > 0.9 and good.agreement.value > 0.8 and good.num_clusters == 20
    assert good.auc.low < good.auc.value <= good.auc.high
    guess = calibrate(judged(300, quality=0.0, by_length=0.0), "judge")
    assert guess.auc.low < 0.5 < guess.auc.high and guess.agreement.low < 0.5 < guess.agreement.high
    assert abs(good.length_auc - 0.5) < 0.1 and len(good.lines()) == 4


def test_a_judge_of_length_is_seen_through() -> None:
    """Where successes are longer, length alone looks like skill; without it nothing is left."""
    generator, found = random.Random(1), []
    for index in range(400):
        success = generator.random() < 0.5
        words = generator.randint(20, 60) if success else generator.randint(1, 40)
        item = episode("w " * words, reward=float(success), index=index, template=f"t{index % 20}")
        found.append(with_score(item, "judge", Score(words / 60), by=RewardBy.MODEL))
    report = calibrate(found, "judge")
    assert report.auc.value > 0.8 and report.length_correlation > 0.99
    assert report.length_auc == pytest.approx(report.auc.value)
    assert report.auc_without_length.value == 0.5


def test_failed_judgements_are_counted_and_never_scored() -> None:
    found = judged(100, quality=0.9, by_length=0.0)
    plain = calibrate(found, "judge")
    failed = [
        with_score(
            episode("x", reward=1.0, index=200 + i), "judge", Score(None, error="e"), by=RewardBy.MODEL
        )
        for i in range(30)
    ]
    infra = [episode(reward=None, index=300)]
    report = calibrate([*found, *failed, *infra], "judge")
    assert (report.num_scored, report.num_failed) == (100, 30)
    assert report.auc == plain.auc and report.agreement == plain.agreement


def test_one_outcome_or_one_cluster_cannot_calibrate() -> None:
    scored = [with_score(episode("x", index=i), "judge", Score(1.0), by=RewardBy.MODEL) for i in range(3)]
    with pytest.raises(ConfigError, match="successes and failures with a score; got 3 and 0"):
        calibrate(scored, "judge")
    mixed = [*scored, with_score(episode("x", reward=0.0, index=9), "judge", Score(0.0), by=RewardBy.MODEL)]
    with pytest.raises(ConfigError, match="at least 2 tasks or templates, got 1"):
        calibrate(mixed, "judge")


def test_residuals_and_ranks() -> None:
    assert spearman([1, 2, 3], [1, 1, 1]) == 0.0 and spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert without_length([1.0, 2.0], [5, 5]) == [-0.5, 0.5]
    assert set(without_length([0.1, 0.2, 0.9], [3, 20, 21])) == {0.0}
