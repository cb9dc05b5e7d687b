"""A weighted list of other rewards.

R = sum of weight * total over the parts; every part's total and its own parts are stored unweighted. One part
that has no score (a failed judge) leaves the whole without one. For a mix such as rubric 0.5, citation 0.2,
format 0.2, search 0.1 (DR Tulu), or program rewards with one judged dimension.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.tasks import Task
from data.trajectories import RewardBy, RewardComponent, Trajectory
from pipeline.errors import ConfigError
from pipeline.rewards.base import GoldCalls, RewardFunction, Score


class Weighted:
    """Parts: `<name>` and `<name>/<part>` of each reward in the list."""

    name = "weighted"

    def __init__(
        self,
        *,
        parts: Sequence[Mapping[str, Any]],
        gold: GoldCalls | None = None,
        state_dir: Path | None = None,
    ) -> None:
        """`parts`: mappings {weight, reward}, where reward is a row of its own; names must differ."""
        from pipeline.rewards import build_reward

        self.parts: list[tuple[float, RewardFunction]] = []
        for part in parts:
            if set(part) != {"weight", "reward"} or not isinstance(part["reward"], Mapping):
                raise ConfigError(
                    f"reward weighted: a part is {{weight, reward: {{name}}}}, got {dict(part)}"
                )
            weight = part["weight"]
            number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not number or not math.isfinite(weight):
                raise ConfigError(f"reward weighted: a weight must be a finite number, got {weight!r}")
            built = build_reward(part["reward"], gold=gold, state_dir=state_dir)
            self.parts.append((float(weight), built))
        names = [reward.name for _, reward in self.parts]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"reward weighted needs parts of different names, got {names}")
        self.per_group = any(reward.per_group for _, reward in self.parts)
        judged = any(reward.by is RewardBy.MODEL for _, reward in self.parts)
        self.by = RewardBy.MODEL if judged else RewardBy.PROGRAM

    async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
        """See `RewardFunction.score`."""
        columns = await asyncio.gather(*(reward.score(task, group) for _, reward in self.parts))
        return [self._joined(list(row)) for row in zip(*columns, strict=True)]

    async def close(self) -> None:
        """Release the parts' connections."""
        for _, reward in self.parts:
            await reward.close()

    def _joined(self, scores: Sequence[Score]) -> Score:
        components: list[RewardComponent] = []
        total, errors = 0.0, []
        for (weight, reward), score in zip(self.parts, scores, strict=True):
            if score.total is None:
                errors.append(f"{reward.name}: {score.error}" if score.error else "")
                continue
            total += weight * score.total
            components.append(RewardComponent(name=reward.name, value=score.total, by=reward.by))
            components += [
                part.model_copy(update={"name": f"{reward.name}/{part.name}"}) for part in score.parts
            ]
        if errors:
            return Score(None, tuple(components), scores[0].success, "; ".join(filter(None, errors)))
        return Score(total, tuple(components), scores[0].success)
