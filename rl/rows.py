"""Trajectories to training rows: one row per segment, sharing group and advantage.

A row holds the stored token ids, never a re-encoding, and a mask that derives from spans and turn
weights. Not covered here: batching (`rl.packing`), advantages (`rl.advantages`), the audit
(`rl.audit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from data.errors import ConfigError
from data.trajectories import Origin, Segment, Trajectory


@dataclass(frozen=True, slots=True)
class Row:
    """One token stream to train on; all tuples have one value per token of `token_ids`."""

    trajectory_id: str
    group_id: str
    segment: int
    """Index of the segment in its trajectory."""
    token_ids: tuple[int, ...]
    mask: tuple[float, ...]
    """Turn weight on generated tokens, 0 elsewhere. Entry t is the weight of *predicting* token t."""
    logprobs: tuple[float, ...] = ()
    """Sampled log-probs, 0 where no token was sampled; empty for supervised rows."""
    advantage: float = 0.0
    weight: float = 1.0
    """Sample weight of the trajectory; multiplies the loss of every token."""

    @property
    def key(self) -> tuple[str, int]:
        """Identity: trajectory and segment."""
        return self.trajectory_id, self.segment

    @property
    def num_trained(self) -> int:
        """Tokens with a non-zero mask."""
        return sum(value != 0.0 for value in self.mask)


def sft_rows(trajectories: Iterable[Trajectory]) -> list[Row]:
    """Supervised rows of any origin. Segments and trajectories that train nothing are left out."""
    rows = [_row(trajectory, index, segment) for trajectory, index, segment in _segments(trajectories)]
    return [row for row in rows if row.num_trained and row.weight > 0.0]


def grpo_rows(trajectories: Iterable[Trajectory], values: Mapping[str, float]) -> list[Row]:
    """Policy-gradient rows of the trajectories named in `values` (their advantages).

    Raises ConfigError where a segment was not sampled: its tokens have no behaviour policy.
    """
    rows: list[Row] = []
    for trajectory, index, segment in _segments(trajectories):
        if trajectory.trajectory_id not in values:
            continue
        require_sampled(trajectory, index)
        rows.append(_row(trajectory, index, segment, advantage=values[trajectory.trajectory_id]))
    return [row for row in rows if row.num_trained and row.weight > 0.0]


def drop_overlong(rows: Iterable[Row], *, max_length: int, overlong: str) -> tuple[list[Row], int]:
    """Rows of at most `max_length` tokens, and how many were dropped; a row is never cut.

    With `overlong` "error" the first longer row raises ConfigError; with "drop" it is counted.
    """
    kept, dropped = [], 0
    for row in rows:
        if len(row.token_ids) <= max_length:
            kept.append(row)
        elif overlong == "drop":
            dropped += 1
        else:
            raise ConfigError(
                f"segment {row.segment} of trajectory {row.trajectory_id} has {len(row.token_ids)} tokens, "
                f"more than max_length={max_length}; raise the limit, or set overlong to 'drop' to leave "
                f"such rows out"
            )
    return kept, dropped


def require_sampled(trajectory: Trajectory, index: int) -> None:
    """ConfigError unless segment `index` was sampled and has one log-prob per generated token."""
    segment = trajectory.segments[index]
    where = f"segment {index} of trajectory {trajectory.trajectory_id}"
    if segment.origin is not Origin.SAMPLED:
        raise ConfigError(
            f"{where} is {segment.origin.value}, and GRPO trains on sampled segments only; "
            f"use supervised training for it or sample it with an engine"
        )
    if len(segment.logprobs) != segment.num_generated:
        raise ConfigError(
            f"{where} has {len(segment.logprobs)} log-probs for {segment.num_generated} generated tokens; "
            f"sample it again with log-probs on"
        )


def _segments(trajectories: Iterable[Trajectory]) -> Iterable[tuple[Trajectory, int, Segment]]:
    for trajectory in trajectories:
        for index, segment in enumerate(trajectory.segments):
            yield trajectory, index, segment


def _row(trajectory: Trajectory, index: int, segment: Segment, *, advantage: float | None = None) -> Row:
    return Row(
        trajectory_id=trajectory.trajectory_id,
        group_id=trajectory.group_id,
        segment=index,
        token_ids=segment.token_ids,
        mask=tuple(segment.loss_mask(trajectory.turns)),
        logprobs=() if advantage is None else tuple(segment.token_logprobs()),
        advantage=0.0 if advantage is None else advantage,
        weight=trajectory.weight,
    )
