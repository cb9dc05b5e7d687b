"""The rollout loop in chat mode: tokens, masks, calls, endings and blame."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from data.messages import ParseStatus, Role, ToolStatus
from data.tasks import Budget, Task
from data.trajectories import Blame, SpanKind, Termination, Trajectory
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.errors import BudgetExceededError, EngineError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import ContextPolicy, Deadlines, RolloutSettings, rollout
from pipeline.rollout_tokens import SegmentBuilder
from tests.pipeline.rollout_world import DOOR, KEY, Speaker, Speech, World, call_text, make_task
from tests.tiny import make_tiny_tokenizer

LOOK = call_text("look", key="a")
FAST = Deadlines(open=0.3, engine=0.3, tool=0.3, user=0.3, verify=0.3, close=0.3)


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def play(
    renderer: Any, script: Any, task: Task | None = None, world: World | None = None, **more: Any
) -> Trajectory:
    settings = more.pop("settings", RolloutSettings())
    sampling = more.pop("sampling", Sampling(max_tokens=200))
    engine = more.pop("engine", None) or Speaker(renderer, script)
    environment = world or World()
    trajectory = asyncio.run(
        rollout(
            task or make_task(),
            environment=environment,
            engine=engine,
            renderer=renderer,
            sampling=sampling,
            settings=settings,
            **more,
        )
    )
    assert environment.opened == environment.closed
    return trajectory


def test_two_turns_are_masked_token_by_token(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, [LOOK, "done"], make_task(private={"looks": ["a"]}))
    assert (trajectory.termination, trajectory.blame) == (Termination.FINISHED, Blame.NONE)
    assert trajectory.reward is not None and trajectory.reward.total == 1.0
    roles = [turn.role for turn in trajectory.turns]
    assert roles == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    [segment] = trajectory.segments
    stop = renderer.stop_token_ids[0]
    sampled = [*renderer.encode(LOOK), stop, *renderer.encode("done"), stop]
    mask = segment.loss_mask(trajectory.turns)
    assert [t for t, m in zip(segment.token_ids, mask, strict=True) if m] == sampled
    assert len(segment.logprobs) == len(sampled)
    generated = [span for span in segment.spans if span.kind is SpanKind.GENERATED]
    assert [(span.turn, span.weights_version) for span in generated] == [(2, "w0"), (4, "w0")]
    [observed] = [span for span in segment.spans if span.kind is SpanKind.OBSERVATION]
    assert (observed.turn, observed.call_id) == (3, "call_0_0")
    whole = renderer.render(trajectory.turns, segment.tools, generation_prompt=False)
    assert list(segment.token_ids) == whole.token_ids[: len(segment.token_ids)]


def test_engine_is_asked_with_exactly_what_was_sampled_before(renderer: ChatMLRenderer) -> None:
    engine = Speaker(renderer, [LOOK, LOOK, "done"])
    trajectory = play(renderer, None, engine=engine)
    [segment] = trajectory.segments
    for prompt in engine.prompts:
        assert tuple(prompt) == segment.token_ids[: len(prompt)]
    assert trajectory.usage.engine_calls == 3 and trajectory.usage.tool_calls == 2
    assert trajectory.usage.generated_tokens == segment.num_generated
    assert trajectory.usage.prompt_tokens == len(segment.token_ids) - segment.num_generated


class LossyRenderer:
    """A renderer under which decode -> encode is not the identity: a loop that re-encodes shows at once."""

    def __init__(self, inner: ChatMLRenderer) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, text: str) -> list[int]:
        return self._inner.encode(text.upper())


def spelled(renderer: ChatMLRenderer) -> Completion:
    """A call sampled letter by letter, as no tokenizer would encode it."""
    token_ids = [token for letter in LOOK for token in renderer.encode(letter)]
    assert token_ids != renderer.encode(LOOK)
    token_ids.append(renderer.stop_token_ids[0])
    return Completion(tuple(token_ids), (-0.5,) * len(token_ids), FinishReason.STOP, "w0")


def kept(trajectory: Trajectory, odd: Completion) -> bool:
    """Whether the first generated span is exactly what was sampled."""
    [segment] = trajectory.segments
    first = next(span for span in segment.spans if span.kind is SpanKind.GENERATED)
    return segment.token_ids[first.start : first.end] == odd.token_ids


def test_sampled_ids_are_never_encoded_again(renderer: ChatMLRenderer) -> None:
    odd = spelled(renderer)
    trajectory = play(LossyRenderer(renderer), [odd, "done"])
    assert kept(trajectory, odd) and trajectory.turns[3].text == "a"


def test_a_planted_loop_that_encodes_again_is_noticed(
    renderer: ChatMLRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd, right = spelled(renderer), SegmentBuilder.generated

    def encoding(self: SegmentBuilder, completion: Completion, *, turn: int) -> None:
        again = (*renderer.encode(renderer.decode(completion.token_ids[:-1])), completion.token_ids[-1])
        right(self, replace(completion, token_ids=again, logprobs=(-0.5,) * len(again)), turn=turn)

    monkeypatch.setattr(SegmentBuilder, "generated", encoding)
    assert not kept(play(renderer, [odd, "done"]), odd)


@pytest.mark.parametrize(
    ("said", "status", "word"),
    [
        ("<tool_call>\n{oops}\n</tool_call>", ParseStatus.NOT_JSON, "not_json"),
        ('<tool_call>\n{"name":1}\n</tool_call>', ParseStatus.NOT_A_CALL, "not_a_call"),
        (call_text("fly", to="Oslo"), ParseStatus.UNKNOWN_TOOL, "fly"),
        (call_text("look"), ParseStatus.BAD_ARGUMENTS, "key"),
        (call_text("look", key="a", x=1), ParseStatus.BAD_ARGUMENTS, "x"),
        (call_text("look", key=1), ParseStatus.BAD_ARGUMENTS, "key"),
    ],
)
def test_malformed_call_is_answered_and_the_loop_goes_on(
    renderer: ChatMLRenderer, said: str, status: ParseStatus, word: str
) -> None:
    trajectory = play(renderer, [said, "done"], make_task(private={"looks": []}))
    [call] = trajectory.turns[2].tool_calls
    assert call.status is status and call.raw
    result = trajectory.turns[3].result
    assert result is not None and result.status is ToolStatus.TOOL_ERROR
    assert result.text.startswith("error: ") and word in result.text
    assert trajectory.success and trajectory.usage.tool_calls == 0


def test_call_cut_off_by_length_is_answered(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, [LOOK, "done"], sampling=Sampling(max_tokens=8))
    assert trajectory.turns[2].tool_calls[0].status is ParseStatus.TRUNCATED
    assert trajectory.success
    spans = trajectory.segments[0].spans
    assert spans[1].end - spans[1].start == 8
    closing = trajectory.segments[0].token_ids[spans[1].end]
    assert closing == renderer.stop_token_ids[0], "the turn is closed by the observation, untrained"


def test_surplus_parallel_calls_are_told_so(renderer: ChatMLRenderer) -> None:
    both = call_text("look", key="a") + "\n" + call_text("look", key="b")
    settings = RolloutSettings(max_parallel_calls=1)
    trajectory = play(renderer, [both, "done"], make_task(private={"looks": ["a"]}), settings=settings)
    first, second = trajectory.turns[3].result, trajectory.turns[4].result
    assert first is not None and second is not None
    assert first.status is ToolStatus.OK and second.status is ToolStatus.TOOL_ERROR
    assert "at most 1 call" in second.text
    assert trajectory.success, "the surplus call did not reach the world"


def test_follow_up_user_turn_is_an_observation(renderer: ChatMLRenderer) -> None:
    task = make_task(private={"users": ["And now?"]})
    trajectory = play(renderer, ["wait", "done"], task)
    assert [turn.role for turn in trajectory.turns[2:]] == [Role.ASSISTANT, Role.USER, Role.ASSISTANT]
    [observed] = [span for span in trajectory.segments[0].spans if span.kind is SpanKind.OBSERVATION]
    assert observed.turn == 3 and trajectory.success


def test_tool_set_change_starts_a_segment(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, [call_text("unlock"), "done"])
    first, second = trajectory.segments
    assert [tool.name for tool in first.tools] == ["look", "unlock"]
    assert [tool.name for tool in second.tools] == ["look", "unlock", "open_vault"]
    kinds = {span.kind for span in second.spans[:-1]}
    assert kinds == {SpanKind.PROMPT}, "what was sampled in the first segment is context in the second"
    assert second.spans[-1].kind is SpanKind.GENERATED and second.spans[-1].turn == 4
    assert trajectory.turns[4].tools_changed == second.tools
    assert all(turn.tools_changed is None for turn in trajectory.turns[:4])
    stop = renderer.stop_token_ids[0]
    trained = [
        t
        for s in trajectory.segments
        for t, m in zip(s.token_ids, s.loss_mask(trajectory.turns), strict=True)
        if m
    ]
    assert trained == [*renderer.encode(call_text("unlock")), stop, *renderer.encode("done"), stop]


def test_turn_budget_scores_the_fixed_reward(renderer: ChatMLRenderer) -> None:
    task = make_task(budget=Budget(max_turns=2, exhausted_reward=-0.5))
    trajectory = play(renderer, [LOOK, call_text("look", key="b")], task)
    assert (trajectory.termination, trajectory.blame) == (Termination.TURN_BUDGET, Blame.AGENT)
    assert trajectory.reward is not None and trajectory.reward.total == -0.5
    assert trajectory.turns[-1].role is Role.TOOL, "the calls of the last turn are still executed"


def test_token_budget_cuts_the_turn(renderer: ChatMLRenderer) -> None:
    prompt = len(renderer.render(make_task().prompt, (KEY, DOOR)).token_ids)
    task = make_task(budget=Budget(max_tokens=prompt + 5, exhausted_reward=0.25))
    trajectory = play(renderer, ["one two three four five six seven"], task)
    assert trajectory.termination is Termination.TOKEN_BUDGET
    assert trajectory.segments[0].num_generated == 5
    assert trajectory.reward is not None and trajectory.reward.total == 0.25


def test_observation_that_breaks_the_token_budget_ends_the_episode(renderer: ChatMLRenderer) -> None:
    task = make_task(private={"echo": 3000}, budget=Budget(max_tokens=600))
    trajectory = play(renderer, [LOOK], task)
    assert trajectory.termination is Termination.TOKEN_BUDGET
    assert trajectory.segments[0].spans[-1].kind is SpanKind.GENERATED
    assert trajectory.turns[-1].role is Role.TOOL


def test_turn_without_end_is_a_token_budget(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, ["word " * 50], sampling=Sampling(max_tokens=10))
    assert trajectory.termination is Termination.TOKEN_BUDGET
    assert "max_tokens=10" in trajectory.error


def test_context_overflow(renderer: ChatMLRenderer) -> None:
    task = make_task(private={"echo": 1000})
    settings = RolloutSettings(max_context_tokens=300)
    trajectory = play(renderer, [LOOK], task, settings=settings, sampling=Sampling(max_tokens=40))
    assert (trajectory.termination, trajectory.blame) == (Termination.CONTEXT_OVERFLOW, Blame.AGENT)
    assert trajectory.reward is not None and trajectory.reward.total == 0.0
    assert len(trajectory.segments[0].token_ids) <= 300


def test_prompt_that_fills_the_context_is_an_overflow_without_a_call(renderer: ChatMLRenderer) -> None:
    engine = Speaker(renderer, ["never"])
    trajectory = play(renderer, None, engine=engine, settings=RolloutSettings(max_context_tokens=10))
    assert trajectory.termination is Termination.CONTEXT_OVERFLOW and engine.prompts == []


def test_old_results_are_dropped_into_a_new_segment(renderer: ChatMLRenderer) -> None:
    task = make_task(private={"echo": 100})
    settings = RolloutSettings(
        max_context_tokens=500, context_policy=ContextPolicy.DROP_OLD_RESULTS, keep_results=1
    )
    script = [call_text("look", key=key) for key in "xyz"] + ["done"]
    trajectory = play(renderer, script, task, settings=settings, sampling=Sampling(max_tokens=60))
    assert (trajectory.error, len(trajectory.segments)) == ("", 3), [
        len(s.token_ids) for s in trajectory.segments
    ]
    last = renderer.decode(trajectory.segments[-1].token_ids)
    assert "x" * 100 not in last and "[result dropped]" in last and "z" * 100 in last
    assert trajectory.turns[3].text == "x" * 100, "the record keeps what the tool said"
    sampled = sum(segment.num_generated for segment in trajectory.segments)
    stop = 1
    assert sampled == sum(len(renderer.encode(said)) + stop for said in script)


def test_same_call_with_same_answer_three_times_stops(renderer: ChatMLRenderer) -> None:
    trajectory = play(renderer, [LOOK] * 5)
    assert (trajectory.termination, trajectory.blame) == (Termination.REPETITION, Blame.AGENT)
    assert sum(turn.role is Role.TOOL for turn in trajectory.turns) == 3
    assert trajectory.reward is not None and trajectory.reward.total == 0.0


def test_repetition_can_be_switched_off(renderer: ChatMLRenderer) -> None:
    settings = RolloutSettings(max_repeats=0)
    assert play(renderer, [LOOK] * 5 + ["done"], settings=settings).termination is Termination.FINISHED


@pytest.mark.parametrize(
    "speech",
    [
        EngineError("connection refused"),
        TimeoutError(),
        ValueError("surprise"),
        Completion((5, 6), (-1.0,), FinishReason.STOP),
        Completion((), (), FinishReason.STOP),
        Completion((5,), (float("nan"),), FinishReason.STOP),
        Completion((5,), (float("-inf"),), FinishReason.STOP),
        Completion((5,) * 900, (-1.0,) * 900, FinishReason.STOP),
    ],
    ids=["dead", "hanging", "unknown", "few logprobs", "empty", "nan", "inf", "too long"],
)
def test_engine_failure_is_no_reward(renderer: ChatMLRenderer, speech: Speech) -> None:
    trajectory = play(renderer, [LOOK, speech], settings=RolloutSettings(deadlines=FAST))
    assert (trajectory.termination, trajectory.blame) == (Termination.INFRA_FAILURE, Blame.INFRASTRUCTURE)
    assert trajectory.reward is None and trajectory.error
    assert trajectory.segments[0].num_generated == len(renderer.encode(LOOK)) + 1, "what was sampled is kept"


@pytest.mark.parametrize(
    ("broken", "blame"),
    [
        ("open", Blame.TOOL),
        ("tool_hangs", Blame.TOOL),
        ("tool_raises", Blame.TOOL),
        ("tool_infra", Blame.TOOL),
        ("user_hangs", Blame.USER_SIMULATOR),
        ("verify", Blame.JUDGE),
    ],
)
def test_broken_world_is_no_reward(renderer: ChatMLRenderer, broken: str, blame: Blame) -> None:
    settings = RolloutSettings(deadlines=FAST)
    trajectory = play(renderer, [LOOK, "done"], world=World(broken=broken), settings=settings)
    assert (trajectory.termination, trajectory.blame) == (Termination.INFRA_FAILURE, blame)
    assert trajectory.reward is None and trajectory.error


def test_failing_close_costs_nothing(renderer: ChatMLRenderer, caplog: pytest.LogCaptureFixture) -> None:
    assert play(renderer, ["done"], world=World(broken="close")).success
    assert "cannot close" in caplog.text


def test_a_server_that_hangs_until_the_time_budget_is_no_reward(renderer: ChatMLRenderer) -> None:
    task = make_task(budget=Budget(max_seconds=0.3, exhausted_reward=-1.0))
    trajectory = play(renderer, [TimeoutError()], task)
    assert (trajectory.termination, trajectory.blame) == (Termination.TIME_BUDGET, Blame.INFRASTRUCTURE)
    assert trajectory.reward is None


def test_time_budget_is_no_reward_when_a_tool_holds_the_clock(renderer: ChatMLRenderer) -> None:
    task = make_task(budget=Budget(max_seconds=0.3))
    trajectory = play(renderer, [LOOK], task, world=World(broken="tool_hangs"))
    assert (trajectory.termination, trajectory.blame) == (Termination.TIME_BUDGET, Blame.TOOL)
    assert trajectory.reward is None


def test_exhausted_money_leaves_the_loop(renderer: ChatMLRenderer) -> None:
    with pytest.raises(BudgetExceededError):
        play(renderer, [BudgetExceededError("0 left")])


def test_seeds_differ_by_turn_and_rollout_and_repeat_by_attempt(renderer: ChatMLRenderer) -> None:
    def seeds(**which: Any) -> list[int | None]:
        engine = Speaker(renderer, [LOOK, "done"])
        play(renderer, None, engine=engine, **which)
        return [request.seed for request in engine.requests]

    base = seeds(seed=1, rollout_index=0)
    assert len({*base, *seeds(seed=1, rollout_index=1), *seeds(seed=2, rollout_index=0)}) == 6
    assert seeds(seed=1, rollout_index=0, attempt=1) == base


def test_same_rollout_has_the_same_digest(renderer: ChatMLRenderer) -> None:
    first, second = (play(renderer, [LOOK, "done"], seed=3) for _ in range(2))
    assert first.content_digest() == second.content_digest()
    assert play(renderer, [LOOK, "done"], seed=4).content_digest() != first.content_digest()


def test_identity_is_recorded(renderer: ChatMLRenderer) -> None:
    settings = RolloutSettings(max_repeats=7)
    trajectory = play(renderer, ["done"], seed=9, rollout_index=2, attempt=1, settings=settings)
    assert trajectory.policy.harness == settings.digest != RolloutSettings().digest
    assert (trajectory.policy.name, trajectory.policy.renderer) == ("speaker", renderer.digest)
    assert (trajectory.environment.name, trajectory.environment.seed) == ("world", 9)
    assert (trajectory.rollout_index, trajectory.attempt, trajectory.template) == (2, 1, "t")


def test_deadlines_are_no_part_of_the_harness() -> None:
    assert RolloutSettings(deadlines=FAST).digest == RolloutSettings().digest
