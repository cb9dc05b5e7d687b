"""Lines of an episode as trajectories, and the reward that an ending allows.

Not covered: which lines there are (`lines`), when an episode ends (`gateway`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from data import canonical
from data.tasks import Task
from data.trajectories import (
    Blame,
    EnvironmentRef,
    Reward,
    Termination,
    Trajectory,
    Usage,
    make_group_id,
    make_trajectory_id,
)
from pipeline.engines.base import Engine, Sampling
from pipeline.environments.base import Environment
from pipeline.errors import JudgeError
from pipeline.gateway.episode import RecordedEpisode
from pipeline.gateway.lines import Line
from pipeline.gateway.settings import GatewaySettings
from pipeline.renderers.base import Renderer
from pipeline.rollout_author import EpisodeEnd

Verify = Callable[[Trajectory], Awaitable[Reward]]


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes the trajectories of a gateway's episodes."""

    engine: Engine
    renderer: Renderer
    settings: GatewaySettings
    defaults: Sampling
    environment: Environment | None
    run_id: str

    def main(self, episode: RecordedEpisode, line: Line | None, end: EpisodeEnd) -> Trajectory:
        """The trajectory of a line that ended in `end`, not judged; None = nothing was sampled."""
        task, environment = episode.task, self.environment
        if line is not None and line.cut_off and end.termination is Termination.FINISHED:
            end = EpisodeEnd(Termination.TOKEN_BUDGET, Blame.AGENT, "the last reply did not end by itself")
        segments = line.segments() if line else ()
        policy = (line or Line((), (), -1, False)).policy(
            self.engine, renderer=self.renderer.digest, harness=self.settings.digest, defaults=self.defaults
        )
        seconds = episode.seconds
        return Trajectory(
            task_id=task.task_id,
            group_id=make_group_id(task.task_id, "gateway", policy, episode.seed),
            rollout_index=episode.rollout_index,
            synthesizer="gateway",
            run_id=self.run_id,
            template=task.template,
            tags=task.tags,
            policy=policy,
            environment=EnvironmentRef(
                name=environment.name if environment else task.environment,
                version=environment.version if environment else "",
                seed=episode.seed,
            ),
            turns=line.turns() if line else task.prompt,
            segments=segments,
            termination=end.termination,
            blame=end.blame,
            error=end.error,
            usage=line.usage(segments, seconds=seconds) if line else Usage(seconds=seconds),
        )

    def side(
        self, episode: RecordedEpisode, line: Line, main: Trajectory, before: list[Trajectory]
    ) -> Trajectory:
        """A branch or a conversation beside the main line; see `lines`."""
        if line.is_branch:
            end = EpisodeEnd(
                Termination.CANCELLED, Blame.NONE, "another branch of the dialogue was gone on with"
            )
        else:
            end = EpisodeEnd(main.termination, main.blame, main.error)
        record = self.main(episode, line, end)
        group = canonical.digest("line", main.group_id, line.name, length=24)
        update = {
            "group_id": group,
            "trajectory_id": make_trajectory_id(group, record.rollout_index),
            "parents": (before[line.parent].trajectory_id,),
            "reward": None if line.is_branch else main.reward,
        }
        return record.model_copy(update=update)


async def judged(
    trajectory: Trajectory,
    task: Task,
    *,
    settings: GatewaySettings,
    reward: float | Reward | None,
    judge: Verify | None,
) -> Trajectory:
    """With the reward that the ending allows; see the module docstring."""
    termination = trajectory.termination
    if not termination.has_reward or trajectory.blame not in (Blame.NONE, Blame.AGENT):
        return trajectory
    if isinstance(reward, Reward):
        given = reward
    elif reward is not None:
        given = Reward(total=reward, verifier=settings.harness)
    elif termination is not Termination.FINISHED:
        given = Reward(total=task.budget.exhausted_reward, verifier=task.verifier)
    else:
        assert judge is not None, "close demands a verdict"
        try:
            given = await asyncio.wait_for(judge(trajectory), settings.verify_seconds)
        except Exception as error:  # a verifier's bug, whatever it is, is no reward
            kind = "" if isinstance(error, JudgeError) else f"{type(error).__name__}: "
            update = {
                "termination": Termination.INFRA_FAILURE,
                "blame": Blame.JUDGE,
                "error": f"JudgeError: {kind}{error}",
            }
            return trajectory.model_copy(update=update)
    return trajectory.model_copy(update={"reward": given})
