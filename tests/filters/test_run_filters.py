import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from data.errors import ConfigError
from data.messages import NamedValue
from data.trajectories import Trajectory
from data.verdicts import Verdict
from filters import FILTERS, build_filters
from filters.base import ItemFilter, Judged, Judgement, Replay, annotated, judged, label_of, run_filters
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
    def rated(value: float) -> list[NamedValue]:
        return [NamedValue(name="solve_rate", value=value)]

    item = annotated(trajectory("hi", labels=("lang:en",)), "difficulty", "hard", rated(0.1))
    item = annotated(item, "difficulty", "easy", rated(0.5))
    assert item.labels == ("lang:en", "difficulty:easy")
    assert label_of(item, "difficulty") == "easy" and label_of(item, "topic") == ""
    assert [(score.name, score.value) for score in item.scores] == [("solve_rate", 0.5)]
    assert annotated(item, "topic", "rome").scores == item.scores


def test_item_filters_judge_once_however_often_the_pool_is_read() -> None:
    judged_ids: list[str] = []

    class Counting(OnlyEven):
        def judge(self, trajectory: Trajectory) -> Judgement:
            judged_ids.append(trajectory.trajectory_id)
            return super().judge(trajectory)

    counts = FunnelCounts(["below_mean", "only_even"])
    kept = list(run_filters(POOL, [BelowMean(), Counting(), BelowMean(), BelowMean()], counts))
    assert [item.rollout_index for item in kept] == [0]  # 0, 1, 2, then 0, 2, then 0
    assert judged_ids == [item.trajectory_id for item in POOL[:3]]
    assert [(row.name, row.seen, row.kept) for row in counts.rows()] == [
        ("below_mean", 6 + 2 + 1, 3 + 1 + 1),
        ("only_even", 3, 2),
    ]


@pytest.mark.parametrize("second", [5, 8])
def test_a_pool_that_changes_between_readings_is_refused(second: int) -> None:
    sizes = iter([6, second])
    pool = [trajectory("hi", index=index) for index in range(8)]
    with pytest.raises(
        ConfigError, match="the pool changed while it was filtered: only_even judged 6 records"
    ):
        list(
            run_filters(
                Replay(lambda: iter(pool[: next(sizes)])), [OnlyEven(), BelowMean()], lambda verdict: None
            )
        )


def test_memory_does_not_grow_with_the_records() -> None:
    """1,000 trajectories of 20 kB pass twice; all of them would take 20 MB, a 20th is allowed."""

    def stream() -> Iterator[Trajectory]:
        for index in range(1000):
            yield trajectory("hi", prompt=f"{index} " + "x" * 20_000, index=index)

    chain = build_filters(
        [{"name": "valid_calls"}, {"name": "verified_outcome"}, {"name": "exact_duplicate"}]
    )
    tracemalloc.start()
    try:
        assert sum(1 for _ in run_filters(Replay(stream), chain, lambda verdict: None)) == 1000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_chain_is_built_from_recipe_rows() -> None:
    rows: list[dict[str, object]] = [
        {"name": "difficulty", "policy": "student"},
        {"name": "verified_outcome", "threshold": 0.5},
        {"name": "efficiency", "max_ratio": 2},
    ]
    chain = build_filters(rows, gold_length={"task": 1}.get)
    assert [filter_.name for filter_ in chain] == ["difficulty", "verified_outcome", "efficiency"]
    assert list(FILTERS) == [
        "astra_score",
        "difficulty",
        "valid_calls",
        "verified_outcome",
        "exact_duplicate",
        "efficiency",
        "reward",
        "mix",
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"name": "valid_call"}], r"unknown filter 'valid_call'; there are .*did you mean 'valid_calls'\?"),
        ([{"max_ratio": 2}], r"unknown filter None"),
        ([{"name": "valid_calls"}, {"name": "valid_calls"}], r"filter valid_calls stands in the chain twice"),
        ([{"name": "valid_calls", "strict": True}], r"valid_calls has no option 'strict'; its options: none"),
        ([{"name": "mix", "sized": 3}], r"mix has no option 'sized'; its options: target, method, size"),
        ([{"name": "difficulty"}], r"difficulty needs the option 'policy'"),
        ([{"name": "difficulty", "policy": "student", "k": 4}], r"k must be at least 8, got 4"),
        (
            [{"name": "difficulty", "policy": "student", "k": "many"}],
            r"filter difficulty.k: Input should be a valid integer; got 'many'",
        ),
        ([{"name": "reward", "reward": {"name": "verified"}}], r"reward scores trajectories by their task"),
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
