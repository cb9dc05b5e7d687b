"""The plan shares samples by what a weakness costs, and answers the kinds of failure that occur."""

from __future__ import annotations

import pytest

from pipeline.diagnosis.kinds import FailureKind
from pipeline.diagnosis.plan import _TERMS, SampleKind, make_plan, shared_out
from pipeline.diagnosis.weakness import Capability, Standing, Weaknesses, WeakTemplate
from pipeline.rewards import REWARDS


def capability(name: str, standing: Standing = Standing.WEAK, **changes: object) -> Capability:
    value = {
        "name": name,
        "standing": standing,
        "num_tasks": 100,
        "num_templates": 4,
        "share": 0.3,
        "rest": 0.9,
        "difference": -0.6,
        "low": -0.7,
        "high": -0.5,
        "p_value": 1e-9,
        "p_adjusted": 1e-6,
    }
    return Capability.model_validate({**value, **changes})


def found(*capabilities: Capability, templates: tuple[WeakTemplate, ...] = ()) -> Weaknesses:
    return Weaknesses(
        num_tasks=400,
        num_templates=20,
        num_tested=9,
        template_spread=0.1,
        capabilities=capabilities,
        templates=templates,
    )


def test_samples_are_shared_by_shortfall_times_tasks() -> None:
    small = capability("tag:small", num_tasks=50, difference=-0.4, low=-0.45, high=-0.35)
    plan = make_plan(found(capability("tag:big"), small), failures={}, by_capability={}, samples=800)
    assert [(row.target, row.count) for row in plan.samples] == [("tag:big", 600), ("tag:small", 200)]
    first = plan.samples[0]
    assert (first.shortfall, first.low, first.high) == (0.6, 0.5, 0.7)
    assert first.kind is SampleKind.DEMONSTRATIONS and "solved 30% of 100 tasks" in first.why


@pytest.mark.parametrize(
    ("failures", "kind", "words"),
    [
        (
            {"wrong_argument": 6, "gave_up": 3},
            SampleKind.ERROR_VARIANTS,
            "6 of 9 failures are wrong_argument 6",
        ),
        ({"parse": 4, "schema": 4, "gave_up": 3}, SampleKind.FORMAT_EXAMPLES, "parse 4, schema 4"),
        ({"gave_up": 5, "wrong_tool": 4}, SampleKind.DEMONSTRATIONS, "most often gave_up (5 of 9"),
    ],
)
def test_the_kind_of_samples_follows_the_failures(
    failures: dict[str, int], kind: SampleKind, words: str
) -> None:
    plan = make_plan(found(capability("tag:a")), failures={}, by_capability={"tag:a": failures})
    assert plan.samples[0].kind is kind and words in plan.samples[0].why


def test_what_is_unclear_is_measured_and_what_is_inseparable_contrasted() -> None:
    wide = capability("tag:wide", low=-1.0, high=-0.1, beside=("tag:twin",), num_tasks=12)
    plan = make_plan(found(wide), failures={}, by_capability={})
    assert [row.kind for row in plan.samples] == [
        SampleKind.DEMONSTRATIONS,
        SampleKind.DEV_TASKS,
        SampleKind.CONTRASTS,
    ]
    assert plan.samples[1].count == 15 and plan.samples[2].count == 81
    assert "tag:twin" in plan.samples[2].why
    spread = capability("tag:spread", Standing.WITHIN_SPREAD)
    (row,) = make_plan(found(spread), failures={}, by_capability={}).samples
    assert (row.kind, row.count) == (SampleKind.DEV_TEMPLATES, 0)
    quiet = [
        capability("tag:x", standing)
        for standing in (Standing.NOT_SHOWN, Standing.EXPLAINED, Standing.TOO_FEW)
    ]
    assert make_plan(found(*quiet), failures={}, by_capability={}).samples == ()


def test_a_weak_template_gets_its_share() -> None:
    template = WeakTemplate(template="t", share=0.4, rest=0.8, num_tasks=75, p_adjusted=0.001, only_here=())
    plan = make_plan(
        found(capability("tag:a"), templates=(template,)), failures={}, by_capability={}, samples=900
    )
    assert [(row.target, row.count) for row in plan.samples] == [("tag:a", 600), ("template:t", 300)]


def test_every_kind_a_term_can_answer_has_one_that_exists() -> None:
    assert {reward for reward, *_ in _TERMS} <= set(REWARDS)
    answered = [kind for _, kinds, _ in _TERMS for kind in kinds]
    assert len(answered) == len(set(answered))
    assert set(FailureKind) - set(answered) == {FailureKind.INFRA, FailureKind.UNEXPLAINED}


def test_rewards_answer_common_kinds_only() -> None:
    failures = {"wrong_argument": 50, "extra_call": 30, "loop": 5, "unexplained": 15}
    plan = make_plan(found(), failures=failures, by_capability={})
    assert [(term.reward, term.answers, term.share) for term in plan.rewards] == [
        ("call_graded", ("wrong_argument",), 0.5),
        ("tool_cost", ("extra_call",), 0.3),
    ]
    assert make_plan(found(), failures={}, by_capability={}).rewards == ()


def test_the_samples_asked_for_are_shared_out_to_the_last() -> None:
    assert shared_out(1000, [1.0, 1.0, 1.0]) == [334, 333, 333]
    assert shared_out(10, [0.5, 0.25, 0.25]) == [5, 3, 2]
    assert shared_out(10, [100.0, 1.0, 1.0]) == [8, 1, 1]
    assert shared_out(2, [3.0, 2.0, 1.0]) == [1, 1, 0]
    assert shared_out(4, [0.0, 0.0]) == [2, 2] and shared_out(4, []) == []
    thirds = tuple(capability(f"tag:{name}") for name in "abcdefg")
    plan = make_plan(found(*thirds), failures={}, by_capability={}, samples=100)
    assert sum(row.count for row in plan.samples if row.kind is SampleKind.DEMONSTRATIONS) == 100
