"""The mask audit: what will be trained, token by token, and the refusal to train on a wrong mask.

It decides from the record alone: a finished turn must end in a trained stop token, unless it was sampled
with stop strings (the tags of an inline protocol, a harness's own); a trained span must belong to an
assistant turn (or be the summary that ends its segment) and hold no stop token before its end, and something
must be trained. Not covered: whether what is trained is any good (filters),
or whether the ids are what the model was shown (the rollout loop's business).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from data import canonical
from data.errors import ConfigError
from data.messages import Role
from data.trajectories import Origin, Segment, Span, SpanKind, Termination, Trajectory
from rl.rows import Row

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {SpanKind.PROMPT: "dim", SpanKind.OBSERVATION: "cyan", SpanKind.GENERATED: "bold green"}
_UNTRAINED_STYLE = "yellow"
_PROBLEMS_SHOWN = 5


@dataclass(slots=True)
class AuditReport:
    """Counts over all audited trajectories, and every problem found."""

    trajectories: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    finished_turns: int = 0
    """Trained turns that end in a trained stop token."""
    cut_off_turns: int = 0
    """Sampled turns that ended without a stop token, and that no stop string can have ended."""
    text_ended_turns: int = 0
    """Turns without a stop token that a stop string may have ended."""
    untrained: int = 0
    """Trajectories whose every token has weight 0 on purpose (turn weights)."""
    problems: list[str] = field(default_factory=list)

    def refuse(self) -> AuditReport:
        """Raise ConfigError where a problem was found; the report otherwise."""
        if not self.problems:
            return self
        shown = "\n".join(f"  - {problem}" for problem in self.problems[:_PROBLEMS_SHOWN])
        more = len(self.problems) - _PROBLEMS_SHOWN
        tail = f"\n  - and {more} more" if more > 0 else ""
        raise ConfigError(
            f"mask audit refuses to train, {len(self.problems)} problem(s) in {self.trajectories} "
            f"trajectories:\n{shown}{tail}\n"
            f"look at one with `trajsmith view`, and correct the renderer or whatever else made its spans"
        )


def audit(
    trajectories: Iterable[Trajectory],
    *,
    stop_token_ids: Collection[int],
    rows: Iterable[Row] = (),
    allow_cut_off: bool = False,
    allow_untrained: bool = False,
) -> AuditReport:
    """Check the spans of `trajectories` and, where given, that `rows` train generated tokens only.

    `stop_token_ids` are the ids that end an assistant turn (`Renderer.stop_token_ids`). With `allow_cut_off`
    most sampled turns may have hit a length limit (a policy that rambles is no mask error), with
    `allow_untrained` every trajectory may have weight 0 (nor is that).
    """
    report, masks = AuditReport(), {row.key: row.mask for row in rows}
    for trajectory in trajectories:
        report.trajectories += 1
        trained = 0
        for index, segment in enumerate(trajectory.segments):
            mask = masks.get((trajectory.trajectory_id, index)) or segment.loss_mask(trajectory.turns)
            trained += sum(value != 0.0 for value in mask)
            report.tokens += len(segment.token_ids)
            _check_segment(report, trajectory, index, mask, stop_token_ids)
        report.trained_tokens += trained
        if not trained and all(
            turn.weight == 0.0 for turn in trajectory.turns if turn.role is Role.ASSISTANT
        ):
            report.untrained += 1
        elif not trained:
            report.problems.append(f"trajectory {trajectory.trajectory_id} trains no token")
    if not allow_untrained and not report.trained_tokens:
        report.problems.append("nothing is trained: no token has a weight above 0")
    ended = report.finished_turns + report.text_ended_turns
    if not allow_cut_off and report.cut_off_turns > ended:
        report.problems.append(
            f"{report.cut_off_turns} sampled turns were cut off and only {ended} ended by themselves; "
            f"the model would not learn to stop"
        )
    return report


def _check_segment(
    report: AuditReport,
    trajectory: Trajectory,
    index: int,
    mask: Sequence[float],
    stops: Collection[int],
) -> None:
    """Apply every rule to one segment, adding to `report`."""
    segment = trajectory.segments[index]
    where = f"trajectory {trajectory.trajectory_id}, segment {index}"
    if len(mask) != len(segment.token_ids):
        report.problems.append(f"{where}: mask has {len(mask)} values for {len(segment.token_ids)} tokens")
        return
    for position, span in enumerate(segment.spans):
        at = f"{where}, tokens {span.start}-{span.end} (turn {span.turn})"
        trained = any(mask[span.start : span.end])
        if span.kind is not SpanKind.GENERATED and trained:
            report.problems.append(f"{at}: a token of a {span.kind.value} span is trained")
        if span.kind is SpanKind.GENERATED and trained:
            _check_generated(report, trajectory, segment, position, mask, stops, at)


def _check_generated(
    report: AuditReport,
    trajectory: Trajectory,
    segment: Segment,
    position: int,
    mask: Sequence[float],
    stops: Collection[int],
    at: str,
) -> None:
    """Rules of one trained generated span."""
    span = segment.spans[position]
    ids = segment.token_ids
    role = trajectory.turns[span.turn].role
    if role is not Role.ASSISTANT and not (span is segment.spans[-1] and span.turn in trajectory.summaries):
        report.problems.append(
            f"{at}: an observation token is trained, the span belongs to a {role.value} turn"
        )
    if span.start == 0:
        report.problems.append(
            f"{at}: the first token of a segment cannot be predicted, so it cannot be trained"
        )
    if any(token in stops for token in ids[span.start : span.end - 1]):
        report.problems.append(
            f"{at}: a stop token lies inside the span, so what follows it is an observation token"
        )
    if ids[span.end - 1] in stops:
        report.finished_turns += 1
        if not mask[span.end - 1]:
            report.problems.append(f"{at}: the stop token of a finished turn is not trained")
    elif _must_be_finished(trajectory, segment, position, stops):
        report.problems.append(
            f"{at}: the stop token of a finished turn is untrained (it lies outside the span)"
        )
    elif not _stops_at_text(trajectory, segment):
        report.cut_off_turns += _is_cut_off(segment, position, stops)
    elif _ends_unfinished(trajectory, segment, position):
        report.cut_off_turns += 1
    else:
        report.text_ended_turns += 1


def _must_be_finished(
    trajectory: Trajectory, segment: Segment, position: int, stops: Collection[int]
) -> bool:
    """Whether the span at `position` ends a turn that certainly ended by itself.

    A sampled turn may have been cut by a length limit and closed by the renderer, or have ended at a stop
    string; a rendered one never.
    """
    if _stops_at_text(trajectory, segment):
        return False
    is_last = segment is trajectory.segments[-1] and _next_generated(segment.spans, position) is None
    if is_last:
        return trajectory.termination is Termination.FINISHED
    return segment.origin is not Origin.SAMPLED and _is_cut_off(segment, position, stops)


def _ends_unfinished(trajectory: Trajectory, segment: Segment, position: int) -> bool:
    """Whether nothing follows the span at `position`, in an episode that did not finish by itself.

    A stop string ends a turn as silently as a limit does, but then a tool or a user answers it.
    """
    is_last = segment.spans[position].turn == len(trajectory.turns) - 1
    resumes = _next_generated(segment.spans, position) is not None
    return is_last and not resumes and trajectory.termination is not Termination.FINISHED


def _stops_at_text(trajectory: Trajectory, segment: Segment) -> bool:
    """Whether its turns may have been sampled with stop strings, which end a turn without a stop token."""
    sampled = segment.origin is not Origin.RENDERED  # what was edited may have been sampled before
    return sampled and bool(canonical.loads(trajectory.policy.sampling).get("stop"))


def _is_cut_off(segment: Segment, position: int, stops: Collection[int]) -> bool:
    """Whether the turn ends here without a stop token of its own (and does not resume inline)."""
    following = _next_generated(segment.spans, position)
    if following is not None and following.turn == segment.spans[position].turn:
        return False
    end = segment.spans[position].end
    return end == len(segment.token_ids) or segment.token_ids[end] in stops


def _next_generated(spans: Sequence[Span], position: int) -> Span | None:
    return next((span for span in spans[position + 1 :] if span.kind is SpanKind.GENERATED), None)


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens of one span, ready to show."""

    kind: SpanKind
    turn: int
    trained: bool
    text: str


def pieces(trajectory: Trajectory, decode: Callable[[Sequence[int]], str]) -> list[list[Piece]]:
    """The trajectory's segments as decoded spans; `decode` is `Renderer.decode` (special tokens shown)."""
    shown = []
    for segment in trajectory.segments:
        mask = segment.loss_mask(trajectory.turns)
        shown.append(
            [
                Piece(
                    span.kind,
                    span.turn,
                    any(mask[span.start : span.end]),
                    decode(segment.token_ids[span.start : span.end]),
                )
                for span in segment.spans
            ]
        )
    return shown


_SHOWN_CONTROLS = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"
}
"""A tool result must not steer the terminal it is printed to."""


def print_audit(
    trajectory: Trajectory, decode: Callable[[Sequence[int]], str], *, console: Console | None = None
) -> None:
    """Print one trajectory coloured by span; without colours, spans are bracketed by their kind."""
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    for index, segment in enumerate(pieces(trajectory, decode)):
        text = Text()
        text.append(f"segment {index}: ", style="bold")
        for piece in segment:
            trained = piece.kind is SpanKind.GENERATED and piece.trained
            style = (
                _STYLES[piece.kind] if trained or piece.kind is not SpanKind.GENERATED else _UNTRAINED_STYLE
            )
            label = "trained" if trained else piece.kind.value
            shown = piece.text.translate(_SHOWN_CONTROLS)
            text.append(shown if console.is_terminal else f"[{label} {piece.turn}|{shown}]", style=style)
        console.print(text, soft_wrap=True)
