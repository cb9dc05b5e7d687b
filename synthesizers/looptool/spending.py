"""How many variants every error seed gets: k each, or as the diagnosis' plan shares them out.

The plan is that of `pipeline.diagnosis`, made from what a round probed: a step is a trial of its task, a
mastered one a success. Its samples for a capability (or a template) go evenly to the error seeds that have
it; what is planned where no error seed is goes to the others, in proportion. In all as many as k each would
be. Where the test names nothing, or nothing that an error seed has, every seed gets k. LoopTool itself knows
the even way only. Not covered: which kind a variant is (`expansion`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from pipeline.diagnosis.outcomes import Outcomes
from pipeline.diagnosis.plan import Plan, SampleKind, make_plan, shared_out
from pipeline.diagnosis.weakness import weaknesses
from synthesizers.looptool.probing import Probe, ProbeVerdict
from synthesizers.looptool.records import LabelVerdict, Repair
from synthesizers.looptool.rounds import error_steps

By = Literal["errors", "plan"]
Names = Callable[[str], Collection[str]]
"""Trajectory id to the capabilities of its task."""
TRAINED = (SampleKind.DEMONSTRATIONS, SampleKind.ERROR_VARIANTS, SampleKind.FORMAT_EXAMPLES)
"""Samples to train on; the others measure."""
TEMPLATE = "template:"


def round_plan(
    probes: Iterable[Probe],
    repairs: Sequence[Repair],
    *,
    capabilities: Names,
    template: Callable[[str], str],
    k: int,
) -> Plan:
    """The plan for the variants of a round, `k` times as many as there are error seeds.

    `capabilities` and `template` are asked for trajectory ids. A mismatch where prediction and label are
    both right counts as mastered.
    """
    right = {each.step_id for each in repairs if each.verdict is LabelVerdict.BOTH_CORRECT}
    outcomes = Outcomes()
    for made in sorted(probes, key=lambda each: each.step_id):
        if made.verdict in (ProbeVerdict.MASTERED, ProbeVerdict.MISMATCH):
            mastered = made.verdict is ProbeVerdict.MASTERED or made.step_id in right
            names = tuple(sorted(capabilities(made.trajectory_id)))
            outcomes.add(made.task_id, template(made.trajectory_id), names, success=mastered)
    samples = k * len(error_steps(repairs))
    return make_plan(weaknesses(outcomes), failures={}, by_capability={}, samples=samples)


def variants_by_plan(
    plan: Plan, repairs: Sequence[Repair], *, capabilities: Names, template: Callable[[str], str], k: int
) -> dict[str, int]:
    """Step id of every error seed to its number of variants; see the module docstring."""
    held = {
        each.step_id: {*capabilities(each.trajectory_id), TEMPLATE + template(each.trajectory_id)}
        for each in repairs
        if each.is_error_seed
    }
    wanted = [
        (row.count, seeds)
        for row in plan.samples
        if row.kind in TRAINED
        and (seeds := sorted(step for step, names in held.items() if row.target in names))
    ]
    if not any(count for count, _ in wanted):
        return dict.fromkeys(held, k)
    numbers: Counter[str] = Counter(dict.fromkeys(held, 0))
    counts = shared_out(k * len(held), [float(count) for count, _ in wanted])
    for count, (_, seeds) in zip(counts, wanted, strict=True):
        for step, number in zip(seeds, shared_out(count, [1.0] * len(seeds)), strict=True):
            numbers[step] += number
    return dict(numbers)
