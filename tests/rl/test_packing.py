"""Prefix sharing changes the cost, never the numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from data.errors import ConfigError
from rl.lm import Precision, load_model, token_logprobs
from rl.packing import common_prefix, pack, plan_passes, trained_places
from rl.rows import Row
from rl.sft import step_loss
from rl.tree_attention import Block, tree_blocks
from tests.tiny import make_tiny_model


def _row(name: str, ids: list[int], mask: list[float], weight: float = 1.0) -> Row:
    return Row(name, "g", 0, tuple(ids), tuple(mask), weight=weight)


def _random_rows(seed: int, count: int = 7) -> list[Row]:
    """Rows with nested common prefixes, one of them a prefix of another, one equal to another."""
    rng = random.Random(seed)
    stem = [rng.randrange(3, 300) for _ in range(12)]
    middle = stem + [rng.randrange(3, 300) for _ in range(6)]
    rows = []
    for index in range(count):
        base = middle if index % 2 else stem
        ids = base + [rng.randrange(3, 300) for _ in range(rng.randrange(1, 9))]
        mask = [0.0] * 8 + [rng.choice([0.0, 1.0, 0.5]) for _ in ids[8:]]
        rows.append(_row(f"t{index}", ids, mask, weight=rng.choice([1.0, 2.0])))
    rows.append(_row("equal", list(rows[0].token_ids), [0.0] * 8 + [1.0] * (len(rows[0].token_ids) - 8)))
    rows.append(_row("prefix", stem, [0.0] * 8 + [1.0] * 4))
    return rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    loaded = load_model(make_tiny_model(tmp_path_factory.mktemp("tiny")))
    yield loaded.train()


def test_a_tree_lays_every_shared_prefix_out_once() -> None:
    rows = [
        _row("a", [1, 2, 3, 4], [0, 0, 1, 1]),
        _row("b", [1, 2, 3, 9], [0, 0, 0, 1]),
        _row("c", [1, 7], [0, 1]),
    ]
    packed = pack(rows)
    assert packed.token_ids == (1, 2, 3, 4, 9, 7) and packed.depth == (0, 1, 2, 3, 3, 1)
    assert packed.paths == ((0, 1, 2, 3), (0, 1, 2, 4), (0, 5))
    assert trained_places(packed) == ([2, 3, 4, 5], [1, 2, 2, 0])
    whole, second, third = tree_blocks(packed)
    assert (whole.start, whole.end, whole.keys, whole.visible) == (0, 4, None, None)
    assert (second.start, second.end) == (4, 5) and (third.start, third.end) == (5, 6)
    assert second.keys is not None and second.keys.tolist() == [0, 1, 2, 4]
    assert third.keys is not None and third.keys.tolist() == [0, 5]
    assert third.visible is not None and third.visible.tolist() == [[True, True]]


def test_common_prefix_by_bisection_equals_the_plain_count() -> None:
    rng = random.Random(1)
    for _ in range(200):
        first = [rng.randrange(2) for _ in range(rng.randrange(9))]
        second = [rng.randrange(2) for _ in range(rng.randrange(9))]
        plain = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
        assert common_prefix(first, second) == (min(len(first), len(second)) if plain is None else plain)


@pytest.mark.parametrize("share", [True, False])
def test_passes_hold_every_row_once_and_respect_the_budget(share: bool) -> None:
    rows = _random_rows(3, count=20)
    passes = plan_passes(rows, max_tokens=60, share=share)
    assert sorted(row.key for packed in passes for row in packed.rows) == sorted(row.key for row in rows)
    assert all(len(packed.token_ids) <= 60 for packed in passes) and len(passes) > 1
    for packed in passes:
        for row, path in zip(packed.rows, packed.paths, strict=True):
            assert tuple(packed.token_ids[place] for place in path) == row.token_ids
            assert [packed.depth[place] for place in path] == list(range(len(path)))


@pytest.mark.parametrize("seed", range(3))
def test_shared_log_probs_equal_those_of_plain_rows(model: Any, seed: int) -> None:
    rows = _random_rows(seed)
    packed = pack(rows)
    shared = token_logprobs(model, packed)
    for row, (positions, entries) in zip(packed.rows, shared.index, strict=True):
        logits = model(input_ids=torch.tensor([row.token_ids])).logits[0]
        plain = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(row.token_ids)[1:, None])[:, 0]
        torch.testing.assert_close(shared.values[entries], plain[positions - 1], atol=2e-6, rtol=1e-5)


def _gradients(model: Any, rows: list[Row], *, max_tokens: int, share: bool) -> dict[str, torch.Tensor]:
    model.zero_grad()
    total = sum(row.weight * sum(row.mask[1:]) for row in rows)
    for packed in plan_passes(rows, max_tokens=max_tokens, share=share):
        step_loss(model, packed, total_weight=total, precision=Precision.FLOAT32).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_shared_gradients_equal_those_of_one_row_at_a_time(model: Any) -> None:
    rows = _random_rows(5)
    shared = _gradients(model, rows, max_tokens=4096, share=True)
    alone = _gradients(model, rows, max_tokens=1, share=False)
    assert max(float(value.abs().max()) for value in alone.values()) > 1e-3
    for name, value in alone.items():
        torch.testing.assert_close(shared[name], value, atol=1e-6, rtol=1e-4)


def test_a_mask_that_leaks_across_rows_would_be_seen(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _random_rows(5)
    right = token_logprobs(model, pack(rows)).values
    size = len(pack(rows).token_ids)
    monkeypatch.setattr("rl.lm.tree_blocks", lambda packed, device: [Block(0, size, None, None)])
    assert float((token_logprobs(model, pack(rows)).values - right).detach().abs().max()) > 1e-3


def test_a_model_that_drops_the_tree_is_refused_not_trained_wrongly(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.lm.tree_blocks", lambda packed, device: None)
    with pytest.raises(ConfigError, match="cannot be packed"):
        token_logprobs(model, pack(_random_rows(5)))


def test_entropy_is_that_of_the_predicted_distribution(model: Any) -> None:
    row = _row("a", [5, 6, 7], [0, 0, 1])
    probabilities = torch.softmax(model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, 1] / 0.5, -1)
    found = token_logprobs(model, pack([row]), temperature=0.5)
    assert float(found.entropies[0]) == pytest.approx(
        float(-(probabilities * probabilities.log()).sum().detach()), abs=1e-4
    )
    assert found.values[0].item() == pytest.approx(probabilities[7].log().item(), abs=1e-5)
