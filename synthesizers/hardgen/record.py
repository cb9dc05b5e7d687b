"""What is told of a plan beside its task: a kept verdict whose detail is JSON.

Not covered: the task itself (a blueprint), plans that were given up (verdicts that keep nothing).
"""

from __future__ import annotations

from dataclasses import dataclass

from data import canonical
from data.tasks import Task
from data.verdicts import Verdict
from synthesizers.hardgen.hints import Secrets
from synthesizers.hardgen.macro import Macro
from synthesizers.hardgen.uniqueness import Found

UNREASONED = "no_reasoning"
"""Label of trajectories of gold, which thinks nothing."""
NO_REASONING = "left out: no reasoner; gold teaches"
REASON = "planned"


@dataclass(slots=True)
class Plan:
    """How a task came about."""

    failures: str
    """Digest of the failure set; "" where targets are drawn at random."""
    target: str
    macro: Macro
    chain: tuple[str, ...]
    search: Found
    secrets: Secrets
    """What no hint may hold."""
    also: tuple[tuple[str, str], ...] = ()
    """Target and macro tool of every goal but the first; the chain is that of all."""
    reasoning: str = NO_REASONING
    failure: Verdict | None = None
    """On the last try, where no try succeeded."""


def planned_verdict(task: Task, plan: Plan, *, filter_: str) -> Verdict:
    """The plan as a verdict on its task."""
    spec = plan.macro.spec
    detail = {
        "failure_set": plan.failures,
        "target": plan.target,
        "macro": {
            "name": spec.name,
            "description": spec.description,
            "parameters": canonical.loads(spec.parameters),
        },
        "chain": list(plan.chain),
        **({"also": [{"target": name, "macro": macro} for name, macro in plan.also]} if plan.also else {}),
        "search": {"calls": plan.search.tried, "same_end": len(plan.search.same)},
        "reasoning": plan.reasoning,
    }
    return Verdict(
        trajectory_id=task.task_id,
        filter=filter_,
        keep=True,
        reason=REASON,
        detail=canonical.dumps(detail),
    )
