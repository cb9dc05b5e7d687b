"""The files of a task: a broken program under other names, alone or among sound ones.

Levels: `function` (one file with one function), `file` (three functions in one file), `files` (six functions
in three files, by kind). Not covered: calls from one function to another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from pipeline.environments.code_repair.mutants import Defect
from pipeline.environments.code_repair.mutations import Mutation
from pipeline.environments.code_repair.program import KINDS, Program, cases_of, renamed
from pipeline.environments.code_repair.programs import PROGRAMS, SEEN


class Level(StrEnum):
    """How much code there is to look through."""

    FUNCTION = "function"
    FILE = "file"
    FILES = "files"


class Share(NamedTuple):
    """How many shown and hidden cases a sound function adds."""

    public: int
    hidden: int


SHARES = {Level.FUNCTION: Share(0, 0), Level.FILE: Share(2, 3), Level.FILES: Share(1, 1)}
Case = tuple[int, list[Any]]
"""Index of a function, and its arguments."""


@dataclass(slots=True)
class Workspace:
    """Files, the functions in them, shown and hidden cases with their values, and what is broken."""

    files: dict[str, str] = field(default_factory=dict)
    functions: list[tuple[str, str]] = field(default_factory=list)
    public: list[tuple[Case, Any]] = field(default_factory=list)
    hidden: list[tuple[Case, Any]] = field(default_factory=list)
    red: list[int] = field(default_factory=list)
    broken: int = 0


def name_choices(program: Program, rng: random.Random) -> list[int]:
    """Which name each identifier of `program.names` bears, in order; 0 is its own."""
    return [rng.randint(0, len(others)) for others in program.names.values()]


def mapping(program: Program, choices: Sequence[int]) -> dict[str, str]:
    """Identifier to the name it bears, where that is another one."""
    pairs = zip(program.names.items(), choices, strict=True)
    return {name: others[choice - 1] for (name, others), choice in pairs if choice}


def make_workspace(defect: Defect, choices: Sequence[int], level: Level, rng: random.Random) -> Workspace:
    """The workspace of a task; the same arguments give the same one."""
    own = mapping(defect.program, choices)
    made = Workspace()
    taken = {own.get(defect.program.function, defect.program.function)}
    for file_name, programs in _layout(defect.program, own, level, rng).items():
        texts = []
        for program in programs:
            if program is defect.program:
                made.broken = len(made.files)
                names, source, cases = own, defect.source(), cases_of(program)
                made.red = [len(made.public) + index for index in defect.red]
                share = Share(len(cases.public), len(cases.hidden))
            else:
                names, source, cases = _other_names(program, taken, rng), program.source, cases_of(program)
                share = SHARES[level]
            index = len(made.functions)
            made.functions.append(
                (file_name.removesuffix(".py"), names.get(program.function, program.function))
            )
            made.public += [((index, case), value) for case, value in cases.public[: share.public]]
            made.hidden += [((index, case), value) for case, value in cases.hidden[: share.hidden]]
            texts.append(renamed(source, names))
        made.files[file_name] = "\n\n".join(texts)
    return made


def _layout(
    broken: Program, names: Mapping[str, str], level: Level, rng: random.Random
) -> dict[str, list[Program]]:
    """File names with their programs, in order."""
    if level is Level.FUNCTION:
        return {f"{names.get(broken.function, broken.function)}.py": [broken]}
    sound = [PROGRAMS[name] for name in SEEN if name != broken.name]
    if level is Level.FILE:
        chosen = {"tools.py": [broken, *rng.sample(sound, 2)]}
    else:
        chosen = {}
        for kind in KINDS:
            own = [broken] if broken.kind == kind else []
            others = [program for program in sound if program.kind == kind]
            chosen[f"{kind}.py"] = [*own, *rng.sample(others, 2 - len(own))]
    for programs in chosen.values():
        rng.shuffle(programs)
    return chosen


def _other_names(program: Program, taken: set[str], rng: random.Random) -> dict[str, str]:
    """Names for a sound function, its own one not taken yet; adds it to `taken`."""
    while True:
        names = mapping(program, name_choices(program, rng))
        function = names.get(program.function, program.function)
        if function not in taken:
            taken.add(function)
            return names


class Edit(NamedTuple):
    """One exact replacement."""

    old: str
    new: str


def repairs(defect: Defect, names: Mapping[str, str], text: str) -> Iterator[Edit]:
    """The edits that undo each mutation in turn in the file `text`."""
    lines = text.splitlines()
    block = renamed(defect.source(), names).splitlines()
    start = next(at for at in range(len(lines)) if lines[at : at + len(block)] == block)
    original = renamed(defect.program.source, names).splitlines()
    for mutation in sorted(defect.mutations, key=lambda one: one.first):
        at, right = start + mutation.first, original[mutation.first : mutation.first + mutation.height]
        yield _unique(lines, at, mutation, right)
        lines[at : at + len(mutation.lines)] = right


def _unique(lines: Sequence[str], at: int, mutation: Mutation, right: Sequence[str]) -> Edit:
    """The replacement of the mutated lines, with as few neighbours as make it occur once."""
    text, end = "\n".join(lines), at + len(mutation.lines)
    for around in range(len(lines)):
        for before, after in ((around, 0), (around, around)):
            head, tail = lines[max(0, at - before) : at], lines[end : end + after]
            old, new = "\n".join([*head, *lines[at:end], *tail]), "\n".join([*head, *right, *tail])
            indent = len(old) - len(old.lstrip(" "))
            if new[:indent].isspace() and new[indent : indent + 1] != " ":
                old, new = old[indent:], new[indent:]
            if old and text.count(old) == 1:
                return Edit(old, new)
    raise ValueError(f"no edit of line {at} is unique")
