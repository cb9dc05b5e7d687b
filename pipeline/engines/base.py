"""The Engine contract: token ids in, token ids and log-probs out.

The log-probs an engine returns are those of the distribution it sampled from ("processed": after
temperature and any truncation). A greedy draw has no distribution: its log-probs are the model's own at
temperature 1, as `score` gives them. Text never crosses this boundary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol


class FinishReason(StrEnum):
    """Why generation of one completion ended."""

    STOP = "stop"
    """A stop token or stop string; a stop token is the last of `token_ids`."""
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. The defaults sample from the model's own distribution, untruncated."""

    temperature: float = 1.0
    """0 = greedy."""
    max_tokens: int = 512
    """New tokens per call."""
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    min_p: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    """Stop strings, kept in the output; for the inline protocol."""
    seed: int | None = None

    @property
    def truncated(self) -> bool:
        """Whether the sampled distribution is not the model's own at this temperature; GRPO refuses it."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0

    def identity(self) -> dict[str, Any]:
        """What makes two rollouts comparable: everything but the seed."""
        value = asdict(self)
        del value["seed"]
        return value


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled continuation. `logprobs` has one natural-log value per token of `token_ids`."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weights_version: str = ""


class Engine(Protocol):
    """A model that continues token sequences. Implementations: `vllm`, `scripted`."""

    name: str
    """Model name as results should show it."""
    weights_version: str
    """Digest or counter of the weights that answer now."""

    async def generate(
        self, token_ids: list[int], sampling: Sampling, *, n: int = 1, affinity: str = ""
    ) -> list[Completion]:
        """`n` continuations of `token_ids`. Calls of one `affinity` go to one replica (prefix cache).

        Raises EngineError where the server fails, EngineProtocolError where its answer cannot be trusted.
        """
        ...

    async def score(self, token_ids: list[int]) -> list[float]:
        """Natural-log probability of each token given those before it; length `len(token_ids) - 1`."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
