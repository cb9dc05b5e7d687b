"""APIGen-MT's verified blueprint: rules, a committee, and what goes back to the director.

Rules: form, executed calls, a difference in state or a value that must be said, and the world's policies as
predicates. The committee judges each criterion by what the calls changed against what the user wants; a
majority of all judges must approve every criterion, and a judge that gives no valid reply has not approved.
One judge is no committee. Without a chat the program reviews what it can, and the record says so. Not
covered: the feedback rounds themselves (`synthesizer`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from data import canonical
from data.messages import ToolStatus
from pipeline.chat.base import Chat
from pipeline.dotted import load_dotted
from pipeline.environments.blueprint import Expects, PlannedTurn
from pipeline.environments.direction import Review
from pipeline.errors import ConfigError, StructuredReplyError
from synthesizers.director_actor.roles import JUDGE, JudgeRequest
from synthesizers.execution import Executed
from synthesizers.phrasing.wording import leaked_tool_name, mentions

MAX_ROUNDS = 3
"""Rounds of feedback. From the paper: 3 in retail, 5 in airline."""
MIN_JUDGES = 2
_MOST_LINES = 40
_LONG = 160

Criterion = Literal["correctness", "completeness", "satisfaction", "creativity"]
CRITERIA: Mapping[Criterion, str] = {
    "correctness": "the calls do what the requests say, with the values they name, and nothing else",
    "completeness": "every part of every request is served, and nothing is missing to serve it",
    "satisfaction": "what has changed afterwards is what this user wanted",
    "creativity": "the task is no trivial single step and reads like something a person would want",
}
Policy = Callable[[Any, Sequence[Mapping[str, Any]], str], str]
"""(initial state, calls as {name, arguments, text, ok}, all user words) -> what is broken, "" for nothing."""


class Draft(NamedTuple):
    """A performance under review."""

    turns: Sequence[PlannedTurn]
    executed: Sequence[Executed]
    start: Any
    """Initial state of the base task, decoded."""
    difference: str
    tools: Sequence[str]


def rule_problems(draft: Draft, policies: Sequence[Policy] = ()) -> list[str]:
    """What the rules have against a draft; empty where it may go to the committee."""
    return [*_form(draft), *_effect(draft), *_broken_policies(draft, policies)]


async def review(
    draft: Draft, *, policies: Sequence[Policy], judges: Sequence[Chat]
) -> tuple[list[Review], list[str]]:
    """(reviews, reasons against; none where it is approved). Without judges the program reviews."""
    if problems := rule_problems(draft, policies):
        return [], problems
    if judges:
        reviews, reasons = await committee_reviews(draft, judges)
        return reviews, [] if approved(reviews) else reasons or ["no majority"]
    reviews = program_reviews(draft)
    against = [f"{review.criterion}: not given" for review in reviews if not review.approved]
    return reviews, against


def load_policies(named: Any) -> list[Policy]:
    """A predicate, several, or `module:name` of either. ConfigError for anything else."""
    found = load_dotted(named, what="policy") if isinstance(named, str) else named
    policies = list(found) if isinstance(found, list | tuple) else [found]
    wrong = [policy for policy in policies if not callable(policy)]
    if wrong:
        raise ConfigError(f"a policy is a predicate (state, calls, said) -> str, got {wrong[0]!r}")
    return policies


def program_reviews(draft: Draft) -> list[Review]:
    """What a program can review without a chat; creativity it cannot."""
    said = "\n".join(turn.text for turn in draft.turns)
    given = [
        (call, source)
        for turn in draft.turns
        for call in turn.calls
        for source in call.sources
        if source.provenance == "user" and turn.text_by != "task"
    ]
    values = [canonical.loads(call.arguments).get(source.argument) for call, source in given]
    verdicts = {
        "correctness": all(
            call.status is ToolStatus.OK or turn.expects is Expects.REFUSE or _made_good(call.name, turn)
            for turn in draft.turns
            for call in turn.calls
        ),
        "completeness": all(mentions(said, value) for value in values),
        "satisfaction": draft.turns[-1].expects is not Expects.REFUSE,
    }
    return [
        Review(criterion=name, by="program", approved=int(approved), votes=1)
        for name, approved in verdicts.items()
    ]


async def committee_reviews(draft: Draft, judges: Sequence[Chat]) -> tuple[list[Review], list[str]]:
    """(reviews, reasons of those who did not approve). ConfigError for fewer than two different judges."""
    check_judges(judges)
    reviews, reasons = [], []
    for criterion, meaning in CRITERIA.items():
        request = JudgeRequest(
            criterion=criterion,
            meaning=meaning,
            requests=tuple(turn.text for turn in draft.turns),
            calls=tuple(_shown(each) for each in draft.executed[:_MOST_LINES]),
            difference=draft.difference or "nothing",
        )
        approved = 0
        for judge in judges:
            try:
                word = await JUDGE.ask(judge, request)
            except StructuredReplyError as error:
                reasons.append(f"{criterion}: {judge.name} gave no verdict ({error})"[:_LONG])
                continue
            approved += word.approve
            if not word.approve:
                reasons.append(f"{criterion}: {word.reason}")
        by = "+".join(judge.name for judge in judges)
        reviews.append(Review(criterion=criterion, by=by, approved=approved, votes=len(judges)))
    return reviews, reasons


def check_judges(judges: Sequence[Chat]) -> None:
    """ConfigError where the judges are no committee: consensus needs at least two different ones."""
    names = {judge.name for judge in judges}
    if len(names) < MIN_JUDGES or len(names) < len(judges):
        raise ConfigError(
            f"a committee needs at least {MIN_JUDGES} judges with different names, got {sorted(names)}; "
            "name chats judge_1, judge_2, ... in `chats`, or none to let the program review"
        )


def approved(reviews: Sequence[Review]) -> bool:
    """Whether every criterion has the majority of all votes."""
    return bool(reviews) and all(2 * review.approved > review.votes for review in reviews)


def state_difference(before: Any, after: Any) -> str:
    """The lines that two states do not share, - before and + after; "" where they are alike."""
    old, new = (dict.fromkeys(_lines(value)) for value in (before, after))
    gone = [f"- {line}" for line in old if line not in new]
    came = [f"+ {line}" for line in new if line not in old]
    return "\n".join([*gone, *came][:_MOST_LINES])


def _form(draft: Draft) -> list[str]:
    problems = []
    for number, turn in enumerate(draft.turns):
        written = turn.text_by == "template"
        values = [value for call in turn.calls for value in canonical.loads(call.arguments).values()]
        if not turn.text.strip() or not turn.reply.strip():
            problems.append(f"turn {number} is empty")
        if written and (name := leaked_tool_name(turn.text, draft.tools, said=values)):
            problems.append(f"turn {number} names the tool {name}")
        judged = turn.direction is not None and "judge" in turn.direction.check
        if (
            turn.expects is Expects.ACT
            and not judged
            and not any(call.status is ToolStatus.OK for call in turn.calls)
        ):
            problems.append(f"turn {number} does nothing")
    return problems


def _effect(draft: Draft) -> list[str]:
    changed = any(each.changes for each in draft.executed)
    if changed or any(turn.must_say for turn in draft.turns):
        return []
    return ["nothing is changed and nothing must be said: a state-changing or an answering call is missing"]


def _broken_policies(draft: Draft, policies: Sequence[Policy]) -> list[str]:
    said = "\n".join(turn.text for turn in draft.turns)
    calls = [
        {
            "name": each.call.name,
            "arguments": each.arguments(),
            "text": each.result.text,
            "ok": each.ok,
        }
        for each in draft.executed
    ]
    return [problem for policy in policies if (problem := policy(draft.start, calls, said))]


def _made_good(name: str, turn: PlannedTurn) -> bool:
    """Whether a call of that tool was answered later in the turn."""
    return any(call.name == name and call.status is ToolStatus.OK for call in turn.calls)


def _shown(executed: Executed) -> str:
    status = "" if executed.ok else " (failed)"
    return f"{executed.call.name} {executed.call.arguments} -> {executed.result.text[:_LONG]}{status}"


def _lines(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [
            line for key, item in value.items() for line in _lines(item, f"{path}.{key}" if path else key)
        ]
    if isinstance(value, list):
        return [f"{path}[]: {canonical.dumps(item)[:_LONG]}" for item in value]
    return [f"{path}: {canonical.dumps(value)[:_LONG]}"]
