"""Gold and doing nothing on every task of every offline BFCL category, under the benchmark's own checkers.

    python -m benchmarks.bfcl_gold [CATEGORY ...]

Prints a table row per category: rows of the benchmark, tasks made of them, how many gold solves, how many
doing nothing solves (with the typed answer demanded, and by the benchmark's own rule), and each row that is
no task, with the reason. Rows whose own answers the checker refuses are verified to be exactly those listed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from data.tasks import Task
from pipeline.environments.agents import null_agent
from pipeline.environments.base import Environment, GoldScript
from pipeline.environments.bfcl import BfclEnvironment
from pipeline.environments.bfcl.dataset import MULTI_TURN, rows
from pipeline.environments.bfcl.prompted import PromptedEnvironment, prompted_rows
from pipeline.environments.bfcl.prompted_text import PROMPTS
from pipeline.environments.bfcl.single import SingleTurnEnvironment
from pipeline.environments.bfcl.single_check import upstream_verdict
from pipeline.environments.bfcl.single_gold import gold_calls
from pipeline.environments.bfcl.single_rows import CATEGORIES, REFUSING, UNSOLVABLE, single_rows
from pipeline.environments.play import play

PROMPTED = "format_sensitivity"
NOT_OFFLINE = {
    "memory_kv": "a dialogue must be forgotten before the question; an episode here is one dialogue",
    "memory_rec_sum": "as memory_kv",
    "memory_vector": "needs the weights of an embedding model",
    "web_search_base": "needs the network",
    "web_search_no_snippet": "needs the network",
}


async def solved(environment: Environment, agent: Callable[[Task], GoldScript]) -> int:
    """How many tasks of `all` an agent solves."""
    count = 0
    for task in environment.tasks("all"):
        played = await play(environment, task, agent(task))
        count += bool(played.success)
    return count


def refused_rows(category: str) -> list[str]:
    """Rows of a single-turn category on which the checker refuses gold."""
    found = []
    for row in single_rows(category):
        calls = [] if category in REFUSING else gold_calls(row)
        if upstream_verdict(category, row.functions, row.answers, [{name: given} for name, given in calls]):
            found.append(row.name)
    return found


async def row_of(category: str) -> str:
    """A category's line of the table."""
    if category in CATEGORIES:
        refused = refused_rows(category)
        expected = [name for name in UNSOLVABLE if name.rsplit("_", 1)[0] == category]
        assert sorted(refused) == sorted(expected), (refused, expected)
        environment: Environment = SingleTurnEnvironment(categories=category)
        total, upstream = (
            len(single_rows(category)),
            SingleTurnEnvironment(categories=category, refusal="any"),
        )
        floor = await solved(upstream, lambda task: null_agent())
    elif category == PROMPTED:
        environment, refused = PromptedEnvironment(), []
        total = len(PROMPTS) * len(prompted_rows())
        floor = await solved(environment, lambda task: null_agent())
    else:
        short = category.removeprefix("multi_turn_")
        environment = BfclEnvironment(category=short)  # type: ignore[arg-type]
        total, refused = len(rows(short)), []
        floor = await solved(environment, lambda task: null_agent())
    tasks = sum(1 for _ in environment.tasks("all"))
    gold = await solved(environment, environment.gold)
    null = await solved(environment, lambda task: null_agent())
    return f"| {category} | {total} | {tasks} | {gold} | {null} | {floor} | {', '.join(refused)} |"


async def main(chosen: list[str]) -> None:
    """The table, then the reasons."""
    print("| category | rows | tasks | gold solves | null solves | null, upstream's rule | not made a task |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for category in chosen or [*CATEGORIES, PROMPTED, *(f"multi_turn_{name}" for name in MULTI_TURN)]:
        print(await row_of(category), flush=True)
    for name, reason in (UNSOLVABLE | NOT_OFFLINE).items():
        print(f"- {name}: {reason}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
