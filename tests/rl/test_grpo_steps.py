"""Steps as groups: rewards by hand, nothing of the context trained, weights pushed, behaviour that moves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError
from data.messages import ToolCall, ToolResult, ToolSpec, Turn, assistant, text_parts, tool, user
from data.trajectories import (
    EnvironmentRef,
    Origin,
    Policy,
    Reward,
    Segment,
    SpanKind,
    Termination,
    Trajectory,
)
from pipeline.engines.base import Completion, FinishReason, Sampling
from pipeline.errors import EngineError
from pipeline.renderers.chatml import ChatMLRenderer, call_text
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings
from rl.advantages import advantages
from rl.audit import audit
from rl.grpo import train_grpo
from rl.grpo_config import GrpoConfig
from rl.grpo_steps import Steps
from rl.lm import Precision
from rl.models import checkpoint_digest
from rl.rows import grpo_rows
from rl.sft import SftConfig, train_sft
from synthesizers.looptool.samples import step_samples
from synthesizers.tree_search.settings import SearchSettings
from tests.rl.torch_engine import TorchEngine
from tests.tiny import make_tiny_model

LOOK = ToolSpec(
    name="look",
    parameters='{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}',
)
ROME, OSLO = '{"city": "Rome"}', '{"city": "Oslo"}'
CONFIG = GrpoConfig(
    steps=2,
    groups_per_step=2,
    group_size=6,
    learning_rate=1e-3,
    precision=Precision.FLOAT32,
    episode_tokens=512,
)


def calling(*arguments: str) -> Turn:
    calls = (ToolCall(call_id=f"c{n}", name="look", arguments=each) for n, each in enumerate(arguments))
    return assistant("", *calls)


def dialogue(renderer: ChatMLRenderer, *, weight: float = 1.0) -> Trajectory:
    """Two calls in one turn, their results, an answer; of `weight` the last turn."""
    results = (
        tool(ToolResult(call_id=f"c{number}", name="look", parts=text_parts(f"seen {number}")))
        for number in range(2)
    )
    last = assistant("<answer>a</answer>").model_copy(update={"weight": weight})
    turns = (user("find a city"), calling(ROME, OSLO), *results, last)
    rendered = renderer.render(turns, [LOOK], generation_prompt=False)
    segment = Segment(
        origin=Origin.RENDERED,
        tools=(LOOK,),
        token_ids=tuple(rendered.token_ids),
        spans=tuple(rendered.spans),
    )
    return Trajectory(
        task_id="t",
        group_id="g",
        synthesizer="demonstration",
        policy=Policy(name="gold"),
        environment=EnvironmentRef(name="none", version="0", seed=0),
        turns=turns,
        segments=(segment,),
        termination=Termination.FINISHED,
        reward=Reward(total=1.0, verifier="v/1"),
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def renderer(tiny: Path) -> Any:
    return load_renderer(tiny)


class Says(TorchEngine):
    """Says given texts in turn, whatever it is asked; None breaks, and a text that ends in … is cut."""

    def __init__(self, directory: Path, renderer: ChatMLRenderer, texts: list[str | None]) -> None:
        super().__init__(directory)
        self.renderer, self.texts, self.asked = renderer, texts, list[tuple[int, ...]]()

    async def generate(self, token_ids: list[int], sampling: Sampling, **options: Any) -> list[Completion]:
        self.asked.append(tuple(token_ids))
        text = self.texts.pop(0)
        if text is None:
            raise EngineError("connection refused")
        cut, ids = text.endswith("…"), self.renderer.encode(text.removesuffix("…"))
        ids += [] if cut else [self.renderer.stop_token_ids[0]]
        reason = FinishReason.LENGTH if cut else FinishReason.STOP
        return [Completion(tuple(ids), tuple(-0.5 for _ in ids), reason, "w")]


def steps(engine: Any, renderer: Any, *rows: Trajectory, **sampling: Any) -> Steps:
    return Steps(
        rows=rows,
        load_task=lambda task_id: None,
        engine=engine,
        renderer=renderer,
        sampling=Sampling(max_tokens=200, **sampling),
        settings=RolloutSettings(max_context_tokens=512),
    )


def collected(source: Steps, name: str, config: GrpoConfig = CONFIG) -> list[Trajectory]:
    with asyncio.Runner() as source.runner:
        return source.collect([name], batch=0, config=config)


def written(turn: Turn) -> str:
    return "\n".join(call_text(call) for call in turn.tool_calls)


def test_rewards_are_the_multiset_match_of_the_calls(tiny: Path, renderer: Any) -> None:
    row = dialogue(renderer)
    first, last = step_samples(row)
    both = written(calling(ROME, OSLO))
    texts: list[str | None] = [
        *(both, written(calling(OSLO, ROME)), written(calling(ROME))),
        *(written(calling(ROME, ROME)), "It is Rome and Oslo.", both + "…"),
    ]
    engine = Says(tiny, renderer, texts)
    played = collected(steps(engine, renderer, row), first.step_id)
    assert [each.reward.total for each in played if each.reward] == [1, 1, 0, 0, 0, 0]
    assert [{part.name: part.value for part in each.reward.components} for each in played if each.reward][
        2:4
    ] == [
        {"success": 0.0, "matched": 1.0, "made": 1.0},
        {"success": 0.0, "matched": 1.0, "made": 2.0},
    ]
    assert set(engine.asked) == {first.context}, "the stored tokens, not encoded again"
    assert len({each.group_id for each in played}) == 1 and len({each.trajectory_id for each in played}) == 6
    # mean 1/3, unbiased deviation sqrt((2 * 4/9 + 4 * 1/9) / 5)
    values = advantages(played).values
    by_hand = [1.29099, 1.29099, -0.64550, -0.64550, -0.64550, -0.64550]
    assert [values[each.trajectory_id] for each in played] == pytest.approx(by_hand, abs=1e-4)
    assert played[5].termination is Termination.TOKEN_BUDGET
    answers: list[str | None] = [
        "<answer>a</answer>",
        "<answer> A </answer>",
        "<answer>b</answer>",
        "done",
        both,
        "<answer>a",
    ]
    played = collected(steps(Says(tiny, renderer, answers), renderer, row), last.step_id)
    assert [each.reward.total for each in played if each.reward] == [1, 1, 0, 0, 0, 0]


def test_only_what_was_written_is_trained(tiny: Path, renderer: Any) -> None:
    row = dialogue(renderer)
    _, last = step_samples(row)
    texts: list[str | None] = [*["<answer>a</answer>"] * 5, "b…"]
    played = collected(steps(Says(tiny, renderer, texts), renderer, row), last.step_id)
    seen = [span for span in row.segments[0].spans if span.kind is SpanKind.OBSERVATION]
    earlier = [span for span in row.segments[0].spans if span.kind is SpanKind.GENERATED][:-1]
    assert seen and earlier
    for each, one in zip(grpo_rows(played, advantages(played).values), played, strict=True):
        start = len(last.context)
        assert each.token_ids[:start] == last.context
        assert each.mask == (0.0,) * start + (1.0,) * (len(each.token_ids) - start)
        assert each.logprobs[:start] == (0.0,) * start and set(each.logprobs[start:]) == {-0.5}
        assert all(span.end <= start for span in (*seen, *earlier))
        assert one.turns[:-1] == row.turns[:4] and one.parents == (row.trajectory_id,)
    rows = grpo_rows(played, advantages(played).values)
    audit(played, stop_token_ids=renderer.stop_token_ids, rows=rows, allow_cut_off=True).refuse()


def test_steps_of_weight_0_are_context_and_what_broke_is_no_reward(tiny: Path, renderer: Any) -> None:
    row = dialogue(renderer, weight=0.0)
    (only,) = step_samples(row)
    broken: list[str | None] = [None, "no", None, "no", "no", "no"]
    source = steps(Says(tiny, renderer, broken), renderer, row)
    assert list(source.steps) == [only.step_id]
    played = collected(source, only.step_id)
    assert [each.reward is None for each in played] == [True, False, True, False, False, False]
    assert {each.termination for each in played if each.reward is None} == {Termination.INFRA_FAILURE}
    with pytest.raises(
        EngineError, match=r"none of 6 rollouts of batch 0 got a reward: .*connection refused"
    ):
        collected(steps(Says(tiny, renderer, [None] * 6), renderer, row), only.step_id)


def test_what_cannot_be_trained_is_refused_before_anything_is_sampled(tiny: Path, renderer: Any) -> None:
    row, engine = dialogue(renderer), TorchEngine(tiny)
    narrow = steps(engine, renderer, row)
    narrow = replace(narrow, settings=RolloutSettings(max_context_tokens=40))
    assert narrow.too_long == 2
    for source, config, message in (
        (narrow, CONFIG, "no step of them .2 fill the window of 40 tokens"),
        (steps(engine, renderer), CONFIG, "got 0 dialogues"),
        (steps(engine, renderer, row, top_p=0.5), CONFIG, "truncated sampling"),
        (steps(engine, renderer, row), replace(CONFIG, search=SearchSettings(width=2)), "nothing to search"),
        (steps(engine, renderer, row), replace(CONFIG, episode_tokens=256), "above episode_tokens=256"),
    ):
        with pytest.raises(ConfigError, match=message):
            source.check(config)


def asking(renderer: Any, letter: str) -> Trajectory:
    """The dialogue ending in a question after `letter`, of which only that turn is trained."""
    row = dialogue(renderer)
    calls = row.turns[1].model_copy(update={"weight": 0.0})
    turns = (row.turns[0], calls, *row.turns[2:-1], assistant(f"ASK {letter}"))
    rendered = renderer.render(turns, [LOOK], generation_prompt=False)
    segment = row.segments[0].model_copy(
        update={"token_ids": tuple(rendered.token_ids), "spans": tuple(rendered.spans)}
    )
    return row.model_copy(update={"trajectory_id": letter, "turns": turns, "segments": (segment,)})


@pytest.mark.rl
def test_the_rewarded_step_becomes_more_likely(tiny: Path, renderer: Any, tmp_path: Path) -> None:
    stops, start = renderer.stop_token_ids, tmp_path / "taught"
    config = SftConfig(epochs=60, tokens_per_step=4096, learning_rate=1e-2, precision=Precision.FLOAT32)
    rows = [asking(renderer, letter) for letter in "abcd"]
    train_sft(rows, model_dir=tiny, out_dir=start, config=config, stop_token_ids=stops)
    engine = TorchEngine(start)
    source = replace(steps(engine, renderer, rows[0]), sampling=Sampling(max_tokens=8))
    online = replace(CONFIG, steps=8, groups_per_step=1, group_size=16, learning_rate=5e-3)
    result = train_grpo(source, model_dir=start, out_dir=tmp_path / "o", config=online, stop_token_ids=stops)
    rewards = [entry.reward_mean for entry in result.history]
    assert rewards[0] < 0.75 and sum(rewards[-3:]) / 3 > 0.9, rewards
    assert engine.pushes == 10 and engine.weights_version == result.weights_digest
    assert checkpoint_digest(tmp_path / "o") == result.weights_digest
    assert all(entry.logprob_gap < 1e-4 for entry in result.history)
    for entry in result.history:  # what was sampled is trained, and nothing else
        assert entry.trained_tokens in (0, entry.generated_tokens)
