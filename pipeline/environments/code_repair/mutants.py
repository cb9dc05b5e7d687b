"""The mutants that ship: read from `mutants.json`, which `build` made by running every one of them.

Decides the unit of a task, a Defect: one mutation or two of one program, with the shown cases it fails.
Not covered: which split a defect belongs to (`generator`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import canonical
from pipeline.environments.code_repair.mutations import Mutation, apply
from pipeline.environments.code_repair.program import Program, cases_of
from pipeline.environments.code_repair.programs import PROGRAMS
from pipeline.environments.code_repair.runs import HARNESS, STEPS
from pipeline.errors import ConfigError

DATA_FILE = Path(__file__).with_name("mutants.json")


@dataclass(frozen=True, slots=True)
class Defect:
    """One or two mutations of a program, seen to fail a hidden case."""

    program: Program
    mutations: tuple[Mutation, ...]
    red: tuple[int, ...]
    """Indices of the shown cases it fails; none for a silent defect."""

    @property
    def key(self) -> str:
        """What the defect is, as text: equal for the same change whatever else a task says."""
        return canonical.dumps([self.program.name, self.mutations])

    def source(self) -> str:
        """The broken program."""
        return apply(self.program.source, self.mutations)


@functools.cache
def sources_digest() -> str:
    """Digest of what the outcomes in the data file depend on."""
    programs = [(name, program.source, repr(cases_of(program))) for name, program in PROGRAMS.items()]
    return canonical.digest(programs, HARNESS, STEPS, length=16)


@functools.cache
def defects_of(name: str) -> tuple[Defect, ...]:
    """Every kept defect of a program, single ones first."""
    entry, program = _data()[name], PROGRAMS[name]
    mutants = [
        Mutation(operator, first, height, tuple(lines), column)
        for operator, first, height, lines, column in entry["mutants"]
    ]
    single = [
        Defect(program, (mutant,), tuple(red)) for mutant, red in zip(mutants, entry["single"], strict=True)
    ]
    double = [
        Defect(program, (mutants[one], mutants[other]), tuple(red)) for one, other, red in entry["double"]
    ]
    return (*single, *double)


@functools.cache
def _data() -> dict[str, Any]:
    stored = canonical.loads(DATA_FILE.read_text(encoding="utf-8"))
    if stored.pop("sources") != sources_digest():
        raise ConfigError(
            f"{DATA_FILE.name} was made from other programs; "
            "run python -m pipeline.environments.code_repair.build"
        )
    return stored  # type: ignore[no-any-return]
