import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import ConfigError
from data.messages import ToolCall
from data.trajectories import Trajectory
from data.verdicts import Verdict
from filters.base import label_of, run_filters
from filters.difficulty import Attempts, Bin, Difficulty
from filters.exact_duplicate import ExactDuplicate, duplicate_key
from filters.mix import Mix
from tests.samples import TOOLS, call, trajectory

SEARCH = call("search", city="Rome")


def run(pool: list[Trajectory], *filters: object) -> tuple[list[Trajectory], list[Verdict]]:
    verdicts: list[Verdict] = []
    kept = list(run_filters(pool, filters, verdicts.append))  # type: ignore[arg-type]
    return kept, verdicts


# exact duplicates


def test_the_smallest_id_of_equal_trajectories_is_kept_whatever_the_order() -> None:
    pool = [trajectory(SEARCH, "Done.", identifier=name) for name in ("c", "a", "b")]
    pool.append(trajectory(SEARCH, "Done!", identifier="d"))
    for order in (pool, pool[::-1], sorted(pool, key=lambda item: item.trajectory_id)):
        kept, verdicts = run(order, ExactDuplicate())
        assert {item.trajectory_id for item in kept} == {"a", "d"}
        reasons = {verdict.trajectory_id: (verdict.reason, verdict.detail) for verdict in verdicts}
        assert reasons == {"a": ("ok", ""), "b": ("duplicate", "a"), "c": ("duplicate", "a"), "d": ("ok", "")}


def test_what_makes_a_duplicate() -> None:
    key = duplicate_key(trajectory(SEARCH, "Done."))
    spaced = ToolCall(call_id="", name="search", arguments='{ "city" : "Rome" }', raw="<tool_call>")
    assert duplicate_key(trajectory(spaced, "Done.", index=3, reward=0.0)) == key
    different = [
        trajectory(SEARCH, "Done.", prompt="Book a trip!"),
        trajectory(SEARCH, SEARCH, "Done."),
        trajectory(call("search", city="Oslo"), "Done."),
        trajectory(SEARCH, "done."),
        trajectory("Done."),
    ]
    assert len({key, *map(duplicate_key, different)}) == 6


def test_other_tools_in_the_prompt_make_another_sample() -> None:
    """A variant of an error seed may differ in the distractors alone, or in what the tools are called."""
    first, *_ = TOOLS
    named = first.model_copy(update={"name": "find"})
    told = first.model_copy(update={"description": "Another one."})
    schema = first.model_copy(update={"parameters": '{"type":"object","properties":{"x":{"type":"string"}}}'})
    shown = [(first,), (first, named), (named,), (told,), (schema,), ()]
    keys = [duplicate_key(trajectory(SEARCH, "Done.", tools=tools)) for tools in shown]
    assert len(set(keys)) == len(shown)
    assert duplicate_key(trajectory(SEARCH, "Done.", tools=(named, first))) == keys[1]
    kept, _ = run(
        [trajectory(SEARCH, "Done.", index=n, tools=each) for n, each in enumerate(shown)], ExactDuplicate()
    )
    assert len(kept) == len(shown)


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["Rome", "Oslo", "\ud800", ""]), min_size=1, max_size=12), st.randoms())
def test_one_of_each_content_survives(cities: list[str], shuffler: random.Random) -> None:
    pool = [
        trajectory(call("search", city=city), "Done.", index=number) for number, city in enumerate(cities)
    ]
    shuffled = pool[:]
    shuffler.shuffle(shuffled)
    kept, verdicts = run(shuffled, ExactDuplicate())
    assert len(kept) == len(set(cities)) and len(verdicts) == len(pool)
    assert {item.trajectory_id for item in kept} == {
        item.trajectory_id for item in run(pool, ExactDuplicate())[0]
    }


# difficulty


@pytest.mark.parametrize(
    ("successes", "trials", "expected"),
    [
        (0, 8, Bin.UNSOLVED),
        (1, 8, Bin.HARD),
        (2, 8, Bin.MEDIUM),
        (5, 8, Bin.MEDIUM),
        (6, 8, Bin.EASY),
        (7, 8, Bin.EASY),
        (8, 8, Bin.SOLVED),
        (7, 7, Bin.UNMEASURED),
        (0, 0, Bin.UNMEASURED),
        (249, 1000, Bin.HARD),
        (250, 1000, Bin.MEDIUM),
        (749, 1000, Bin.MEDIUM),
        (750, 1000, Bin.EASY),
    ],
)
def test_bins_and_their_edges(successes: int, trials: int, expected: Bin) -> None:
    assert Attempts(trials, successes).bin(8) is expected


def rollouts(task: str, successes: int, trials: int, **options: str) -> list[Trajectory]:
    return [
        trajectory(f"answer {index}", task=task, index=index, reward=float(index < successes), **options)  # type: ignore[arg-type]
        for index in range(trials)
    ]


def test_difficulty_labels_every_trajectory_of_a_task_by_the_named_policy() -> None:
    demonstration = trajectory(SEARCH, task="t", synthesizer="demonstration", policy="gold", weights="")
    other = rollouts("t", 20, 20, policy="teacher")
    kept, verdicts = run([demonstration, *rollouts("t", 3, 10), *other], Difficulty(policy="student"))
    assert len(kept) == 31 and {label_of(item, "difficulty") for item in kept} == {"medium"}
    assert all(verdict.keep and verdict.reason == "medium" and verdict.score == 0.3 for verdict in verdicts)
    assert kept[0].scores[0].name == "solve_rate" and verdicts[0].detail == "3 of 10"


def test_infrastructure_failures_are_no_attempts() -> None:
    broken = [trajectory("", task="t", index=100 + index, reward=None) for index in range(50)]
    kept, verdicts = run([*broken, *rollouts("t", 7, 7)], Difficulty(policy="student"))
    assert {verdict.reason for verdict in verdicts} == {"unmeasured"}
    assert all(not item.scores for item in kept)
    _, verdicts = run([*broken, *rollouts("t", 8, 8)], Difficulty(policy="student"))
    assert {(verdict.reason, verdict.score) for verdict in verdicts} == {("solved", 1.0)}


def test_a_mixture_of_policies_or_a_missing_one_is_refused() -> None:
    two = [*rollouts("t", 1, 8, weights="w0"), *rollouts("t", 8, 8, weights="w1")]
    with pytest.raises(ConfigError, match=r"'student' is 2 different policies \(weights w0, .*weights w1"):
        run(two, Difficulty(policy="student"))
    assert run(two, Difficulty(policy="student", weights="w0"))[1][0].reason == "hard"
    with pytest.raises(ConfigError, match=r"no rollout of policy 'studnet' .* policies here: \['student'\]"):
        run(two, Difficulty(policy="studnet"))
    mixed = [
        *rollouts("t", 1, 8, sampling='{"temperature":0}'),
        *rollouts("t", 1, 8, sampling='{"temperature":1}'),
    ]
    with pytest.raises(ConfigError, match="sampling"):
        run(mixed, Difficulty(policy="student"))


# mix


def pool(**bins: int) -> list[Trajectory]:
    return [
        trajectory("x", task=name, index=index, labels=(f"difficulty:{name}",))
        for name, count in bins.items()
        for index in range(count)
    ]


def mass(kept: list[Trajectory]) -> dict[str, float]:
    total: dict[str, float] = {}
    for item in kept:
        total[label_of(item, "difficulty")] = total.get(label_of(item, "difficulty"), 0.0) + item.weight
    return total


def test_weights_reach_30_50_20_and_keep_the_mean_weight_at_1() -> None:
    mix = Mix()
    kept, verdicts = run(pool(easy=60, medium=20, hard=20), mix)
    assert mass(kept) == pytest.approx({"easy": 30, "medium": 50, "hard": 20})
    assert all(verdict.keep and verdict.reason == "ok" for verdict in verdicts)
    assert [(row.bin, row.available, row.weight, row.missing) for row in mix.report()] == [
        ("easy", 60, 0.5, 0.0),
        ("medium", 20, 2.5, 0.0),
        ("hard", 20, 1.0, 0.0),
    ]


def test_a_scarce_bin_is_capped_and_the_shortfall_reported() -> None:
    mix = Mix()
    kept, _ = run(pool(easy=98, medium=1, hard=1), mix)
    rows = {row.bin: row for row in mix.report()}
    assert rows["medium"].weight == rows["hard"].weight == 4.0
    assert rows["medium"].share == pytest.approx(4 / 38) and rows["medium"].missing == pytest.approx(
        0.5 - 4 / 38
    )
    assert rows["easy"].missing == 0.0 and len(kept) == 100


def test_an_empty_bin_is_reported_as_missing_and_the_others_share_its_mass() -> None:
    mix = Mix()
    kept, _ = run(pool(easy=10, medium=10), mix)
    assert mass(kept) == pytest.approx({"easy": 7.5, "medium": 12.5})
    hard = mix.report()[2]
    assert (hard.bin, hard.available, hard.used, hard.share, hard.missing) == ("hard", 0, 0, 0.0, 0.2)


def test_solved_counts_as_easy_unsolved_as_hard_and_unmeasured_stays_outside_by_default() -> None:
    mix = Mix()
    kept, verdicts = run(pool(easy=5, solved=5, medium=10, hard=5, unsolved=5, unmeasured=3), mix)
    assert [row.available for row in mix.report()] == [10, 10, 10]
    assert mass(kept) == pytest.approx(
        {"easy": 4.5, "solved": 4.5, "medium": 15, "hard": 3, "unsolved": 3, "unmeasured": 3}
    )
    assert [verdict.reason for verdict in verdicts].count("outside_mix") == 3


def test_bins_can_be_dropped_or_left_outside() -> None:
    mix = Mix(solved="drop", unsolved="keep", unmeasured="drop")
    kept, verdicts = run(pool(easy=3, medium=5, hard=2, solved=4, unsolved=1, unmeasured=2), mix)
    dropped = [(verdict.reason, verdict.detail) for verdict in verdicts if not verdict.keep]
    assert dropped == [("dropped_bin", "solved")] * 4 + [("dropped_bin", "unmeasured")] * 2
    assert mass(kept) == pytest.approx({"easy": 3, "medium": 5, "hard": 2, "unsolved": 1})


def test_weights_multiply_what_was_there() -> None:
    light = [item.model_copy(update={"weight": 0.5}) for item in pool(easy=3, medium=5, hard=2)]
    assert sum(item.weight for item in run(light, Mix())[0]) == pytest.approx(5)


def test_sampling_takes_the_largest_exact_mix_and_depends_on_seed_not_order() -> None:
    source = pool(easy=100, medium=100, hard=10)
    mix = Mix(method="sample", seed=1)
    kept, verdicts = run(source, mix)
    assert mass(kept) == {"easy": 15, "medium": 25, "hard": 10}
    assert [verdict.reason for verdict in verdicts].count("not_sampled") == 160
    again, _ = run(source[::-1], Mix(method="sample", seed=1))
    assert {item.trajectory_id for item in again} == {item.trajectory_id for item in kept}
    other, _ = run(source, Mix(method="sample", seed=2))
    assert {item.trajectory_id for item in other} != {item.trajectory_id for item in kept}
    assert all(row.missing == 0 for row in mix.report())


def test_sampling_a_size_the_pool_cannot_give_is_reported_and_not_filled_up() -> None:
    mix = Mix(method="sample", size=100)
    kept, _ = run(pool(easy=100, medium=20, hard=100), mix)
    assert mass(kept) == {"easy": 30, "medium": 20, "hard": 20}
    assert [(row.used, row.missing) for row in mix.report()] == [(30, 0.0), (20, 0.3), (20, 0.0)]


@settings(max_examples=60)
@given(easy=st.integers(0, 40), medium=st.integers(0, 40), hard=st.integers(0, 40))
def test_weights_conserve_mass_unless_capped(easy: int, medium: int, hard: int) -> None:
    mix = Mix(max_weight=1e9)
    kept, _ = run(pool(easy=easy, medium=medium, hard=hard), mix)
    assert sum(item.weight for item in kept) == pytest.approx(easy + medium + hard)
    assert sum(row.share for row in mix.report()) == pytest.approx(1.0 if kept else 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": {"easy": 0.5, "medium": 0.6}}, "shares of easy, medium and hard that sum to 1"),
        ({"target": {"easy": 0.5, "simple": 0.5}}, "sum to 1"),
        ({"method": "magic"}, r"must be one of \['weight', 'sample'\], got 'magic'"),
        ({"size": 10}, "needs method 'sample'"),
        ({"max_weight": 0.5}, "at least 1, got 0.5"),
        ({"solved": "hard"}, r"mix.solved must be one of \['easy', 'keep', 'drop'\], got 'hard'"),
    ],
)
def test_impossible_mixes_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Mix(**options)  # type: ignore[arg-type]


def test_a_mix_without_measured_difficulty_is_refused() -> None:
    with pytest.raises(ConfigError, match="put the difficulty filter before mix"):
        run([trajectory("x")], Mix())
