"""Whether a sub-goal is reached: by program where one can tell, by a chat where none can.

A program looks at three things: every planned look-up was made and answered (or one of the same tool that
answered the same), the state is the one the plan leads to, and the closing words hold what must be said.
IBSEN asks after every line, and answers "no" before 6 lines and "yes" after 9, which its drama needs. Our
bounds are smaller and options, lines that make a planned call do not count, and where IBSEN forces a yes the
performance is given up: a forced yes would be a false label. Not covered: what is done about a no (`stage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from data.messages import Turn
from pipeline.chat.base import Chat
from pipeline.checks.answers import says
from pipeline.checks.typed_answers import AnswerKind, read_answer
from pipeline.environments.blueprint import MAX_MUST_SAY
from synthesizers.director_actor.rehearsal import Rehearsed
from synthesizers.director_actor.roles import GOAL_CHECKER, GoalRequest
from synthesizers.director_actor.subgoals import executed_key
from synthesizers.execution import Executed
from synthesizers.roles import shown_dialogue

MIN_LINES = 1
"""Before that many lines a goal is not reached. Ours; IBSEN's code has 6."""
MAX_LINES = 4
"""After that many lines more than planned calls a sub-goal is over. Ours; IBSEN's code has 9 in all."""


class Found(NamedTuple):
    """What a check said: `problem` is "" where the goal is reached."""

    problem: str
    by: tuple[str, ...]


async def check_goal(
    planned: Rehearsed,
    made: Sequence[Executed],
    *,
    state: str,
    reply: str,
    must_say: Sequence[str],
    dialogue: Sequence[Turn],
    checker: Chat | None,
) -> Found:
    """Whether the sub-goal is reached by the calls `made` so far in the dialogue and the closing words."""
    by = tuple(check for check, used in _kinds(planned, must_say).items() if used)
    problem = _by_program(planned, made, state=state, reply=reply, must_say=must_say)
    if problem or not planned.goal.judged:
        return Found(problem, by)
    if checker is None:
        return Found("no program can tell, and nobody else is asked", by)
    request = GoalRequest(goal=planned.goal.text, dialogue=shown_dialogue(dialogue))
    word = await GOAL_CHECKER.ask(checker, request)
    return Found("" if word.completed else f"the checker says no: {word.reason}", (*by, "judge"))


def values_refused(executed: Executed, reply: str) -> tuple[str, ...]:
    """What a refusal must hold: the arguments that the tool's error names."""
    values = [
        str(value) for value in executed.arguments().values() if not isinstance(value, bool | list | dict)
    ]
    named = [
        value for value in values if 1 < len(value) <= MAX_MUST_SAY and says(executed.result.text, value)
    ]
    return tuple(value for value in named if says(reply, value))


def _kinds(planned: Rehearsed, must_say: Sequence[str]) -> dict[str, bool]:
    return {
        "state": any(each.changes for each in planned.executed),
        "calls": any(not each.changes for each in planned.executed),
        "said": bool(must_say or planned.goal.says),
    }


def _by_program(
    planned: Rehearsed, made: Sequence[Executed], *, state: str, reply: str, must_say: Sequence[str]
) -> str:
    answered = [each for each in made if each.ok]
    for wanted in planned.executed:
        if wanted.changes or not wanted.ok:
            continue
        if not any(_same(each, wanted) for each in answered):
            return f"{wanted.call.name} was not answered as planned"
    if state != planned.state:
        return "the state is not the planned one"
    if read_answer(reply).kind in (AnswerKind.ASK, AnswerKind.REFUSE, AnswerKind.SILENT):
        return "the turn was not closed"
    missing = [value for value in (*must_say, *planned.goal.says) if not says(reply, value)]
    return f"the reply does not say {missing[0]}" if missing else ""


def _same(made: Executed, wanted: Executed) -> bool:
    if made.call.name != wanted.call.name:
        return False
    return made.result.text == wanted.result.text or executed_key(made) == executed_key(wanted)
