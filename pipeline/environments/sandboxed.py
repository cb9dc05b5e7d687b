"""What worlds that execute code share: a sandbox made when first needed, and the memory of what ran in it.

A program is run once: the same code, files, input and limits give the stored outcome, so that a group's equal
first steps, replays and snapshots cost nothing and answer the same. Endings that depend on the machine
(timeout, out of memory) are run again. Not covered: programs that are meant to be random.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Any

from data import canonical
from pipeline.sandbox.base import Execution, Limits, Outcome, Program, Sandbox
from pipeline.sandbox.load import SandboxChoice, load_sandbox, parted_choice

_CLOCKED = (Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY)


class SandboxRunner:
    """A sandbox by name, or `{name: ..., options}` (see `load_sandbox`); at most `size` outcomes are kept.

    Raises ConfigError for a sandbox that there is not; whether it works here is seen at the first run.
    """

    def __init__(self, sandbox: SandboxChoice = "bubblewrap", *, size: int = 4096) -> None:
        self.name, self._options = parted_choice(sandbox)
        self.size = size
        self.num_runs = 0
        """Programs that were really run."""
        self._sandbox: Sandbox | None = None
        self._secret = secrets.token_hex(16)
        self._known: OrderedDict[str, Execution] = OrderedDict()

    def token(self, *content: Any) -> str:
        """A word that the program with this content cannot guess, the same each time it is asked for."""
        return canonical.digest(self._secret, *content, length=16)

    async def run(self, program: Program, limits: Limits) -> Execution:
        """As `Sandbox.run`, from memory where it can be."""
        key = canonical.digest(repr(program), repr(limits))
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        if self._sandbox is None:
            self._sandbox = load_sandbox(self.name, **self._options)
        self.num_runs += 1
        execution = await self._sandbox.run(program, limits)
        if execution.outcome not in _CLOCKED:
            self._known[key] = execution
            if len(self._known) > self.size:
                self._known.popitem(last=False)
        return execution

    async def close(self) -> None:
        """Release the sandbox; the next run makes a new one."""
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.close()
