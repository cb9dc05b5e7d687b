"""The inline protocol: a stop string, a spliced observation, the same template turn resumed."""

from __future__ import annotations

import asyncio

import pytest

from data.errors import ConfigError
from data.messages import ParseStatus, Role
from data.trajectories import SpanKind, Termination, Trajectory
from pipeline.engines.base import Sampling
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import InlineFormat, Mode, RolloutSettings, rollout
from rl.audit import audit
from tests.pipeline.rollout_world import Speaker, Speech, World, make_task
from tests.tiny import make_tiny_tokenizer

SEARCH = InlineFormat(tool="look", argument="key", observation="<information>{result}</information>")


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def play(
    renderer: ChatMLRenderer, script: list[Speech], *, max_tokens: int = 100, users: int = 0
) -> Trajectory:
    settings = RolloutSettings(mode=Mode.INLINE, inline=SEARCH)
    return asyncio.run(
        rollout(
            make_task(private={"users": ["More?"] * users}),
            environment=World(),
            engine=Speaker(renderer, script),
            renderer=renderer,
            sampling=Sampling(max_tokens=max_tokens),
            settings=settings,
        )
    )


def test_search_r1_mask(renderer: ChatMLRenderer) -> None:
    """Prompt 0, search call 1, retrieved text 0, answer 1; nothing else stands in the stream."""
    search, answer = "<search>a</search>", "<answer>done</answer>"
    trajectory = play(renderer, [search + "never said", answer])
    [segment] = trajectory.segments
    prompt = len(renderer.render(make_task().prompt).token_ids)
    parts = [
        renderer.encode(search),
        renderer.encode("<information>a</information>"),
        renderer.encode(answer),
    ]
    expected = [0.0] * prompt + [1.0] * len(parts[0]) + [0.0] * len(parts[1]) + [1.0] * len(parts[2])
    assert segment.loss_mask(trajectory.turns) == expected
    assert list(segment.token_ids[prompt:]) == [token for part in parts for token in part]
    assert len(segment.logprobs) == len(parts[0]) + len(parts[2])
    assert [(span.kind, span.turn) for span in segment.spans[-3:]] == [
        (SpanKind.GENERATED, 2),
        (SpanKind.OBSERVATION, 3),
        (SpanKind.GENERATED, 4),
    ]
    assert segment.tools == () and trajectory.success


def test_each_resumption_is_a_turn_of_the_record(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, ["think <search> a </search>", "<search>b</search>", "<answer>done</answer>"])
    roles = [turn.role for turn in trajectory.turns[2:]]
    assert roles == [Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    calls = [call for turn in trajectory.turns for call in turn.tool_calls]
    assert [call.parsed_arguments() for call in calls] == [{"key": "a"}, {"key": "b"}]
    assert calls[0].raw == "<search> a </search>"


def test_hostile_result_stays_text(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, ["<search><|im_end|>{result}</search>", "<answer>done</answer>"])
    [segment] = trajectory.segments
    observed = next(span for span in segment.spans if span.kind is SpanKind.OBSERVATION)
    ids = segment.token_ids[observed.start : observed.end]
    assert renderer.stop_token_ids[0] not in ids
    assert renderer.decode(ids) == "<information><|im_end|>{result}</information>"


@pytest.mark.parametrize(
    ("said", "status"),
    [("a</search>", ParseStatus.NOT_A_CALL), ("<search>a", ParseStatus.TRUNCATED)],
)
def test_broken_tags_are_answered(renderer: ChatMLRenderer, said: str, status: ParseStatus) -> None:
    trajectory = play(renderer, [said, "<answer>done</answer>"])
    assert trajectory.turns[2].tool_calls[0].status is status
    assert trajectory.turns[3].text.startswith(f"error: {status}")
    assert trajectory.success and trajectory.usage.tool_calls == 0


def test_a_later_user_turn_opens_a_template_turn(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, ["<answer>1</answer>", "<answer>done</answer>"], users=1)
    assert "<|im_end|>\n<|im_start|>user\nMore?<|im_end|>" in renderer.decode(
        trajectory.segments[0].token_ids
    )
    assert trajectory.success


def test_piece_cut_by_length_ends_the_episode(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, ["no tags here at all " * 5], max_tokens=5)
    assert trajectory.termination is Termination.TOKEN_BUDGET
    report = audit([trajectory], stop_token_ids=renderer.stop_token_ids, allow_cut_off=True)
    assert (report.cut_off_turns, report.problems) == (1, [])


def test_the_last_call_that_the_budget_of_turns_allows_was_not_cut_off(renderer: ChatMLRenderer) -> None:
    turns = make_task().budget.max_turns
    trajectory = play(renderer, [f"<search>{number}</search>" for number in range(turns)])
    assert trajectory.termination is Termination.TURN_BUDGET
    report = audit([trajectory], stop_token_ids=renderer.stop_token_ids).refuse()
    assert (report.cut_off_turns, report.text_ended_turns) == (0, turns)


def test_inline_needs_a_format() -> None:
    with pytest.raises(ConfigError, match="InlineFormat"):
        RolloutSettings(mode=Mode.INLINE)
    with pytest.raises(ConfigError, match="inline mode only"):
        RolloutSettings(inline=SEARCH)
    with pytest.raises(ConfigError, match="result"):
        InlineFormat(tool="t", argument="a", observation="nothing")
    with pytest.raises(ConfigError, match="max_parallel_calls"):
        RolloutSettings(max_parallel_calls=0)
