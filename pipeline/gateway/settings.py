"""What may be set about a gateway. Not covered: sampling, which requests ask for."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from data import canonical
from pipeline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Settings of a gateway; the token and the waits change nothing about what is sampled."""

    harness: str = "harness"
    """Name and version of what asks: part of the policy's identity."""
    max_context_tokens: int = 4096
    max_choices: int = 16
    allow_truncated: bool = True
    """Take top_p, top_k and min_p from requests. GRPO refuses what was sampled with them."""
    engine_seconds: float = 300.0
    """Wait for one reply."""
    verify_seconds: float = 120.0
    idle_seconds: float = 900.0
    """Time without a request after which an episode that nobody closed is given up."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    """What opens and closes episodes. Keep it from the agent: whoever holds it sets rewards."""

    def __post_init__(self) -> None:
        if len(self.token) < 16 or not self.token.isascii() or not self.token.isprintable():
            raise ConfigError("the gateway's token must be at least 16 printable ASCII characters")
        for name in ("max_context_tokens", "max_choices", "engine_seconds", "verify_seconds", "idle_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")

    @property
    def digest(self) -> str:
        """16 hex digits over what changes what the model is shown."""
        return canonical.digest("gateway", self.harness, self.max_context_tokens, length=16)
