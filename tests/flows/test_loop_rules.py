"""The gate, the plateau and the budget of a loop, on figures worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from data.errors import ConfigError
from flows.stages.loop.rules import OVERALL, Finished, Stop, gate, stop_reason
from flows.stages.recipe import GateSection, LoopSection, parse_recipe

TASKS = [f"t{number:02d}" for number in range(40)]
CAPABILITIES = {task: ("tag:refuse",) if task < "t20" else ("tag:book", "tool:book") for task in TASKS}


def solved(*names: str) -> dict[str, float]:
    """Success of all tasks: 1.0 for those named, 0.0 for the others."""
    return {task: float(task in names) for task in TASKS}


def test_a_round_that_lost_a_protected_capability_is_refused_although_it_gained_overall() -> None:
    before, after = solved(*TASKS[:10]), solved(*TASKS[20:])
    found = gate(before, after, CAPABILITIES, GateSection())
    assert not found.accepted
    refused = {row.name: row for row in found.guarded if row.refused}
    assert set(refused) == {"tag:refuse"}
    row = refused["tag:refuse"]
    assert (row.before, row.after, row.lost, row.gained, row.tasks) == (0.5, 0.0, 10, 0, 20)
    assert row.p_value == pytest.approx(3 * 0.5**10), "one-sided sign test over three protected capabilities"
    assert "tag:refuse (50% -> 0% of 20 tasks" in found.reason
    overall = found.guarded[0]
    assert overall.name == OVERALL and overall.after > overall.before and not overall.refused


@pytest.mark.parametrize(
    ("change", "accepted"),
    [
        ({}, True),
        ({"significance": 1.0}, False),
        ({"significance": 1.0, "tolerance": 0.1}, True),
        ({"significance": 1.0, "protect": ("tag:book",)}, True),
        ({"significance": 1.0, "least": 21}, True),
    ],
)
def test_what_counts_as_a_loss(change: dict[str, Any], accepted: bool) -> None:
    before, after = solved(*TASKS[:10]), solved(*TASKS[2:10], *TASKS[20:22])
    assert gate(before, after, CAPABILITIES, GateSection(**change)).accepted is accepted


def test_tools_are_protected_only_where_they_are_named() -> None:
    same = solved()
    assert [row.name for row in gate(same, same, CAPABILITIES, GateSection()).guarded] == [
        OVERALL,
        "tag:book",
        "tag:refuse",
    ]
    named = GateSection(protect=("tool:book",))
    assert [row.name for row in gate(same, same, CAPABILITIES, named).guarded] == [OVERALL, "tool:book"]
    with pytest.raises(ConfigError, match="names tag:cancel, which no dev task exercises"):
        gate(same, same, CAPABILITIES, GateSection(protect=("tag:cancel",)))


def test_only_tasks_that_both_models_finished_are_compared() -> None:
    before = solved(*TASKS)
    after = dict.fromkeys(TASKS[:30], 1.0)
    found = gate(before, after, CAPABILITIES, GateSection())
    assert found.accepted and found.guarded[0].tasks == 30
    with pytest.raises(ConfigError, match="there is none"):
        gate(before, {"other": 1.0}, CAPABILITIES, GateSection())


def done(dev: float, *, accepted: bool = True, tokens: int = 100) -> Finished:
    return Finished(dev=dev, accepted=accepted, tokens=tokens)


@pytest.mark.parametrize(
    ("rounds", "change", "expected"),
    [
        ([], {}, None),
        ([done(0.5)], {}, None),
        ([done(0.5)] * 9, {}, Stop.ROUNDS),
        ([done(0.5), done(0.6)], {}, None),
        ([done(0.5), done(0.505), done(0.5)], {}, Stop.PLATEAU),
        ([done(0.5), done(0.505), done(0.51)], {}, None),
        ([done(0.405), done(0.4)], {}, Stop.PLATEAU),
        ([done(0.5), done(0.9, accepted=False), done(0.9, accepted=False)], {}, Stop.PLATEAU),
        ([done(0.9, accepted=False), done(0.5)], {}, None),
        ([done(0.4)], {"patience": 1}, Stop.PLATEAU),
        ([done(0.4)], {"patience": 1, "min_gain": 0.0}, None),
        ([done(0.5)], {"tokens": 200}, None),
        ([done(0.5)], {"tokens": 199}, Stop.BUDGET),
        ([done(0.5, tokens=150), done(0.6, tokens=50)], {"tokens": 349}, Stop.BUDGET),
        ([done(0.5, tokens=150), done(0.6, tokens=50)], {"tokens": 350}, None),
    ],
)
def test_when_a_loop_stops(rounds: list[Finished], change: dict[str, Any], expected: Stop | None) -> None:
    section = LoopSection(**{"rounds": 9, "patience": 2, "min_gain": 0.01, **change})
    assert stop_reason(0.4, rounds, section) is expected


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ({"seeds": {"synthesizer": "demonstration", "tasks": 4, "split": "heldout"}}, "loop.seeds.split"),
        ({"dev": {"split": "heldout_unseen"}}, "loop.dev.split is 'heldout_unseen'"),
        ({"dev": {"split": "train"}}, "both 'train'"),
        ({"round": 2}, "did you mean 'rounds'"),
        ({"gate": {"tolerence": 0.1}}, "did you mean 'tolerance'"),
        ({"arms": ["statik"]}, "loop.arms.0: .* 'static' or 'rejection_sampling'"),
        ({"arms": ["static", "static"]}, "loop.arms: .*each arm can be named once"),
        ({"rounds": 0}, "loop.rounds: .* greater than or equal to 1; got 0"),
    ],
)
def test_a_wrong_section_is_refused_with_what_is_allowed(loop: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_recipe({"name": "loop", "loop": loop})
