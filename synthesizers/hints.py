"""Hints: what a teacher is told and a student never sees.

A hint is appended to a user turn of a blueprint task; the teacher acts on that; afterwards the hint is taken
out of every turn and the dialogue is rendered anew. The tokens are then no longer what was sampled: `origin:
edited`, no log-probs, label `hinted` (Magnet: context distillation). Where a hint is repeated, or echoed by a
tool, those words go, nothing of the trajectory is trained, and a label says so. Not covered: what to hint
(the methods).
"""

from __future__ import annotations

from collections.abc import Sequence

from data import canonical
from data.messages import Role, ToolCall, Turn, text_parts
from data.tasks import Task
from data.trajectories import Origin, Trajectory
from pipeline.environments.blueprint import read_blueprint
from pipeline.errors import ConfigError
from pipeline.renderers.base import Renderer
from synthesizers.segments import rendered_segments

MARK = "[Hint]"
LABEL = "hinted"
REPEATED = "hint_repeated"


def with_hints(task: Task, hints: Sequence[str]) -> Task:
    """The blueprint task with `hints[i]` behind user turn i ("" = none)."""
    blueprint = read_blueprint(task)
    if len(hints) != len(blueprint.turns):
        raise ConfigError(f"{len(hints)} hints for the {len(blueprint.turns)} user turns of {task.task_id}")
    turns = tuple(
        turn.model_copy(update={"text": _hinted(turn.text, hint)})
        for turn, hint in zip(blueprint.turns, hints, strict=True)
    )
    private = canonical.dumps(blueprint.model_copy(update={"turns": turns}).model_dump(mode="json"))
    *before, first = task.prompt
    prompt = (*before, first.model_copy(update={"parts": text_parts(turns[0].text)}))
    return Task.model_validate(
        task.model_copy(update={"task_id": "", "private": private, "prompt": prompt}).model_dump()
    )


def without_hints(trajectory: Trajectory, task: Task, hints: Sequence[str], renderer: Renderer) -> Trajectory:
    """`trajectory` of the hinted task as one of `task`: no hint stands in it."""
    texts = iter([turn.text for turn in read_blueprint(task).turns])
    turns = [
        turn.model_copy(update={"parts": text_parts(next(texts))}) if turn.role is Role.USER else turn
        for turn in trajectory.turns
    ]
    labels = [*trajectory.labels, LABEL]
    if any(_leaks(turn, hints) for turn in turns):
        turns = [_silenced(turn, hints) for turn in turns]
        labels.append(REPEATED)
    changes = [
        (index, turn.tools_changed) for index, turn in enumerate(turns) if turn.tools_changed is not None
    ]
    segments = rendered_segments(
        turns, [(0, trajectory.first_tools), *changes], renderer=renderer, origin=Origin.EDITED
    )
    changed = {
        "task_id": task.task_id,
        "turns": tuple(turns),
        "segments": segments,
        "labels": tuple(labels),
    }
    return Trajectory.model_validate(trajectory.model_copy(update=changed).model_dump())


def repeats(turn: Turn, hints: Sequence[str]) -> bool:
    """Whether a hint stands in what the turn says, calls or answers, be it as text within JSON."""
    said = (turn.text, turn.reasoning, *(call.raw + call.arguments for call in turn.tool_calls))
    return any(text in part for text in _forms(hints) for part in said)


def _forms(hints: Sequence[str]) -> list[str]:
    """The hints as they are and as they stand in a string of JSON."""
    told = [hint for hint in hints if hint]
    return [*told, *(canonical.dumps(hint)[1:-1] for hint in told)]


def _leaks(turn: Turn, hints: Sequence[str]) -> bool:
    """Whether the turn repeats a hint, or says its mark; an answer may hold the mark for its own reasons."""
    return repeats(turn, hints if turn.result is not None else [MARK, *hints])


def _silenced(turn: Turn, hints: Sequence[str]) -> Turn:
    """The turn without words that repeat a hint; an assistant's with weight 0."""
    changed: dict[str, object] = {"weight": 0.0} if turn.role is Role.ASSISTANT else {}
    if _leaks(turn, hints) and turn.result is not None:
        changed["result"] = turn.result.model_copy(update={"parts": ()})
    elif _leaks(turn, hints):
        calls = tuple(_unwritten(call, hints) for call in turn.tool_calls)
        changed |= {"parts": (), "reasoning": "", "tool_calls": calls}
    return turn.model_copy(update=changed)


def _unwritten(call: ToolCall, hints: Sequence[str]) -> ToolCall:
    """The call as its arguments render; without them where they hold a hint."""
    holds = any(text in call.arguments for text in _forms([MARK, *hints]))
    return call.model_copy(update={"raw": ""} | ({"arguments": "{}"} if holds else {}))


def _hinted(text: str, hint: str) -> str:
    return f"{text}\n{MARK} {hint}" if hint else text
