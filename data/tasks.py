"""A task: what the agent is asked, where, with which tools, verified how, within which budget.

The public part is what an agent may see or act on; `private` (answers, hidden tests, later user
turns) reaches the verifier only. Identity covers both, the private part as a salted digest, so that
publishing ids gives nothing away.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from data import canonical
from data.messages import Record, Turn

SCHEMA_VERSION = 1


class Budget(Record):
    """Limits of one episode, and the reward that exhausting the turn or token budget scores.

    Running out of `max_seconds` scores nothing: what was slow is a server, a tool or a user.
    """

    max_turns: int = Field(default=16, ge=1)
    """Assistant turns."""
    max_tokens: int = Field(default=4096, ge=1)
    """Tokens of the whole episode, prompt and observations included."""
    max_seconds: float = Field(default=600.0, gt=0)
    exhausted_reward: float = 0.0


class Task(Record):
    """One task. Make it with keyword arguments; `task_id` is computed and checked."""

    schema_version: int = SCHEMA_VERSION
    task_id: str = ""
    environment: str
    split: str
    template: str
    """The generator's template: the cluster of every statistic."""
    tags: tuple[str, ...] = ()
    """Declared capabilities ("refuse", "recover", ...), the axes of diagnosis."""
    prompt: tuple[Turn, ...]
    """System and first user turns."""
    tools: tuple[str, ...] | None = None
    """Names of the tools shown, in prompt order; None = all of the environment's."""
    state: str = "{}"
    """Initial state, JSON text; may be partly visible through tools."""
    private: str = "{}"
    """Gold calls, answers, later user turns: JSON text for the verifier and the gold policy only."""
    verifier: str
    """Verifier name and version, e.g. "travel_desk/end_state/1"."""
    budget: Budget = Budget()
    synthesizer: str = ""
    parents: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _identify(self) -> Task:
        expected = self.compute_id()
        if not self.task_id:
            object.__setattr__(self, "task_id", expected)
        elif self.task_id != expected:
            raise ValueError(
                f"task_id {self.task_id} does not match its content ({expected}); leave it empty"
            )
        return self

    def compute_id(self) -> str:
        """24 hex digits over the public part, the verifier and a salted digest of the private part."""
        hidden = {"task_id", "private", "schema_version", "split", "parents"}
        public = self.model_dump(mode="json", exclude=hidden)
        for turn in public["prompt"]:
            turn.pop("started_at"), turn.pop("seconds")
        return canonical.digest(public, canonical.digest("trajsmith.private", self.private), length=24)

    def private_value(self) -> Any:
        """The private part, decoded."""
        return canonical.loads(self.private)

    def state_value(self) -> Any:
        """The initial state, decoded."""
        return canonical.loads(self.state)
