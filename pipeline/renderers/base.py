"""The Renderer contract: turns to tokens, tokens to a turn, and extension without re-rendering.

What was sampled is never encoded again: a rollout grows by `extend`, which yields only the tokens
after the sampled ones. A parse keeps the raw text and says why a call failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from data.messages import ToolSpec, Turn
from data.trajectories import Span


@dataclass(frozen=True, slots=True)
class Rendered:
    """Tokens and the spans that tile them. Generated spans include the stop token that ends the turn."""

    token_ids: list[int]
    spans: list[Span]


class Renderer(Protocol):
    """One model family's chat format."""

    name: str
    digest: str
    """Over tokenizer, template and parser: two renderers of equal digest give equal tokens."""
    stop_token_ids: tuple[int, ...]

    def render(
        self, turns: Sequence[Turn], tools: Sequence[ToolSpec] = (), *, generation_prompt: bool = True
    ) -> Rendered:
        """Tokens of a whole dialogue; assistant turns become `generated` spans (demonstrations, SFT)."""
        ...

    def extend(self, sampled: Sequence[int], turns: Sequence[Turn], *, first_turn: int) -> Rendered:
        """Tokens that follow `sampled` (an assistant turn, stop token included or cut off by length).

        Closes the turn where `sampled` lacks the stop token, renders `turns` (tool results, user turns)
        and opens the next assistant turn. All spans are observations; turn indices count from `first_turn`.
        """
        ...

    def parse(
        self, token_ids: Sequence[int], *, tools: Sequence[ToolSpec] = (), call_prefix: str = "call"
    ) -> Turn:
        """The assistant turn in sampled tokens; malformed calls keep raw text and a ParseStatus.

        Calls get ids `{call_prefix}_0`, `{call_prefix}_1`, ... Formats that write values without types
        (XML) read them by the schemas of `tools`; JSON formats ignore `tools`.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Plain text to ids, special tokens NOT recognised (hostile text stays text)."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Ids to text, special tokens shown."""
        ...
