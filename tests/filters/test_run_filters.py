from collections.abc import Iterable, Iterator

import pytest

from data.errors import ConfigError
from data.trajectories import Trajectory
from data.verdicts import Verdict
from filters import FILTERS, build_filters
from filters.base import (
    ItemFilter,
    Judged,
    Judgement,
    Replay,
    judged,
    label_of,
    run_filters,
    with_label,
    with_score,
)
from filters.funnel import FunnelCounts
from tests.samples import trajectory


class OnlyEven(ItemFilter):
    name = "only_even"

    def judge(self, trajectory: Trajectory) -> Judgement:
        even = trajectory.rollout_index % 2 == 0
        return Judgement(even, "ok" if even else "odd", detail=str(trajectory.rollout_index))


class BelowMean:
    """Needs the whole pool: rejects indices above the mean."""

    name = "below_mean"

    def __init__(self) -> None:
        self.mean = 0.0
        self.passes = 0

    def measure(self, trajectories: Iterable[Trajectory]) -> None:
        indices = [trajectory.rollout_index for trajectory in trajectories]
        self.mean = sum(indices) / len(indices)
        self.passes += 1

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        for item in trajectories:
            keep = item.rollout_index <= self.mean
            yield judged(item, self.name, Judgement(keep, "ok" if keep else "above_mean"))


POOL = [trajectory("hi", index=index) for index in range(6)]


def test_rejected_records_go_no_further_and_each_verdict_is_reported_once() -> None:
    verdicts: list[Verdict] = []
    kept = list(run_filters(POOL, [OnlyEven(), BelowMean()], verdicts.append))
    assert [item.rollout_index for item in kept] == [0, 2]  # mean of the survivors 0, 2, 4, not of the pool
    first = [(v.filter, v.reason) for v in verdicts if v.trajectory_id == POOL[1].trajectory_id]
    assert first == [("only_even", "odd")]
    assert len(verdicts) == 6 + 3


def test_the_stream_is_lazy() -> None:
    read: list[int] = []

    def source() -> Iterator[Trajectory]:
        for item in POOL:
            read.append(item.rollout_index)
            yield item

    stream = run_filters(source(), [OnlyEven()], lambda verdict: None)
    assert next(stream).rollout_index == 0
    assert read == [0]


def test_a_one_shot_stream_is_refused_where_a_filter_measures_and_a_replay_is_not() -> None:
    with pytest.raises(ConfigError, match=r"below_mean read the pool twice, got a one-shot generator"):
        run_filters((item for item in POOL), [BelowMean()], lambda verdict: None)
    assert len(list(run_filters(Replay(lambda: iter(POOL)), [BelowMean()], lambda verdict: None))) == 3


def test_funnel_counts_name_every_reason_and_keep_chain_order() -> None:
    counts = FunnelCounts(["only_even", "below_mean", "never_reached"])
    list(run_filters(POOL, [OnlyEven(), BelowMean()], counts))
    rows = counts.rows()
    assert [(row.name, row.seen, row.kept) for row in rows] == [
        ("only_even", 6, 3),
        ("below_mean", 3, 2),
        ("never_reached", 0, 0),
    ]
    assert [(reason.reason, reason.count) for reason in rows[0].reasons] == [("odd", 3), ("ok", 3)]


def test_labels_and_scores_replace_earlier_ones_of_their_kind() -> None:
    item = with_label(
        with_label(trajectory("hi", labels=("lang:en",)), "difficulty", "hard"), "difficulty", "easy"
    )
    assert item.labels == ("lang:en", "difficulty:easy")
    assert label_of(item, "difficulty") == "easy" and label_of(item, "topic") == ""
    scored = with_score(with_score(item, "solve_rate", 0.1), "solve_rate", 0.5)
    assert [(score.name, score.value) for score in scored.scores] == [("solve_rate", 0.5)]


def test_a_chain_is_built_from_recipe_rows() -> None:
    rows: list[dict[str, object]] = [
        {"name": "difficulty", "policy": "student"},
        {"name": "verified_outcome", "threshold": 0.5},
        {"name": "efficiency", "max_ratio": 2},
    ]
    chain = build_filters(rows, gold_length={"task": 1}.get)
    assert [filter_.name for filter_ in chain] == ["difficulty", "verified_outcome", "efficiency"]
    assert list(FILTERS) == [
        "difficulty",
        "valid_calls",
        "verified_outcome",
        "exact_duplicate",
        "efficiency",
        "mix",
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"name": "valid_call"}], r"unknown filter 'valid_call'; there are .*did you mean 'valid_calls'\?"),
        ([{"max_ratio": 2}], r"unknown filter None"),
        ([{"name": "valid_calls", "strict": True}], r"valid_calls has no option 'strict'; its options: none"),
        ([{"name": "mix", "sized": 3}], r"mix has no option 'sized'; its options: target, method, size"),
        ([{"name": "difficulty"}], r"difficulty needs the option 'policy'"),
        ([{"name": "difficulty", "policy": "student", "k": 4}], r"k must be at least 8, got 4"),
        (
            [{"name": "difficulty", "policy": "student", "k": "many"}],
            r"difficulty got an option of the wrong type",
        ),
        ([{"name": "efficiency"}], r"efficiency compares with gold, but no demonstrations"),
        (
            [{"name": "verified_outcome"}, {"name": "difficulty", "policy": "student"}],
            r"difficulty stands after verified_outcome, .* put it first",
        ),
    ],
)
def test_a_wrong_recipe_names_what_is_wrong_and_what_is_allowed(
    rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_filters(rows)
