"""A counter to raise: the smallest world, a positive control on which reinforcement learning must win.

One tool, one or two calls, short prompts. Success: the calls that changed the counter are exactly the amounts
asked for, in order, and the agent ended its turn. Starts ending in 8 are the dev split, in 9 the held-out
one, so no prompt or state of one split occurs in another. Not covered: anything that needs a decision.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from data import canonical
from data.messages import assistant, user
from data.tasks import Budget, Task
from data.trajectories import Trajectory
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import tool
from pipeline.errors import ConfigError

_LAST_DIGITS = {"train": "01234567", "dev": "8", "heldout": "9"}
_MOST_DIGITS = 5
_SENTENCES = {
    1: ("The counter shows {start}. Raise it by {0}.", "one_step"),
    2: ("The counter shows {start}. Raise it by {0}, then by {1}.", "two_steps"),
}


class CounterSession(ToolSession):
    """State: {"value": now, "calls": amounts added so far}."""

    @tool
    def add(self, amount: Annotated[int, Field(ge=1, le=9)]) -> str:
        """Raise the counter."""
        self.state["value"] += amount
        self.state["calls"].append(amount)
        return str(self.state["value"])

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """`value`: the end value is right; `calls`: the amounts are the ones asked for, in order."""
        amounts = self.task.private_value()["amounts"]
        value = self.state["value"] == self.task.state_value()["value"] + sum(amounts)
        calls = self.state["calls"] == amounts
        return {"success": value and calls, "value": value, "calls": calls}


class CounterEnvironment(ToolEnvironment):
    """`steps`: which numbers of calls to ask for; `digits`: starts are 10 to 10**digits - 1."""

    name = "counter"
    splits = ("train", "dev", "heldout")
    session = CounterSession

    def __init__(self, *, steps: tuple[int, ...] = (1, 2), digits: int = 2, **options: Any) -> None:
        super().__init__(**options)
        if not steps or not set(steps) <= set(_SENTENCES) or not 2 <= digits <= _MOST_DIGITS:
            raise ConfigError(
                f"counter: steps are of {sorted(_SENTENCES)} and digits 2 to {_MOST_DIGITS}, "
                f"got {list(steps)} and {digits}"
            )
        self.steps, self.digits = steps, digits

    def tasks(self, split: str) -> Iterator[Task]:
        """All starts of the split with all amounts, in a fixed shuffled order."""
        self.check_split(split)
        starts = [start for start in range(10, 10**self.digits) if str(start)[-1] in _LAST_DIGITS[split]]
        cases = [
            (start, amounts)
            for steps in self.steps
            for start, *amounts in itertools.product(starts, *[range(1, 10)] * steps)
        ]
        random.Random(f"counter/{split}").shuffle(cases)
        for start, amounts in cases:
            yield make_task(split, start, amounts)

    def gold(self, task: Task) -> PlannedGold:
        """One call per amount, then "Done."."""
        return PlannedGold(_plan(task.private_value()["amounts"]))


def make_task(split: str, start: int, amounts: list[int]) -> Task:
    """The task of raising a counter from `start` by each of `amounts` (one or two of 1 to 9)."""
    sentence, template = _SENTENCES[len(amounts)]
    return Task(
        environment="counter",
        split=split,
        template=template,
        tags=("call",),
        prompt=(user(sentence.format(*amounts, start=start)),),
        state=canonical.dumps({"value": start, "calls": []}),
        private=canonical.dumps({"amounts": amounts}),
        verifier="counter/end_state/1",
        budget=Budget(max_turns=len(amounts) + 2, max_tokens=256),
    )


def load(**options: Any) -> CounterEnvironment:
    """The counter environment; options are those of CounterEnvironment."""
    return CounterEnvironment(**options)


def _plan(amounts: list[int]) -> Plan:
    for amount in amounts:
        yield call("add", amount=amount)
    yield assistant("Done.")
