"""Which tokens a step reports as clipped, against the bounds of each loss."""

from __future__ import annotations

import torch

from rl.grpo_config import GrpoConfig, LossType
from rl.grpo_trainer import clipped_tokens

RATIO = torch.tensor([0.7, 0.9, 1.2, 1.3, 4.0, 6.0])


def test_a_ratio_loses_its_gradient_outside_its_own_side_only() -> None:
    config = GrpoConfig(epsilon=0.2, epsilon_high=0.28)
    assert clipped_tokens(RATIO, torch.ones(6), config).tolist() == [False] * 3 + [True] * 3
    assert clipped_tokens(RATIO, -torch.ones(6), config).tolist() == [True] + [False] * 5
    assert not clipped_tokens(RATIO, torch.zeros(6), config).any()


def test_cispo_caps_what_is_above_its_cap_whatever_the_advantage() -> None:
    config = GrpoConfig(loss_type=LossType.CISPO, epsilon_high=5.0)
    for sign in (1.0, -1.0):
        assert clipped_tokens(RATIO, sign * torch.ones(6), config).tolist() == [False] * 5 + [True]
