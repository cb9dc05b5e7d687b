"""What the weakness test names: in pools without a weakness (family-wise error), and with planted ones.

    python -m benchmarks.diagnosis [--pools 400]

Null pools have no effect of any capability; in most of them templates differ, so tasks of one template are
alike. Planted pools have them. Prints, per kind of pool, how often anything false was named, with its Wilson
interval, and how often exactly the planted capabilities were.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from pipeline.checks.stats import wilson_interval
from pipeline.diagnosis.outcomes import Outcomes
from pipeline.diagnosis.weakness import weaknesses


class Kind(NamedTuple):
    """How a pool is drawn."""

    name: str
    templates: int
    tasks: int
    """A template."""
    capabilities: int
    share: float
    """Solved by a typical template."""
    spread: float = 0.0
    """Standard deviation of the templates' log-odds."""
    varying: float = 0.0
    """Share of capabilities that vary within a template."""
    rollouts: int = 1
    planted: int = 0
    planted_share: float = 0.05
    """Solved, of tasks that hold a planted capability."""


KINDS = (
    Kind("null, all alike", 23, 20, 40, 0.7),
    Kind("null, failures rare", 23, 20, 40, 0.97),
    Kind("null, successes rare", 23, 20, 40, 0.04),
    Kind("null, templates differ", 23, 20, 40, 0.7, spread=1.0),
    Kind("null, templates differ much", 23, 20, 40, 0.85, spread=2.0),
    Kind("null, 8 templates differ", 8, 40, 20, 0.7, spread=1.0),
    Kind("null, 60 templates differ", 60, 10, 60, 0.6, spread=1.0),
    Kind("null, tags vary in templates", 12, 40, 24, 0.7, spread=1.0, varying=0.7),
    Kind("null, 8 rollouts a task", 23, 12, 40, 0.6, spread=0.5, rollouts=8),
    Kind("1 planted", 23, 20, 40, 0.9, planted=1),
    Kind("3 planted", 23, 20, 40, 0.9, planted=3),
    Kind("3 planted, templates differ", 23, 20, 40, 0.9, spread=0.5, planted=3),
    Kind("3 planted, tags vary", 12, 40, 24, 0.85, spread=0.5, varying=1.0, planted=3, planted_share=0.3),
)


def draw(kind: Kind, rng: random.Random) -> tuple[Outcomes, list[str]]:
    """A pool and the names of what was planted in it (at least 50 tasks each)."""
    names = [f"tag:{number}" for number in range(kind.capabilities)]
    varies = {name: rng.random() < kind.varying for name in names}
    rate = {name: rng.choice((0.05, 0.1, 0.2, 0.3, 0.5)) for name in names}
    fixed = [[name for name in names if rng.random() < rate[name]] for _ in range(kind.templates)]
    centre = _log_odds(kind.share)
    tasks: list[tuple[str, float, list[str]]] = []
    for number in range(kind.templates):
        solved = _share(centre + rng.gauss(0, kind.spread))
        for _ in range(kind.tasks):
            held = [name for name in fixed[number] if not varies[name]]
            held += [name for name in names if varies[name] and rng.random() < rate[name]]
            tasks.append((f"template{number}", solved, held))
    common = [name for name in names if 50 <= sum(name in held for *_, held in tasks) <= len(tasks) / 3]
    planted = sorted(rng.sample(common, min(kind.planted, len(common))))
    outcomes = Outcomes()
    for number, (template, solved, held) in enumerate(tasks):
        chance = kind.planted_share if set(held) & set(planted) else solved
        for _ in range(kind.rollouts):
            outcomes.add(str(number), template, held, success=rng.random() < chance)
    return outcomes, planted


def false_and_exact(kind: Kind, seed: int) -> tuple[bool, bool]:
    """Whether anything else than what was planted was named, and whether exactly that was.

    A weakness counts as named where it is what is named, or is said to be inseparable from it.
    """
    outcomes, planted = draw(kind, random.Random(f"{kind.name}/{seed}"))
    weak = weaknesses(outcomes).weak
    sets = [{each.name, *each.same_as, *each.beside} for each in weak]
    false = any(not names & set(planted) for names in sets)
    found = all(any(name in names for names in sets) for name in planted)
    return false, found and not false and len(weak) == len(planted)


def measure(kind: Kind, *, pools: int) -> tuple[int, int]:
    """Of `pools` pools: in how many anything false was named, and in how many exactly what was planted."""
    results = [false_and_exact(kind, seed) for seed in range(pools)]
    return sum(false for false, _ in results), sum(exact for _, exact in results)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pools", type=int, default=400)
    parser.add_argument("--only", default="", help="Kinds whose name holds this.")
    given = parser.parse_args(arguments)
    print("| pool | pools | anything false named | 95 % interval | exactly the planted |")
    print("| --- | --- | --- | --- | --- |")
    for kind in KINDS:
        if given.only in kind.name:
            false, exact = measure(kind, pools=given.pools)
            low, high = wilson_interval(false, given.pools)
            shown = f"{exact / given.pools:.1%}" if kind.planted else ""
            row = (kind.name, given.pools, f"{false / given.pools:.1%}", f"{low:.1%} to {high:.1%}", shown)
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


def _log_odds(share: float) -> float:
    from math import log

    return log(share / (1 - share))


def _share(log_odds: float) -> float:
    return 1 / (1 + exp(-log_odds))


if __name__ == "__main__":
    main()
