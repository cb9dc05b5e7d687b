"""What HardGen's tests share: a store of two policies' rollouts, runs, and a graph that is given."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from data import canonical
from data.messages import Turn, assistant
from data.schema import AnyRecord
from data.tasks import Task
from data.trajectories import Policy, Trajectory
from data.verdicts import Verdict
from pipeline.environments.agents import ListedAgent
from pipeline.environments.base import Environment
from pipeline.environments.play import play
from pipeline.environments.registry import load_environment
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.base import Made
from synthesizers.hardgen.synthesizer import HardGen

ENGINE: Any = None
VAULT = "tests.synthesizers.hardgen.vault:load"
BOTH = ("small model", "other model")


@dataclass
class Shelf:
    """A store in memory."""

    root: Path = Path("shelf")
    rows: list[Trajectory] = field(default_factory=list)
    known: dict[str, Task] = field(default_factory=dict)

    def trajectories(self) -> Iterator[Trajectory]:
        """All of them."""
        return iter(self.rows)

    def get(self, kind: str, key: str) -> AnyRecord | None:
        """A task."""
        return self.known.get(key) if kind == "tasks" else None


def act(
    environment: Environment,
    task: Task,
    *,
    policy: str,
    fails_at: Collection[str] = (),
    weights: str = "w1",
    synthesizer: str = "rejection_sampling",
    number: int = 0,
) -> Trajectory:
    """A rollout: gold without its calls of the tools in `fails_at`."""

    async def played() -> Trajectory:
        gold = await play(environment, task, environment.gold(task))
        said = [_without(turn, fails_at) for turn in gold.turns if turn.role == "assistant"]
        return await play(environment, task, ListedAgent([turn for turn in said if turn is not None]))

    row = asyncio.run(played())
    group = canonical.digest(policy, weights, task.task_id, synthesizer, length=24)
    changed = {
        "policy": Policy(name=policy, weights=weights),
        "synthesizer": synthesizer,
        "group_id": group,
        "rollout_index": number,
        "trajectory_id": "",
    }
    return Trajectory.model_validate(row.model_copy(update=changed).model_dump())


def _without(turn: Turn, names: Collection[str]) -> Turn | None:
    calls = tuple(call for call in turn.tool_calls if call.name not in names)
    if turn.tool_calls and not calls:
        return None
    return assistant(turn.text, *calls)


def shelf(
    environment: Environment,
    fails: dict[str, Collection[str]],
    *,
    count: int = 12,
    step: int = 1,
    skip: int = 0,
    split: str = "train",
) -> Shelf:
    """Rollouts of policies that fail at tools, on the same tasks."""
    tasks = list(islice(environment.tasks(split), skip, skip + count * step))[::step]
    made = Shelf(known={task.task_id: task for task in tasks})
    for policy, names in fails.items():
        made.rows += [act(environment, task, policy=policy, fails_at=names) for task in tasks]
    return made


class Run(NamedTuple):
    """What was made."""

    hardgen: HardGen
    environment: Environment
    records: list[Made]

    @property
    def tasks(self) -> list[Task]:
        """Planned tasks."""
        return [record for record in self.records if isinstance(record, Task)]

    @property
    def trajectories(self) -> list[Trajectory]:
        """Of the teacher or reasoner."""
        return [record for record in self.records if isinstance(record, Trajectory)]

    @property
    def verdicts(self) -> list[Verdict]:
        """Both kinds."""
        return [record for record in self.records if isinstance(record, Verdict)]

    @property
    def plans(self) -> dict[str, dict[str, Any]]:
        """Task id -> the plan's record."""
        return {
            verdict.trajectory_id: canonical.loads(verdict.detail)
            for verdict in self.verdicts
            if verdict.keep
        }


def run(
    renderer: ChatMLRenderer,
    environment: Environment | str,
    count: int,
    *,
    step: int = 1,
    targets: Collection[str] = (),
    done: Collection[str] = (),
    engine: Any = ENGINE,
    **options: Any,
) -> Run:
    """HardGen on every `step`-th train task; `targets` are what both policies fail at."""
    world = load_environment(environment) if isinstance(environment, str) else environment
    if targets:
        options |= {"failures": BOTH, "store": shelf(world, dict.fromkeys(BOTH, targets), step=step)}
    hardgen = HardGen(environment=world, engine=engine, renderer=renderer, **options)
    bases = list(islice(world.tasks("train"), count * step))[::step]

    async def made() -> list[Made]:
        return [record async for record in hardgen.synthesize(bases, done=done)]

    return Run(hardgen, world, asyncio.run(made()))
