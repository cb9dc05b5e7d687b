"""Does a text that will be published give away the private part of a task?

Two rules, applied to every published trajectory:

1. The whole private text (`Task.private`, if longer than 16 characters) stands nowhere.
2. A *secret* is a string of the private part that is neither in the task's public part nor in a tool's
   schema. It may stand in a row only where the agent or a later user said it no later than anything else
   did: an agent that finds the answer writes it. A secret of 8 characters or more in the prompt, or in
   an error or label, is a leak; so is one of 24 or more in a tool result before the agent wrote it.

Not covered: numbers and short strings (they occur by chance), a private value in another wording or
encoding (what a picture shows), and token ids (the prompt they spell is in the turns).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data.errors import RecordError
from data.messages import Role, Turn
from data.tasks import Task
from data.trajectories import Trajectory

MIN_WHOLE = 17
MIN_PROMPT = 8
MIN_RESULT = 24


class LeakError(RecordError):
    """A row that must not be published: it holds a private value of its task."""


def private_strings(task: Task, tools_text: str = "") -> list[str]:
    """The secrets of a task: long enough to be told apart, and not in its public part or `tools_text`."""
    public = "\n".join(
        [*(_turn_text(turn) for turn in task.prompt), *task.tags, *(task.tools or ()), tools_text]
    )
    public = "\n".join([public, *_strings(task.state_value()), task.environment, task.template])
    found = dict.fromkeys(text for text in _strings(task.private_value()) if len(text) >= MIN_PROMPT)
    return [text for text in found if text not in public]


def check_trajectory(trajectory: Trajectory, task: Task) -> None:
    """Raise LeakError naming the trajectory, the place and the start of the private value."""
    turns = [_turn_text(turn) for turn in trajectory.turns]
    frame = "\n".join([trajectory.error, *trajectory.labels, *trajectory.tags, trajectory.synthesizer])
    tools = "\n".join(t.name + t.description + t.parameters for s in trajectory.segments for t in s.tools)
    if len(task.private) >= MIN_WHOLE:
        for place, text in _places(turns, frame, tools):
            if task.private in text:
                raise _leak(trajectory, place, task.private)
    for secret in private_strings(task, tools):
        if secret in frame:
            raise _leak(trajectory, "its error, labels or tags", secret)
        _check_turns(trajectory, turns, secret)


def check_medium(trajectory: Trajectory, task: Task, sha256: str, data: bytes) -> None:
    """Raise LeakError where a medium's bytes hold the whole private part or a long secret as plain text."""
    whole = [task.private] if len(task.private) >= MIN_WHOLE else []
    tools = "\n".join(t.name + t.description + t.parameters for s in trajectory.segments for t in s.tools)
    for secret in (*whole, *(s for s in private_strings(task, tools) if len(s) >= MIN_RESULT)):
        if secret.encode("utf-8", errors="surrogatepass") in data:
            raise _leak(trajectory, f"medium {sha256[:12]}", secret)


def check_text(text: str, place: str, tasks: dict[str, Task]) -> None:
    """Raise LeakError where `text` (a card) holds the whole private part or a secret of any task."""
    for task in tasks.values():
        whole = [task.private] if len(task.private) >= MIN_WHOLE else []
        for secret in (*whole, *(s for s in private_strings(task) if len(s) >= MIN_RESULT)):
            if secret in text:
                raise LeakError(f"{place} holds a private value of task {task.task_id}: {secret[:40]!r}")


def _check_turns(trajectory: Trajectory, turns: list[str], secret: str) -> None:
    acted = False
    for number, (turn, text) in enumerate(zip(trajectory.turns, turns, strict=True)):
        acted = acted or turn.role is Role.ASSISTANT
        if secret not in text:
            continue
        if not acted or (turn.role is Role.SYSTEM and number not in trajectory.summaries):
            raise _leak(trajectory, f"turn {number}, before the agent acted", secret)
        if turn.role is Role.TOOL and len(secret) >= MIN_RESULT:
            raise _leak(trajectory, f"the tool result in turn {number}", secret)
        if turn.role is not Role.TOOL:
            return


def _places(turns: list[str], frame: str, tools: str) -> Iterator[tuple[str, str]]:
    yield from ((f"turn {number}", text) for number, text in enumerate(turns))
    yield "its error, labels or tags", frame
    yield "its tool schemas", tools


def _turn_text(turn: Turn) -> str:
    calls = [text for call in turn.tool_calls for text in (call.name, call.raw, call.arguments, call.error)]
    decoded = [text for call in turn.tool_calls if call.ok for text in _strings(call.parsed_arguments())]
    return "\n".join([turn.text, turn.reasoning, *calls, *decoded])


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _leak(trajectory: Trajectory, place: str, secret: str) -> LeakError:
    return LeakError(
        f"trajectory {trajectory.trajectory_id} of task {trajectory.task_id} holds a private value of its "
        f"task in {place}: {secret[:40]!r}. Nothing was published; fix the environment, or drop the row"
    )
