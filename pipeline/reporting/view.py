"""One trajectory as a page: the dialogue as it was said, and the tokens as they were trained.

Tokens are coloured by span: prompt, observation, generated; generated tokens of a turn with weight 0
are hatched, because they are in context and not trained. Each generated token shows its id and
log-prob on hover, unlikely ones are underlined. Prompt and observation spans are one block each, so a
page grows with what the model said. Without a tokenizer the token ids are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import exp

from data.trajectories import Segment, Span, SpanKind, Trajectory
from pipeline.reporting.html import page

Decode = Callable[[Sequence[int]], str]

_UNLIKELY = 0.1
_MAX_GLUED = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """What is coloured as one: a generated token (or several that share a character), or a whole span."""

    text: str
    title: str = ""
    unlikely: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """One span, ready to draw."""

    label: str
    style: str
    pieces: list[Piece]
    num_tokens: int


def render_trajectory_html(trajectory: Trajectory, decode: Decode | None = None, *, back: str = "") -> bytes:
    """The page as UTF-8 bytes. `back` is a link to where the reader came from; "" for none."""
    segments = [(segment, list(_blocks(trajectory, segment, decode))) for segment in trajectory.segments]
    trained = [
        sum(value > 0 for value in segment.loss_mask(trajectory.turns)) for segment in trajectory.segments
    ]
    return page("trajectory.html.j2", t=trajectory, segments=segments, trained=trained, back=back)


def _blocks(trajectory: Trajectory, segment: Segment, decode: Decode | None) -> Iterator[Block]:
    logprobs = segment.token_logprobs() if segment.logprobs else None
    for span in segment.spans:
        ids = segment.token_ids[span.start : span.end]
        if span.kind is SpanKind.GENERATED:
            known = logprobs[span.start : span.end] if logprobs else None
            pieces = list(_pieces(ids, known, decode))
        else:
            pieces = [Piece(_text(ids, decode))]
        yield Block(_label(trajectory, span), _style(trajectory, span), pieces, len(ids))


def _pieces(ids: Sequence[int], logprobs: Sequence[float] | None, decode: Decode | None) -> Iterator[Piece]:
    """One piece per token; tokens that hold parts of one character are glued until they decode."""
    start = 0
    while start < len(ids):
        end = start + 1
        text = _text(ids[start:end], decode)
        while "\ufffd" in text and end < min(len(ids), start + _MAX_GLUED):
            end += 1
            text = _text(ids[start:end], decode)
        yield _piece(text, ids[start:end], logprobs[start:end] if logprobs else ())
        start = end


def _piece(text: str, ids: Sequence[int], logprobs: Sequence[float]) -> Piece:
    title = "token " + " ".join(map(str, ids))
    if logprobs:
        title += "\nlog p " + " ".join(f"{value:.3f}" for value in logprobs) + f"\np {exp(sum(logprobs)):.3g}"
    return Piece(text, title, bool(logprobs) and exp(min(logprobs)) < _UNLIKELY)


def _text(ids: Sequence[int], decode: Decode | None) -> str:
    return decode(ids) if decode is not None else "".join(f"{token} " for token in ids)


def _label(trajectory: Trajectory, span: Span) -> str:
    if span.turn < 0:
        return "prompt"
    return f"{span.turn} {trajectory.turns[span.turn].role}"


def _style(trajectory: Trajectory, span: Span) -> str:
    untrained = span.kind is SpanKind.GENERATED and trajectory.turns[span.turn].weight == 0
    return f"{span.kind} untrained" if untrained else str(span.kind)
