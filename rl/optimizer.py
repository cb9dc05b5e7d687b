"""AdamW and the learning-rate schedule of the supervised trainer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pipeline.errors import TrajsmithError
from rl.lm import require_torch


class Schedule(StrEnum):
    """How the learning rate moves after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    """Down to 0 after the last step."""


class DivergedError(TrajsmithError):
    """The gradient is not finite; the weights were left as they were before this step."""


def learning_rate_at(step: int, total: int, peak: float, warmup: int, schedule: Schedule) -> float:
    """Rate of step `step` (from 0) of `total`: a linear rise over `warmup` steps, then `schedule`."""
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule is Schedule.CONSTANT:
        return peak
    return peak * (total - step) / max(total - warmup, 1)


def make_optimizer(model: Any, *, learning_rate: float, weight_decay: float) -> Any:
    """AdamW over the trainable parameters; matrices decay, vectors (norms, biases) do not."""
    torch = require_torch()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [item for item in parameters if item.ndim >= 2], "weight_decay": weight_decay},
        {"params": [item for item in parameters if item.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def step_optimizer(model: Any, optimizer: Any, *, learning_rate: float, max_grad_norm: float) -> float:
    """Clip, step, clear; returns the gradient norm before clipping. DivergedError where it is not finite."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = clip_gradients(parameters, max_grad_norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def clip_gradients(parameters: Sequence[Any], max_grad_norm: float) -> float:
    """Scale gradients down to `max_grad_norm`; their norm before. DivergedError where it is not finite."""
    torch = require_torch()
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm))
    if not math.isfinite(norm):
        raise DivergedError(
            f"gradient norm is {norm}, so this step was not taken; lower learning_rate and run again, from "
            f"step 0: a checkpoint goes on with the learning rate it was made with"
        )
    return norm
