"""TRL's GRPO trainer with the four methods replaced that cannot do what is promised here.

`_generate_and_score_completions`: advantages are ours and the number of rows varies (segments,
failed rollouts); TRL centres over a fixed group size. `training_step`: rows go through the model in
passes bounded by tokens, not by rows. `_get_per_token_logps_and_entropies`: prompts are shared and
only trained tokens projected. `_compute_loss`: the mismatch correction, which TRL ties to its own
vLLM client, is folded into per-token advantages before TRL's formula runs. The loss formula, the
`rollout_func` protocol and the driver are TRL's. Imports torch and TRL: import it inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from trl import GRPOTrainer

from rl.grpo_config import Correction, GrpoConfig, LossType
from rl.lm import token_logprobs
from rl.optimizer import clip_gradients
from rl.packing import Pass, plan_passes
from rl.rows import Row

_LOG_RATIO_LIMIT = 20.0


@dataclass(slots=True)
class StepSums:
    """Sums over the trained tokens of one step, before its update."""

    loss: float = 0.0
    tokens: int = 0
    computed_tokens: int = 0
    entropy: float = 0.0
    kl: float = 0.0
    gap: float = 0.0
    corrected: int = 0
    """Tokens whose correction weight was capped or zeroed."""
    clipped: int = 0


@dataclass(slots=True)
class RolloutBatch:
    """The passes of one batch of rollouts and what is common to them."""

    passes: list[dict[str, Any]]
    rows: list[Row]
    num_trained: int = 0
    iteration: int = 0
    old_ready: bool = False
    sums: StepSums = field(default_factory=StepSums)


class RowTrainer(GRPOTrainer):
    """See the module docstring. `sampler_is_old` = replay: the ratio is against the sampler."""

    def __init__(self, *args: Any, settings: GrpoConfig, sampler_is_old: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings
        self.sampler_is_old = sampler_is_old
        self.batch: RolloutBatch | None = None
        self.sums = StepSums()
        self.grad_norm = 0.0
        self._ready: tuple[torch.Tensor, torch.Tensor] | None = None

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output = self.rollout_func([entry["prompt"] for entry in inputs], self)
        rows: list[Row] = output["rows"]
        # Where the advantage is 0 so is the gradient; the row still counts in the token normaliser.
        useful = [row for row in rows if row.advantage != 0.0]
        num_trained = sum(row.num_trained for row in rows)
        passes = plan_passes(
            useful, max_tokens=self.settings.tokens_per_pass, share=self.settings.share_prefixes
        )
        chunks = [
            pass_inputs(packed, num_trained=num_trained, device=self.accelerator.device) for packed in passes
        ]
        return {"batch": RolloutBatch(chunks, rows, num_trained)}

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """All passes of one optimiser step, gradients summed and clipped."""
        model.train()
        if self.batch is None or self.batch.iteration == self.num_iterations:
            self.batch = self._generate_and_score_completions(inputs)["batch"]
        batch, self.sums = self.batch, StepSums()
        if self.num_iterations > 1 and not batch.old_ready:
            self._remember_old(model, batch)
        total = torch.zeros((), device=self.accelerator.device)
        for chunk in batch.passes:
            loss = self.compute_loss(model, chunk) * self._share(chunk, batch)
            self.accelerator.backward(loss)
            total += loss.detach()
        batch.iteration += 1
        self._step += 1
        self.sums.loss = float(total)
        parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
        self.grad_norm = clip_gradients(parameters, self.settings.max_grad_norm)
        return total

    def _share(self, chunk: dict[str, Any], batch: RolloutBatch) -> float:
        """Weight of a pass where TRL averages over the rows of a pass instead of the step's."""
        if self.settings.loss_type in (LossType.GRPO, LossType.DR_GRPO):
            return len(chunk["packed"].rows) / len(batch.rows)
        return 1.0

    @torch.no_grad()
    def _remember_old(self, model: Any, batch: RolloutBatch) -> None:
        """Log-probs before the first of several updates, the denominator of the later ratios."""
        for chunk in batch.passes:
            chunk["trainer_logps"], _ = self._logprobs(model, chunk)
        batch.old_ready = True

    def _logprobs(self, model: Any, chunk: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, tokens) log-probs and entropies at trained tokens, exactly 0 elsewhere."""
        packed: Pass = chunk["packed"]
        found = token_logprobs(
            model, packed, precision=self.settings.precision, temperature=self.settings.temperature
        )
        logps = torch.zeros_like(chunk["sampling_per_token_logps"])
        entropies = torch.zeros_like(logps)
        for number, (positions, entries) in enumerate(found.index):
            logps[number, positions - 1] = found.values[entries]
            entropies[number, positions - 1] = found.entropies[entries]
        return logps, entropies

    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any, None]:
        assert self._ready is not None, "_compute_loss computes the log-probs first"
        return (*self._ready, None)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        logps, entropies = self._ready = self._logprobs(model, inputs)
        mask = inputs["tool_mask"].bool()
        sampled = torch.where(mask, inputs["sampling_per_token_logps"], 0.0)
        trainer = inputs.get("trainer_logps", logps.detach())
        old = sampled if self.sampler_is_old else trainer
        weights, changed = self._correction(trainer - sampled, mask)
        self._add_sums(inputs, logps.detach(), old, entropies, sampled, mask, changed)
        advantages = torch.where(mask, inputs["advantages"] * weights, 0.0)
        loss: torch.Tensor = super()._compute_loss(
            model, inputs | {"old_per_token_logps": old, "advantages": advantages}
        )
        self._ready = None
        return loss

    def _correction(self, log_weights: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Per-token weights and where they were capped or zeroed."""
        settings = self.settings
        weights = log_weights.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).exp()
        if self.sampler_is_old or settings.correction is Correction.NONE:
            return torch.ones_like(weights), torch.zeros_like(mask)
        high = weights > settings.correction_max
        if settings.correction is Correction.TIS:
            return weights.clamp(max=settings.correction_max), high & mask
        outside = high | (weights < settings.correction_min)
        return weights.masked_fill(outside, 0.0), outside & mask

    def _add_sums(
        self,
        inputs: dict[str, Any],
        logps: torch.Tensor,
        old: torch.Tensor,
        entropies: torch.Tensor,
        sampled: torch.Tensor,
        mask: torch.Tensor,
        changed: torch.Tensor,
    ) -> None:
        sums = self.sums
        clipped = clipped_tokens((logps - old).exp(), inputs["advantages"], self.settings)
        sums.tokens += int(mask.sum())
        sums.computed_tokens += len(inputs["packed"].token_ids)
        sums.entropy += float(entropies[mask].sum())
        sums.kl += float((sampled - logps)[mask].sum())
        sums.gap += float((sampled - logps)[mask].abs().sum())
        sums.corrected += int(changed.sum())
        sums.clipped += int((clipped & mask).sum())


def clipped_tokens(ratio: torch.Tensor, advantages: torch.Tensor, settings: GrpoConfig) -> torch.Tensor:
    """Where the loss clips a token: it loses its gradient, or, with cispo, part of its weight."""
    if settings.loss_type is LossType.CISPO:
        return ratio > settings.epsilon_high
    high = (ratio > 1 + settings.epsilon_high) & (advantages > 0)
    return high | ((ratio < 1 - settings.epsilon) & (advantages < 0))


def pass_inputs(packed: Pass, *, num_trained: int, device: Any) -> dict[str, Any]:
    """The tensors TRL's loss takes, one row per row of `packed`, padded on the right.

    The first token of a row is TRL's prompt and the rest its completion. Per-token advantages are the
    row's advantage times turn and sample weight; everything outside trained tokens is exactly 0.
    """
    length = max(len(row.token_ids) for row in packed.rows) - 1

    def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*row, *[0] * (length - len(row))] for row in rows], dtype=dtype, device=device)

    weights = padded([row.mask[1:] for row in packed.rows], torch.float32)
    mask = weights != 0.0
    scale = torch.tensor([[row.advantage * row.weight] for row in packed.rows], device=device)
    sampled = padded([row.logprobs[1:] for row in packed.rows], torch.float32)
    return {
        "packed": packed,
        "prompt_ids": torch.tensor([row.token_ids[:1] for row in packed.rows], device=device),
        "prompt_mask": torch.ones(len(packed.rows), 1, dtype=torch.long, device=device),
        "completion_ids": padded([row.token_ids[1:] for row in packed.rows], torch.long),
        "completion_mask": padded([[1] * (len(row.token_ids) - 1) for row in packed.rows], torch.long),
        "tool_mask": mask.long(),
        "sampling_per_token_logps": torch.where(mask, sampled, 0.0),
        "advantages": torch.where(mask, weights * scale, 0.0),
        "num_items_in_batch": torch.tensor(float(num_trained), device=device),
    }
