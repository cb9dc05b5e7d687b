"""Trajectories become rows with the right masks, or are refused."""

from __future__ import annotations

import pytest

from data.errors import ConfigError
from data.messages import assistant, user
from data.trajectories import Origin
from rl.rows import drop_overlong, grpo_rows, sft_rows
from tests.rl.builders import GENERATED, OBSERVATION, PROMPT, STOP, segment, trajectory, two_turns


def test_the_mask_is_span_times_turn_weight() -> None:
    turns = (user("q"), assistant("a", weight=0.5), user("r"), assistant("b"))
    (row,) = sft_rows([trajectory(two_turns([5, 6], [7, STOP], [8], [9, STOP]), turns=turns, weight=2.0)])
    assert row.mask == (0.0, 0.0, 0.5, 0.5, 0.0, 1.0, 1.0) and row.weight == 2.0


def test_inline_search_oracle_masks_prompt_and_retrieved_tokens() -> None:
    inline = segment(
        [(PROMPT, 0, [3, 4]), (GENERATED, 1, [5, 6]), (OBSERVATION, 1, [7, 8, 9]), (GENERATED, 1, [10])],
        origin=Origin.SAMPLED,
        logprobs=[-0.1, -0.2, -0.3],
    )
    source = trajectory(inline, turns=(user("q"), assistant("a")))
    (row,) = grpo_rows([source], {source.trajectory_id: 0.5})
    assert row.mask == (0, 0, 1, 1, 0, 0, 0, 1)
    assert row.logprobs == (0, 0, -0.1, -0.2, 0, 0, 0, -0.3) and row.advantage == 0.5


def test_segments_share_group_and_advantage() -> None:
    first = segment([(PROMPT, 0, [5]), (GENERATED, 1, [7, STOP])], origin=Origin.SAMPLED)
    second = segment([(PROMPT, -1, [5, 6]), (GENERATED, 3, [8, STOP])], origin=Origin.SAMPLED)
    source = trajectory(first, second)
    rows = grpo_rows([source], {source.trajectory_id: -1.25})
    assert [(row.segment, row.group_id, row.advantage) for row in rows] == [(0, "g", -1.25), (1, "g", -1.25)]


@pytest.mark.parametrize("origin", [Origin.RENDERED, Origin.EDITED])
def test_replay_refuses_segments_that_were_not_sampled(origin: Origin) -> None:
    source = trajectory(two_turns([5], [7, STOP], [8], [9, STOP], origin=origin))
    with pytest.raises(ConfigError, match=f"is {origin.value}, and GRPO trains on sampled segments only"):
        grpo_rows([source], {source.trajectory_id: 1.0})


def test_rows_that_train_nothing_are_left_out() -> None:
    assert sft_rows([trajectory(segment([(PROMPT, 0, [5, 6])])), trajectory(weight=0.0)]) == []


def test_a_long_row_is_refused_or_dropped_never_cut() -> None:
    short = trajectory(two_turns([5], [7, STOP], [8], [9, STOP]))
    long = trajectory(two_turns([5] * 9, [7, STOP], [8], [9, STOP]), index=1)
    rows = sft_rows([short, long])
    with pytest.raises(ConfigError, match="14 tokens, more than max_length=10"):
        drop_overlong(rows, max_length=10, overlong="error")
    kept, dropped = drop_overlong(rows, max_length=10, overlong="drop")
    assert ([len(row.token_ids) for row in kept], dropped) == ([6], 1)
    assert drop_overlong(rows, max_length=2, overlong="drop") == ([], 2)
