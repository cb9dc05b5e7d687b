"""Scripted agents for tests of worlds, in one line each."""

from __future__ import annotations

from typing import Any

from data.messages import Turn, assistant
from data.trajectories import Trajectory
from pipeline.environments.agents import ListedAgent
from pipeline.environments.gold import call


def listed(*steps: tuple[str, dict[str, Any]] | str) -> ListedAgent:
    """An agent that makes these calls, or says these texts, one per turn."""
    return ListedAgent([step if isinstance(step, Turn) else _turn(step) for step in steps])


def components(played: Trajectory) -> dict[str, float]:
    """The reward's components by name."""
    assert played.reward is not None
    return {part.name: part.value for part in played.reward.components}


def _turn(step: tuple[str, dict[str, Any]] | str) -> Turn:
    return assistant(step) if isinstance(step, str) else call(step[0], **step[1])
