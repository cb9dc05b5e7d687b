"""What the next round trains on: pure functions over probes and repairs.

D_{j+1} = error seeds + expansions + mastered steps of high perplexity + unseen seeds, whose share halves with
every round (LoopTool, arXiv 2511.09148: 5,632, 2,816 and 1,408 of 18,304). Without a size all of it is
taken; with one, unseen seeds come first, then errors, expansions and borderline skill, most uncertain first,
as far as it goes; the released code stores the perplexity and never selects by it. Steps that are not chosen
stay in their dialogue as context: turn weight 0, the record's one way to say "not trained". Not covered:
making any of it, and the model's training.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from data import canonical
from data.errors import ConfigError
from data.messages import Record, Role
from data.trajectories import Trajectory, Usage
from pipeline.reporting.content import Rate, ReasonCount, ranked, rate
from synthesizers.looptool.probing import Probe, ProbeVerdict
from synthesizers.looptool.records import SYNTHESIZER, LabelVerdict, Part, Repair
from synthesizers.looptool.samples import trained_at

FIRST_FRESH = 4 / 13
"""Share of unseen seeds in the second round. The paper: 5,632 of 18,304."""
HIGH_SHARE = 0.3
"""Of the mastered steps, the share that counts as borderline. The paper gives no threshold; it keeps about
4,187 of 16,000 in the second round."""


def fresh_seeds(round_number: int, size: int, *, first: float = FIRST_FRESH) -> int:
    """How many of `size` step samples are unseen seeds. Round 1 has nothing else; later the share halves."""
    _check_share("first_fresh", first)
    if round_number < 1 or size < 0:
        raise ConfigError(f"a round counts from 1, its size from 0, got {round_number} and {size}")
    return size if round_number == 1 else round(math.ldexp(size * first, 2 - round_number))


class Parts(NamedTuple):
    """How many step samples of each part a round trains on."""

    error_seeds: int
    expansions: int
    high_perplexity: int
    fresh: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def round_parts(size: int, *, round_number: int, available: Parts, first: float = FIRST_FRESH) -> Parts:
    """The parts of a round of at most `size` step samples; what is lacking is not made up by other seeds."""
    fresh = min(fresh_seeds(round_number, size, first=first), available.fresh)
    errors = min(available.error_seeds, size - fresh)
    expansions = min(available.expansions, size - fresh - errors)
    return Parts(
        errors, expansions, min(available.high_perplexity, size - fresh - errors - expansions), fresh
    )


class Capability(Record):
    """How a model does on the steps of one capability."""

    name: str
    mastered: Rate
    perplexity: float | None
    """Mean own-output perplexity of the mastered steps."""
    reasons: tuple[ReasonCount, ...]
    """Why the others were mismatches, most frequent first."""


def capability_table(
    probes: Iterable[Probe], capabilities: Callable[[str], Collection[str]]
) -> tuple[Capability, ...]:
    """The weakness table, weakest first: probes by capability of their trajectory (an id is given).

    The seeds' reading of GCP: a failure rate per capability. What says nothing of the model is in no rate.
    """
    found: dict[str, list[Probe]] = defaultdict(list)
    for made in probes:
        if made.verdict in (ProbeVerdict.MASTERED, ProbeVerdict.MISMATCH):
            for name in capabilities(made.trajectory_id):
                found[name].append(made)
    rows = [_capability(name, each) for name, each in found.items()]
    return tuple(sorted(rows, key=lambda row: (row.mastered.value or 0.0, row.name)))


def _capability(name: str, probes: Sequence[Probe]) -> Capability:
    mastered = [made for made in probes if made.verdict is ProbeVerdict.MASTERED]
    known = [made.perplexity for made in mastered if made.perplexity is not None]
    reasons = Counter(made.reason for made in probes if made.verdict is ProbeVerdict.MISMATCH)
    return Capability(
        name=name,
        mastered=rate(len(mastered), len(probes)),
        perplexity=sum(known) / len(known) if known else None,
        reasons=ranked(reasons),
    )


class Composed(NamedTuple):
    """A round's training set."""

    trajectories: tuple[Trajectory, ...]
    """By id; of each probed dialogue one copy that trains the chosen steps only."""
    parts: Parts
    """Step samples of each part."""


def compose(
    *,
    rows: Iterable[Trajectory],
    probes: Sequence[Probe],
    repairs: Sequence[Repair],
    expansions: Sequence[Trajectory],
    fresh: Sequence[Trajectory],
    round_number: int,
    size: int | None = None,
    first_fresh: float = FIRST_FRESH,
    high_share: float = HIGH_SHARE,
) -> Composed:
    """The training set of round `round_number` (2 and later) from what was probed in the round before.

    `rows` are the probed trajectories. `size` is the number of step samples, None for all there are: then
    `fresh` is taken whole, so cut it (`fresh_seeds`). Whole dialogues of `expansions` and `fresh` are taken
    in their order as long as they fit; they are passed through unchanged.
    """
    errors, borderline = error_steps(repairs), borderline_steps(probes, repairs, share=high_share)
    expanded, unseen = _counted(expansions), _counted(fresh)
    available = Parts(len(errors), sum(expanded.values()), len(borderline), sum(unseen.values()))
    if size is None:
        planned = available
    else:
        planned = round_parts(size, round_number=round_number, available=available, first=first_fresh)
    errors, borderline = errors[: planned.error_seeds], borderline[: planned.high_perplexity]
    passed, num_expanded = _taken(expansions, expanded, planned.expansions)
    new, num_fresh = _taken(fresh, unseen, planned.fresh)
    trained = [*_selected(rows, errors, borderline, repairs), *passed, *new]
    unique = {each.trajectory_id: each for each in trained}
    parts = Parts(len(errors), num_expanded, len(borderline), num_fresh)
    return Composed(tuple(unique[key] for key in sorted(unique)), parts)


def check_composition(
    *, size: int | None = None, first_fresh: float = FIRST_FRESH, high_share: float = HIGH_SHARE
) -> None:
    """ConfigError where options of `compose` are of no use; None as a size takes all."""
    if size is not None and size < 1:
        raise ConfigError(f"size, the step samples of a round, is at least 1, or null for all; got {size}")
    _check_share("first_fresh", first_fresh)
    _check_share("high_share", high_share)


def _check_share(name: str, share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"{name} is a share between 0 and 1, got {share}")


def error_steps(repairs: Iterable[Repair]) -> list[str]:
    """Step ids of the error seeds, in order of id."""
    return sorted(repair.step_id for repair in repairs if repair.is_error_seed)


def borderline_steps(
    probes: Iterable[Probe], repairs: Iterable[Repair], *, share: float = HIGH_SHARE
) -> list[str]:
    """Step ids of the `share` of mastered steps with the highest perplexity, most uncertain first.

    A step where label and prediction are both right counts as mastered.
    """
    _check_share("high_share", share)
    right = {repair.step_id for repair in repairs if repair.verdict is LabelVerdict.BOTH_CORRECT}
    known = [
        (-made.perplexity, made.step_id)
        for made in probes
        if made.perplexity is not None and (made.verdict is ProbeVerdict.MASTERED or made.step_id in right)
    ]
    return [step_id for _, step_id in sorted(known)[: math.ceil(share * len(known))]]


def num_steps(trajectory: Trajectory) -> int:
    """Assistant turns that are trained."""
    return sum(turn.role is Role.ASSISTANT and turn.weight > 0.0 for turn in trajectory.turns)


def only_turns(trajectory: Trajectory, turns: Collection[int], *, labels: Collection[str]) -> Trajectory:
    """A copy that trains these turns only and keeps the tokens of all; a new id, the original as parent.

    It cost nothing: what the original cost is on the original.
    """
    chosen = sorted(turns)
    group_id = canonical.digest("looptool/round", trajectory.trajectory_id, chosen, sorted(labels), length=24)
    changed = {
        "trajectory_id": "",
        "group_id": group_id,
        "rollout_index": 0,
        "attempt": 0,
        "parents": (trajectory.trajectory_id,),
        "synthesizer": SYNTHESIZER,
        "labels": (*trajectory.labels, *sorted(set(labels) - set(trajectory.labels))),
        "turns": trained_at(trajectory.turns, turns),
        "usage": Usage(),
    }
    return Trajectory.model_validate(trajectory.model_copy(update=changed).model_dump())


def _selected(
    rows: Iterable[Trajectory],
    errors: Collection[str],
    borderline: Collection[str],
    repairs: Iterable[Repair],
) -> list[Trajectory]:
    """The probed dialogues that have a chosen step, and the repaired ones."""
    repaired = {repair.step_id: repair.repaired for repair in repairs if repair.repaired is not None}
    chosen: dict[str, dict[int, Part]] = defaultdict(dict)
    for part, step_ids in ((Part.HIGH_PERPLEXITY, borderline), (Part.ERROR_SEED, errors)):
        for step_id in step_ids:
            trajectory_id, _, turn = step_id.rpartition("#")
            if step_id not in repaired:
                chosen[trajectory_id][int(turn)] = part
    kept = [
        only_turns(
            row, chosen[row.trajectory_id], labels={p.mark for p in chosen[row.trajectory_id].values()}
        )
        for row in rows
        if row.trajectory_id in chosen
    ]
    return [*kept, *(repaired[step_id] for step_id in errors if step_id in repaired)]


def _counted(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    return {each.trajectory_id: num_steps(each) for each in trajectories}


def _taken(
    trajectories: Sequence[Trajectory], steps: Mapping[str, int], number: int
) -> tuple[list[Trajectory], int]:
    """Whole dialogues in their order, as long as they fit into `number` step samples."""
    taken, left = [], number
    for each in trajectories:
        if 0 < steps[each.trajectory_id] <= left:
            taken.append(each)
            left -= steps[each.trajectory_id]
    return taken, number - left
