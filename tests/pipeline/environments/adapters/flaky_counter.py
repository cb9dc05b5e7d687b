"""The counter with a tool that breaks when 9 is added, and three tasks: for what leaves our process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from data.tasks import Task
from pipeline.environments.counter import CounterEnvironment, CounterSession, make_task
from pipeline.environments.tools import tool

CASES = ((18, [3]), (28, [4, 5]), (38, [9]))


class FlakySession(CounterSession):
    @tool
    def add(self, amount: Annotated[int, Field(ge=1, le=9)]) -> str:
        """Raise the counter."""
        if amount == 9:
            raise OSError("the counter jams")
        return super().add(amount)


class FlakyEnvironment(CounterEnvironment):
    session = FlakySession

    def tasks(self, split: str) -> Iterator[Task]:
        self.check_split(split)
        for start, amounts in CASES:
            yield make_task(split, start, amounts)


def load() -> FlakyEnvironment:
    return FlakyEnvironment()
