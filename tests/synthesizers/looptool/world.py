"""travel_desk for the tests of LoopTool: gold rows, planted wrong labels, and policies without a model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from data.messages import Turn
from data.tasks import Task
from data.trajectories import Reward, Trajectory
from flows.stages.scripted import ScriptedPolicy
from pipeline.environments.base import GoldScript
from pipeline.environments.registry import load_environment
from pipeline.environments.wrapped import WrappedEnvironment
from pipeline.errors import EnvironmentFailure
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.demonstration import Demonstration
from synthesizers.looptool.probing import Probe, probe
from synthesizers.looptool.records import Repair
from synthesizers.looptool.repairing import repair
from synthesizers.looptool.samples import step_samples
from synthesizers.slips import other_arguments


class OneSlip:
    """A gold script of which the turn number `at` calls with other values."""

    def __init__(self, inner: GoldScript, at: int, row: Trajectory) -> None:
        self.inner, self.at, self.row = inner, at, row
        self.turn = 0

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        try:
            said = self.inner.next_turn(turns)
        except (LookupError, ValueError, RuntimeError):
            return None
        self.turn += 1
        if said is None or self.turn - 1 != self.at:
            return said
        specs = {spec.name: spec for spec in self.row.segments[0].tools}
        rng = random.Random(self.row.task_id)
        calls = [
            call.model_copy(
                update={"arguments": other_arguments(call, specs[call.name], turns, share=1.0, rng=rng)}
            )
            for call in said.tool_calls
        ]
        return said.model_copy(update={"tool_calls": tuple(calls)})


class Slipping(WrappedEnvironment):
    """travel_desk whose gold slips once, in the assistant turn `at[task_id]`."""

    def __init__(self, inner: Any, gold: dict[str, Trajectory], at: dict[str, int]) -> None:
        super().__init__(inner, version=inner.version)
        self.golden, self.at = gold, at

    async def open(self, task: Task, *, seed: int = 0) -> Any:
        return await self.inner.open(task, seed=seed)

    def gold(self, task: Task) -> OneSlip:
        return OneSlip(self.inner.gold(task), self.at[task.task_id], self.golden[task.task_id])


class Planted(NamedTuple):
    """A trajectory with one other label, stored as a success."""

    row: Trajectory
    gold: Trajectory
    turn: int
    is_wrong: bool
    """Whether the verifier had said 0 of it."""


class Desk:
    """`count` tasks of travel_desk and their gold rows."""

    def __init__(self, renderer: ChatMLRenderer, count: int) -> None:
        self.renderer = renderer
        self.environment = load_environment("travel_desk")
        bases = list(islice(self.environment.tasks("train"), count))
        self.tasks = {task.task_id: task for task in bases}
        self.gold = {row.task_id: row for row in self.demonstrated(self.environment)}
        self.rows = {row.trajectory_id: row for row in self.gold.values()}

    def demonstrated(self, environment: Any) -> list[Trajectory]:
        """One trajectory per task, whatever it scores."""

        async def run() -> list[Trajectory]:
            made = []
            demonstration = Demonstration(environment=environment, renderer=self.renderer)
            try:
                async for row in demonstration.synthesize(self.tasks.values()):
                    made.append(row)
            except EnvironmentFailure:
                pass
            return made

        return asyncio.run(run())

    def planted(self) -> list[Planted]:
        """One call of each gold row replaced by another valid one, executed, and stored as a success."""
        rng = random.Random(0)
        at = {}
        for task_id, row in self.gold.items():
            steps = [turn for turn in row.turns if turn.role == "assistant"]
            calling = [place for place, turn in enumerate(steps) if turn.tool_calls]
            at[task_id] = rng.choice(calling) if calling else -1
        found: list[Planted] = []
        for row in self.demonstrated(Slipping(self.environment, self.gold, at)):
            gold = self.gold[row.task_id]
            places = [place for place, turn in enumerate(row.turns) if turn.role == "assistant"]
            turn = places[at[row.task_id]] if at[row.task_id] >= 0 else -1
            if turn < 0 or said(row.turns[turn]) == said(gold.turns[turn]):
                continue
            assert row.reward is not None
            stored = row.model_copy(
                update={
                    "trajectory_id": f"planted{len(found)}",
                    "reward": Reward(total=1.0, verifier=row.reward.verifier),
                }
            )
            if any(sample.turn == turn for sample in step_samples(stored)):
                found.append(Planted(stored, gold, turn, row.success is False))
        return found

    def policy(self, mistakes: float = 0.0) -> ScriptedPolicy:
        """Gold of whatever dialogue it is shown."""
        return ScriptedPolicy(self.environment, self.renderer, mistakes=mistakes)

    def probed(self, rows: Sequence[Trajectory], engine: Any) -> list[Probe]:
        """All probes of the rows, by step."""

        async def run() -> list[Probe]:
            made = probe(
                rows,
                engine=engine,
                renderer=self.renderer,
                environment=self.environment,
                load_task=self.tasks.get,
            )
            return sorted([each async for each in made], key=lambda each: (each.trajectory_id, each.turn))

        return asyncio.run(run())

    def repaired(self, probes: Sequence[Probe], rows: Sequence[Trajectory], **options: Any) -> list[Repair]:
        """All repairs, by step."""
        by_id = {row.trajectory_id: row for row in rows}
        options = {"environment": self.environment, **options}

        async def run() -> list[Repair]:
            made = repair(probes, load=by_id.get, load_task=self.tasks.get, renderer=self.renderer, **options)
            return sorted([each async for each in made], key=lambda each: (each.trajectory_id, each.turn))

        return asyncio.run(run())


def said(turn: Turn) -> list[tuple[str, str]] | str:
    """Calls as (name, arguments), or words."""
    return [(call.name, call.arguments) for call in turn.tool_calls] or turn.text
