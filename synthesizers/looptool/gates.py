"""The two gates of a new sample: gold played in a fresh session, and words that nobody has said yet.

Not covered: what becomes of a sample that does not pass (`expansion`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from data import canonical
from data.messages import Role, Turn
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.environments.base import Environment, GoldScript, Session
from pipeline.environments.blueprint import is_blueprint, read_blueprint
from pipeline.environments.renamed import is_renamed, read_renaming
from pipeline.environments.wrapped import WrappedEnvironment
from pipeline.errors import EnvironmentFailure
from pipeline.renderers.base import Renderer
from pipeline.rollout_settings import RolloutSettings
from synthesizers.demonstration import Demonstration
from synthesizers.looptool.records import SYNTHESIZER


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldGate:
    """Plays gold; `environment` is a plannable one (`worlds`)."""

    environment: Environment
    renderer: Renderer
    settings: RolloutSettings
    seed: int
    run_id: str

    async def gold(self, task: Task, *, failed: Collection[str]) -> Trajectory:
        """Gold's dialogue, whatever it scored.

        Raises EnvironmentFailure where it could not be played, ConfigError where the task has no gold.
        """
        is_own = task.synthesizer == SYNTHESIZER
        demonstration = Demonstration(
            environment=_MayBeLost(self.environment) if is_own else self.environment,
            renderer=self.renderer,
            settings=self.settings,
            seed=self.seed,
            run_id=self.run_id,
            name=SYNTHESIZER,
        )
        played: list[Trajectory] = []
        try:
            async with aclosing(demonstration.synthesize([task], failed=failed)) as made:
                async for trajectory in made:
                    played.append(trajectory)
        except EnvironmentFailure:
            if not played:
                raise
        if played[-1].success is None:
            raise EnvironmentFailure(f"gold of {task.task_id} could not be played: {played[-1].error}")
        return played[-1]


class _MayBeLost(WrappedEnvironment):
    """The environment, whose gold may give up: a script written for its own tasks, given a changed one."""

    def __init__(self, inner: Environment) -> None:
        super().__init__(inner, version=inner.version)

    async def open(self, task: Task, *, seed: int = 0) -> Session:
        """The inner session."""
        return await self.inner.open(task, seed=seed)

    def gold(self, task: Task) -> GoldScript:
        """The inner gold, ending where it breaks."""
        return _EndsWhereLost(self.inner, task)


class _EndsWhereLost:
    def __init__(self, inner: Environment, task: Task) -> None:
        self._inner, self._task = inner, task
        self._script: GoldScript | None = None

    def next_turn(self, turns: Sequence[Turn]) -> Turn | None:
        """The inner script's next turn; None where it breaks."""
        try:
            self._script = self._script or self._inner.gold(self._task)
            return self._script.next_turn(turns)
        except EnvironmentFailure:
            return None


def wording(task: Task) -> str:
    """Equal for tasks that ask for the same in the same words with the same tools in the same world."""
    texts = [turn.text for turn in task.prompt if turn.role is Role.USER]
    if is_blueprint(task):
        texts = [turn.text for turn in read_blueprint(task).turns]
    said = " ".join(" ".join(texts).casefold().split())
    names = [each.shown for each in read_renaming(task)[1].names] if is_renamed(task) else []
    return canonical.digest(said, sorted(task.tools or ()), names, task.state)


def fits_schemas(gold: Trajectory) -> bool:
    """Whether all of gold's calls were executed as calls of the tools shown."""
    return all(call.ok for turn in gold.turns for call in turn.tool_calls)
