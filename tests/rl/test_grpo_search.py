"""Rollouts by tree search in training: weights in the gradient, nothing else moved, everything counted."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.errors import ConfigError
from data.messages import NamedValue
from data.trajectories import SpanKind, Trajectory, Usage
from data.verdicts import Verdict
from flows.stages.train import settings_of
from pipeline.engines.base import Sampling
from pipeline.renderers.load import load_renderer
from pipeline.rollout import RolloutSettings
from rl.advantages import AdvantageKind, advantages, group_advantages
from rl.grpo import train_grpo
from rl.grpo_config import GrpoConfig
from rl.grpo_metrics import sampled_tokens
from rl.grpo_sources import Online, Replay
from rl.lm import Precision
from rl.selection import SelectionSettings, draw_weight, search_parts
from synthesizers.tree_search.records import search_weight
from synthesizers.tree_search.settings import SearchKind, SearchSettings
from tests.rl.builders import STOP
from tests.rl.test_grpo import group
from tests.rl.torch_engine import FirstTokenWorld, TorchEngine
from tests.tiny import make_tiny_model

CONFIG = GrpoConfig(
    steps=1,
    groups_per_step=1,
    group_size=4,
    learning_rate=1e-3,
    precision=Precision.FLOAT32,
    episode_tokens=128,
    search=SearchSettings(candidates=3, width=2, pick="soft", scores={"logprob": 1.0}),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def online(tiny: Path, seen: list[Trajectory], candidates: list[Verdict]) -> Online:
    renderer, world = load_renderer(tiny), FirstTokenWorld(1)
    return Online(
        tasks=list(world.tasks("train")),
        environment=world,
        engine=TorchEngine(tiny),
        renderer=renderer,
        sampling=Sampling(max_tokens=3, stop_token_ids=renderer.stop_token_ids),
        settings=RolloutSettings(max_context_tokens=128),
        on_trajectory=seen.append,
        on_candidate=candidates.append,
    )


def test_a_step_on_searched_rollouts(tiny: Path, tmp_path: Path) -> None:
    seen: list[Trajectory] = []
    candidates: list[Verdict] = []
    source = online(tiny, seen, candidates)
    result = train_grpo(
        source, model_dir=tiny, out_dir=tmp_path / "o", config=CONFIG,
        stop_token_ids=source.renderer.stop_token_ids,
    )  # fmt: skip
    assert [item.rollout_index for item in sorted(seen, key=lambda one: one.rollout_index)] == [0, 1, 2, 3]
    assert len(candidates) == 2 * 3 and sum(one.keep for one in candidates) == 4
    assert len({item.group_id for item in seen}) == 1 and {item.synthesizer for item in seen} == {"grpo"}
    (entry,) = result.history
    assert entry.logprob_gap < 1e-5  # what is trained on is what the policy said, with its log-probs
    kept = sum(segment.num_generated for item in seen for segment in item.segments)
    assert entry.generated_tokens == sum(item.usage.generated_tokens for item in seen) > kept
    assert entry.selection["search_biased"] == 0.0 and entry.selection["search_weight_max"] > 1.0
    assert 0 < entry.selection["search_effective"] < 1.0
    for item in seen:
        (segment,) = item.segments
        mask = segment.loss_mask(item.turns)
        generated = [span for span in segment.spans if span.kind is SpanKind.GENERATED]
        assert sum(mask) == sum(span.end - span.start for span in generated) == segment.num_generated


def test_what_several_rollouts_hold_of_one_draw_is_paid_once() -> None:
    """Two kept of two candidates: a long and a short one share the cost, though one holds more than half."""
    long, short = group()[:2]
    held = long.segments[0].num_generated
    share = Usage(generated_tokens=held // 2)
    assert sampled_tokens(long.model_copy(update={"usage": share})) == held // 2
    assert sampled_tokens(short.model_copy(update={"usage": Usage()})) == short.segments[0].num_generated


def test_a_choice_by_rank_says_that_it_is_biased(
    tiny: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = online(tiny, [], [])
    config = replace(CONFIG, search=SearchSettings(candidates=2, width=1, scores={"logprob": 1.0}))
    with caplog.at_level(logging.WARNING, logger="trajsmith.grpo"):
        result = train_grpo(
            source, model_dir=tiny, out_dir=tmp_path / "o", config=config,
            stop_token_ids=source.renderer.stop_token_ids,
        )  # fmt: skip
    assert "no sample of the policy" in caplog.text
    assert result.history[0].selection["search_biased"] == 1.0


def weighed(weights: tuple[float, ...]) -> list[Trajectory]:
    """The four stored rollouts of a group, each with the weight of a search."""
    return [
        item.model_copy(update={"scores": (NamedValue(name="search/weight", value=weight),)})
        for item, weight in zip(group(), weights, strict=True)
    ]


def losses(tiny: Path, out: Path, items: list[Trajectory], **more: Any) -> list[float]:
    config = GrpoConfig(steps=2, num_iterations=2, groups_per_step=1, group_size=4, learning_rate=1e-3,
                        precision=Precision.FLOAT32, episode_tokens=64, **more)  # fmt: skip
    return train_grpo(Replay(items), model_dir=tiny, out_dir=out, config=config, stop_token_ids={STOP}).losses


def test_weights_of_one_change_no_bit_and_others_move_the_gradient(tiny: Path, tmp_path: Path) -> None:
    plain = losses(tiny, tmp_path / "a", group())
    assert losses(tiny, tmp_path / "b", weighed((1.0,) * 4)) == plain
    assert losses(tiny, tmp_path / "c", weighed((2.0, 0.5, 1.0, 0.5))) != plain


def test_weighted_advantages_by_hand() -> None:
    rewards, weights = [1.0, 0.0, 0.0], [0.5, 1.0, 1.5]
    mean = 0.5 / 3.0
    std = math.sqrt((0.5 * (1 - mean) ** 2 + 2.5 * mean**2) / 3.0 * 3 / 2)
    wanted = [0.5 * (1 - mean) / std, -mean / std, -1.5 * mean / std]
    assert group_advantages(rewards, weights=weights) == pytest.approx(wanted, rel=1e-5)
    assert sum(group_advantages(rewards, AdvantageKind.DR_GRPO, weights=weights)) == pytest.approx(0.0)
    assert group_advantages(rewards, AdvantageKind.RLOO, weights=weights)[0] == pytest.approx(0.5)
    assert group_advantages([2.0, 2.0], weights=[3.0, 0.1]) == [0.0, 0.0]
    for kind in AdvantageKind:
        plain = group_advantages([1.0, 0.0, 0.25], kind)
        near = group_advantages([1.0, 0.0, 0.25], kind, weights=[1.0, 1.0, 1.0 + 1e-12])
        assert near == pytest.approx(plain)
    values = advantages(weighed((2.0, 1.0, 1.0, 1.0)), weight=draw_weight).values
    assert max(values.values()) > max(advantages(group()).values.values())


def test_a_cap_is_counted() -> None:
    items = weighed((4.0, 0.5, 0.5, 0.5))
    assert [draw_weight(item, cap=2.0) for item in items] == [2.0, 0.5, 0.5, 0.5]
    assert (
        search_parts(items, cap=2.0)["search_capped"] == 0.25 and search_parts(items)["search_capped"] == 0.0
    )
    assert search_parts(items)["search_policy_success"] == pytest.approx(4.0 / 5.5)
    assert search_parts(group()) == {} and search_weight(group()[0]) is None


def test_recipes_name_a_search_and_what_does_not_fit_is_refused() -> None:
    said = {"search": {"kind": "lookahead", "candidates": 4, "width": 2, "depth": 1, "scores": {"errors": 1}}}
    config = settings_of(GrpoConfig, said, "grpo.settings")
    assert config.search.kind is SearchKind.LOOKAHEAD and "search" in config.identity()
    assert "search" not in GrpoConfig().identity()
    with pytest.raises(ConfigError, match="no multiple of"):
        GrpoConfig(group_size=8, search=SearchSettings(width=3))
    with pytest.raises(ConfigError, match="set one of them"):
        GrpoConfig(search=SearchSettings(), selection=SelectionSettings())
    with pytest.raises(ConfigError, match="has no breadth"):
        settings_of(GrpoConfig, {"search": {"breadth": 1}}, "grpo.settings")
