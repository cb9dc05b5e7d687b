"""Hints that reveal nothing, and the check for it (HardGen, step 6).

A hint may say which kind of thing went wrong. It may not hold the name of a tool or of a parameter of gold's
calls, a value that gold used or was answered, unless the user's own words or the system's hold it. Templates
pass the same check as chats' hints. Not covered: taking hints out afterwards (`synthesizers.hints`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from data import canonical
from data.messages import ToolCall, ToolSpec
from data.tasks import Task
from data.trajectories import Trajectory
from pipeline.chat.base import Chat
from pipeline.checks.attempts import attempts
from pipeline.checks.matching import made_calls
from pipeline.diagnosis.kinds import Match, compare
from pipeline.environments.blueprint import PlannedCall, read_blueprint
from synthesizers.execution import Executed
from synthesizers.graph.fields import fields_of, leaves
from synthesizers.graph.observations import telling
from synthesizers.hardgen.roles import VERIFIER, VerifierRequest
from synthesizers.phrasing.wording import mentions, name_in

ASKS = 2
GAVE_UP, REPLY = "gave_up", "reply"
_TEMPLATES: dict[str, tuple[str, ...]] = {
    GAVE_UP: (
        "This can be done with what you have: begin with what can be found out.",
        "Do not answer yet: go step by step, and let every step build on what came back.",
        "It takes more than words; start with the step that needs only what the request says.",
    ),
    Match.MISSING_CALL: (
        "Something that has to come first, or after, was left out.",
        "Go over what each step needs: one of these needs was never met.",
        "Compare what was wanted with what was done: a step is still missing.",
    ),
    Match.WRONG_ARGUMENT: (
        "A value was not the right one: take each from the request or from what came back, guess none.",
        "Read again which one is meant, and compare all that you were shown.",
        "One of the values you gave stands nowhere: find it out first.",
    ),
    Match.WRONG_TOOL: (
        "One of the steps does something else than what is wanted.",
        "Read what each of your means does, and choose the one that brings about what was asked.",
        "The outcome that was asked for needs another means than the one you took.",
    ),
    Match.EXTRA_CALL: (
        "Something was done that nobody asked for.",
        "Leave out what the request does not lead to.",
        "Do only what the outcome needs.",
    ),
    REPLY: (
        "All was done, but not said as it was wanted.",
        "The last words have to hold what was found.",
        "End by saying what came out, exactly as it was shown.",
    ),
}
"""Per kind of mismatch one hint for each try; all of them ours."""
PLAIN = "That was not it yet; think it over once more."


class Secrets(NamedTuple):
    """What a hint to a task must not hold."""

    names: tuple[str, ...]
    parameters: tuple[str, ...]
    values: tuple[str, ...]
    open: str
    """What the solver reads anyway: the system's and the user's words."""


class Hint(NamedTuple):
    """A hint and who wrote it."""

    text: str
    by: str = "template"


def secrets_of(
    task: Task, tools: Sequence[ToolSpec], history: Sequence[Executed], macro_name: str
) -> Secrets:
    """The secrets of a planned task: its gold calls (`history`), their answers, and every tool's name."""
    blueprint = read_blueprint(task)
    values: dict[str, None] = dict.fromkeys(v for turn in blueprint.turns for v in turn.must_say)
    parameters: dict[str, None] = {}
    for done in history:
        parameters |= dict.fromkeys(done.arguments())
        values |= dict.fromkeys(str(leaf) for leaf in leaves(done.arguments()) if telling(leaf))
        values |= {str(f.value): None for f in fields_of(done.result.text) if telling(f.value)}
    shown = "\n".join(turn.text for turn in task.prompt)
    names = (*(tool.name for tool in tools), macro_name)
    return Secrets(names, tuple(parameters), tuple(values), shown)


def hint_problem(hint: str, secrets: Secrets) -> str:
    """What a hint gives away, "" where nothing."""
    for name in secrets.names:
        if name and name_in(hint, name) and not name_in(secrets.open, name):
            return f"it names the tool {name!r}"
    for name in secrets.parameters:
        if name_in(hint, name) and not name_in(secrets.open, name):
            return f"it names the parameter {name!r}"
    for value in secrets.values:
        if mentions(hint, value) and not mentions(secrets.open, value):
            return f"it says {value!r}"
    return ""


def mismatch(trajectory: Trajectory, gold: Sequence[PlannedCall]) -> str:
    """The kind of the first difference from gold; "reply" where the calls are gold's."""
    tried = list(attempts(trajectory))
    if not tried:
        return GAVE_UP
    wanted = [ToolCall(call_id="gold", name=call.name, arguments=call.arguments) for call in gold]
    departures = compare(tried, wanted)
    return str(departures[0].match) if departures else REPLY


async def hint_for(
    trajectory: Trajectory,
    task: Task,
    *,
    secrets: Secrets,
    number: int,
    chat: Chat | None = None,
) -> Hint | None:
    """The hint after try `number` (from 0); None where a chat's hints give something away.

    Raises StructuredReplyError of the chat.
    """
    gold = [call for turn in read_blueprint(task).turns for call in turn.calls]
    if chat is None:
        told = _TEMPLATES[mismatch(trajectory, gold)]
        order = (*told[number % len(told) :], *told[: number % len(told)], PLAIN)
        return next((Hint(text) for text in order if not hint_problem(text, secrets)), None)
    request = VerifierRequest(
        request=task.prompt[-1].text,
        reference=tuple(f"{call.name} {call.arguments}" for call in gold),
        predicted=tuple(
            f"{call.name} {canonical.dumps(call.arguments)}" for call in made_calls(trajectory.turns)
        ),
    )
    for _ in range(ASKS):
        text = (await VERIFIER.ask(chat, request)).hint.strip()
        problem = hint_problem(text, secrets)
        if not problem:
            return Hint(text, chat.name)
        request = request.model_copy(update={"problem": problem})
    return None
