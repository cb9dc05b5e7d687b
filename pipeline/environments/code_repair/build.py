"""Makes `mutants.json`: every mutation that was seen to misbehave, and every pair of them.

    python -m pipeline.environments.code_repair.build

A mutant is kept where it fails a hidden case, whatever the shown ones say; one that does not is equivalent
as far as can be told and is dropped, as is one that only the sandbox's clock stops (its outcome would depend
on the machine). Of each place at most MAX_PER_SITE mutants are kept. Run it again whenever a program, an
operator or the harness changes; loading refuses a file made from other programs or with another harness.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from data import canonical
from pipeline.environments.code_repair.mutants import DATA_FILE, sources_digest
from pipeline.environments.code_repair.mutations import Mutation, apply, overlap, proposals
from pipeline.environments.code_repair.program import Program, cases_of
from pipeline.environments.code_repair.programs import PROGRAMS
from pipeline.environments.code_repair.runs import CallResult, Kind, PlannedCall, run_calls
from pipeline.environments.sandboxed import SandboxRunner

MAX_PER_SITE = 2
MAX_PAIRS = 160
"""Pairs tried for each program."""
WORKED_EXAMPLE = ("            low = mid", "            high = mid")
"""The two boundary errors of the textbook binary search: this pair is always among them."""
_BATCH = 8
_SECONDS = 20.0


class Tried(NamedTuple):
    """What a mutant did: shown cases it fails, whether it fails a hidden one, whether the clock cut it."""

    red: tuple[int, ...]
    misbehaves: bool
    clocked: bool


async def try_mutants(runner: SandboxRunner, program: Program, sources: Sequence[str]) -> list[Tried]:
    """What each source does on all cases; a few at a time share a run, and run alone where that is cut."""
    tried: list[Tried] = []
    for start in range(0, len(sources), _BATCH):
        batch = sources[start : start + _BATCH]
        results = await _run(runner, program, batch)
        if any(_clocked(outcome) for outcome in results):
            results = [(await _run(runner, program, [source]))[0] for source in batch]
        tried += [_judged(program, outcome) for outcome in results]
    return tried


async def _run(runner: SandboxRunner, program: Program, sources: Sequence[str]) -> list[list[CallResult]]:
    cases = cases_of(program)
    arguments = [case for case, _ in (*cases.public, *cases.hidden)]
    files = {f"m{index}.py": source for index, source in enumerate(sources)}
    calls = [
        PlannedCall(f"m{index}", program.function, case)
        for index in range(len(sources))
        for case in arguments
    ]
    results = await run_calls(runner, files, calls, seconds=_SECONDS)
    return [results[at : at + len(arguments)] for at in range(0, len(results), len(arguments))]


def _clocked(results: Iterable[CallResult]) -> bool:
    return any(
        result.kind is Kind.NOT_RUN or (result.kind is Kind.TIMEOUT and result.text.endswith(" s"))
        for result in results
    )


def _judged(program: Program, results: Sequence[CallResult]) -> Tried:
    cases = cases_of(program)
    right = [
        result.gives(value)
        for result, (_, value) in zip(results, (*cases.public, *cases.hidden), strict=True)
    ]
    shown = right[: len(cases.public)]
    red = tuple(index for index, passed in enumerate(shown) if not passed)
    return Tried(red, not all(right[len(cases.public) :]), _clocked(results))


async def build_program(runner: SandboxRunner, program: Program) -> dict[str, Any]:
    """The program's entry of the data file. Raises RuntimeError where the program itself fails a case."""
    [own] = await try_mutants(runner, program, [program.source])
    if own.red or own.misbehaves:
        raise RuntimeError(f"{program.name} fails its own cases {own}")
    single = await _kept(runner, program, [(mutation,) for mutation in proposals(program.source)])
    mutants, red = _spread([(mutations[0], tried) for mutations, tried in single])
    pairs = [
        (one, other)
        for one, other in itertools.combinations(range(len(mutants)), 2)
        if not overlap(mutants[one], mutants[other])
    ]
    random.Random(f"pairs/{program.name}").shuffle(pairs)
    pairs.sort(key=lambda pair: (*mutants[pair[0]].lines, *mutants[pair[1]].lines) != WORKED_EXAMPLE)
    wanted = [(mutants[one], mutants[other]) for one, other in sorted(pairs[:MAX_PAIRS])]
    double = await _kept(runner, program, wanted)
    index = {mutation: at for at, mutation in enumerate(mutants)}
    return {
        "mutants": [[*mutation] for mutation in mutants],
        "single": red,
        "double": [[index[one], index[other], tried.red] for (one, other), tried in double],
    }


async def _kept(
    runner: SandboxRunner, program: Program, proposed: Sequence[tuple[Mutation, ...]]
) -> list[tuple[tuple[Mutation, ...], Tried]]:
    sources = [apply(program.source, mutations) for mutations in proposed]
    tried = await try_mutants(runner, program, sources)
    both = zip(proposed, tried, strict=True)
    return [(mutations, found) for mutations, found in both if found.misbehaves and not found.clocked]


def _spread(found: Sequence[tuple[Mutation, Tried]]) -> tuple[list[Mutation], list[tuple[int, ...]]]:
    """At most MAX_PER_SITE of each place, those first that some shown case notices."""
    taken: Counter[tuple[int, int]] = Counter()
    kept = []
    for mutation, tried in sorted(found, key=lambda item: not item[1].red):
        taken[mutation.site] += 1
        if taken[mutation.site] <= MAX_PER_SITE:
            kept.append((mutation, tried.red))
    kept.sort(key=lambda item: (item[0].first, item[0].column, item[0].operator, item[0].lines))
    return [mutation for mutation, _ in kept], [red for _, red in kept]


async def build(sandbox: str, path: Path) -> None:
    """Write the data file, and one line per program."""
    runner = SandboxRunner(sandbox, size=0)
    entries = {}
    for name, program in PROGRAMS.items():
        entry = entries[name] = await build_program(runner, program)
        sites = {Mutation(*mutant).site for mutant in entry["mutants"]}
        print(
            f"{name:16} {len(sites):3} sites {len(entry['mutants']):3} mutants {len(entry['double']):4} pairs"
        )
    await runner.close()
    lines = [f"{canonical.dumps(name)}: {canonical.dumps(entry)}" for name, entry in entries.items()]
    head = f'"sources": {canonical.dumps(sources_digest())}'
    path.write_text("{" + ",\n".join([head, *lines]) + "}\n", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sandbox", default="bubblewrap", help="which sandbox runs the mutants")
    arguments = parser.parse_args()
    asyncio.run(build(arguments.sandbox, DATA_FILE))


if __name__ == "__main__":
    main()
