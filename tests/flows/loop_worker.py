"""`trajsmith loop` in a process of its own, to be killed at a named point."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import flows.stages.loop.driver  # noqa: F401  what the command imports late is loaded once, in the fork server
import rl.sft  # noqa: F401
from data import faults
from tests.flows.lab import trajsmith


def main(recipe: Path, runs: Path, kill_at: str) -> None:
    """Run the loop until it ends or dies at `kill_at`; ends as the verb."""
    torch.set_num_threads(1)
    os.environ[faults.VARIABLE] = kill_at
    done = trajsmith("loop", recipe, "--runs", runs)
    print(done.err)
    raise SystemExit(done.code)
