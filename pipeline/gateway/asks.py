"""What a harness asks and what it is told, whichever wire format it speaks.

Decides when two messages are the same: text is compared without outer whitespace, arguments as JSON values
(order of keys, spacing, `1` for `1.0` do not matter), call ids not at all, reasoning only where the harness
sends it back. Not covered: the wire formats (`chat`, `responses`, `messages`), which stored reply a dialogue
continues (`tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from data import canonical
from data.errors import RecordError, TrajsmithError
from data.messages import Role, ToolCall, ToolSpec, Turn
from pipeline.engines.base import Sampling
from pipeline.renderers.wire import is_well_formed


class RequestError(TrajsmithError):
    """A request that is answered by an HTTP error; `param` names the field, `code` is for programs."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_request",
        param: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_after = status, code, param, retry_after


@dataclass(frozen=True)
class Ask:
    """One request for a reply: the whole dialogue as the harness holds it, and how to sample."""

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...]
    sampling: Sampling
    """`seed` None = the gateway draws one; stop tokens are the renderer's."""
    n: int = 1
    line: str = ""
    """Name of a conversation that the harness keeps apart by its URL; "" = told apart by content."""
    idempotency_key: str = ""

    @cached_property
    def signatures(self) -> tuple[str, ...]:
        """One per turn; see `signature`."""
        return tuple(signature(turn) for turn in self.turns)

    @cached_property
    def content(self) -> str:
        """Digest of everything that decides the reply, the idempotency key aside."""
        tools = [tool.model_dump() for tool in self.tools]
        sampling = self.sampling.identity() | {"seed": self.sampling.seed}
        return canonical.digest(self.line, self.signatures, tools, sampling, self.n)

    @property
    def key(self) -> str:
        """What a repeated request is recognised by."""
        return canonical.digest(self.content, self.idempotency_key)


@dataclass(frozen=True, slots=True)
class Reply:
    """The assistant message handed to the harness, and the whole of what it may echo."""

    text: str
    calls: tuple[ToolCall, ...]
    reasoning: str
    finish: str
    """stop, length or tool_calls."""
    stop: str = ""
    """The stop string of the request at which the reply ended; it is not part of `text`."""

    @property
    def signature(self) -> str:
        """Equal to that of the same message coming back."""
        return _assistant(self.text, self.calls)


def make_reply(turn: Turn, *, cut_off: bool, stop: Sequence[str]) -> Reply:
    """What a harness is shown of a sampled turn: a call that cannot be read stays text, as it was written."""
    text, found = _stopped(turn.text, stop)
    broken = [call.raw for call in turn.tool_calls if not is_well_formed(call)]
    calls = tuple(call for call in turn.tool_calls if is_well_formed(call))
    finish = "tool_calls" if calls else "length" if cut_off else "stop"
    shown = "\n".join(filter(None, [text.strip(), *broken]))
    return Reply(shown, calls, turn.reasoning.strip(), finish, found)


def signature(turn: Turn) -> str:
    """Equal for messages that say the same; see the module docstring."""
    if turn.role is Role.ASSISTANT:
        return _assistant(turn.text, turn.tool_calls)
    return canonical.digest(str(turn.role), turn.text)


def _assistant(text: str, calls: Sequence[ToolCall]) -> str:
    written = [[call.name, _arguments(call.arguments or call.raw)] for call in calls]
    return canonical.digest("assistant", text.strip(), written)


def _arguments(text: str) -> Any:
    try:
        return _plain(canonical.loads(text))
    except (ValueError, RecordError, RecursionError):
        return text


def _plain(value: Any) -> Any:
    """Numbers as JSON readers of other languages write them back."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _stopped(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """`text` before the first stop string in it, and that string."""
    hits = [(text.index(stop), stop) for stop in stops if stop in text]
    if not hits:
        return text, ""
    position, stop = min(hits)
    return text[:position], stop
