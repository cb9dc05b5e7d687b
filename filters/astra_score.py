"""Keeps trajectories whose mean over ASTRA's seven parts is at least `threshold` (`astra_parts` names them).

With chats as judges all seven count; without, only those a program decides, and the label says which it was:
`astra_score:judged` or `astra_score:program`. A judge that fails means no score: the record is rejected as
`judge_failed`, where the released code takes every failed judge for a full mark. Other reasons: `ok`,
`low_score`, `no_reward` (an episode that says nothing of the policy). The parts are stored as scores
`astra/<part>`. Not covered: whether the task was done (`verified_outcome`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data.errors import ConfigError
from data.messages import NamedValue
from data.trajectories import Trajectory
from filters.astra_judges import JUDGES, ChatOf, judged_parts
from filters.astra_parts import FAILED_CALL, PROGRAM_PARTS, FailedCall, conciseness, tool_success
from filters.base import Judged, Judgement, annotated, in_batches, judged
from pipeline.chat.base import Chat
from pipeline.chat.load import load_chat
from pipeline.errors import StructuredReplyError

_BATCH = 16
"""Trajectories that are judged at a time."""


class AstraScore:
    """ASTRA's score against a threshold."""

    name = "astra_score"

    def __init__(
        self,
        *,
        threshold: float = 0.7,
        failed_call: FailedCall = "paper",
        chat: Chat | str | Mapping[str, Any] | None = None,
        chats: Mapping[str, Any] | None = None,
    ) -> None:
        """`chat` plays every judge that `chats` does not give to another: query_judge, round_judge,
        answer_judge. `failed_call`: what a failed call counts for, paper (0) or code (0.5)."""
        if not 0 <= threshold <= 1 or failed_call not in FAILED_CALL:
            raise ConfigError(
                f"astra_score: threshold is between 0 and 1, failed_call paper or code; "
                f"got {threshold} and {failed_call!r}"
            )
        if unknown := sorted(set(chats or {}) - set(JUDGES)):
            raise ConfigError(f"astra_score has no judge {', '.join(unknown)}; it has {', '.join(JUDGES)}")
        self.threshold, self.failed_call = threshold, failed_call
        default = load_chat(chat, where="astra_score.chat") if chat is not None else None
        named = {
            role: load_chat(one, where=f"astra_score.chats.{role}") for role, one in (chats or {}).items()
        }
        self._chats: dict[str, Chat | None] = {role: named.get(role, default) for role in JUDGES}
        self._judged: dict[str, Judged] = {}
        """What judges said, by trajectory: a chain may read the pool again, and they are asked once."""

    def __call__(self, trajectories: Iterable[Trajectory]) -> Iterator[Judged]:
        """Score a stream in batches."""
        return in_batches(trajectories, self._scored, size=_BATCH, close=self._close)

    async def _scored(self, batch: list[Trajectory]) -> list[Judged]:
        return list(await asyncio.gather(*(self._one(trajectory) for trajectory in batch)))

    async def _one(self, trajectory: Trajectory) -> Judged:
        known = self._judged.get(trajectory.trajectory_id)
        if known is not None:
            return known
        found = await scored(
            trajectory, self._chats.__getitem__, threshold=self.threshold, failed_call=self.failed_call
        )
        if any(self._chats.values()):
            self._judged[trajectory.trajectory_id] = found
        return found

    async def _close(self) -> None:
        for chat in {id(chat): chat for chat in self._chats.values() if chat is not None}.values():
            await chat.close()


async def scored(
    trajectory: Trajectory, chat_of: ChatOf, *, threshold: float = 0.0, failed_call: FailedCall = "paper"
) -> Judged:
    """One trajectory with its parts as scores and a label, and the verdict on it."""
    if trajectory.reward is None:
        return judged(trajectory, AstraScore.name, Judgement(False, "no_reward", detail=trajectory.error))
    parts = {
        "tool_success": tool_success(trajectory, failed_call=failed_call),
        "conciseness": conciseness(trajectory),
    }
    try:
        parts |= await judged_parts(trajectory, chat_of)
    except StructuredReplyError as error:
        return judged(trajectory, AstraScore.name, Judgement(False, "judge_failed", detail=str(error)[:500]))
    total = sum(parts.values()) / len(parts)
    by = "program" if set(parts) <= {*PROGRAM_PARTS, "final_answer"} else "judged"
    values = [
        NamedValue(name=f"astra/{name}", value=value) for name, value in {**parts, "total": total}.items()
    ]
    keep = total >= threshold
    said = Judgement(keep, "ok" if keep else "low_score", total, f"{by}: {', '.join(parts)}")
    return judged(annotated(trajectory, AstraScore.name, by, values), AstraScore.name, said)
