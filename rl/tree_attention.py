"""Attention over rows packed as a tree, block by block instead of under one square mask.

A row's own tokens attend to the row's path only, so the cost is the sum over rows of (new tokens x
row length), and the packed length may be as large as memory allows. Registered with transformers
under `NAME`; a forward pass without `tree` is plain attention. Not covered: sliding windows, and
models that do not hand extra arguments down to their attention (`rl.lm.check_attention`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from data.errors import ConfigError
from rl.packing import Pass

if TYPE_CHECKING:
    from torch import Tensor

NAME = "trajsmith_tree"


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens [start, end) that one row added, and what they see."""

    start: int
    end: int
    keys: Tensor | None
    """Packed places of the row's tokens; None = the block itself, causally."""
    visible: Tensor | None
    """(new, row length) booleans."""


def tree_blocks(packed: Pass, device: Any = "cpu") -> list[Block]:
    """One block per row of `packed` that added tokens, in packed order."""
    import torch

    blocks = []
    for path, common in zip(packed.paths, packed.shared, strict=True):
        new, start = len(path) - common, path[common] if common < len(path) else 0
        if not new:
            continue
        if not common:
            blocks.append(Block(start, start + new, None, None))
            continue
        keys = torch.tensor(path, device=device)
        visible = torch.ones(new, len(path), dtype=torch.bool, device=device).tril(common)
        blocks.append(Block(start, start + new, keys, visible))
    return blocks


def register() -> None:
    """Make `NAME` known to transformers; repeating it changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, tree_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree: Sequence[Block] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Heads-first (1, heads, tokens, width) in, (1, tokens, heads, width) out, as transformers asks."""
    import torch
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

    if tree is None and attention_mask is not None and attention_mask.shape[-1] != key.shape[-2]:
        raise ConfigError(
            f"{type(module).__name__} does not hand extra arguments down to its attention, so rows cannot be "
            f"packed for it; such a model cannot be trained here"
        )
    if tree is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return plain
    repeats = query.shape[1] // key.shape[1]
    outputs = []
    for block in tree:
        own = slice(block.start, block.end)
        keys = key[:, :, own] if block.keys is None else key.index_select(2, block.keys)
        values = value[:, :, own] if block.keys is None else value.index_select(2, block.keys)
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, own],
                repeat_kv(keys, repeats),
                repeat_kv(values, repeats),
                attn_mask=block.visible,
                is_causal=block.visible is None,
                scale=options.get("scaling"),
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None
