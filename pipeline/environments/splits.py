"""Which split a generated task belongs to: decided by the digest of what makes it one, so none is in two.

Of 20 shares dev has 3, heldout 4, train the rest. UNSEEN has other templates, which are in no other split.
Not covered: worlds that split by something else.
"""

from __future__ import annotations

import hashlib

from pipeline.environments.base import Environment

UNSEEN = "heldout_unseen"
"""The split of unseen templates."""
NUM_TASKS = {"train": 12_000, "dev": 600, "heldout": 1_200, UNSEEN: 600}
"""How many tasks a generated world draws, at the most."""
EVALUATED = ("dev", "test", "heldout")
"""How the names of splits begin that evaluations read."""
_SHARES = {"dev": 3, "heldout": 4}
_NUM_SHARES = 20


def training_split(environment: Environment) -> str:
    """The split whose gold methods learn from: `train`, or the first where none is called so."""
    return "train" if "train" in environment.splits else environment.splits[0]


def split_of(text: str) -> str:
    """train, dev or heldout."""
    share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % _NUM_SHARES
    for name, count in _SHARES.items():
        if share < count:
            return name
        share -= count
    return "train"
