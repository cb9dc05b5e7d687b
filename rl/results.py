"""What a training run reports: one record per step and one per run, written last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data.errors import ConfigError
from data.files import write_atomically
from data.summaries import damaged, read_object
from rl.disk import model_files
from rl.lm import unwrap
from rl.weights import save_adapter, save_model

RESULT_FILE = "training.json"


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One optimiser step. The fields below `dropped_overlong` are GRPO's, and 0 in supervised training."""

    step: int
    """From 1."""
    total_steps: int
    loss: float
    trained_tokens: int
    row_tokens: int
    """Tokens of the rows, shared prefixes counted for every row."""
    computed_tokens: int
    """Tokens the model computed, shared prefixes counted once."""
    grad_norm: float
    """Before clipping."""
    learning_rate: float
    train_seconds: float
    dropped_overlong: int = 0
    """Rows of the batch that were too long and left out; supervised training tells all of them at step 1."""
    rollout_seconds: float = 0.0
    push_seconds: float = 0.0
    """Time to save the weights and get them into the model server."""
    reward_mean: float = 0.0
    """Of the reward that is trained on."""
    reward_std: float = 0.0
    zero_variance_share: float = 0.0
    """Share of groups whose rewards are all equal."""
    success_rate: float = 0.0
    """Share of verified successes, whatever reward is trained on."""
    calls_mean: float = 0.0
    """Answered calls per verified rollout."""
    success_errors: float = 0.0
    """Share of the answered calls of verified successes that failed: what GRPO-RoC is there to lower."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Mean of every part of a chosen reward (`early_finish` is a rate); empty for verified success."""
    selection: dict[str, float] = field(default_factory=dict)
    """What a selection or a search did (`rl.selection`); empty without one. `zero_variance_share` is of what
    was selected, the figures above it and below it of all rollouts."""
    trajectories: int = 0
    without_reward: int = 0
    """Trajectories left out because they have no reward."""
    judge_failures: int = 0
    """Those of them that were verified and whose judge failed."""
    dropped_singletons: int = 0
    """Groups of which one trajectory was left, which has nothing to be centred over."""
    generated_tokens: int = 0
    entropy: float = 0.0
    """Mean over trained tokens, nats."""
    masked_share: float = 0.0
    """Share of trained tokens the mismatch correction zeroed or capped."""
    kl_to_sampler: float = 0.0
    """Mean of log p(sampler) - log p(trainer) over trained tokens, nats."""
    logprob_gap: float = 0.0
    """Mean |log p(sampler) - log p(trainer)| over trained tokens, before the update."""
    clip_share: float = 0.0
    """Share of trained tokens whose ratio was clipped."""
    weights_digest: str = ""
    """Digest of the weights after the step, where they were pushed."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A finished training run."""

    model_dir: str
    """Servable model directory (an adapter is merged into it)."""
    adapter_dir: str
    """The adapter alone; "" without LoRA."""
    weights_digest: str
    steps: int
    trained_tokens: int
    row_tokens: int
    computed_tokens: int
    generated_tokens: int
    seconds: float
    """Rollout, training and pushing together, over all sessions of the run."""
    train_seconds: float
    dropped_overlong: int
    """Rows that were longer than the limit and left out."""
    resumed_from: int
    """Step this session started at."""
    history: tuple[StepMetrics, ...]
    dropped_singletons: int = 0
    """Groups of one that were left out; results of before they were counted have none."""

    @property
    def losses(self) -> list[float]:
        """Loss per step."""
        return [entry.loss for entry in self.history]


def finish(
    model: Any,
    model_dir: Path,
    out_dir: Path,
    history: Sequence[StepMetrics],
    *,
    identity: Mapping[str, Any],
    resumed_from: int,
    kept: str,
) -> TrainResult:
    """Save the model (and adapter) into `out_dir`, then the result; the result file marks completion.

    StoreError where the disk does not take them; it says what is `kept` of the training (`Checkpoints.kept`).
    """
    adapter = out_dir / "adapter" if unwrap(model) is not model else None
    with model_files(out_dir, safe=kept):
        digest = save_model(model, model_dir, out_dir)
        if adapter is not None:
            save_adapter(model, adapter)
    train_seconds = sum(entry.train_seconds for entry in history)
    result = TrainResult(
        model_dir=str(out_dir),
        adapter_dir=str(adapter or ""),
        weights_digest=digest,
        steps=len(history),
        trained_tokens=sum(entry.trained_tokens for entry in history),
        row_tokens=sum(entry.row_tokens for entry in history),
        computed_tokens=sum(entry.computed_tokens for entry in history),
        generated_tokens=sum(entry.generated_tokens for entry in history),
        seconds=train_seconds + sum(entry.rollout_seconds + entry.push_seconds for entry in history),
        train_seconds=train_seconds,
        dropped_overlong=sum(entry.dropped_overlong for entry in history),
        dropped_singletons=sum(entry.dropped_singletons for entry in history),
        resumed_from=resumed_from,
        history=tuple(history),
    )
    content = {"identity": dict(identity), "result": asdict(result)}
    write_atomically(out_dir / RESULT_FILE, json.dumps(content))
    return result


def finished_result(out_dir: Path, identity: Mapping[str, Any]) -> TrainResult | None:
    """The result of a run that already finished in `out_dir`; ConfigError where it is of other work."""
    path = out_dir / RESULT_FILE
    if not path.is_file():
        return None
    content, result = _read(path)
    wanted = json.loads(json.dumps(dict(identity)))
    differing = sorted(name for name in wanted if content["identity"].get(name) != wanted[name])
    if differing:
        raise ConfigError(
            f"{out_dir} holds a finished model of other work (different: {', '.join(differing)}); "
            f"choose another directory or delete it"
        )
    return result


def read_history(path: Path) -> tuple[StepMetrics, ...]:
    """The steps of the finished training whose result is in `path`. StoreError where that is damaged."""
    return _read(path)[1].history


def _read(path: Path) -> tuple[dict[str, Any], TrainResult]:
    """A result file as written, and the result in it. StoreError where it is damaged."""
    told = {
        "of": "a finished training",
        "again": f"delete {path.parent} and train again, or restore the file",
    }
    content = read_object(path, needs=("identity", "result"), **told)
    try:
        value = dict(content["result"])
        history = tuple(StepMetrics(**entry) for entry in value.pop("history"))
        return content, TrainResult(**value, history=history)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"its result cannot be read ({error})", **told) from error
