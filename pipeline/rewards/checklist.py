"""A process reward from a checklist: which sub-goals are reached after each step.

A step's value is (1/K) * sum over the K items of P(yes) + 0.5 * P(in progress), averaged over judges and
samples, in [0, 1]; R is the value of the last step, and every step's value is a process part. Source:
Web-Shepherd (arXiv 2505.15277): one checklist per task (three to five coarse sub-goals, never actions), then
a judgement per step. Probabilities are shares of samples, since a chat gives no token probabilities. The
quality of the checklist decides; give your own under `items` where you can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from data.messages import Role
from data.tasks import Task
from data.trajectories import RewardBy, RewardComponent, RewardWhen, Trajectory
from pipeline.chat.base import Chat
from pipeline.errors import ConfigError, JudgeError
from pipeline.rewards.base import Score
from pipeline.rewards.panel import Panel, fill, shown
from pipeline.rewards.search import private_texts

_VALUES = {"yes": (1.0, 0.0), "in_progress": (0.0, 1.0), "no": (0.0, 0.0)}
_LEAST, _MOST = 3, 5


class Checklist:
    """Parts: `step/<turn>` per assistant turn (process), `items` (K)."""

    name = "checklist"
    by = RewardBy.MODEL
    per_group = False

    def __init__(
        self,
        *,
        judges: Sequence[Mapping[str, Any] | Chat],
        items: str = "",
        samples: int = 1,
        every_step: bool = True,
    ) -> None:
        """`items`: key of the private part that lists the sub-goals; "" lets the first judge write them.
        `every_step`: judge each step, else the last alone. Calls: judges x samples x steps."""
        self.panel = Panel(judges, reward=self.name)
        if samples < 1:
            raise ConfigError(f"reward checklist: samples must be at least 1, got {samples}")
        self.items, self.samples, self.every_step = items, samples, every_step
        self._written: dict[str, list[str]] = {}

    async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
        """See `RewardFunction.score`."""
        if all(trajectory.reward is None for trajectory in group):
            return [Score(total=None)] * len(group)
        try:
            items = await self._items(task)
        except JudgeError as error:
            why = f"JudgeError: {error}"
            return [
                Score(None, success=item.success, error=why if item.reward is not None else "")
                for item in group
            ]
        return list(await asyncio.gather(*(self._one(items, trajectory) for trajectory in group)))

    async def close(self) -> None:
        """Release connections."""
        await self.panel.close()

    async def _items(self, task: Task) -> list[str]:
        if self.items:
            return private_texts(task, self.items, self.name)
        if task.task_id not in self._written:
            prompt = fill("checklist", least=str(_LEAST), most=str(_MOST), task=shown(task.prompt))
            reply = await self.panel.ask_one(0, prompt, _ITEMS_SCHEMA)
            # Asked twice at once, the first to answer wins: rollouts of a task share one list.
            self._written.setdefault(task.task_id, reply["items"])
        return self._written[task.task_id]

    async def _one(self, items: Sequence[str], trajectory: Trajectory) -> Score:
        if trajectory.reward is None:
            return Score(total=None)
        ends = _step_ends(trajectory)
        if not ends:
            return Score(0.0, (), trajectory.success)
        judged = ends if self.every_step else ends[-1:]
        try:
            values = await asyncio.gather(*(self._step(items, trajectory, end) for _, end in judged))
        except JudgeError as error:
            return Score(None, success=trajectory.success, error=f"JudgeError: {error}")
        steps = [
            RewardComponent(name=f"step/{turn}", value=value, when=RewardWhen.PROCESS, by=self.by)
            for (turn, _), value in zip(judged, values, strict=True)
        ]
        return Score(
            values[-1], (*steps, RewardComponent(name="items", value=len(items))), trajectory.success
        )

    async def _step(self, items: Sequence[str], trajectory: Trajectory, end: int) -> float:
        listed = "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1))
        record = shown(trajectory.turns[:end])
        # The number makes each sample a question of its own, which no cache answers with another's reply.
        notes = [
            f"(sample {n} of {self.samples})" if self.samples > 1 else "" for n in range(1, self.samples + 1)
        ]
        prompts = [fill("progress", items=listed, record=record, sample=note) for note in notes]
        asked = await asyncio.gather(*(self.panel.ask(prompt, _schema(len(items))) for prompt in prompts))
        verdicts = [reply["progress"] for replies in asked for reply in replies]
        shares = [
            tuple(sum(_VALUES[verdict[k]][part] for verdict in verdicts) / len(verdicts) for part in (0, 1))
            for k in range(len(items))
        ]
        return checklist_value([(yes, progress) for yes, progress in shares])


def checklist_value(shares: Sequence[tuple[float, float]]) -> float:
    """(1/K) * sum of P(yes) + 0.5 * P(in progress) over (P(yes), P(in progress)) of each item."""
    return sum(yes + 0.5 * progress for yes, progress in shares) / len(shares)


def _step_ends(trajectory: Trajectory) -> list[tuple[int, int]]:
    """(assistant turn, index after the results that answer it) of every step."""
    ends = []
    for index, turn in enumerate(trajectory.turns):
        if turn.role is Role.ASSISTANT:
            end = index + 1
            while end < len(trajectory.turns) and trajectory.turns[end].role is Role.TOOL:
                end += 1
            ends.append((index, end))
    return ends


_ITEMS_SCHEMA = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "minItems": _LEAST,
            "maxItems": _MOST,
        }
    },
    "required": ["items"],
    "additionalProperties": False,
}


def _schema(count: int) -> dict[str, Any]:
    verdicts = {"type": "array", "items": {"enum": list(_VALUES)}, "minItems": count, "maxItems": count}
    return {
        "type": "object",
        "properties": {"progress": verdicts},
        "required": ["progress"],
        "additionalProperties": False,
    }
