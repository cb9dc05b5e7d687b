"""Tasks and trajectories for the tests of rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from data.messages import ToolCall, ToolStatus, user
from data.tasks import Budget, Task
from data.trajectories import Reward, RewardComponent, Termination, Trajectory, Usage
from tests.samples import trajectory


def task(private: Any = None, *, max_turns: int = 10, max_tokens: int = 1000) -> Task:
    """A task of the desk with this private part."""
    return Task(
        environment="desk",
        split="train",
        template="t",
        prompt=(user("Book a trip."),),
        private=json.dumps(private if private is not None else {}),
        verifier="v/1",
        budget=Budget(max_turns=max_turns, max_tokens=max_tokens),
    )


def episode(
    *steps: ToolCall | tuple[ToolCall, ToolStatus] | str,
    reward: float | None = 1.0,
    parts: Mapping[str, float] | None = None,
    termination: Termination | None = None,
    index: int = 0,
    tokens: int = 0,
    **options: Any,
) -> Trajectory:
    """An episode of `steps` whose verifier gave `reward` and `parts`."""
    made = trajectory(*steps, reward=reward, termination=termination, index=index, **options)
    components = tuple(RewardComponent(name=name, value=value) for name, value in (parts or {}).items())
    judged = None if reward is None else Reward(total=reward, components=components, verifier="v/1")
    update: dict[str, Any] = {"reward": judged, "usage": Usage(generated_tokens=tokens)}
    update |= {"segments": ()} if tokens else {}  # so many tokens are not made up
    return made.model_copy(update=update)
