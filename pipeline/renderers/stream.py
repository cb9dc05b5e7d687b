"""Token and span builder shared by our renderers.

Text is gathered and encoded in one piece up to the next added token or span boundary, exactly where a
whole-string tokenizer splits too; that is what makes our tokens equal to those of the chat template.
"""

from __future__ import annotations

from data.trajectories import Span, SpanKind
from pipeline.renderers.base import Rendered
from pipeline.renderers.vocabulary import Vocabulary


class TokenStream:
    """Append text and markup, close spans, take the result. `started`: something precedes this stream."""

    def __init__(self, vocabulary: Vocabulary, *, started: bool = False) -> None:
        self._vocabulary = vocabulary
        self._ids: list[int] = []
        self._spans: list[Span] = []
        self._pending = ""
        self._started = started

    @property
    def started(self) -> bool:
        """Whether anything stands before the next piece."""
        return self._started or bool(self._ids) or bool(self._pending)

    def text(self, text: str) -> None:
        """Text of others: no added token is recognised in it."""
        self._pending += text

    def glue(self, text: str) -> None:
        """The template's own text: every added token is recognised."""
        self._pieces(text, control=True)

    def markup(self, text: str) -> None:
        """Text the model wrote as markup: tags are recognised, control tokens are not."""
        self._pieces(text, control=False)

    def close(self, kind: SpanKind, turn: int, call_id: str = "") -> None:
        """End the current span here; nothing happens where it would be empty."""
        self._flush()
        start = self._spans[-1].end if self._spans else 0
        if len(self._ids) > start:
            self._spans.append(Span(start, len(self._ids), kind, turn, call_id))

    def rendered(self) -> Rendered:
        """The tokens, tiled by the closed spans."""
        return Rendered(token_ids=self._ids, spans=self._spans)

    def _pieces(self, text: str, *, control: bool) -> None:
        for piece, is_mark in self._vocabulary.split(text, control=control):
            if is_mark:
                self._flush()
                self._ids.append(self._vocabulary.marks[piece])
            else:
                self._pending += piece

    def _flush(self) -> None:
        self._ids.extend(self._vocabulary.plain(self._pending))
        self._pending = ""
