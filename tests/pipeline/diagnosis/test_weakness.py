"""The weakness test names what is planted, explains what goes with it, and is quiet where nothing is weak."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import numpy as np
import pytest
from scipy.stats import fisher_exact, ttest_ind

from benchmarks.diagnosis import KINDS, Kind, measure
from pipeline.diagnosis.mixed_model import MixedModel
from pipeline.diagnosis.outcomes import Outcomes
from pipeline.diagnosis.strata import failures_p_value
from pipeline.diagnosis.weakness import Capability, Standing, Weaknesses, weaknesses


def pool(
    held: Mapping[str, tuple[str, ...]],
    *,
    solved: Mapping[str, float],
    otherwise: float = 0.9,
    tasks: int = 20,
) -> Outcomes:
    """`held`: capabilities by template; `solved`: share of tasks with a capability that are solved."""
    outcomes = Outcomes()
    for template, names in held.items():
        share = min((solved.get(name, otherwise) for name in names), default=otherwise)
        for number in range(tasks):
            outcomes.add(f"{template}/{number}", template, names, success=number < round(share * tasks))
    return outcomes


def by_name(found: Weaknesses) -> dict[str, Capability]:
    return {each.name: each for each in found.capabilities}


HELD = {
    **{f"plain{number}": ("environment:desk",) for number in range(8)},
    **{f"weak{number}": ("environment:desk", "tag:weak", "tag:near") for number in range(4)},
    **{f"near{number}": ("environment:desk", "tag:near") for number in range(4)},
    **{f"far{number}": ("environment:desk", "tag:far", "tool:far") for number in range(4)},
}


def test_a_weak_template_is_compared_with_others_of_the_same_weaknesses() -> None:
    """Most of the pool has a weakness: the template is above the pool's rest, and below its like."""
    held = {**{f"weak{number}": ("tag:weak",) for number in range(8)}, **dict.fromkeys("abcd", ())}
    outcomes = pool(held, solved={"tag:weak": 0.05})
    for number in range(20):
        outcomes.add(f"odd/{number}", "odd", (), success=number < 8)
    found = weaknesses(outcomes)
    assert [each.name for each in found.weak] == ["tag:weak"]
    (odd,) = found.templates
    assert (odd.template, odd.share, odd.num_tasks) == ("odd", 0.4, 20)
    assert odd.rest == pytest.approx(0.9)


def test_the_planted_capability_is_named_and_what_goes_with_it_is_explained() -> None:
    found = weaknesses(pool(HELD, solved={"tag:weak": 0.1}))
    (weak,) = found.weak
    assert (weak.name, weak.num_tasks, weak.num_templates) == ("tag:weak", 80, 4)
    assert weak.share == pytest.approx(0.1) and weak.rest == pytest.approx(0.9)
    assert weak.difference == pytest.approx(-0.8) and weak.low < -0.8 < weak.high < -0.6
    assert weak.p_adjusted < 1e-6 and weak.beside == ()
    others = by_name(found)
    assert (others["tag:near"].standing, others["tag:near"].beside) == (Standing.EXPLAINED, ("tag:weak",))
    assert others["tag:far"].standing is Standing.NOT_SHOWN and others["tag:far"].same_as == ("tool:far",)
    assert others["environment:desk"].standing is Standing.TOO_FEW and others["environment:desk"].rest is None
    assert found.num_tested == 3 and found.templates == ()


def test_two_planted_capabilities_that_hide_each_other_are_both_named() -> None:
    """8 of 20 templates are weak: alone, neither stands out of the spread of templates."""
    found = weaknesses(pool(HELD, solved={"tag:weak": 0.1, "tag:far": 0.1}))
    assert [each.name for each in found.weak] == ["tag:far", "tag:weak"]


def test_a_weak_part_of_a_capability_is_told_from_the_whole() -> None:
    """Nested: every weak task is a near one. The whole is named where the whole is weak."""
    found = weaknesses(pool(HELD, solved={"tag:near": 0.1}))
    assert [each.name for each in found.weak] == ["tag:near"]
    assert by_name(found)["tag:weak"].standing is Standing.EXPLAINED


def test_two_that_the_data_cannot_tell_apart_are_both_said() -> None:
    """Tag and twin hold for the same tasks but one; where 60 tell them apart, only one is named."""
    held = {name: (*names, "tag:twin") if "tag:weak" in names else names for name, names in HELD.items()}
    one = pool(held, solved={"tag:weak": 0.1})
    one.add("odd", "odd", ("tag:twin",), success=True)
    (weak,) = weaknesses(one).weak
    assert {weak.name, *weak.beside} == {"tag:weak", "tag:twin"}
    apart = {**held, **{f"odd{number}": ("environment:desk", "tag:twin") for number in range(3)}}
    (weak,) = weaknesses(pool(apart, solved={"tag:weak": 0.1})).weak
    assert (weak.name, weak.beside) == ("tag:weak", ())
    (same,) = weaknesses(pool(held, solved={"tag:weak": 0.1})).weak
    assert {same.name, *same.same_as} == {"tag:weak", "tag:twin"}


def test_templates_that_differ_are_no_weak_capability_but_weak_templates() -> None:
    rng = random.Random(3)
    shares = {f"t{number}": rng.choice((0.2, 0.5, 0.8, 0.95)) for number in range(16)}
    outcomes = Outcomes()
    for number, (template, share) in enumerate(shares.items()):
        names = ("tag:even",) if number % 2 else ("tag:odd", f"tag:only{number}")
        for task in range(30):
            outcomes.add(f"{template}/{task}", template, names, success=task < share * 30)
    found = weaknesses(outcomes)
    assert found.weak == () and found.template_spread > 0.2
    assert {each.template for each in found.templates} >= {
        name for name, share in shares.items() if share == 0.2
    }
    only = {name for each in found.templates for name in each.only_here}
    assert only and all(name.startswith("tag:only") for name in only)


def test_a_capability_that_varies_within_templates_is_told_from_its_templates() -> None:
    """Whatever the templates are like, tasks with the tag are compared with tasks of their own template."""
    rng, outcomes = random.Random(1), Outcomes()
    for template, share in (("easy", 0.95), ("hard", 0.5), ("middle", 0.8)):
        for task in range(60):
            names = ("tag:slip",) if task % 2 else ()
            outcomes.add(
                f"{template}/{task}", template, names, success=rng.random() < share * (0.3 if names else 1)
            )
    assert [each.name for each in weaknesses(outcomes).weak] == ["tag:slip"]


def test_rollouts_of_one_task_are_one_observation() -> None:
    few, many = Outcomes(), Outcomes()
    for task in range(24):
        names = ("tag:a",) if task % 2 else ()
        for _ in range(50):
            many.add(str(task), str(task), names, success=task % 4 != 1)
        few.add(str(task), str(task), names, success=task % 4 != 1)
    (one,), (other,) = weaknesses(few).capabilities, weaknesses(many).capabilities
    assert one.p_value > other.p_value > 0.001


@pytest.mark.parametrize(
    ("failed", "held", "total_failed"), [(4, 20, 6), (8, 20, 8), (3, 60, 3), (12, 60, 14)]
)
def test_the_stratified_test_agrees_with_fisher(failed: int, held: int, total_failed: int) -> None:
    outcomes = Outcomes()
    for task in range(200):
        inside = task < held
        bad = task < failed or (not inside and task < held + total_failed - failed)
        outcomes.add(str(task), "one", ("tag:a",) if inside else (), success=not bad)
    cells = outcomes.cells(min_tasks=5)
    exact = fisher_exact(
        [[failed, held - failed], [total_failed - failed, 200 - held - total_failed + failed]], "greater"
    ).pvalue
    found = failures_p_value(cells, cells.columns[0].holds, np.zeros(len(cells.count)))
    assert exact * 0.5 < found < max(exact * 5, 1e-5)


def test_strata_keep_apart_what_differs_between_them() -> None:
    """Simpson's: with the tag in the hard stratum only more often, within each there is no difference."""
    outcomes = Outcomes()
    for stratum, share, held in (("hard", 0.2, 80), ("easy", 0.8, 20)):
        for task in range(200):
            inside = task < held
            position = task / held if inside else (task - held) / (200 - held)
            names = (f"tag:{stratum}", *(("tag:a",) if inside else ()))
            outcomes.add(f"{stratum}/{task}", stratum, names, success=position < share)
    cells = outcomes.cells(min_tasks=5)
    holds = next(column.holds for column in cells.columns if "tag:a" in column.names)
    assert failures_p_value(cells, holds, np.zeros(len(cells.count))) < 1e-4
    assert failures_p_value(cells, holds, cells.template) > 0.3


def test_the_mixed_model_is_the_t_test_of_templates_where_these_are_all_that_varies() -> None:
    rng, outcomes = random.Random(5), Outcomes()
    shares: dict[bool, list[float]] = {True: [], False: []}
    for number, inside in itertools.product(range(7), (True, False)):
        share = round(rng.uniform(0.2, 0.9), 2)
        shares[inside].append(share)
        for task in range(400):
            names = ("tag:a",) if inside else ()
            outcomes.add(f"{number}{inside}{task}", f"{number}{inside}", names, success=task < share * 400)
    cells = outcomes.cells(min_tasks=5)
    effect = MixedModel(cells).fit((0,)).member(0)
    oracle = ttest_ind(shares[True], shares[False], alternative="less")
    assert effect.freedom == 12 and effect.value == pytest.approx(
        np.mean(shares[True]) - np.mean(shares[False]), abs=2e-3
    )
    assert effect.p_value == pytest.approx(oracle.pvalue, rel=0.02)


def test_an_empty_pool_and_a_perfect_one_have_no_weakness() -> None:
    assert weaknesses(Outcomes()).capabilities == ()
    found = weaknesses(pool(HELD, solved={}, otherwise=1.0))
    assert found.weak == () and found.templates == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.planted], ids=lambda kind: kind.name)
def test_family_wise_error(kind: Kind) -> None:
    """At a true rate of 5 %, more than 6 of 40 pools have a probability under 0.5 %."""
    false, _ = measure(kind, pools=40)
    print(f"{kind.name}: anything named in {false} of 40 pools")
    assert false <= 6


@pytest.mark.slow
def test_planted_capabilities_that_hide_each_other_are_named_exactly() -> None:
    kind = next(kind for kind in KINDS if kind.name == "3 planted")
    false, exact = measure(kind, pools=20)
    assert (false, exact >= 18) == (0, True)
