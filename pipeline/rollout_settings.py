"""What may be set about a rollout, and which of it changes what the model is shown.

`RolloutSettings.digest` is the harness part of a policy's identity: two rollouts of different digests
are not comparable. Deadlines are left out of it on purpose: they change who finishes, never what is
shown. Not covered: sampling (`pipeline.engines.base.Sampling`) and task budgets (`data.tasks.Budget`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

from data import canonical
from data.errors import ConfigError
from pipeline.memory.showing import ShownMemory


class Mode(StrEnum):
    """How calls are written."""

    CHAT = "chat"
    """Calls end an assistant turn; results come back as turns of their own."""
    INLINE = "inline"
    """A closing tag stops generation, the result is spliced in, and the same turn resumes."""


class ContextPolicy(StrEnum):
    """What happens when the next turn no longer fits the context window."""

    NONE = "none"
    """The episode ends with context_overflow."""
    DROP_OLD_RESULTS = "drop_old_results"
    """Older tool results are replaced by a placeholder; a new segment starts."""
    SUMMARISE = "summarise"
    """The policy ends the segment with a summary of it; a new one shows the request, the summary and the
    last exchange."""


@dataclass(frozen=True, slots=True)
class SummaryFormat:
    """How the policy is asked for a summary, and how the next segment shows it."""

    max_tokens: int = 256
    """New tokens of a summary; a longer one ends the episode."""
    trained: bool = False
    """Whether the summary's tokens count as the policy's own (turn weight 1) or as context (0)."""
    request: str = (
        "The context is full and earlier messages will be removed. Do not call a tool now. Write down what "
        "the rest of the work needs: what was done, what was found (names, ids and numbers exactly), what is "
        "left to do."
    )
    frame: str = "Earlier messages were removed. Your own notes of them:\n{summary}"
    """How it is shown; `{summary}` is replaced once."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or not self.request.strip():
            raise ConfigError(f"a summary needs a request and at least 1 token, got {self}")
        if "{summary}" not in self.frame:
            raise ConfigError(f"summary frame must contain {{summary}}, got {self.frame!r}")


@dataclass(frozen=True, slots=True)
class InlineFormat:
    """Tags of an inline protocol: `<search>q</search>`, answered by `<information>..</information>`."""

    tool: str
    """Name of the tool the tagged text is given to."""
    argument: str
    """Name of that tool's string argument."""
    open: str = "<search>"
    close: str = "</search>"
    observation: str = "\n\n<information>{result}</information>\n\n"
    """How a result is spliced in; `{result}` is replaced once, everything else is literal."""
    final: str = "</answer>"
    """Closing tag that ends the turn; "" = only a stop token does."""

    def __post_init__(self) -> None:
        if not self.open or not self.close:
            raise ConfigError(f"inline tags must not be empty, got open={self.open!r} close={self.close!r}")
        if "{result}" not in self.observation:
            raise ConfigError(f"inline observation must contain {{result}}, got {self.observation!r}")

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts that end a piece of a turn besides the stop tokens."""
        return (self.close, self.final) if self.final else (self.close,)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds after which a wait is given up; whoever held the clock is blamed."""

    open: float = 60.0
    engine: float = 300.0
    tool: float = 60.0
    user: float = 120.0
    verify: float = 120.0
    close: float = 30.0
    group: float | None = None
    """From the start of a group's first rollout; later stragglers are cut and the rest of the group kept."""

    def __post_init__(self) -> None:
        for name, seconds in asdict(self).items():
            if seconds is not None and seconds <= 0:
                raise ConfigError(f"deadline {name} must be positive seconds, got {seconds}")


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of the rollout loop; the defaults suit chat models with a few thousand tokens of context."""

    mode: Mode = Mode.CHAT
    inline: InlineFormat | None = None
    """Required in inline mode, refused otherwise."""
    max_parallel_calls: int = 8
    """Calls executed per assistant turn; each surplus call is answered by an observation that says so."""
    max_context_tokens: int = 4096
    """The model's window: prompt, observations and new tokens of one segment."""
    context_policy: ContextPolicy = ContextPolicy.NONE
    keep_results: int = 2
    """Tool results that drop_old_results leaves in place, newest first."""
    summary: SummaryFormat = field(default_factory=SummaryFormat)
    """Read by summarise only."""
    max_repeats: int = 3
    """Equal rounds (same calls, same answers) in a row that end the episode; 0 = never."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    memory: ShownMemory | None = None
    """Workflows shown in the prompt."""

    def __post_init__(self) -> None:
        if (self.mode is Mode.INLINE) != (self.inline is not None):
            raise ConfigError(
                f"mode {self.mode} with inline={self.inline}: an InlineFormat goes with inline mode only"
            )
        if self.mode is Mode.INLINE and self.context_policy is ContextPolicy.SUMMARISE:
            raise ConfigError("context_policy summarise needs mode chat: an inline turn has no end to ask at")
        for name, least in (
            ("max_parallel_calls", 1),
            ("max_context_tokens", 2),
            ("keep_results", 0),
            ("max_repeats", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")

    @property
    def digest(self) -> str:
        """16 hex digits over everything but the deadlines and what is not read."""
        value = {each.name: getattr(self, each.name) for each in fields(self)}
        del value["deadlines"], value["memory"]
        value["inline"] = None if self.inline is None else asdict(self.inline)
        value["summary"] = asdict(self.summary)
        if self.context_policy is not ContextPolicy.SUMMARISE:
            del value["summary"]
        if self.memory is not None:
            value["memory"] = self.memory.digest
        return canonical.digest("harness", value, length=16)
