"""Supervised fine-tuning on stored token ids and spans.

The loss is the weighted mean of the negative log-probs of the trained tokens of a step; a token's
weight is its turn's weight times its trajectory's. Order, steps and passes follow from the rows and
the seed alone, so a resumed run ends in the same weights. A flat loop of our own: TRL's trainer
cannot share prefixes or skip the vocabulary projection of untrained tokens. Not covered: which
trajectories to train on (filters), several devices.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from data import canonical
from data.errors import ConfigError
from data.trajectories import Trajectory
from rl.audit import audit
from rl.checkpoints import Checkpoints
from rl.lm import (
    LoraSettings,
    Precision,
    load_model,
    memory_returned,
    require_torch,
    token_logprobs,
    training_device,
)
from rl.models import checkpoint_digest
from rl.optimizer import Schedule, learning_rate_at, make_optimizer, step_optimizer
from rl.packing import Pass, plan_passes
from rl.results import StepMetrics, TrainResult, finish, finished_result
from rl.rows import Row, drop_overlong, sft_rows
from rl.settings import adopt_text


@dataclass(frozen=True, slots=True)
class SftConfig:
    """How to fine-tune. The defaults suit a 135M-parameter model on two cores."""

    epochs: int = 1
    """Passes over the rows."""
    max_steps: int = 0
    """Stop after this many optimiser steps; 0 = when the epochs are done."""
    tokens_per_step: int = 2048
    """Row tokens (prompt and observations included) per optimiser step; a step holds whole rows."""
    tokens_per_pass: int = 2048
    """Most computed tokens per forward pass; memory grows with it (about 1 MB each for 135M parameters)."""
    max_length: int = 4096
    """Longest row in tokens; rows are never cut."""
    overlong: str = "error"
    """What a row longer than `max_length` does: "error", or "drop" (counted in the result)."""
    learning_rate: float = 1e-4
    """Peak learning rate of AdamW."""
    schedule: Schedule = Schedule.LINEAR
    warmup_steps: int = 5
    """Steps over which the learning rate rises to its peak."""
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    precision: Precision = Precision.BFLOAT16
    lora: LoraSettings | None = None
    """None = train every weight."""
    share_prefixes: bool = True
    """Compute common prefixes of a pass once; the gradients are the same."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0 = none."""
    seed: int = 0
    """Order of the rows and initial adapter weights."""

    def __post_init__(self) -> None:
        adopt_text(self, {"schedule": Schedule, "precision": Precision})
        for name in ("epochs", "tokens_per_step", "tokens_per_pass", "max_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_steps", "warmup_steps", "checkpoint_every", "weight_decay"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.learning_rate <= 0 or self.max_grad_norm <= 0:
            raise ConfigError(
                f"learning_rate and max_grad_norm must be above 0, got {self.learning_rate} "
                f"and {self.max_grad_norm}"
            )
        if self.overlong not in ("error", "drop"):
            raise ConfigError(f"overlong must be 'error' or 'drop', got {self.overlong!r}")


def train_sft(
    trajectories: Iterable[Trajectory],
    *,
    model_dir: Path,
    out_dir: Path,
    config: SftConfig,
    stop_token_ids: Collection[int],
    on_progress: Callable[[StepMetrics], None] = lambda metrics: None,
) -> TrainResult:
    """Fine-tune the model in `model_dir` and leave a servable model directory in `out_dir`.

    Audits the masks first (ConfigError). Resumes from `out_dir`.checkpoints; a finished `out_dir` of
    the same work is returned as it is. Raises StoreError where the disk does not take the model,
    DivergedError for a gradient that is not finite.
    """
    trajectories = list(trajectories)
    rows = sft_rows(trajectories)
    audit(trajectories, stop_token_ids=stop_token_ids, rows=rows).refuse()
    rows, dropped = drop_overlong(rows, max_length=config.max_length, overlong=config.overlong)
    if not rows:
        raise ConfigError(
            f"no row is left to train on: all {dropped} are longer than max_length={config.max_length}"
        )
    identity = {
        "stage": "sft",
        "config": _identity(config),
        "model": checkpoint_digest(model_dir),
        "rows": rows_digest(rows),
    }
    if (done := finished_result(out_dir, identity)) is not None:
        return done
    with memory_returned():
        return _train(rows, dropped, model_dir, out_dir, config, identity, on_progress)


def plan_steps(rows: Sequence[Row], config: SftConfig) -> list[list[Row]]:
    """The rows of every optimiser step of the whole run: shuffled per epoch by the seed, cut by tokens."""
    ordered = sorted(rows, key=lambda row: row.key)
    steps: list[list[Row]] = []
    for epoch in range(config.epochs):
        if config.max_steps and len(steps) >= config.max_steps:
            break
        order = list(ordered)
        random.Random(f"{config.seed}/{epoch}").shuffle(order)
        steps.extend(cut_by_tokens(order, config.tokens_per_step))
    return steps[: config.max_steps or None]


def cut_by_tokens(rows: Sequence[Row], tokens: int) -> list[list[Row]]:
    """`rows` in order, cut into lists that reach `tokens` row tokens (the last may stay below)."""
    cuts: list[list[Row]] = [[]]
    size = 0
    for row in rows:
        if size >= tokens:
            cuts.append([])
            size = 0
        cuts[-1].append(row)
        size += len(row.token_ids)
    return [cut for cut in cuts if cut]


def step_loss(model: Any, packed: Pass, *, total_weight: float, precision: Precision) -> Any:
    """Loss of one pass: its share of the step's weighted mean negative log-prob (a scalar tensor)."""
    torch = require_torch()
    logprobs = token_logprobs(model, packed, precision=precision)
    weights = torch.zeros_like(logprobs.values)
    for row, (positions, entries) in zip(packed.rows, logprobs.index, strict=True):
        mask = torch.tensor(row.mask, device=weights.device)[positions] * row.weight
        weights.index_add_(0, entries, mask)
    return -(weights * logprobs.values).sum() / total_weight


def rows_digest(rows: Iterable[Row]) -> str:
    """Digest of what is trained on, independent of order."""
    return canonical.digest(sorted(canonical.digest(asdict(row)) for row in rows))


def _train(
    rows: Sequence[Row],
    dropped: int,
    model_dir: Path,
    out_dir: Path,
    config: SftConfig,
    identity: dict[str, Any],
    on_progress: Callable[[StepMetrics], None],
) -> TrainResult:
    """Run the missing steps and save the model."""
    steps = plan_steps(rows, config)
    model = load_model(model_dir, lora=config.lora, seed=config.seed).to(training_device())
    model.train()
    optimizer = make_optimizer(model, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
    checkpoints = Checkpoints(out_dir.with_name(out_dir.name + ".checkpoints"), identity=identity)
    first, state = checkpoints.restore(model, optimizer)
    history = [StepMetrics(**entry) for entry in state.get("history", [])]
    for number in range(first, len(steps)):
        rate = learning_rate_at(
            number, len(steps), config.learning_rate, config.warmup_steps, config.schedule
        )
        metrics = _step(model, optimizer, steps[number], number + 1, len(steps), rate, config)
        if number == 0:
            metrics = replace(metrics, dropped_overlong=dropped)
        history.append(metrics)
        on_progress(metrics)
        if (
            config.checkpoint_every
            and (number + 1) % config.checkpoint_every == 0
            and number + 1 < len(steps)
        ):
            checkpoints.save(number + 1, model, optimizer, {"history": [asdict(entry) for entry in history]})
    result = finish(
        model,
        model_dir,
        out_dir,
        history,
        identity=identity,
        resumed_from=first,
        kept=checkpoints.kept,
    )
    checkpoints.remove()
    return result


def _step(
    model: Any, optimizer: Any, rows: Sequence[Row], number: int, total: int, rate: float, config: SftConfig
) -> StepMetrics:
    """One optimiser step over `rows`."""
    started = time.perf_counter()
    total_weight = sum(row.weight * sum(row.mask[1:]) for row in rows)
    passes = plan_passes(rows, max_tokens=config.tokens_per_pass, share=config.share_prefixes)
    loss = 0.0
    for packed in passes:
        part = step_loss(model, packed, total_weight=total_weight, precision=config.precision)
        part.backward()
        loss += float(part.detach())
    norm = step_optimizer(model, optimizer, learning_rate=rate, max_grad_norm=config.max_grad_norm)
    return StepMetrics(
        step=number,
        total_steps=total,
        loss=loss,
        trained_tokens=sum(row.num_trained for row in rows),
        row_tokens=sum(len(row.token_ids) for row in rows),
        computed_tokens=sum(len(packed.token_ids) for packed in passes),
        grad_norm=norm,
        learning_rate=rate,
        train_seconds=time.perf_counter() - started,
    )


_NOT_SEMANTIC = ("checkpoint_every", "tokens_per_pass", "share_prefixes")
"""Settings that change how the work is done, not what comes out (but for rounding)."""


def _identity(config: SftConfig) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name not in _NOT_SEMANTIC}
