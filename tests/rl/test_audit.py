"""What the mask audit refuses, and what it shows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from data.errors import ConfigError
from data.messages import ToolResult, assistant, text_parts, tool, user
from data.trajectories import Origin, Segment, Termination, Trajectory
from rl.audit import audit, print_audit
from rl.rows import sft_rows
from tests.rl.builders import GENERATED, OBSERVATION, PROMPT, STOP, segment, trajectory, two_turns


def _refusal(*segments: Segment, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        audit([trajectory(*segments, **options)], stop_token_ids={STOP}).refuse()  # type: ignore[arg-type]
    return str(caught.value)


def test_a_clean_trajectory_passes_with_counts() -> None:
    row = trajectory(two_turns([5, 6], [7, STOP], [8, 9], [10, STOP]))
    report = audit([row], stop_token_ids={STOP}, rows=sft_rows([row])).refuse()
    assert (report.tokens, report.trained_tokens, report.finished_turns, report.cut_off_turns) == (8, 4, 2, 0)


def test_a_stop_token_left_to_the_observation_is_refused() -> None:
    text = _refusal(two_turns([5, 6], [7], [STOP, 8, 9], [10, STOP]))
    assert "stop token of a finished turn is untrained" in text and "turn 1" in text


@pytest.mark.parametrize("origin", list(Origin))
def test_a_finished_episode_must_end_in_a_trained_stop_token(origin: Origin) -> None:
    assert "untrained" in _refusal(two_turns([5], [7, STOP], [8], [10], origin=origin))


def test_where_stop_strings_end_turns_no_stop_token_is_asked_for() -> None:
    tagged = _tagged(trajectory(two_turns([5], [7], [8], [10], origin=Origin.SAMPLED)))
    report = audit([tagged], stop_token_ids={STOP}).refuse()
    assert (report.cut_off_turns, report.finished_turns, report.trained_tokens) == (0, 0, 2)
    assert report.text_ended_turns == 2


def _tagged(row: Trajectory) -> Trajectory:
    """As sampled with stop strings."""
    policy = row.policy.model_copy(update={"sampling": '{"stop":["</answer>"]}'})
    return row.model_copy(update={"policy": policy})


CUT = (user("do it"), assistant("and on and on"))


def test_a_turn_that_nothing_follows_in_an_unfinished_episode_was_cut_off() -> None:
    cut = segment([(PROMPT, 0, [5]), (GENERATED, 1, [7, 8])], origin=Origin.SAMPLED)
    row = _tagged(trajectory(cut, turns=CUT, termination=Termination.TOKEN_BUDGET))
    report = audit([row], stop_token_ids={STOP}, allow_cut_off=True).refuse()
    assert (report.cut_off_turns, report.text_ended_turns) == (1, 0)
    with pytest.raises(ConfigError, match="would not learn to stop"):
        audit([row], stop_token_ids={STOP}).refuse()
    finished = _tagged(trajectory(cut, turns=CUT))
    report = audit([row, finished], stop_token_ids={STOP}).refuse()
    assert (report.cut_off_turns, report.text_ended_turns) == (1, 1)


def test_a_call_that_was_answered_was_not_cut_off_where_the_budget_ends_behind_it() -> None:
    called = segment([(PROMPT, 0, [5]), (GENERATED, 1, [7, 8])], origin=Origin.SAMPLED)
    turns = (*CUT, tool(ToolResult(call_id="call_0", name="look", parts=text_parts("seen"))))
    row = _tagged(trajectory(called, turns=turns, termination=Termination.TURN_BUDGET))
    report = audit([row], stop_token_ids={STOP}).refuse()
    assert (report.cut_off_turns, report.text_ended_turns) == (0, 1)


def test_stop_strings_end_no_rendered_turn() -> None:
    wrong = _tagged(trajectory(two_turns([5], [7, STOP], [8], [10], origin=Origin.RENDERED)))
    with pytest.raises(ConfigError, match="stop token of a finished turn is untrained"):
        audit([wrong], stop_token_ids={STOP}).refuse()
    edited = _tagged(trajectory(two_turns([5], [7], [8], [10], origin=Origin.EDITED)))
    assert audit([edited], stop_token_ids={STOP}).refuse().text_ended_turns == 2


def test_a_sampled_turn_cut_off_by_length_is_counted_not_refused() -> None:
    row = trajectory(two_turns([5, 6], [7], [STOP, 8, 9], [10, STOP], origin=Origin.SAMPLED))
    report = audit([row], stop_token_ids={STOP}).refuse()
    assert (report.cut_off_turns, report.finished_turns) == (1, 1)


def test_mostly_cut_off_turns_are_refused() -> None:
    cut = two_turns([5, 6], [7], [STOP, 8, 9], [10], origin=Origin.SAMPLED)
    assert "would not learn to stop" in _refusal(cut, termination=Termination.TOKEN_BUDGET)
    rambling = trajectory(cut, termination=Termination.TOKEN_BUDGET)
    assert audit([rambling], stop_token_ids={STOP}, allow_cut_off=True).refuse().cut_off_turns == 2


def test_a_trained_tool_turn_is_refused() -> None:
    wrong = segment(
        [(PROMPT, 0, [5]), (GENERATED, 1, [7, STOP]), (GENERATED, 2, [8, 9]), (GENERATED, 3, [1, STOP])]
    )
    assert "an observation token is trained" in _refusal(wrong)


def test_a_span_that_swallowed_the_observation_is_refused() -> None:
    assert "stop token lies inside" in _refusal(
        segment([(PROMPT, 0, [5]), (GENERATED, 1, [7, STOP, 8, 9, 10, STOP])])
    )


def test_a_mask_that_trains_an_observation_is_refused() -> None:
    row = trajectory(two_turns([5, 6], [7, STOP], [8, 9], [10, STOP]))
    (good,) = sft_rows([row])
    planted = type(good)(
        **{name: getattr(good, name) for name in good.__slots__} | {"mask": (0.0,) * 4 + (1.0,) * 4}
    )
    assert audit([row], stop_token_ids={STOP}, rows=[good]).problems == []
    with pytest.raises(ConfigError, match="observation span is trained"):
        audit([row], stop_token_ids={STOP}, rows=[planted]).refuse()


def test_a_mask_that_leaves_out_a_stop_token_is_refused() -> None:
    row = trajectory(two_turns([5, 6], [7, STOP], [8, 9], [10, STOP]))
    (good,) = sft_rows([row])
    planted = replace(good, mask=(*good.mask[:3], 0.0, *good.mask[4:]))
    with pytest.raises(ConfigError, match=r"turn 1\): the stop token of a finished turn is not trained"):
        audit([row], stop_token_ids={STOP}, rows=[planted]).refuse()


def test_nothing_trained_is_refused() -> None:
    only_prompt = segment([(PROMPT, 0, [5, 6]), (OBSERVATION, 2, [8])])
    assert "trains no token" in _refusal(only_prompt)
    weightless = (user("do it"), assistant("a", weight=0.0))
    assert "nothing is trained" in _refusal(
        segment([(PROMPT, 0, [5]), (GENERATED, 1, [7, STOP])]), turns=weightless
    )
    row = trajectory(segment([(PROMPT, 0, [5]), (GENERATED, 1, [7, STOP])]), turns=weightless)
    assert audit([row], stop_token_ids={STOP}, allow_untrained=True).refuse().untrained == 1
    with pytest.raises(ConfigError, match="trains no token"):
        audit([trajectory(only_prompt)], stop_token_ids={STOP}, allow_untrained=True).refuse()


def test_an_inline_turn_resumes_without_a_stop_token() -> None:
    inline = segment(
        [(PROMPT, 0, [5]), (GENERATED, 1, [7, 8]), (OBSERVATION, 1, [9]), (GENERATED, 1, [10, STOP])],
        origin=Origin.SAMPLED,
    )
    report = audit([trajectory(inline, turns=(user("q"), assistant("a")))], stop_token_ids={STOP}).refuse()
    assert (report.finished_turns, report.cut_off_turns, report.trained_tokens) == (1, 0, 4)


def _decode(ids: Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in ids)


def test_printing_brackets_spans_without_colours_and_colours_them_with() -> None:
    row = trajectory(two_turns([5], [7, STOP], [8], [10, STOP]))
    plain, colour = io.StringIO(), io.StringIO()
    print_audit(row, _decode, console=Console(file=plain, width=200))
    print_audit(
        row, _decode, console=Console(file=colour, width=200, force_terminal=True, color_system="standard")
    )
    assert "[prompt 0|<5>][trained 1|<7><2>][observation 2|<8>][trained 3|<10><2>]" in plain.getvalue()
    assert "\x1b[1;32m<7><2>" in colour.getvalue() and "\x1b[36m<8>" in colour.getvalue()


def test_what_a_tool_says_cannot_steer_the_terminal() -> None:
    row, plain = trajectory(two_turns([5], [7, STOP], [8], [10, STOP])), io.StringIO()
    print_audit(row, lambda ids: "a\x1b[2Jb\r\x9bc\n", console=Console(file=plain, width=200))
    assert "a\\x1b[2Jb\\x0d\\x9bc\n" in plain.getvalue() and "\x1b" not in plain.getvalue()
