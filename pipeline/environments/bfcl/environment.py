"""BFCL multi-turn, all four categories: which tasks, which split, which tools are shown, and gold.

Split by position in the benchmark's list: even numbers are `train`, odd ones `heldout`, 100 each; `all` is
both, in the benchmark's order. `tools="gold"` shows a task's gold tools and a few others of the same classes,
for models with a small context: an easier task than the benchmark's, so its scores are named apart. A turn in
which something is missing has no gold calls, and upstream judges nothing in it; neither do we. Not covered:
judging what the agent says where it should ask.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

from data import canonical
from data.messages import assistant, system, user
from data.tasks import Budget, Task
from pipeline.environments.benchmark import BenchmarkSession
from pipeline.environments.bfcl.dataset import (
    MULTI_TURN,
    VERSION,
    Row,
    documented_tools,
    require_package,
    rows,
)
from pipeline.environments.bfcl.session import BfclSession
from pipeline.environments.bfcl.worlds import read_gold
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.host import HostEnvironment
from pipeline.environments.toolkit import source_digest
from pipeline.environments.tools import ToolLimits
from pipeline.errors import ConfigError

NAME = "bfcl_multi_turn"
SYSTEM = "Do what the user asks by calling tools. When it is done, say so in a few words."
_HALVES = ("train", "heldout")
_TAGS = {name: ("multi_turn", *((name,) if name != "base" else ())) for name in MULTI_TURN}
_STEPS_PER_REQUEST = 20
"""Upstream's limit."""
_LONG_RESPONSE = 20_000
"""Characters of a response shown in the long-context category, whose point is that there is much to read."""


class BfclEnvironment(HostEnvironment):
    """See `pipeline.environments.base.Environment`.

    `category`: one of MULTI_TURN. `tools`: "all" (the benchmark's rule) or "gold" with `distractors` more.
    `whole=True` offers the one split `all`; `tasks("all")` works either way. `max_tokens` is each episode's
    budget.
    """

    name = NAME

    def __init__(
        self,
        *,
        category: Literal["base", "miss_func", "miss_param", "long_context"] = "base",
        tools: Literal["all", "gold"] = "all",
        distractors: int = 3,
        whole: bool = False,
        max_tokens: int = 8192,
        limits: ToolLimits | None = None,
    ) -> None:
        """Raises MissingExtraError without the benchmark's package, ConfigError for an impossible option."""
        if tools not in ("all", "gold") or distractors < 0 or category not in MULTI_TURN:
            raise ConfigError(
                f"{NAME}: category={category!r}, tools={tools!r}, distractors={distractors}; category is "
                f"one of {', '.join(MULTI_TURN)}, tools is 'all' or 'gold', distractors at least 0"
            )
        require_package()
        self.category: str = category
        self.tools, self.distractors, self.max_tokens = tools, distractors, max_tokens
        self.splits: tuple[str, ...] = ("all",) if whole else _HALVES
        longest = _LONG_RESPONSE if category == "long_context" else 2000
        self.limits = limits or ToolLimits(max_tool_response_length=longest)
        shown = [category, tools, distractors if tools == "gold" else 0]
        source = [source_digest(__name__), source_digest(BenchmarkSession.__module__)]
        self.version = canonical.digest(source, VERSION, shown, repr(self.limits), length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """The tasks of `train`, `heldout` or `all`; a task's own `split` is its half in each case."""
        self.check_split(split, known=(*_HALVES, "all"))
        for index, row in enumerate(rows(self.category)):
            half = _HALVES[index % 2]
            if split in (half, "all"):
                yield self._task(row, half)

    async def open(self, task: Task, *, seed: int = 0) -> BfclSession:
        """A fresh session; the worlds' randomness is seeded by the task, so `seed` changes nothing."""
        self.check_task(task)
        session = BfclSession(task, limits=self.limits, on_close=self._session_closed)
        self.num_open += 1
        return session

    def gold(self, task: Task) -> PlannedGold:
        """The benchmark's ground truth, one call per assistant turn, "Done." at the end of each user turn."""
        return PlannedGold(_plan(task.private_value()["gold"], task.state_value()["classes"]))

    def tool_sets(self, task: Task) -> dict[str, tuple[str, ...]]:
        """The tools of a task's classes, by class."""
        classes = task.state_value()["classes"]
        return {kind: tuple(spec.name for spec in documented_tools(kind)) for kind in classes}

    def _task(self, row: Row, half: str) -> Task:
        state: dict[str, Any] = {"classes": row.classes, "config": row.config}
        if row.held_back:
            state["held_back"] = row.held_back
        if self.category == "long_context":
            state["long_context"] = True
        return Task(
            environment=NAME,
            split=half,
            template="+".join(sorted(row.classes)),
            tags=(*_TAGS[self.category], *sorted(row.classes)),
            prompt=(system(SYSTEM), user(row.users[0])),
            tools=self._shown(row),
            state=canonical.dumps(state),
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


def load(**options: object) -> BfclEnvironment:
    """The BFCL multi-turn environment; options are those of BfclEnvironment."""
    return BfclEnvironment(**options)  # type: ignore[arg-type]


def _plan(gold: list[list[str]], classes: list[str]) -> Plan:
    for turn in gold:
        for text in turn:
            name, arguments = read_gold(text, classes)
            yield call(name, **arguments)
        yield assistant("Done.")
