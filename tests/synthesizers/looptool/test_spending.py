"""Variants go where the plan of the diagnosis says: to the planted weakness, and to no more in all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from data.errors import ConfigError
from data.messages import Turn, assistant
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from flows.stages.scripted import GIVE_UP, ScriptedPolicy
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.base import is_given_up
from synthesizers.looptool.expansion import expand
from synthesizers.looptool.probing import Probe, ProbeVerdict
from synthesizers.looptool.records import LabelVerdict, Part, Repair
from synthesizers.looptool.spending import round_plan, variants_by_plan
from synthesizers.looptool.synthesizer import VERIFIED, LoopTool
from tests.synthesizers.looptool.world import Desk

TASKS = 120
WEAK = {
    "tag:refuse": {n for n in range(TASKS) if n % 4 == 0},
    "tag:group": {n for n in range(TASKS) if n % 5 == 1},
}
"""Capability to the numbers of the tasks that have it; one template is every eighth task."""


def names(trajectory_id: str) -> list[str]:
    number = int(trajectory_id)
    return ["environment:desk", *(name for name, held in WEAK.items() if number in held)]


def template(trajectory_id: str) -> str:
    return f"t{int(trajectory_id) % 8}"


def probed(weak: Sequence[str]) -> list[Probe]:
    """One step a task: wrong where it has a weakness, and on one of 20 others."""
    wrong = {n for name in weak for n in WEAK[name]} | set(range(3, TASKS, 20))
    verdicts = [ProbeVerdict.MISMATCH if n in wrong else ProbeVerdict.MASTERED for n in range(TASKS)]
    return [
        Probe(trajectory_id=str(n), turn=1, task_id=str(n), verdict=verdict)
        for n, verdict in enumerate(verdicts)
    ]


def repaired(probes: Sequence[Probe]) -> list[Repair]:
    return [
        Repair(trajectory_id=each.trajectory_id, turn=1, verdict=LabelVerdict.PRED_WRONG)
        for each in probes
        if each.verdict is ProbeVerdict.MISMATCH
    ]


def spent(probes: Sequence[Probe], repairs: Sequence[Repair], *, k: int) -> dict[int, int]:
    plan = round_plan(probes, repairs, capabilities=names, template=template, k=k)
    found = variants_by_plan(plan, repairs, capabilities=names, template=template, k=k)
    return {int(step.partition("#")[0]): number for step, number in found.items()}


def test_all_variants_go_to_the_weakness_and_are_as_many_as_before() -> None:
    probes = probed(["tag:refuse"])
    repairs = repaired(probes)
    found = spent(probes, repairs, k=2)
    assert set(found) == {int(each.trajectory_id) for each in repairs}
    assert sum(found.values()) == 2 * len(repairs) > 2 * len(WEAK["tag:refuse"])
    assert {n for n, number in found.items() if number} == WEAK["tag:refuse"]
    assert max(found.values()) - min(found[n] for n in WEAK["tag:refuse"]) <= 1, "evenly"


def test_two_weaknesses_share_by_what_they_cost() -> None:
    probes = probed(list(WEAK))
    repairs = repaired(probes)
    plan = round_plan(probes, repairs, capabilities=names, template=template, k=3)
    planned = {row.target: row.count for row in plan.samples if row.target in WEAK and row.shortfall}
    assert set(planned) == set(WEAK) and sum(planned.values()) == 3 * len(repairs)
    found = variants_by_plan(plan, repairs, capabilities=names, template=template, k=3)
    only = {
        name: held - set.union(*(WEAK[other] for other in WEAK if other != name))
        for name, held in WEAK.items()
    }
    share = {name: found[f"{min(held)}#1"] * len(WEAK[name]) for name, held in only.items()}
    assert all(abs(share[name] - planned[name]) <= len(WEAK[name]) for name in WEAK)


def test_without_a_named_weakness_every_error_gets_k() -> None:
    probes = probed([])
    repairs = repaired(probes)
    assert set(spent(probes, repairs, k=3).values()) == {3}
    plan = round_plan(probed(["tag:refuse"]), repairs, capabilities=names, template=template, k=3)
    elsewhere = [each for each in repairs if int(each.trajectory_id) not in WEAK["tag:refuse"]]
    found = variants_by_plan(plan, elsewhere, capabilities=names, template=template, k=3)
    assert set(found.values()) == {3}, "planned for what no error seed has"


def test_a_mismatch_that_is_right_as_well_is_no_weakness() -> None:
    probes = probed(["tag:refuse"])
    right = [each.model_copy(update={"verdict": LabelVerdict.BOTH_CORRECT}) for each in repaired(probes)]
    plan = round_plan(probes, right, capabilities=names, template=template, k=2)
    assert not [row for row in plan.samples if row.count]


class WeakAtLoyalty(ScriptedPolicy):
    """Gives up where a profile counts, and now and then elsewhere."""

    def _gold_turn(self, task: Task, turns: Sequence[Turn]) -> Turn:
        drawn = int(task.task_id[:8], 16) / 2**32
        fails = drawn < (0.9 if "loyalty" in task.tags else 1 / 12)
        return assistant(GIVE_UP) if fails else super()._gold_turn(task, turns)


@pytest.mark.slow
def test_a_round_by_plan_makes_variants_of_what_a_policy_is_weak_at(renderer: ChatMLRenderer) -> None:
    desk = Desk(renderer, 69)
    made = []

    async def run() -> None:
        engine = WeakAtLoyalty(desk.environment, renderer, mistakes=0.0)
        looptool = LoopTool(
            environment=desk.environment,
            engine=engine,
            renderer=renderer,
            k=1,
            by="plan",
            policy_finishes=False,
        )
        async for record in looptool.synthesize(desk.tasks.values()):
            made.append(record)

    asyncio.run(run())
    tags = {row.trajectory_id: row.tags for row in desk.rows.values()}
    verdicts = [record for record in made if isinstance(record, Verdict)]
    errors = [each.trajectory_id for each in verdicts if each.filter == VERIFIED and each.keep]
    seeds = Counter("loyalty" in tags[step.partition("#")[0]] for step in errors)
    assert seeds[False] > 0
    rows = [record for record in made if isinstance(record, Trajectory)]
    variants = [row for row in rows if Part.EXPANSION.mark in row.labels]
    given_up = [each for each in verdicts if is_given_up(each)]
    assert len(variants) + len(given_up) == len(errors) and variants
    assert {"loyalty" in tags[row.parents[0]] for row in variants} == {True}


def test_by_plan_without_a_plan_is_an_error(desk: Desk) -> None:
    async def run() -> None:
        made = expand([], load=desk.rows.get, load_task=desk.tasks.get, environment=desk.environment,
                      renderer=desk.renderer, by="plan")  # fmt: skip
        async for _ in made:
            pass

    with pytest.raises(ConfigError, match="needs the plan and the capabilities"):
        asyncio.run(run())
    with pytest.raises(ConfigError, match="by errors or by plan"):
        LoopTool(environment=desk.environment, engine=desk.policy(), renderer=desk.renderer, by="luck")  # type: ignore[arg-type]
