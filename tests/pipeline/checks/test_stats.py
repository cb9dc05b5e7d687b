"""Oracles: Wilson from Newcombe's table (81/263) and Brown et al.; the others worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.checks.stats import holm, paired_bootstrap, pass_at_k, pass_hat_k, wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_agrees_with_newcombe_1998(successes: int, trials: int, low: float, high: float) -> None:
    interval = wilson_interval(successes, trials)
    assert interval.low == pytest.approx(low, abs=5e-5) and interval.high == pytest.approx(high, abs=5e-5)


def test_wilson_without_trials_says_nothing_and_refuses_nonsense() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert wilson_interval(10, 10).high == 1.0
    with pytest.raises(ValueError, match=r"got 3 of 2"):
        wilson_interval(3, 2)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_contains_the_share_and_is_symmetric(case: tuple[int, int]) -> None:
    successes, trials = case
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    mirrored = wilson_interval(trials - successes, trials)
    assert (low, high) == pytest.approx((1 - mirrored.high, 1 - mirrored.low))


def test_bootstrap_over_items_matches_the_normal_interval() -> None:
    """400 tasks, treatment solves 100 more: standard error sqrt(.25 * .75 / 400) = 0.02165."""
    baseline = [0.0] * 400
    treatment = [1.0] * 100 + [0.0] * 300
    found = paired_bootstrap(baseline, treatment, clusters=None, num_samples=20_000)
    assert found.difference == 0.25 and (found.num_pairs, found.num_clusters) == (400, 400)
    assert found.low == pytest.approx(0.25 - 1.96 * 0.02165, abs=0.004)
    assert found.high == pytest.approx(0.25 + 1.96 * 0.02165, abs=0.004)
    assert found.p_value == pytest.approx(2 / 20_001)


def test_bootstrap_over_clusters_is_as_wide_as_the_clusters_differ() -> None:
    """16 templates of 25 tasks, 4 wholly solved: standard error sqrt(.1875 / 16) = 0.108."""
    clusters = [task // 25 for task in range(400)]
    treatment = [1.0 if cluster < 4 else 0.0 for cluster in clusters]
    found = paired_bootstrap([0.0] * 400, treatment, clusters=clusters)
    assert found.difference == 0.25 and found.num_clusters == 16
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 0.108, abs=0.02)


def test_bootstrap_by_hand_on_two_clusters() -> None:
    """Resampling {+1, -1} with equal sizes gives -1, 0, +1 with shares 1/4, 1/2, 1/4, so p is 1."""
    found = paired_bootstrap([0.0, 1.0], [1.0, 0.0], clusters=["a", "b"])
    assert found[:4] == (0.0, -1.0, 1.0, 1.0)


def test_bootstrap_is_seeded_and_refuses_what_it_cannot_compare() -> None:
    scores = [float(index % 3 == 0) for index in range(60)]
    other = [float(index % 2 == 0) for index in range(60)]
    first = paired_bootstrap(scores, other, clusters=None, seed=5)
    assert first == paired_bootstrap(scores, other, clusters=None, seed=5)
    assert first != paired_bootstrap(scores, other, clusters=None, seed=6)
    with pytest.raises(ValueError, match="same tasks, got 1 and 2"):
        paired_bootstrap([1.0], [1.0, 0.0], clusters=None)
    with pytest.raises(ValueError, match="1 cluster cannot be resampled"):
        paired_bootstrap([1.0, 0.0], [1.0, 0.0], clusters=["a", "a"])
    with pytest.raises(ValueError, match="every pair needs a cluster and a run, got 1 names for 2"):
        paired_bootstrap([1.0, 0.0], [1.0, 0.0], clusters=["a"])


def test_pass_hat_k_and_pass_at_k() -> None:
    """3 of 4: both of two succeed C(3,2)/C(4,2) = 1/2; at least one of two 1 - C(1,2)/C(4,2) = 1."""
    assert pass_hat_k(3, 4, 2) == 0.5 and pass_at_k(3, 4, 2) == 1.0
    assert pass_hat_k(1, 4, 2) == 0.0 and pass_at_k(1, 4, 2) == 0.5
    assert pass_hat_k(2, 4, 1) == pass_at_k(2, 4, 1) == 0.5
    with pytest.raises(ValueError, match="k=5"):
        pass_at_k(1, 4, 5)


def test_holm_steps_down_and_keeps_the_order_given() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []


@pytest.mark.parametrize(("num_clusters", "least"), [(2, 0.5), (3, 0.25), (8, 2 / 256)])
def test_few_clusters_cannot_be_significant_however_large_the_difference(
    num_clusters: int, least: float
) -> None:
    clusters = [task % num_clusters for task in range(96)]
    found = paired_bootstrap([0.0] * 96, [1.0] * 96, clusters=clusters)
    assert found.p_value == least
