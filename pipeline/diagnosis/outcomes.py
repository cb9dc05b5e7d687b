"""The outcomes of a pool as the weakness test needs them: tasks, counted by template and set of capabilities.

The unit is the task: its outcome is the share of its rewarded trajectories that solved it, so rollouts of one
task never count as independent, and a task played more often weighs no more. Trajectories without a reward
are left out. Memory: a few numbers a task. Not covered: what the numbers say (`weakness`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Column:
    """One capability that can be told from the others: where it holds, in the order of the cells."""

    names: tuple[str, ...]
    """The first name is shown; the others hold for exactly the same tasks."""
    holds: NDArray[np.bool_]
    num_tasks: int
    num_templates: int


@dataclass(frozen=True, slots=True)
class Cells:
    """Tasks of one template and one set of capabilities, one row each, sorted by template.

    `first`, `second`, `third`: sums of the outcomes' powers over the tasks of the cell.
    """

    template: NDArray[np.int64]
    count: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    third: NDArray[np.float64]
    templates: tuple[str, ...]
    columns: tuple[Column, ...]
    too_few: tuple[Column, ...]
    """Capabilities with, or without, too few tasks to be tested."""
    step: float
    """The smallest difference of two outcomes: 1 / most rollouts of a task."""

    @property
    def num_tasks(self) -> int:
        """Tasks with a rewarded trajectory."""
        return int(self.count.sum())


class Outcomes:
    """Collects outcomes trajectory by trajectory."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._sets: dict[tuple[str, tuple[str, ...]], int] = {}

    def add(self, task_id: str, template: str, capabilities: Sequence[str], *, success: bool) -> None:
        """One rewarded trajectory. The task's template and capabilities are those given first."""
        row = self._rows.get(task_id)
        if row is None:
            key = (template, tuple(capabilities))
            row = self._rows[task_id] = [self._sets.setdefault(key, len(self._sets)), 0, 0]
        row[1] += 1
        row[2] += success

    def cells(self, *, min_tasks: int) -> Cells:
        """The pool in cells. `min_tasks`: a capability held, or lacked, by fewer tasks is not tested."""
        import numpy as np

        keys = sorted(self._sets)
        place = {self._sets[key]: number for number, key in enumerate(keys)}
        rows = np.array(list(self._rows.values()), dtype=np.int64).reshape(-1, 3)
        cell = np.array([place[number] for number in rows[:, 0]], dtype=np.int64)
        share = rows[:, 2] / np.maximum(rows[:, 1], 1)
        sums = [
            np.bincount(cell, weights=share**power, minlength=len(keys)).astype(np.float64)
            for power in range(4)
        ]
        templates = tuple(dict.fromkeys(template for template, _ in keys))
        numbers = {name: number for number, name in enumerate(templates)}
        of_template = np.array([numbers[template] for template, _ in keys], dtype=np.int64)
        columns = _columns([names for _, names in keys], sums[0], of_template)
        total = sums[0].sum()
        tested = [column for column in columns if min_tasks <= column.num_tasks <= total - min_tasks]
        kept = {column.names for column in tested}
        return Cells(
            template=of_template,
            count=sums[0],
            first=sums[1],
            second=sums[2],
            third=sums[3],
            templates=templates,
            columns=tuple(tested),
            too_few=tuple(column for column in columns if column.names not in kept),
            step=1 / max(1, int(rows[:, 1].max(initial=1))),
        )


def _columns(sets: Sequence[tuple[str, ...]], count: Any, template: Any) -> list[Column]:
    """One column per distinct set of cells, sorted by the name that is shown."""
    import numpy as np

    held: dict[str, list[int]] = {}
    for number, names in enumerate(sets):
        for name in names:
            held.setdefault(name, []).append(number)
    together: dict[tuple[int, ...], list[str]] = {}
    for name, where in held.items():
        together.setdefault(tuple(where), []).append(name)
    columns = []
    for cells, alike in together.items():
        holds = np.zeros(len(sets), dtype=bool)
        holds[list(cells)] = True
        ordered = tuple(sorted(alike, key=_shown_first))
        columns.append(Column(ordered, holds, int(count[holds].sum()), len(np.unique(template[holds]))))
    return sorted(columns, key=lambda column: _shown_first(column.names[0]))


_ORDER = ("tag", "call", "tool", "pair", "environment")


def _shown_first(name: str) -> tuple[int, str]:
    """What was declared before what was derived."""
    kind = name.partition(":")[0]
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), name)
