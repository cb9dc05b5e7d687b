"""The two trees that seed tools are drawn from: topics, and demands on a tool's structure.

A tree is nested mappings that end in lists of leaves. A path is drawn by walking down from the root, every
branch of a fork as likely as another, so that a bushy part is drawn no oftener than a bare one. Not covered:
what a demand means (`demands`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.environments.plain_yaml import parse_document, read_text
from pipeline.errors import ConfigError

Leaf = tuple[str, ...]
"""A path from the root to a leaf, the leaf last."""
_HERE = Path(__file__).parent
CONTEXTS, CONSTRAINTS = _HERE / "contexts.yaml", _HERE / "constraints.yaml"
"""The trees that ship."""


def read_tree(path: Path, *, words: Collection[str] = ()) -> Any:
    """The tree in a YAML or JSON file. ConfigError where it is none, or, with `words`, holds another word."""
    tree = parse_document(read_text(path), where=str(path))
    found = tuple(leaves(tree, where=str(path)))
    unknown = sorted({word for leaf in found for word in leaf} - {*words}) if words else []
    if unknown:
        raise ConfigError(f"{path}: no demand {unknown[0]!r}; there are: {', '.join(words)}")
    return tree


def leaves(tree: Any, *, where: str = "tree", above: Leaf = ()) -> Iterator[Leaf]:
    """All paths of a tree, in its order. ConfigError where it is no tree, or a leaf occurs twice."""
    if isinstance(tree, Mapping) and tree:
        for name, inner in tree.items():
            yield from leaves(inner, where=where, above=(*above, str(name)))
        return
    is_list = isinstance(tree, Sequence) and not isinstance(tree, str) and tree
    if not is_list or not all(isinstance(leaf, str) and leaf.strip() for leaf in tree):
        at = " > ".join(above) or "the root"
        raise ConfigError(f"{where}: {at} must hold further names, or a list of leaves, got {tree!r:.60}")
    if len(set(tree)) < len(tree):
        raise ConfigError(f"{where}: {' > '.join(above)} names a leaf twice: {', '.join(tree)}")
    yield from ((*above, leaf) for leaf in tree)


def draw_leaf(tree: Any, rng: random.Random, *, used: Collection[Leaf] = ()) -> Leaf:
    """The path of a leaf, one that is not `used` as long as there is one."""
    left = any(leaf not in used for leaf in leaves(tree))
    while True:
        drawn = _walked(tree, rng)
        if drawn not in used or not left:
            return drawn


def _walked(tree: Any, rng: random.Random) -> Leaf:
    walked: Leaf = ()
    while isinstance(tree, Mapping):
        name = rng.choice(list(tree))
        walked, tree = (*walked, str(name)), tree[name]
    return (*walked, rng.choice(list(tree)))
