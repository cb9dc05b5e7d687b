"""The seeds' table of a round, kept as a file beside its probes: steps by capability, weakest first.

Not covered: what is in the table (`rounds.capability_table`), and reading it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from data import canonical
from data.files import write_atomically
from synthesizers.looptool.probing import Probe
from synthesizers.looptool.rounds import capability_table

WEAKNESS = "weakness.json"


def write_weakness(
    folder: Path, probes: Iterable[Probe], capabilities: Callable[[str], Collection[str]]
) -> None:
    """Replace the table in `folder`; `capabilities` are those of a trajectory, by id."""
    rows = [row.model_dump(mode="json") for row in capability_table(probes, capabilities)]
    write_atomically(folder / WEAKNESS, canonical.dumps(rows) + "\n")
