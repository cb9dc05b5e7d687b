"""Model judges grade a trajectory on named criteria.

R = weighted mean over the criteria of the mean grade / 10 over judges and orders, in [0, 1]. Each judge is
asked twice, with the criteria in both orders, since grades drift with position; how far the two differ is a
part. Length is held out of the grade by the prompt and reported, so that calibration can show what is left
of it (`pipeline.rewards.calibration`). Judges that disagree by more than `max_spread` give no score, which
takes at least two of them. For goals no program can check: where there is a verifier, prefer it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from data.tasks import Task
from data.trajectories import RewardBy, RewardComponent, Trajectory
from pipeline.chat.base import Chat
from pipeline.errors import ConfigError, JudgeError
from pipeline.rewards.base import Score
from pipeline.rewards.panel import Panel, answer_words, fill, reference_note, shown

CRITERIA: Mapping[str, tuple[float, str]] = {
    "completion": (0.4, "everything the user asked for was done or answered"),
    "accuracy": (0.3, "what was said and done is right and supported by the record"),
    "structure": (0.15, "the final answer is clear and easy to use"),
    "sources": (0.15, "facts come from tool results or the task, and can be traced to them"),
}
"""Name to (weight, what a full grade means)."""


_TAKEN = ("reasons", "spread", "order_gap", "words")
"""Names of other parts."""


class Judge:
    """Parts: `<criterion>`, `<judge>/<criterion>` (both in [0, 1]), `spread`, `order_gap`, `words`."""

    name = "judge"
    by = RewardBy.MODEL
    per_group = False

    def __init__(
        self,
        *,
        judges: Sequence[Mapping[str, Any] | Chat],
        criteria: Mapping[str, Any] | None = None,
        both_orders: bool = True,
        max_spread: float = 1.0,
        show_private: str = "",
    ) -> None:
        """`criteria`: name to description, or to [weight, description]; `show_private`: key of the private
        part that judges are told (it then leaves this machine for wherever they run)."""
        self.panel = Panel(judges, reward=self.name)
        self.criteria = _criteria(criteria) if criteria else dict(CRITERIA)
        if not 0 < max_spread <= 1:
            raise ConfigError(f"reward judge: max_spread must be above 0 and at most 1, got {max_spread}")
        if max_spread < 1 and len(self.panel) < 2:
            raise ConfigError("reward judge: max_spread below 1 asks for agreement, which takes two judges")
        self.both_orders, self.max_spread, self.show_private = both_orders, max_spread, show_private

    async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
        """See `RewardFunction.score`."""
        return list(await asyncio.gather(*(self._one(task, trajectory) for trajectory in group)))

    async def close(self) -> None:
        """Release connections."""
        await self.panel.close()

    async def _one(self, task: Task, trajectory: Trajectory) -> Score:
        if trajectory.reward is None:
            return Score(total=None)
        try:
            return await self._graded(task, trajectory)
        except JudgeError as error:
            return Score(None, success=trajectory.success, error=f"JudgeError: {error}")

    async def _graded(self, task: Task, trajectory: Trajectory) -> Score:
        names = list(self.criteria)
        orders = [names, names[::-1]] if self.both_orders and len(names) > 1 else [names]
        asked = [self.panel.ask(self._prompt(task, trajectory, order), _schema(order)) for order in orders]
        grades = await asyncio.gather(*asked)
        by_judge = [
            {name: sum(replies[judge][name] for replies in grades) / len(grades) / 10 for name in names}
            for judge in range(len(self.panel))
        ]
        totals = [self._total(values) for values in by_judge]
        spread = max(totals) - min(totals)
        if spread > self.max_spread:
            raise JudgeError(f"the judges differ by {spread:.2f}, more than max_spread={self.max_spread}")
        gaps = [
            abs(replies[name] - grades[0][judge][name]) / 10
            for judge, replies in enumerate(grades[-1])
            for name in names
        ]
        parts = {name: sum(values[name] for values in by_judge) / len(by_judge) for name in names}
        total = self._total(parts)
        for judge, values in zip(self.panel.names, by_judge, strict=True):
            parts |= {f"{judge}/{name}": value for name, value in values.items()}
        parts |= {"spread": spread, "order_gap": sum(gaps) / len(gaps)}
        components = [RewardComponent(name=name, value=value, by=self.by) for name, value in parts.items()]
        components.append(RewardComponent(name="words", value=answer_words(trajectory)))
        return Score(total, tuple(components), trajectory.success)

    def _total(self, values: Mapping[str, float]) -> float:
        weights = {name: weight for name, (weight, _) in self.criteria.items()}
        return sum(weights[name] * values[name] for name in weights) / sum(weights.values())

    def _prompt(self, task: Task, trajectory: Trajectory, order: Sequence[str]) -> str:
        listed = "\n".join(f"- {name}: {self.criteria[name][1]}" for name in order)
        reference = reference_note(task.private_value(), self.show_private, reward=self.name)
        record = shown(trajectory.turns)
        return fill("judge", criteria=listed, reference=reference, record=record, strictness="")


def _schema(order: Sequence[str]) -> dict[str, Any]:
    grades = {name: {"type": "integer", "minimum": 0, "maximum": 10} for name in order}
    properties = {"reasons": {"type": "string"}, **grades}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _criteria(given: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    found = {}
    for name, value in given.items():
        weight, description = value if isinstance(value, list | tuple) and len(value) == 2 else (1.0, value)
        fits = isinstance(weight, int | float) and not isinstance(weight, bool) and weight > 0
        if not fits or not isinstance(description, str):
            raise ConfigError(
                f"reward judge: criterion {name!r} must be a description or [weight above 0, description], "
                f"got {value!r}"
            )
        if name in _TAKEN or "/" in name:
            raise ConfigError(
                f"reward judge: a criterion cannot be called {name!r}; not {', '.join(_TAKEN)}, and no '/'"
            )
        found[name] = (float(weight), description)
    return found
