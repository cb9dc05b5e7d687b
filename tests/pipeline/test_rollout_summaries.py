"""Context policy `summarise`: what is shown, what is trained, what it costs, and how it can end."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from data.leaks import LeakError, check_trajectory
from data.messages import Part, PartType, Role, assistant, system, user
from data.tasks import Budget
from data.trajectories import Blame, SpanKind, Termination, Trajectory
from pipeline.engines.base import Sampling
from pipeline.engines.scripted import ScriptedEngine, continue_text
from pipeline.errors import ConfigError, EngineError
from pipeline.renderers.chatml import ChatMLRenderer
from pipeline.rollout import (
    ContextPolicy,
    InlineFormat,
    Job,
    Mode,
    RolloutSettings,
    SummaryFormat,
    rollouts,
)
from pipeline.rollout_context import Folding
from rl.audit import audit
from rl.rows import grpo_rows, sft_rows
from tests.pipeline.rollout_world import Speaker, World, call_text, make_task
from tests.pipeline.test_rollout import play
from tests.tiny import make_tiny_tokenizer

SUMMARY = SummaryFormat(max_tokens=30, request="Sum up.", frame="So far: {summary}")
SETTINGS = RolloutSettings(max_context_tokens=520, context_policy=ContextPolicy.SUMMARISE, summary=SUMMARY)
TRAINED = replace(SETTINGS, summary=replace(SUMMARY, trained=True))
SHORT = Sampling(max_tokens=60)
LOOKS = {key: call_text("look", key=key) for key in "xyz"}
SCRIPT = (LOOKS["x"], LOOKS["y"], "seen: x", LOOKS["z"], "seen: x, y", "done")
SUMMARIES = [6, 9]
S, U, A, T = Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def summed(renderer: ChatMLRenderer, script: Any = SCRIPT, *, private: Any = None, **more: Any) -> Trajectory:
    """Three answers of a hundred characters in a window that holds two."""
    budget = more.pop("budget", None)
    more = {"settings": SETTINGS, "sampling": SHORT} | more
    return play(renderer, script, make_task(private={"echo": 100} | (private or {}), budget=budget), **more)


def test_each_segment_ends_in_a_summary_that_the_next_one_shows(renderer: ChatMLRenderer) -> None:
    engine = Speaker(renderer, SCRIPT)
    trajectory = summed(renderer, None, engine=engine)
    assert (trajectory.termination, trajectory.error, trajectory.success) == (Termination.FINISHED, "", True)
    assert [turn.role for turn in trajectory.turns] == [S, U, A, T, A, T, S, A, T, S, A]
    assert [trajectory.turns[index].text for index in SUMMARIES] == ["seen: x", "seen: x, y"]
    assert trajectory.summaries == set(SUMMARIES)
    first, second, third = (renderer.decode(segment.token_ids) for segment in trajectory.segments)
    assert first.endswith("user\nSum up.<|im_end|>\n<|im_start|>assistant\nseen: x<|im_end|>")
    assert "Find it.\n\nSo far: seen: x<|im_end|>" in second and "So far: seen: x, y<|im_end|>" in third
    assert "x" * 100 not in second and "y" * 100 in second and "Sum up." in second
    assert "y" * 100 not in third and "z" * 100 in third and "Sum up." not in third
    assert [turn.text[:1] for turn in trajectory.turns if turn.role is T] == ["x", "y", "z"]
    shown = [segment.token_ids for segment in trajectory.segments]
    assert all(any(ids[: len(p)] == tuple(p) for ids in shown) for p in engine.prompts)
    assert [request.max_tokens for request in engine.requests] == [60, 60, 30, 60, 30, 60]
    assert len({request.seed for request in engine.requests}) == 6


@pytest.mark.parametrize(("settings", "weight"), [(SETTINGS, 0.0), (TRAINED, 1.0)])
def test_a_summary_is_sampled_and_trained_only_if_asked_for(
    renderer: ChatMLRenderer, settings: RolloutSettings, weight: float
) -> None:
    trajectory = summed(renderer, settings=settings)
    stop = renderer.stop_token_ids[0]
    said = [[*renderer.encode(text), stop] for text in SCRIPT]
    trained, sampled = [], 0
    for segment in trajectory.segments:
        mask = segment.loss_mask(trajectory.turns)
        trained += [token for token, value in zip(segment.token_ids, mask, strict=True) if value]
        sampled += len(segment.logprobs)
        assert not any(mask[span.start] for span in segment.spans if span.kind is not SpanKind.GENERATED)
    theirs = [ids for number, ids in enumerate(said) if weight or number not in (2, 4)]
    assert trained == [token for ids in theirs for token in ids]
    assert sampled == trajectory.usage.generated_tokens == sum(map(len, said))
    assert {trajectory.turns[index].weight for index in SUMMARIES} == {weight}
    report = audit([trajectory], stop_token_ids=renderer.stop_token_ids, rows=sft_rows([trajectory]))
    assert (report.problems, report.trained_tokens) == ([], len(trained))


def test_the_audit_refuses_other_trained_system_turns(renderer: ChatMLRenderer) -> None:
    trajectory = summed(renderer, settings=TRAINED)

    def problems(spans: Any) -> list[str]:
        first = trajectory.segments[0].model_copy(update={"spans": tuple(spans)})
        planted = trajectory.model_copy(update={"segments": (first, *trajectory.segments[1:])})
        return audit([planted], stop_token_ids=renderer.stop_token_ids).problems

    spans = trajectory.segments[0].spans
    assert problems(spans) == []
    to_prompt = [span._replace(turn=0) if span.kind is SpanKind.GENERATED else span for span in spans]
    assert any("belongs to a system turn" in problem for problem in problems(to_prompt))
    early = [span._replace(turn=6) if span.kind is SpanKind.GENERATED else span for span in spans]
    assert len([problem for problem in problems(early) if "belongs to a system turn" in problem]) == 2


def test_policy_gradient_rows_share_group_and_advantage(renderer: ChatMLRenderer) -> None:
    trajectory = summed(renderer)
    rows = grpo_rows([trajectory], {trajectory.trajectory_id: 0.5})
    assert [(row.segment, row.advantage, row.group_id) for row in rows] == [
        (index, 0.5, trajectory.group_id) for index in range(3)
    ]
    assert [row.token_ids for row in rows] == [segment.token_ids for segment in trajectory.segments]
    pairs = zip(rows, trajectory.segments, strict=True)
    assert all(sum(map(bool, row.logprobs)) == s.num_generated for row, s in pairs)


def test_requests_and_summaries_are_paid_for_and_nothing_twice(renderer: ChatMLRenderer) -> None:
    whole = summed(renderer)
    prompt = whole.segments[0].spans[0].end
    request = len(renderer.extend((renderer.stop_token_ids[0],), [user("Sum up.")], first_turn=0).token_ids)
    stopped = (renderer.stop_token_ids[0],)
    answers = [renderer.extend(stopped, [whole.turns[index]], first_turn=index) for index in (3, 5, 8)]
    cost = prompt + whole.usage.generated_tokens + 2 * request + sum(len(one.token_ids) for one in answers)
    exact = summed(renderer, budget=Budget(max_turns=8, max_tokens=cost, max_seconds=60))
    assert exact.termination is Termination.FINISHED
    less = summed(renderer, budget=Budget(max_turns=8, max_tokens=cost - 1, max_seconds=60))
    assert (less.termination, less.blame) == (Termination.TOKEN_BUDGET, Blame.AGENT)
    turns = summed(renderer, budget=Budget(max_turns=4, max_tokens=cost, max_seconds=60))
    assert turns.termination is Termination.FINISHED, "a summary is no turn of the budget"


@pytest.mark.parametrize(
    ("said", "changes", "termination", "error"),
    [
        ("", {}, Termination.CONTEXT_OVERFLOW, "the summary is empty"),
        (" \n", {}, Termination.CONTEXT_OVERFLOW, "the summary is empty"),
        ("word " * 50, {}, Termination.CONTEXT_OVERFLOW, "no end of the summary in 30 tokens"),
        ("seen", {"max_context_tokens": 360}, Termination.CONTEXT_OVERFLOW, "the context holds 360"),
    ],
    ids=["empty", "blank", "endless", "no room to ask"],
)
def test_a_summary_that_cannot_be_used_ends_the_episode(
    renderer: ChatMLRenderer, said: str, changes: dict[str, int], termination: Termination, error: str
) -> None:
    script = [*SCRIPT[:2], said]
    trajectory = summed(renderer, script, settings=replace(SETTINGS, **changes))
    assert (trajectory.termination, trajectory.blame) == (termination, Blame.AGENT)
    assert error in trajectory.error
    assert trajectory.reward is not None and trajectory.reward.total == 0.0
    assert len(trajectory.segments) == 1
    assert trajectory.segments[0].loss_mask(trajectory.turns)


def test_a_summary_beyond_the_budget_is_a_token_budget(renderer: ChatMLRenderer) -> None:
    for tokens, error in ((480, "18 more tokens, 12 left"), (490, "no end of the summary in 4 tokens")):
        trajectory = summed(renderer, budget=Budget(max_turns=8, max_tokens=tokens, max_seconds=60))
        assert trajectory.termination is Termination.TOKEN_BUDGET and error in trajectory.error


def test_an_exchange_that_does_not_fit_even_then_is_an_overflow(renderer: ChatMLRenderer) -> None:
    script = [LOOKS["x"], call_text("look", key="yyyy"), "seen: x"]
    trajectory = summed(renderer, script)
    assert (trajectory.termination, trajectory.blame) == (Termination.CONTEXT_OVERFLOW, Blame.AGENT)
    assert trajectory.turns[-1].role is S and trajectory.summaries == {6}
    assert len(trajectory.segments) == 1, "a segment in which nothing was sampled is none"


def test_one_exchange_alone_is_not_summed_up(renderer: ChatMLRenderer) -> None:
    trajectory = summed(renderer, [call_text("look", key="xxx"), "done"], private={"echo": 80})
    assert trajectory.success and trajectory.summaries == set()


def test_a_server_that_dies_over_the_summary_is_no_reward(renderer: ChatMLRenderer) -> None:
    trajectory = summed(renderer, [*SCRIPT[:2], EngineError("connection refused")])
    assert (trajectory.termination, trajectory.reward) == (Termination.INFRA_FAILURE, None)
    spans = [span for segment in trajectory.segments for span in segment.spans]
    assert max(span.turn for span in spans) < len(trajectory.turns), "the request was never answered"


def test_the_users_own_words_are_kept(renderer: ChatMLRenderer) -> None:
    script = [LOOKS["x"], "half", LOOKS["y"], "seen: x", "done"]
    trajectory = summed(renderer, script, private={"users": ["And y?"]})
    assert trajectory.success and trajectory.summaries == {8}
    last = renderer.decode(trajectory.segments[-1].token_ids)
    assert "user\nFind it.\n\nAnd y?\n\nSo far: seen: x<|im_end|>" in last and "half" not in last


def test_tools_that_change_where_it_is_full_are_shown_after_the_summary(renderer: ChatMLRenderer) -> None:
    settings = replace(SETTINGS, max_context_tokens=460)
    script = [LOOKS["x"], call_text("unlock"), "unlocked", "done"]
    trajectory = summed(renderer, script, settings=settings)
    assert trajectory.success and trajectory.summaries == {6}
    assert [len(segment.tools) for segment in trajectory.segments] == [2, 3]
    assert [index for index, turn in enumerate(trajectory.turns) if turn.tools_changed] == [7]


def test_the_same_jobs_give_the_same_records_at_any_concurrency(renderer: ChatMLRenderer) -> None:
    def answer(prompt: str, rng: random.Random) -> str:
        if "Sum up." in prompt.rpartition("user\n")[2]:
            return f"notes {rng.randrange(100)}"
        return LOOKS[rng.choice("xyz")] if rng.random() < 0.9 else "done"

    async def played(max_in_flight: int) -> set[str]:
        engine = ScriptedEngine(continue_text(answer, renderer))
        jobs = [Job(make_task(private={"echo": 100}), rollout_index=index, seed=3) for index in range(8)]
        more = {"settings": replace(SETTINGS, max_repeats=0), "sampling": SHORT, "environment": World()}
        made = rollouts(jobs, engine=engine, renderer=renderer, max_in_flight=max_in_flight, **more)
        rows = [row async for row in made]
        assert any(row.summaries for row in rows)
        return {row.content_digest() for row in rows}

    assert asyncio.run(played(1)) == asyncio.run(played(8))


def test_a_secret_the_agent_wrote_down_is_no_leak(renderer: ChatMLRenderer) -> None:
    task = make_task(private={"echo": 100, "answer": "seen: x is the secret"})
    script = [*SCRIPT[:2], "seen: x is the secret", "done"]
    trajectory = play(renderer, script, task, settings=SETTINGS, sampling=SHORT)
    assert trajectory.summaries == {6}
    check_trajectory(trajectory, task)
    with pytest.raises(LeakError, match="turn 6"):
        check_trajectory(trajectory.model_copy(update={"segments": ()}), task)


def test_media_of_the_request_stay_in_the_folded_prompt() -> None:
    image = Part(type=PartType.IMAGE, media_sha256="ab" * 32, media_type="image/png")
    asked = user("What is it?")
    asked = asked.model_copy(update={"parts": (image, *asked.parts)})
    dialogue = [asked, assistant("A cat."), user("And now?"), assistant("A dog."), system("cat, dog")]
    turns, indices = Folding(prompt=1, kept=3, summary=4).shown(dialogue, "So far: {summary}")
    assert turns[0].parts[0] == image and turns[1:] == dialogue[3:4] and indices == [-1, 3]
    assert turns[0].text.endswith("What is it?\n\nAnd now?\n\nSo far: cat, dog")


def test_settings(renderer: ChatMLRenderer) -> None:
    with pytest.raises(ConfigError, match="summarise needs mode chat"):
        replace(SETTINGS, mode=Mode.INLINE, inline=InlineFormat(tool="look", argument="key"))
    with pytest.raises(ConfigError, match=r"must contain \{summary\}"):
        SummaryFormat(frame="notes")
    with pytest.raises(ConfigError, match="at least 1 token"):
        SummaryFormat(max_tokens=0)
    plain = RolloutSettings()
    assert plain.digest == replace(plain, summary=SUMMARY).digest, "what is not read makes no other policy"
    assert SETTINGS.digest != TRAINED.digest != replace(TRAINED, keep_results=1).digest
