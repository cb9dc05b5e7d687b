"""When a loop stops, and which round's model is kept: pure functions of what the dev split showed.

The gate compares a round's model with the one kept so far on the same dev tasks, capability by capability:
a loss counts where it is larger than a tolerance and not what chance does (exact one-sided paired test, Holm
over the protected capabilities). Plateau and budget look at finished rounds only, so that a resumed loop
decides as an undisturbed one. Not covered: what a capability is (`pipeline.diagnosis.capabilities`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from math import comb
from statistics import mean

from data.messages import Record
from flows.stages.recipe import GateSection, LoopSection
from pipeline.checks.stats import holm
from pipeline.errors import ConfigError

OVERALL = "overall"
"""All dev tasks together; always protected."""


class Stop(StrEnum):
    """Why a loop ended."""

    ROUNDS = "rounds"
    """As many rounds as the recipe wants."""
    BUDGET = "budget"
    """Another round would not fit into the recipe's tokens."""
    PLATEAU = "plateau"
    """The last rounds gained too little on the dev split."""
    MASTERED = "mastered"
    """Probing found nothing that the next round could be made of."""


class Guarded(Record):
    """One protected capability before and after a round, on the same dev tasks."""

    name: str
    tasks: int
    before: float
    """Mean success of the model kept so far."""
    after: float
    lost: int
    """Tasks only the model before solved."""
    gained: int
    p_value: float
    """Chance of a loss at least as large if the round changed nothing, adjusted for all protected."""
    refused: bool


class Gate(Record):
    """Whether a round's model is kept."""

    accepted: bool
    reason: str
    guarded: tuple[Guarded, ...]
    """Sorted by name, `overall` first."""


class Finished(Record):
    """What the rules need to know of a finished round."""

    dev: float
    """Success on the dev split."""
    accepted: bool
    tokens: int
    """Trainer row tokens + sampled tokens of the round."""


def gate(
    before: Mapping[str, float],
    after: Mapping[str, float],
    capabilities: Mapping[str, Collection[str]],
    section: GateSection,
) -> Gate:
    """Judge a round by success per dev task (task id to 0..1) `before` and `after` it.

    `capabilities`: task id to the names of what the task exercises. Tasks that only one side finished are
    left out. ConfigError where a capability that the section names is on no dev task.
    """
    common = sorted(before.keys() & after.keys())
    if not common:
        raise ConfigError("the gate needs dev tasks that both models finished, and there is none")
    members = _protected(common, capabilities, section)
    adjusted = holm([_chance(before, after, ids) for ids in members.values()])
    guarded = tuple(
        _guard(name, ids, before, after, p_value=p_value, section=section)
        for (name, ids), p_value in zip(members.items(), adjusted, strict=True)
    )
    lost = [row for row in guarded if row.refused]
    return Gate(accepted=not lost, reason=_why(lost, len(guarded)), guarded=guarded)


def check_gate(capabilities: Mapping[str, Collection[str]], section: GateSection) -> None:
    """ConfigError where the section protects by name what no dev task (the keys) exercises."""
    _protected(sorted(capabilities), capabilities, section)


def stop_reason(start: float, rounds: Sequence[Finished], section: LoopSection) -> Stop | None:
    """Why no further round is made; None where one is. `start`: dev success before the first round."""
    if len(rounds) >= section.rounds:
        return Stop.ROUNDS
    if section.tokens and rounds:
        spent, dearest = sum(row.tokens for row in rounds), max(row.tokens for row in rounds)
        if spent + dearest > section.tokens:
            return Stop.BUDGET
    if len(rounds) >= section.patience:
        earlier, latest = rounds[: -section.patience], rounds[-section.patience :]
        best = max([start, *(row.dev for row in earlier if row.accepted)])
        if all(row.dev < best + section.min_gain for row in latest if row.accepted):
            return Stop.PLATEAU
    return None


def _protected(
    tasks: Sequence[str], capabilities: Mapping[str, Collection[str]], section: GateSection
) -> dict[str, list[str]]:
    """Protected capability to its dev tasks."""
    members: dict[str, list[str]] = {}
    for task in tasks:
        for name in capabilities.get(task, ()):
            members.setdefault(name, []).append(task)
    patterns = {name for name in section.protect if any(sign in name for sign in "*?[")}
    named = set(section.protect) - patterns
    if missing := sorted(named - members.keys()):
        raise ConfigError(
            f"loop.gate.protect names {', '.join(missing)}, which no dev task exercises; the dev tasks "
            f"have {', '.join(sorted(members)) or 'no capability'}"
        )
    common = (name for name in members if len(members[name]) >= section.least)
    names = named | {name for name in common if any(fnmatchcase(name, pattern) for pattern in patterns)}
    # A capability that all tasks share is judged as `overall`, once.
    chosen = {name: members[name] for name in sorted(names) if len(members[name]) < len(tasks)}
    return {OVERALL: list(tasks), **chosen}


def _guard(
    name: str,
    ids: Sequence[str],
    before: Mapping[str, float],
    after: Mapping[str, float],
    *,
    p_value: float,
    section: GateSection,
) -> Guarded:
    was, now = mean(before[task] for task in ids), mean(after[task] for task in ids)
    return Guarded(
        name=name,
        tasks=len(ids),
        before=was,
        after=now,
        lost=sum(after[task] < before[task] for task in ids),
        gained=sum(after[task] > before[task] for task in ids),
        p_value=p_value,
        refused=was - now > section.tolerance and p_value <= section.significance,
    )


def _chance(before: Mapping[str, float], after: Mapping[str, float], ids: Sequence[str]) -> float:
    """One-sided exact sign test: chance of so many losses among the tasks that changed."""
    lost = sum(after[task] < before[task] for task in ids)
    changed = sum(after[task] != before[task] for task in ids)
    as_many = sum(comb(changed, number) for number in range(lost, changed + 1))
    return float(as_many / 2**changed)


def _why(lost: Sequence[Guarded], protected: int) -> str:
    if not lost:
        return f"nothing lost on {protected} protected capabilities"
    worst = sorted(lost, key=lambda row: row.after - row.before)
    return "worse on " + "; ".join(
        f"{row.name} ({row.before:.0%} -> {row.after:.0%} of {row.tasks} tasks, p {row.p_value:.3f})"
        for row in worst
    )
