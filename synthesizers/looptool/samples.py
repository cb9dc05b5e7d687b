"""Step samples: one assistant turn of a successful trajectory, with the tokens that stand before it.

A trajectory is cut into steps by its spans, so a context is exactly what was shown, never a re-encoding. No
step are turns of weight 0, turns without words or calls, calls that did not parse, and calls that their tool
answered with an error: by status, never by the word "error" in an answer (LoopTool's code goes by the word).
Also whether a written turn matches its label is decided here: calls as a multiset, words by their typed
answer. Not covered: who is right where they differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from data.messages import Role, ToolSpec, ToolStatus, Turn
from data.tasks import Task
from data.trajectories import SpanKind, Trajectory
from pipeline.checks.answers import bare, marked_answer
from pipeline.checks.matching import made_calls, same_calls
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.blueprint import Expects, is_blueprint, read_blueprint
from pipeline.environments.blueprint_session import reply_fits
from pipeline.environments.python_math.answers import boxed


class StepSample(NamedTuple):
    """One assistant turn as it was learned."""

    trajectory: Trajectory
    turn: int
    """Index into the trajectory's turns."""
    context: tuple[int, ...]
    """Token ids before the turn."""
    tools: tuple[ToolSpec, ...]
    """Tools shown."""

    @property
    def label(self) -> Turn:
        """What was said or called."""
        return self.trajectory.turns[self.turn]

    @property
    def step_id(self) -> str:
        """`<trajectory_id>#<turn>`."""
        return make_step_id(self.trajectory.trajectory_id, self.turn)


def make_step_id(trajectory_id: str, turn: int) -> str:
    """The id of a step sample."""
    return f"{trajectory_id}#{turn}"


def trained_at(turns: Sequence[Turn], places: Collection[int]) -> tuple[Turn, ...]:
    """The turns, of which the agent's own are trained at `places` only: weight 0 elsewhere."""
    agents = (Role.ASSISTANT, Role.SYSTEM)
    return tuple(
        turn.model_copy(update={"weight": 0.0}) if turn.role in agents and place not in places else turn
        for place, turn in enumerate(turns)
    )


def step_samples(trajectory: Trajectory) -> Iterator[StepSample]:
    """The steps of a successful trajectory in order; none of any other one."""
    if not trajectory.success:
        return
    failed = {
        turn.result.call_id
        for turn in trajectory.turns
        if turn.result is not None and turn.result.status is not ToolStatus.OK
    }
    for segment in trajectory.segments:
        for span in segment.spans:
            if span.kind is not SpanKind.GENERATED:
                continue
            turn = trajectory.turns[span.turn]
            if _is_step(turn, failed):
                yield StepSample(trajectory, span.turn, segment.token_ids[: span.start], segment.tools)


def _is_step(turn: Turn, failed: set[str]) -> bool:
    if turn.role is not Role.ASSISTANT or turn.weight <= 0.0:
        return False
    if not turn.tool_calls:
        return bool(turn.text.strip())
    return all(call.ok and call.call_id not in failed for call in turn.tool_calls)


def difference(label: Turn, written: Turn, *, fits: bool = True) -> str:
    """How `written` differs from `label`: a stable identifier, "" where it does not.

    Calls match as a multiset of (name, arguments) in any order, whatever is said beside them. Words match
    words of the same typed (`ASK day`) or marked answer (`<answer>`, `\\boxed`); plain words match any plain
    words, unless `fits` says that they lack what the user asked for.
    """
    wanted, made = made_calls([label]), made_calls([written])
    if wanted and not made:
        return "text_for_call"
    if made and not wanted:
        return "call_for_text"
    if wanted:
        return "" if same_calls(wanted, made) else "other_calls"
    said = read_answer(written.text)
    if said.kind is AnswerKind.SILENT or said != read_answer(label.text):
        return "other_answer"
    marked = _marked(label.text)
    if marked is not None and _marked(written.text) != marked:
        return "other_answer"
    return "" if fits else "lacks_value"


def _marked(text: str) -> str | None:
    """The marked answer as it is compared; None where nothing is marked."""
    found = boxed(text)
    found = marked_answer(text) if found is None else found
    return None if found is None else " ".join(bare(found).lstrip("$").casefold().split())


def reply_holds(task: Task | None, sample: StepSample, written: Turn) -> bool:
    """Whether words that close a planned user turn hold the values it must hold; true of all other words."""
    if task is None or not is_blueprint(task) or written.tool_calls or sample.label.tool_calls:
        return True
    turns = read_blueprint(task).turns
    said = sum(turn.role is Role.USER for turn in sample.trajectory.turns[: sample.turn]) - 1
    if not 0 <= said < len(turns) or turns[said].expects is not Expects.ACT:
        return True
    return reply_fits(turns[said], written.text)
