"""What to do about what was found: how many samples of which kind next, and which reward term to try.

Samples are shared out in proportion to what each weakness costs: its shortfall (share of solved tasks below
the rest) times the share of tasks that hold it, which is how much the pool's success would rise were it
mended. Where the shortfall's interval is wide, tasks to measure it are asked for as well; where two
capabilities cannot be told apart, tasks that hold only one of them. A reward term answers a common kind of
failure, of those that a term of `docs/rewards.md` can answer. These are proposals: a loop checks them on its
dev split. Not covered: what a sample costs, and weaknesses that more data of the same world cannot mend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import ceil

from data.messages import Record
from pipeline.diagnosis.kinds import FailureKind
from pipeline.diagnosis.weakness import Capability, Standing, Weaknesses

SAMPLES = 1000
"""Training samples that a plan shares out."""
_MOST_TO_MEASURE = 2000
_HALF_WIDTH = 0.1
"""95 % half-width that contrasts are measured to, in shares."""
_COMMON = 0.15
"""Share of failures from which on a kind is worth a reward term."""


class SampleKind(StrEnum):
    """What samples are made of."""

    DEMONSTRATIONS = "demonstrations"
    """Gold or teacher episodes of tasks with the capability: the policy does not know the way."""
    ERROR_VARIANTS = "error_variants"
    """Variants of the tasks that failed, labels checked by execution: the way is known, a step is not."""
    FORMAT_EXAMPLES = "format_examples"
    """Short episodes whose calls parse and fit the schemas shown."""
    CONTRASTS = "contrasts"
    """Tasks that hold one of two capabilities that could not be told apart, and not the other."""
    DEV_TASKS = "dev_tasks"
    """More tasks to measure with; they are not trained on."""
    DEV_TEMPLATES = "dev_templates"
    """More templates with the capability to measure with: tasks of the same ones say nothing new."""


class Samples(Record):
    """How many samples of which kind, for which capability or template."""

    target: str
    """A capability's name, or `template:<name>`."""
    kind: SampleKind
    count: int
    """Tasks or episodes; 0 of `dev_templates`, of which no number can be said."""
    shortfall: float
    """How far below the rest, in shares of solved tasks; 0 where it is not known."""
    low: float
    high: float
    why: str


class RewardTerm(Record):
    """A reward of `docs/rewards.md` to try, and the failures it answers."""

    reward: str
    answers: tuple[str, ...]
    """Kinds of failure."""
    share: float
    """Of all failures."""
    why: str


class Plan(Record):
    """The next round, proposed."""

    samples: tuple[Samples, ...]
    rewards: tuple[RewardTerm, ...]


_MALFORMED = (FailureKind.FORMAT, FailureKind.PARSE, FailureKind.UNKNOWN_TOOL, FailureKind.SCHEMA)
_STEPS = (FailureKind.WRONG_ARGUMENT, FailureKind.WRONG_TOOL, FailureKind.ORDER, FailureKind.WRONG_ANSWER)
_TERMS: tuple[tuple[str, tuple[FailureKind, ...], str], ...] = (
    (
        "efficient",
        _MALFORMED,
        "its penalty on malformed calls reaches episodes that fail for another reason, too",
    ),
    (
        "call_graded",
        (FailureKind.WRONG_ARGUMENT, FailureKind.WRONG_TOOL),
        "it grades names, parameters and values, so a nearly right call is worth more than a wrong one",
    ),
    (
        "call_f1",
        (FailureKind.MISSING_CALL, FailureKind.GAVE_UP, FailureKind.HALLUCINATED_RESULT),
        "recall of gold's calls pays for calls that words cannot stand for; precision keeps them few",
    ),
    (
        "tool_cost",
        (FailureKind.EXTRA_CALL,),
        "each call costs, charged to successes only (`only_success: true`)",
    ),
    (
        "three_dimensions",
        (FailureKind.LOOP, FailureKind.TOOL_ERROR),
        "its process part pays for calls that say something new and for recovery after an error",
    ),
    (
        "overlong",
        (FailureKind.BUDGET,),
        "a soft penalty before the limit gives a gradient where the limit gives none",
    ),
    (
        "verified",
        (FailureKind.ORDER, FailureKind.WRONG_ANSWER),
        "the calls are right: no hand-made term on calls sees what is wrong, the verifier does",
    ),
)
"""Reward, the kinds it answers, why; in order of preference where shares are equal."""


def make_plan(
    found: Weaknesses,
    *,
    failures: Mapping[str, int],
    by_capability: Mapping[str, Mapping[str, int]],
    samples: int = SAMPLES,
) -> Plan:
    """The plan for a pool. `failures`: kind to count; `by_capability`: the same per capability."""
    weak = [(each, _cost(each, found.num_tasks)) for each in found.weak]
    templates = [
        (each, (each.rest - each.share) * each.num_tasks / max(1, found.num_tasks))
        for each in found.templates
    ]
    counts = shared_out(samples, [cost for _, cost in [*weak, *templates]])
    rows: list[Samples] = []
    for (capability, _), count in zip(weak, counts[: len(weak)], strict=True):
        rows.append(_taught(capability, by_capability.get(capability.name, {}), count))
        rows += _sharpened(capability)
    for (template, _), count in zip(templates, counts[len(weak) :], strict=True):
        shortfall = template.rest - template.share
        rows.append(
            Samples(
                target=f"template:{template.template}",
                kind=SampleKind.DEMONSTRATIONS,
                count=count,
                shortfall=shortfall,
                low=shortfall,
                high=shortfall,
                why=f"solved {template.share:.0%}, others of the same weaknesses {template.rest:.0%}",
            )
        )
    rows += [_measured(each) for each in found.capabilities if each.standing is Standing.WITHIN_SPREAD]
    return Plan(samples=tuple(rows), rewards=tuple(_terms(failures)))


def shared_out(samples: int, costs: Sequence[float]) -> list[int]:
    """`samples` in proportion to the costs, by largest remainder: the counts add up to `samples`.

    Each is at least 1 where there are enough; equal costs where none is above 0.
    """
    costs = costs if sum(costs) > 0 else [1.0] * len(costs)
    shares = [samples * cost / sum(costs) for cost in costs]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(costs)), key=lambda place: (counts[place] - shares[place], place))
    for place in by_remainder[: samples - sum(counts)] if costs else ():
        counts[place] += 1
    for place in range(len(counts)):
        largest = max(range(len(counts)), key=lambda other: counts[other])
        if not counts[place] and counts[largest] > 1:
            counts[place], counts[largest] = 1, counts[largest] - 1
    return counts


def _cost(capability: Capability, num_tasks: int) -> float:
    return max(0.0, -capability.difference) * capability.num_tasks / max(1, num_tasks)


def _taught(capability: Capability, failures: Mapping[str, int], count: int) -> Samples:
    kind, reason = _kind_of(failures)
    return Samples(
        target=capability.name,
        kind=kind,
        count=count,
        shortfall=-capability.difference,
        low=-capability.high,
        high=-capability.low,
        why=f"solved {capability.share:.0%} of {capability.num_tasks} tasks; {reason}",
    )


def _kind_of(failures: Mapping[str, int]) -> tuple[SampleKind, str]:
    """What to make for failures of these kinds, and why."""
    total = sum(failures.values())
    for kind, members in ((SampleKind.FORMAT_EXAMPLES, _MALFORMED), (SampleKind.ERROR_VARIANTS, _STEPS)):
        count = sum(failures.get(member, 0) for member in members)
        if 2 * count > total:
            return kind, f"{count} of {total} failures are {_listed(failures, members)}"
    common = sorted(failures, key=lambda name: (-failures[name], name))[:1]
    words = (
        f"most often {common[0]} ({failures[common[0]]} of {total} failures)" if common else "no kind known"
    )
    return SampleKind.DEMONSTRATIONS, words


def _sharpened(capability: Capability) -> list[Samples]:
    """Tasks that narrow a weakness's interval to half its shortfall, or tell it from others."""
    shortfall, half = -capability.difference, (capability.high - capability.low) / 2
    rows = []
    if half > shortfall / 2 > 0:
        needed = capability.num_tasks * (2 * half / shortfall) ** 2
        count = min(_MOST_TO_MEASURE, ceil(needed)) - capability.num_tasks
        why = f"the interval is ±{half:.0%}: too wide to plan by; new templates narrow it most"
        rows.append(_asked(capability, SampleKind.DEV_TASKS, count, why))
    if capability.beside:
        variance = max(0.05, capability.share * (1 - capability.share))
        count = ceil(1.96**2 * variance / _HALF_WIDTH**2)
        why = f"cannot be told apart from {', '.join(capability.beside)}"
        rows.append(_asked(capability, SampleKind.CONTRASTS, count, why))
    return rows


def _measured(capability: Capability) -> Samples:
    why = "below the rest by no more than templates differ: more templates, not more tasks, would tell"
    return _asked(capability, SampleKind.DEV_TEMPLATES, 0, why)


def _asked(capability: Capability, kind: SampleKind, count: int, why: str) -> Samples:
    return Samples(
        target=capability.name,
        kind=kind,
        count=max(0, count),
        shortfall=max(0.0, -capability.difference),
        low=-capability.high,
        high=-capability.low,
        why=why,
    )


def _terms(failures: Mapping[str, int]) -> list[RewardTerm]:
    total = sum(failures.values())
    rows = []
    for reward, members, why in _TERMS:
        count = sum(failures.get(member, 0) for member in members)
        if total and count / total >= _COMMON:
            kinds = tuple(str(member) for member in members if failures.get(member, 0))
            rows.append(RewardTerm(reward=reward, answers=kinds, share=count / total, why=why))
    return sorted(rows, key=lambda row: -row.share)


def _listed(failures: Mapping[str, int], members: Sequence[FailureKind]) -> str:
    named = sorted((member for member in members if failures.get(member)), key=lambda name: -failures[name])
    return ", ".join(f"{name} {failures[name]}" for name in named)
