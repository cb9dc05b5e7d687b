"""Demonstrations: the gold policy executed in a real session, then rendered to tokens.

Gold calls are executed, never assumed, and the verifier judges what they did. A gold that does not
score 1 is recorded as what it is and raised as an error once all tasks are worked. With `slip`, a
share of the call arguments is replaced by other schema-valid values: a suboptimal demonstrator, whose
outcomes are kept as they come. Not covered: teachers that are models (`rejection_sampling`).
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from data import canonical
from data.errors import ConfigError
from data.messages import ToolCall, ToolSpec, Turn
from data.tasks import Task
from data.trajectories import Origin, Policy, Segment, Trajectory, make_group_id
from pipeline.environments.base import Environment, GoldScript
from pipeline.errors import EnvironmentFailure
from pipeline.renderers.base import Renderer
from pipeline.rollout import Job, RolloutSettings
from pipeline.rollout_author import Written
from pipeline.rollout_episode import Episode, Identity
from pipeline.rollout_pool import Emit, pooled
from synthesizers.base import pending
from synthesizers.segments import rendered_segments
from synthesizers.slips import other_arguments
from synthesizers.worlds import guarded, plannable

GOLD = "gold"
"""Name of the policy that demonstrates without slips."""


class GoldAuthor:
    """Plays a gold script and renders what was played; see `pipeline.rollout_author.Author`."""

    engine_calls = 0

    def __init__(self, script: GoldScript, *, renderer: Renderer, slip: float, rng: random.Random) -> None:
        self.script, self.renderer, self.slip, self.rng = guarded(script), renderer, slip, rng
        self._turns: Sequence[Turn] = ()
        self._starts: list[tuple[int, tuple[ToolSpec, ...]]] = []
        self._slipped = False

    def begin(self, turns: Sequence[Turn], tools: tuple[ToolSpec, ...]) -> None:
        """Note where a segment starts; rendering waits for the end."""
        self._turns = turns
        self._starts.append((len(turns), tools))

    async def write(self, turns: Sequence[Turn]) -> Written | None:
        """The script's next turn, with call ids of our own and slips, if any."""
        try:
            turn = self.script.next_turn(turns)
        except EnvironmentFailure as failure:
            if self._slipped and isinstance(failure.__cause__, LookupError | ValueError):
                return None
            raise
        if turn is None:
            return None
        return Written(turn.model_copy(update={"tool_calls": self._calls(turn, turns)}))

    def read(self, turns: Sequence[Turn], *, new: int) -> None:
        """Nothing to do: the script is given the dialogue each time."""

    def segments(self) -> tuple[Segment, ...]:
        """One rendered segment per tool set; earlier assistant turns are prompt in the later ones."""
        return rendered_segments(self._turns, self._starts, renderer=self.renderer, origin=Origin.RENDERED)

    def _calls(self, turn: Turn, turns: Sequence[Turn]) -> tuple[ToolCall, ...]:
        tools = {tool.name: tool for tool in self._starts[-1][1]}
        calls = []
        for index, call in enumerate(turn.tool_calls):
            arguments = call.arguments
            if self.slip and call.name in tools:
                arguments = other_arguments(call, tools[call.name], turns, share=self.slip, rng=self.rng)
                self._slipped |= arguments != call.arguments
            call_id = f"call_{len(turns)}_{index}"
            calls.append(call.model_copy(update={"call_id": call_id, "arguments": arguments}))
        return tuple(calls)


@dataclass(kw_only=True)
class Demonstration:
    """One rendered trajectory per task. See the module docstring for `slip` (0 to 1, share of arguments)."""

    environment: Environment
    renderer: Renderer
    settings: RolloutSettings = field(default_factory=RolloutSettings)
    slip: float = 0.0
    seed: int = 0
    run_id: str = ""
    max_in_flight: int = 8
    name: str = "demonstration"

    def __post_init__(self) -> None:
        if not 0.0 <= self.slip <= 1.0:
            raise ConfigError(f"slip is a share of arguments between 0 and 1, got {self.slip}")

    @property
    def policy(self) -> Policy:
        """The demonstrator's identity; a slipping one is another policy."""
        name = f"{GOLD}+slip{self.slip:g}" if self.slip else GOLD
        return Policy(name=name, renderer=self.renderer.digest, harness=self.settings.digest)

    async def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Trajectory]:
        """See `Synthesizer`. Raises EnvironmentFailure after the last task where a gold did not score 1."""
        wrong: list[str] = []
        jobs = pending(map(self._job, tasks), done=done, failed=failed)

        async def play(job: Job, emit: Emit[Trajectory]) -> None:
            trajectory = await self._play(job)
            if not self.slip and trajectory.success is False:
                wrong.append(f"{job.task.task_id} ({job.task.template}): {_why(trajectory)}")
            await emit(trajectory)

        async with aclosing(pooled(jobs, play, max_in_flight=self.max_in_flight)) as played:
            async for trajectory in played:
                yield trajectory
        if wrong:
            raise EnvironmentFailure(
                f"the gold of {len(wrong)} task(s) of {self.environment.name} does not score 1; "
                f"first: {'; '.join(sorted(wrong)[:3])}. Run `trajsmith env check` on this environment"
            )

    def _job(self, task: Task) -> Job:
        group_id = make_group_id(task.task_id, self.name, self.policy, self.seed)
        return Job(task, seed=self.seed, group_id=group_id)

    async def _play(self, job: Job) -> Trajectory:
        rng = random.Random(canonical.digest(job.group_id, self.seed))
        script = plannable(self.environment).gold(job.task)
        author = GoldAuthor(script, renderer=self.renderer, slip=self.slip, rng=rng)
        identity = Identity(
            group_id=job.group_id,
            synthesizer=self.name,
            policy=self.policy,
            seed=job.seed,
            attempt=job.attempt,
            run_id=self.run_id,
        )
        world, settings = self.environment, self.settings
        return await Episode(
            job.task, environment=world, author=author, settings=settings, identity=identity
        ).run()


def _why(trajectory: Trajectory) -> str:
    total = trajectory.reward.total if trajectory.reward else None
    problems = [turn.text for turn in trajectory.turns if turn.result and turn.text.startswith("error")]
    return f"scored {total}, ended with {trajectory.termination}" + (f", {problems[0]}" if problems else "")
