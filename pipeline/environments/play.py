"""One episode of an agent that needs no model: gold scripts and the agents of `check`, driven over a Session.

The result is a Trajectory without tokens, judged by the session. Not covered: budgets, malformed text,
failures of the world (they raise): that is the rollout loop's work.
"""

from __future__ import annotations

from data.messages import ToolStatus, Turn, tool
from data.tasks import Task
from data.trajectories import EnvironmentRef, Policy, Termination, Trajectory
from pipeline.environments.base import Environment, GoldScript, Session
from pipeline.errors import EnvironmentFailure

MAX_TURNS = 64


async def play(environment: Environment, task: Task, agent: GoldScript, *, seed: int = 0) -> Trajectory:
    """Open, play to the end, judge, close. Raises what the world raises."""
    session = await environment.open(task, seed=seed)
    try:
        turns = await play_turns(session, task, agent)
        trajectory = make_trajectory(environment, task, turns, seed=seed)
        reward = await session.verify(trajectory)
        return trajectory.model_copy(update={"reward": reward})
    finally:
        await session.close()


async def play_turns(session: Session, task: Task, agent: GoldScript) -> list[Turn]:
    """The dialogue of `agent` in an open session, prompt included, at most MAX_TURNS assistant turns long.

    Raises EnvironmentFailure where a tool breaks: what follows would be said to a world that is gone.
    """
    turns = list(task.prompt)
    for _ in range(MAX_TURNS):
        said = agent.next_turn(turns)
        if said is None:
            break
        turns.append(said)
        for call in said.tool_calls:
            result = await session.call(call.name, call.parsed_arguments(), call.call_id)
            if result.status is ToolStatus.INFRA_ERROR:
                raise EnvironmentFailure(f"call {call.name} of task {task.task_id}: {result.text}")
            turns.append(tool(result))
        if getattr(session, "finished", False):
            break
        if not said.tool_calls:
            reply = await session.next_user(turns)
            if reply is None:
                break
            turns.append(reply)
    return turns


def make_trajectory(environment: Environment, task: Task, turns: list[Turn], *, seed: int) -> Trajectory:
    """The record of a finished dialogue, without tokens."""
    return Trajectory(
        task_id=task.task_id,
        group_id=task.task_id,
        synthesizer="play",
        template=task.template,
        tags=task.tags,
        policy=Policy(name="script"),
        environment=EnvironmentRef(name=environment.name, version=environment.version, seed=seed),
        turns=tuple(turns),
        termination=Termination.FINISHED,
    )
