"""Model judges compare the rollouts of a group with each other, each pair in both orders.

R = mean over rivals, judges and orders of 1 (better), 0.5 (equal) or 0 (worse), in [0, 1]. A verdict that
changes with the order cancels out to 0.5, and the share of such comparisons is a part: a panel whose
`position_flips` is high sees positions, not work. Every rollout meets its `rivals` next ones in the group
(all of them in small groups). `length_matched` is the same mean over rivals of about equal length (within a
quarter) only. Comparing is more reliable than grading where a task has no scale.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from data.tasks import Task
from data.trajectories import RewardBy, RewardComponent, Trajectory
from pipeline.chat.base import Chat
from pipeline.errors import ConfigError, JudgeError
from pipeline.rewards.base import Score
from pipeline.rewards.panel import Panel, answer_words, fill, reference_note, shown

_POINTS = {"first": 1.0, "equal": 0.5, "second": 0.0}
_SCHEMA = {
    "type": "object",
    "properties": {"reasons": {"type": "string"}, "better": {"enum": list(_POINTS)}},
    "required": ["reasons", "better"],
    "additionalProperties": False,
}


class Meeting(NamedTuple):
    """What became of one comparison, seen from one side."""

    points: float
    flipped: bool
    matched: bool


class JudgePairs:
    """Parts: `position_flips`, `length_matched` (where a rival is of that length), `words`."""

    name = "judge_pairs"
    by = RewardBy.MODEL
    per_group = True

    def __init__(
        self, *, judges: Sequence[Mapping[str, Any] | Chat], rivals: int = 3, show_private: str = ""
    ) -> None:
        """`rivals`: rollouts that each one is compared with; a comparison costs two calls per judge."""
        self.panel = Panel(judges, reward=self.name)
        if rivals < 1:
            raise ConfigError(f"reward judge_pairs: rivals must be at least 1, got {rivals}")
        self.rivals, self.show_private = rivals, show_private

    async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
        """See `RewardFunction.score`. A rollout without a rival has no score."""
        members = [index for index, item in enumerate(group) if item.reward is not None]
        pairs = _pairs(members, self.rivals)
        note = reference_note(task.private_value(), self.show_private, reward=self.name)
        found = await asyncio.gather(*(self._compared(note, group[a], group[b]) for a, b in pairs))
        met: dict[int, list[Meeting]] = defaultdict(list)
        failed: dict[int, str] = {}
        for (one, other), result in zip(pairs, found, strict=True):
            if isinstance(result, str):
                failed |= {one: result, other: result}
                continue
            met[one] += result
            met[other] += [meeting._replace(points=1.0 - meeting.points) for meeting in result]
        return [self._scored(item, met[index], failed.get(index, "")) for index, item in enumerate(group)]

    async def close(self) -> None:
        """Release connections."""
        await self.panel.close()

    async def _compared(self, note: str, one: Trajectory, other: Trajectory) -> list[Meeting] | str:
        """One meeting per judge, seen from `one`; why not, where a judge failed."""
        texts = shown(one.turns), shown(other.turns)
        prompts = [
            fill("pair", reference=note, first=first, second=second) for first, second in (texts, texts[::-1])
        ]
        try:
            forward, backward = await asyncio.gather(*(self.panel.ask(prompt, _SCHEMA) for prompt in prompts))
        except JudgeError as error:
            return f"JudgeError: {error}"
        lengths = sorted((answer_words(one), answer_words(other)))
        matched = lengths[1] <= 1.25 * max(lengths[0], 1)
        meetings = []
        for there, back in zip(forward, backward, strict=True):
            points = (_POINTS[there["better"]] + 1.0 - _POINTS[back["better"]]) / 2
            flipped = there["better"] == back["better"] != "equal"
            meetings.append(Meeting(points, flipped, matched))
        return meetings

    def _scored(self, trajectory: Trajectory, met: Sequence[Meeting], failed: str) -> Score:
        if trajectory.reward is None:
            return Score(total=None)
        if failed or not met:
            why = failed or "JudgeError: the group has no other rollout to compare with"
            return Score(None, success=trajectory.success, error=why)
        parts = {"position_flips": sum(meeting.flipped for meeting in met) / len(met)}
        matched = [meeting.points for meeting in met if meeting.matched]
        if matched:
            parts["length_matched"] = sum(matched) / len(matched)
        components = [RewardComponent(name=name, value=value, by=self.by) for name, value in parts.items()]
        components.append(RewardComponent(name="words", value=answer_words(trajectory)))
        total = sum(meeting.points for meeting in met) / len(met)
        return Score(total, tuple(components), trajectory.success)


def _pairs(members: Sequence[int], rivals: int) -> list[tuple[int, int]]:
    """Each member with its next `rivals` in the ring, every pair once."""
    count = len(members)
    steps = range(1, min(rivals, count - 1) + 1)
    pairs = {tuple(sorted((members[i], members[(i + step) % count]))) for i in range(count) for step in steps}
    return sorted((one, other) for one, other in pairs)
