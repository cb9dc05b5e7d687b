"""What a program of code_repair is: a small function, its contract, shown cases and hidden ones.

The source is its own reference: expected values come from executing it (`reference`), here, outside the
sandbox, because it is ours; tests hold it against independent oracles. Identifiers may be renamed, docstrings
name parameters in backticks. Arguments and results are JSON values. Not covered: how it is broken
(`mutations`), which mutants are kept (`build`).
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data import canonical

Arguments = list[Any]

KINDS = ("lists", "integers", "strings")
NUM_DRAWN = 10
"""Hidden cases drawn at random for each program, besides the written ones."""
_STRING_OR_WORD = re.compile(r'("""[^"]*"""|"[^"\n]*"|\b[A-Za-z_]\w*)')
_QUOTED = re.compile(r"(?<=`)(\w+)(?=`)")


@dataclass(frozen=True, eq=False)
class Program:
    """One function. `names` maps identifiers of the source to the other names they may bear."""

    name: str
    kind: str
    """One of KINDS: names the file it lives in where there are several."""
    source: str
    names: Mapping[str, tuple[str, ...]]
    public: tuple[Arguments, ...]
    hidden: tuple[Arguments, ...]
    draw: Callable[[random.Random], Arguments]
    unseen: bool = False

    @functools.cached_property
    def function(self) -> str:
        """Name of the function in the source as written."""
        return self.source.partition("def ")[2].partition("(")[0]


@dataclass(frozen=True, slots=True)
class Cases:
    """Arguments with the values the reference gives."""

    public: tuple[tuple[Arguments, Any], ...]
    hidden: tuple[tuple[Arguments, Any], ...]


@functools.cache
def cases_of(program: Program) -> Cases:
    """Shown and hidden cases; none of the hidden ones is shown."""
    rng = random.Random(f"code_repair/{program.name}")
    drawn = [program.draw(rng) for _ in range(NUM_DRAWN)]
    shown = {canonical.dumps(case) for case in program.public}
    hidden = {canonical.dumps(case): case for case in (*program.hidden, *drawn)}
    function = reference(program)

    def solved(cases: Sequence[Arguments]) -> tuple[tuple[Arguments, Any], ...]:
        return tuple((case, plain(function(*plain(case)))) for case in cases)

    kept = [case for text, case in hidden.items() if text not in shown]
    return Cases(solved(program.public), solved(kept))


def reference(program: Program) -> Callable[..., Any]:
    """The function itself, executed in this process."""
    namespace: dict[str, Any] = {}
    exec(compile(program.source, f"{program.name}.py", "exec"), namespace)
    function: Callable[..., Any] = namespace[program.function]
    return function


def plain(value: Any) -> Any:
    """`value` as JSON gives it back: a deep copy, tuples as lists."""
    return canonical.loads(canonical.dumps(value))


def renamed(text: str, mapping: Mapping[str, str]) -> str:
    """`text` (Python) with identifiers renamed; strings stay, docstrings change inside backticks only."""
    return "".join([mapping.get(piece, piece) for piece in _pieces(text)])


@functools.lru_cache(maxsize=8192)
def _pieces(text: str) -> tuple[str, ...]:
    """The text in order, each word that is a name a piece of its own."""
    pieces: list[str] = []
    for index, piece in enumerate(_STRING_OR_WORD.split(text)):
        is_docstring = index % 2 and piece.startswith('"""')
        pieces += _QUOTED.split(piece) if is_docstring else [piece]
    return tuple(pieces)
