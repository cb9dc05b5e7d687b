"""Prefix sharing: many rows as one tree, so that a shared prompt is computed once.

Rows sorted by their ids form a radix tree; its tokens are laid out in one sequence, each at its own
depth (position ids) and seeing its own ancestors only (`rl.tree_attention`). Log-probs and gradients
equal those of the unpacked rows. Not covered: running the model (`rl.lm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl.rows import Row


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows that go through the model together, and how their tokens are laid out.

    `token_ids[q]` is the token at packed place q and `depth[q]` its position in its row;
    `paths[i][t]` is the packed place of token t of row i.
    """

    rows: tuple[Row, ...]
    token_ids: tuple[int, ...]
    depth: tuple[int, ...]
    paths: tuple[tuple[int, ...], ...]
    shared: tuple[int, ...]
    """Per row: how many of its first tokens an earlier row of the pass already laid out."""


def pack(rows: Sequence[Row], *, share: bool = True) -> Pass:
    """Lay out `rows` (in sorted order of their ids) as one tree; without `share`, side by side."""
    ordered = sorted(rows, key=lambda row: (row.token_ids, row.key))
    ids: list[int] = []
    depth: list[int] = []
    paths: list[tuple[int, ...]] = []
    shared: list[int] = []
    for index, row in enumerate(ordered):
        common = common_prefix(ordered[index - 1].token_ids, row.token_ids) if share and index else 0
        new = tuple(range(len(ids), len(ids) + len(row.token_ids) - common))
        paths.append((paths[-1][:common] if common else ()) + new)
        ids.extend(row.token_ids[common:])
        depth.extend(range(common, len(row.token_ids)))
        shared.append(common)
    return Pass(tuple(ordered), tuple(ids), tuple(depth), tuple(paths), tuple(shared))


def plan_passes(rows: Sequence[Row], *, max_tokens: int, share: bool = True) -> list[Pass]:
    """Cut `rows` into passes of at most `max_tokens` packed tokens each (a longer row goes alone)."""
    ordered = sorted(rows, key=lambda row: (row.token_ids, row.key))
    passes: list[Pass] = []
    current: list[Row] = []
    size = 0
    for row in ordered:
        common = common_prefix(current[-1].token_ids, row.token_ids) if share and current else 0
        if current and size + len(row.token_ids) - common > max_tokens:
            passes.append(pack(current, share=share))
            current, size, common = [], 0, 0
        current.append(row)
        size += len(row.token_ids) - common
    return [*passes, pack(current, share=share)] if current else passes


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of leading ids that are equal, by bisection over slices."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def trained_places(packed: Pass) -> tuple[list[int], list[int]]:
    """Packed places of the trained tokens, each once, and the places of their predecessors."""
    before: dict[int, int] = {}
    for row, path in zip(packed.rows, packed.paths, strict=True):
        for position, weight in enumerate(row.mask):
            if weight != 0.0 and position:
                before[path[position]] = path[position - 1]
    places = sorted(before)
    return places, [before[place] for place in places]
