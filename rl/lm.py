"""The causal language model as the trainers use it: loading, LoRA, log-probs of packed rows.

Log-probs are computed at trained tokens only (observation tokens never reach the vocabulary
projection, so nothing about them can touch a gradient) and the projection runs in float32, whatever
the precision of the rest. Not covered: optimisers and steps (`rl.sft`, `rl.grpo`).
"""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.errors import ConfigError
from pipeline.errors import MissingExtraError
from rl.packing import Pass, trained_places
from rl.tree_attention import NAME, register, tree_blocks

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Precision(StrEnum):
    """Arithmetic of the forward and backward pass. Weights and optimiser state stay float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    """Autocast: matrix products in bfloat16."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """A low-rank adapter on every linear layer but the vocabulary projection."""

    rank: int = 16
    alpha: int = 32
    """Scale is alpha / rank."""

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha < 1:
            raise ConfigError(
                f"LoRA rank and alpha must be at least 1, got rank={self.rank}, alpha={self.alpha}"
            )


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probs of the trained tokens of a pass, each packed place once.

    `values` (N,) natural log, with gradient; `entropies` (N,) nats, without; `index[i]` gives, for row
    i, the (positions, entries of `values`) of its trained tokens.
    """

    values: Tensor
    entropies: Tensor
    index: tuple[tuple[Tensor, Tensor], ...]


def load_model(model_dir: Path, *, lora: LoraSettings | None = None, seed: int = 0) -> Any:
    """A float32 causal LM from a directory of safetensors, wrapped in an adapter with `lora`."""
    torch = require_torch()
    from transformers import AutoModelForCausalLM

    if not (model_dir / "config.json").is_file():
        raise ConfigError(
            f"{model_dir} is no model directory (no config.json); give one that holds safetensors"
        )
    register()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(
        str(model_dir), dtype=torch.float32, attn_implementation=NAME, local_files_only=True
    )
    model.config.use_cache = False
    check_attention(model)
    if lora is None:
        return model
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with warnings.catch_warnings():
        # peft asks the model for an attribute that transformers has renamed.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)
        return get_peft_model(model, config)


def training_device() -> str:
    """Where training happens: "cuda" where torch finds a GPU, else "cpu"."""
    return "cuda" if require_torch().cuda.is_available() else "cpu"


def require_torch(what: str = "training") -> Any:
    """The torch module, or MissingExtraError with the install command; `what` needs it."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs torch; install it with: pip install 'trajsmith[rl]'"
        ) from error
    return torch


@contextmanager
def memory_returned() -> Iterator[None]:
    """Give the memory of what the block trained back to the machine, however the block ends.

    Without it the C library keeps every freed tensor: three supervised runs of a 135M model in one process
    held 3.5 GiB afterwards, 0.6 GiB with it, and the model server needs the rest.
    """
    try:
        yield
    finally:
        gc.collect()
        torch = require_torch()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        with suppress(OSError, AttributeError):  # not every C library trims
            ctypes.CDLL(None).malloc_trim(0)


def check_attention(model: Any) -> None:
    """ConfigError where a layer is no full attention, so that rows cannot be packed as a tree."""
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ConfigError(
            f"model {model.config.model_type} has attention layers of kind {sorted(kinds)}; training here "
            f"needs full attention in every layer, because rows are packed as a tree"
        )


def autocast(precision: Precision, device: str = "cpu") -> AbstractContextManager[Any]:
    """The context to run a forward pass in."""
    torch = require_torch()
    context: AbstractContextManager[Any] = torch.autocast(
        device_type=device, dtype=torch.bfloat16, enabled=precision is Precision.BFLOAT16
    )
    return context


def token_logprobs(
    model: Any, packed: Pass, *, precision: Precision = Precision.FLOAT32, temperature: float = 1.0
) -> TokenLogprobs:
    """Log-probs of every trained token of `packed` at `temperature`, one forward pass."""
    torch = require_torch()
    causal = unwrap(model)
    device = next(causal.parameters()).device
    places, before = trained_places(packed)
    with autocast(precision, device.type):
        hidden = causal.get_decoder()(
            input_ids=torch.tensor([packed.token_ids], device=device),
            position_ids=torch.tensor([packed.depth], device=device),
            # Any 4-D mask stops transformers from building one; the blocks say who sees whom.
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
            tree=tree_blocks(packed, device),
            use_cache=False,
        ).last_hidden_state[0]
    targets = torch.tensor([packed.token_ids[place] for place in places], device=device)
    selected = hidden[torch.tensor(before, device=device)].float()
    logits = torch.nn.functional.linear(selected, causal.get_output_embeddings().weight.float()) / temperature
    log_probs = torch.log_softmax(logits, dim=-1)
    values = log_probs.gather(1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropies = -(log_probs.exp() * log_probs).sum(-1)
    return TokenLogprobs(values, entropies, _row_index(packed, places, device))


def _row_index(
    packed: Pass, places: Sequence[int], device: torch.device
) -> tuple[tuple[Tensor, Tensor], ...]:
    torch = require_torch()
    entry = {place: number for number, place in enumerate(places)}
    index = []
    for row, path in zip(packed.rows, packed.paths, strict=True):
        positions = [position for position, weight in enumerate(row.mask) if weight != 0.0 and position]
        entries = [entry[path[position]] for position in positions]
        index.append((torch.tensor(positions, device=device), torch.tensor(entries, device=device)))
    return tuple(index)


def unwrap(model: Any) -> Any:
    """The causal LM inside an adapter wrapper (LoRA layers stay in place)."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
