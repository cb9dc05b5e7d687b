"""Tasks of code_repair, ways to play them, and a sandbox that runs nothing."""

from __future__ import annotations

import itertools

from data.messages import Turn
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.agents import ListedAgent
from pipeline.environments.base import GoldScript
from pipeline.environments.code_repair import CodeRepair
from pipeline.environments.code_repair.build import WORKED_EXAMPLE
from pipeline.environments.code_repair.generator import make_task
from pipeline.environments.code_repair.mutants import defects_of
from pipeline.environments.code_repair.workspace import Level
from pipeline.environments.gold import call
from pipeline.environments.play import play
from pipeline.errors import EnvironmentFailure
from pipeline.sandbox.base import Execution, Limits, Outcome, Program
from tests.pipeline.environments.conftest import Run


def worked_example() -> Task:
    """The binary search with both boundary errors, under the names of the textbook."""
    for index, defect in enumerate(defects_of("binary_search")):
        if tuple(line for mutation in defect.mutations for line in mutation.lines) == WORKED_EXAMPLE:
            for variant in itertools.count():
                task = make_task(
                    "binary_search", index, "heldout_unseen", level=Level.FUNCTION, variant=variant
                )
                if not any(task.private_value()["choices"]):
                    return task
    raise LookupError("the worked example does not ship")


def broken(level: Level = Level.FUNCTION, *, program: str = "merge_sorted", variant: int = 0) -> Task:
    """A task with one bug that some shown test notices."""
    index = next(at for at, defect in enumerate(defects_of(program)) if defect.red)
    return make_task(program, index, "train", level=level, variant=variant)


def played(run: Run, world: CodeRepair, task: Task, *turns: Turn) -> Trajectory:
    agent: GoldScript = ListedAgent(turns) if turns else world.gold(task)
    return run(play(world, task, agent))


def results(trajectory: Trajectory) -> list[str]:
    return [turn.result.text for turn in trajectory.turns if turn.result is not None]


def rewritten(task: Task, code: str) -> Turn:
    """The edit that replaces the whole only file."""
    [text] = task.state_value()["files"].values()
    return call("edit", old=text, new=code)


def submitted(run: Run, world: CodeRepair, task: Task, code: str) -> Trajectory:
    return played(run, world, task, rewritten(task, code), call("run_tests"), call("finish"))


class StubSandbox:
    """The same outcome for everything, or a failure where that is None; `seen` lists what it was given."""

    name = "stub"

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        self.seen: list[Program] = []

    async def run(self, program: Program, limits: Limits | None = None) -> Execution:
        self.seen.append(program)
        if self.outcome is None:
            raise EnvironmentFailure("no jail would start")
        return Execution(self.outcome)

    def describe(self) -> str:
        return self.name

    async def close(self) -> None:
        pass
