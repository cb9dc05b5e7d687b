"""How long HardGen's chains are, and whether its tasks hold, without a model: `docs/hardgen.md`'s table.

Run: python -m benchmarks.hardgen --world travel_desk [--goals 2] [--random-choice]. Two demonstrators that
slip (half and 70 % of the arguments; on sql_desk two that leave out most queries) are the policies that fail,
gold is the teacher, one plan is made for each base task. Every kept task is played again in a fresh session,
and must be solved with the same answers. Not covered: what the tasks are worth to a model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.methods import replays
from data.messages import Turn, assistant
from data.store import Store
from data.tasks import Task
from data.trajectories import Policy, Trajectory
from data.verdicts import Verdict
from pipeline.environments.agents import ListedAgent, null_agent
from pipeline.environments.base import Environment
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.renderers.base import Renderer
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.demonstration import Demonstration
from synthesizers.hardgen.synthesizer import HardGen
from tests.tiny import make_tiny_tokenizer

WORLDS = {"travel_desk": (11, 60, 60), "sql_desk": (7, 40, 30), "bfcl_multi_turn": (2, 70, 70)}
"""World: every which train task, tasks that are probed, base tasks."""
SLIPS, NO_QUERY = (0.5, 0.7), (0.8, 0.9)
POLICIES = tuple(f"gold+slip{slip:g}" for slip in SLIPS)


async def failing(
    environment: Environment, tasks: Sequence[Task], renderer: Renderer
) -> AsyncIterator[Trajectory]:
    """Rollouts of two policies that err."""
    if environment.name != "sql_desk":
        for seed, slip in enumerate(SLIPS):
            slipping = Demonstration(environment=environment, renderer=renderer, slip=slip, seed=seed)
            async for row in slipping.synthesize(tasks):
                yield row
        return
    rng = random.Random(0)
    for name, share in zip(POLICIES, NO_QUERY, strict=True):
        for task in tasks:
            gold = await play(environment, task, environment.gold(task))
            left_out = {"query"} if rng.random() < share else set[str]()
            said = [_without(turn, left_out) for turn in gold.turns if turn.role == "assistant"]
            row = await play(environment, task, ListedAgent([turn for turn in said if turn is not None]))
            changed = {
                "policy": Policy(name=name, weights="w"),
                "group_id": name + task.task_id,
                "trajectory_id": "",
            }
            yield Trajectory.model_validate(row.model_copy(update=changed).model_dump())


def _without(turn: Turn, names: set[str]) -> Turn | None:
    calls = tuple(call for call in turn.tool_calls if call.name not in names)
    return None if turn.tool_calls and not calls else assistant(turn.text, *calls)


async def holds(environment: Environment, task: Task, kept: Trajectory) -> tuple[bool, bool]:
    """Whether gold solves the task again with the same answers, and whether doing nothing does."""
    idle = await play(environment, task, null_agent())
    again = await replays(environment, task, kept, seed=11)
    return bool(kept.success) and again, bool(idle.success)


async def measure(world: str, *, goals: int, min_calls: int, random_choice: bool) -> str:
    """One row of the table."""
    stride, probes, bases = WORLDS[world]
    environment = load_environment(world)
    tasks = list(islice(environment.tasks("train"), stride * max(probes, bases)))[::stride]
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        Store.create_or_open(Path(folder) / "run", {"name": "run"}) as store,
    ):
        renderer = ChatMLRenderer.load(make_tiny_tokenizer(Path(folder) / "tokenizer"))
        for task in tasks[:probes]:
            store.append(task)
        async for row in failing(environment, tasks[:probes], renderer):
            store.append(row)
        options: dict[str, Any] = {"random_choice": True} if random_choice else {"failures": POLICIES}
        options |= {"goals": goals, "min_calls": min_calls, "engine": None}
        hardgen = HardGen(environment=environment, renderer=renderer, store=store, **options)
        made = [record async for record in hardgen.synthesize(tasks[:bases])]
    kept = {row.task_id: row for row in made if isinstance(row, Trajectory)}
    planned = [record for record in made if isinstance(record, Task)]
    held = [await holds(environment, task, kept[task.task_id]) for task in planned]
    verdicts = [record for record in made if isinstance(record, Verdict)]
    chains = [json.loads(each.detail)["chain"] for each in verdicts if each.keep]
    reasons = Counter(each.reason for each in verdicts if not each.keep)
    number = max(1, len(chains))
    long = ", ".join(
        f"{least} or more {sum(len(chain) >= least for chain in chains) / number:.0%}" for least in (2, 3, 4)
    )
    good, idle = (sum(each) for each in zip(*held, strict=True)) if held else (0, 0)
    mean = sum(map(len, chains)) / number
    return (
        f"{world}: {len(planned)} of {len(tasks[:bases])} plans made tasks; {good} of {len(planned)} "
        f"re-executed and verified; {idle} solved by doing nothing; calls {mean:.2f} (mean), {long}; "
        f"given up {dict(reasons)}; {time.monotonic() - started:.0f} s"
    )


def main() -> None:
    """Measure the worlds that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", nargs="+", choices=sorted(WORLDS), default=sorted(WORLDS))
    parser.add_argument("--goals", type=int, default=1)
    parser.add_argument("--min-calls", type=int, default=1)
    parser.add_argument("--random-choice", action="store_true")
    given = parser.parse_args()
    for world in given.world:
        row = measure(world, goals=given.goals, min_calls=given.min_calls, random_choice=given.random_choice)
        print(asyncio.run(row), flush=True)


if __name__ == "__main__":
    main()
