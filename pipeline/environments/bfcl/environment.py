"""BFCL multi-turn base: which tasks, which split, which tools are shown, and gold.

Split by position in the benchmark's list: even numbers are `train`, odd ones `heldout`, 100 each; `all` is
both, in the benchmark's order. `tools="gold"` shows a task's gold tools and a few others of the same classes,
for models with a small context: an easier task than the benchmark's, so its scores are named apart. Not
covered: the categories with missing functions, missing parameters or long context.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Budget, Task
from pipeline.environments.bfcl.dataset import VERSION, Row, documented_tools, require_package, rows
from pipeline.environments.bfcl.session import BfclSession
from pipeline.environments.bfcl.worlds import read_gold
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.toolkit import source_digest
from pipeline.environments.tools import ToolLimits
from pipeline.errors import ConfigError

NAME = "bfcl_multi_turn"
SYSTEM = "Do what the user asks by calling tools. When it is done, say so in a few words."
_HALVES = ("train", "heldout")
_STEPS_PER_REQUEST = 20
"""Upstream's limit."""


class BfclEnvironment:
    """See `pipeline.environments.base.Environment`.

    `tools`: "all" (the benchmark's rule) or "gold" with `distractors` more. `whole=True` offers the one split
    `all`; `tasks("all")` works either way. `max_tokens` is each episode's budget.
    """

    name = NAME

    def __init__(
        self,
        *,
        tools: Literal["all", "gold"] = "all",
        distractors: int = 3,
        whole: bool = False,
        max_tokens: int = 8192,
        limits: ToolLimits | None = None,
    ) -> None:
        """Raises MissingExtraError without the benchmark's package, ConfigError for an impossible option."""
        if tools not in ("all", "gold") or distractors < 0:
            raise ConfigError(
                f"{NAME}: tools={tools!r}, distractors={distractors}; "
                "tools is 'all' or 'gold', distractors at least 0"
            )
        require_package()
        self.tools, self.distractors, self.max_tokens = tools, distractors, max_tokens
        self.splits: tuple[str, ...] = ("all",) if whole else _HALVES
        self.limits = limits or ToolLimits()
        self.num_open = 0
        """Sessions opened and not closed yet."""
        shown = [tools, distractors if tools == "gold" else 0]
        source = source_digest(__name__)
        self.version = canonical.digest(source, VERSION, shown, repr(self.limits), length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """The tasks of `train`, `heldout` or `all`; a task's own `split` is its half in each case."""
        if split not in (*_HALVES, "all"):
            raise ConfigError(
                f"environment {NAME} has no split {split!r}; it has {', '.join((*_HALVES, 'all'))}"
            )
        for index, row in enumerate(rows()):
            half = _HALVES[index % 2]
            if split in (half, "all"):
                yield self._task(row, half)

    async def open(self, task: Task, *, seed: int = 0) -> BfclSession:
        """A fresh session; the worlds' randomness is seeded by the task, so `seed` changes nothing."""
        if task.environment != NAME:
            raise ConfigError(
                f"task {task.task_id} belongs to environment {task.environment!r}, not {NAME!r}"
            )
        session = BfclSession(task, limits=self.limits, on_close=self._session_closed)
        self.num_open += 1
        return session

    def gold(self, task: Task) -> PlannedGold:
        """The benchmark's ground truth, one call per assistant turn, "Done." at the end of each user turn."""
        return PlannedGold(_plan(task.private_value()["gold"], task.state_value()["classes"]))

    def _task(self, row: Row, half: str) -> Task:
        return Task(
            environment=NAME,
            split=half,
            template="+".join(sorted(row.classes)),
            tags=("multi_turn", *sorted(row.classes)),
            prompt=(system(SYSTEM), user(row.users[0])),
            tools=self._shown(row),
            state=canonical.dumps({"classes": row.classes, "config": row.config}),
            private=canonical.dumps({"gold": row.gold, "users": row.users[1:]}),
            verifier=f"{NAME}/state_and_responses/1",
            budget=Budget(max_turns=_STEPS_PER_REQUEST * len(row.users), max_tokens=self.max_tokens),
            synthesizer=f"bfcl-eval/{VERSION}/{row.name}",
        )

    def _shown(self, row: Row) -> tuple[str, ...] | None:
        """Names in document order; which others are shown depends on the task's name only."""
        if self.tools == "all":
            return None
        names = [spec.name for kind in row.classes for spec in documented_tools(kind)]
        used = {read_gold(text, row.classes)[0] for turn in row.gold for text in turn}
        others = [name for name in names if name not in used]
        number = min(self.distractors, len(others))
        picked = used | set(random.Random(f"{NAME}/{row.name}").sample(others, number))
        return tuple(name for name in names if name in picked)

    def _session_closed(self) -> None:
        self.num_open -= 1


def load(**options: object) -> BfclEnvironment:
    """The BFCL multi-turn environment; options are those of BfclEnvironment."""
    return BfclEnvironment(**options)  # type: ignore[arg-type]


def _plan(gold: list[list[str]], classes: list[str]) -> Plan:
    for turn in gold:
        for text in turn:
            name, arguments = read_gold(text, classes)
            yield call(name, **arguments)
        yield assistant("Done.")
