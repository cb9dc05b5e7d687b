"""What went right or wrong in one trajectory, decided from the record and, where given, a gold dialogue.

A failure that was stopped for repetition, or whose last three calls are equal, is a loop. Any other's kind is
that of its first failing step: a malformed call the agent never recovered from, a call that departs from
gold, or a claim that no observation supports, whichever comes first; else how the episode ended; else the
order of its calls. Calls are matched to gold as a multiset, then by name, then in order. Not covered: why the
model erred, and tasks whose right answer is words alone (`wrong_answer` says only that the calls were right).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from data import canonical
from data.messages import ParseStatus, Role, ToolCall, Turn
from data.trajectories import Termination, Trajectory
from pipeline.checks.attempts import Attempt, attempts
from pipeline.checks.typed_answers import read_answer
from pipeline.diagnosis.capabilities import calls_of
from pipeline.diagnosis.claims import first_claim


class SuccessKind(StrEnum):
    """How a task was solved."""

    CLEAN = "clean"
    RECOVERED = "recovered"
    """After at least one malformed call or tool error."""
    ROUNDABOUT = "roundabout"
    """With calls that gold does not need."""


class FailureKind(StrEnum):
    """Why a task was not solved."""

    INFRA = "infra"
    """No reward: infrastructure, a cancelled episode, a broken verifier. Says nothing of the policy."""
    FORMAT = "format"
    """A call in a form only a lenient parser reads, or JSON that is no call."""
    PARSE = "parse"
    """A call that is not JSON, or cut off."""
    UNKNOWN_TOOL = "unknown_tool"
    """A well-formed call of a tool that was not shown."""
    SCHEMA = "schema"
    """A call of a shown tool whose arguments do not fit its schema."""
    WRONG_TOOL = "wrong_tool"
    WRONG_ARGUMENT = "wrong_argument"
    MISSING_CALL = "missing_call"
    EXTRA_CALL = "extra_call"
    ORDER = "order"
    """Gold's calls, in an order that gold's turns do not have, and the final typed answer is gold's."""
    HALLUCINATED_RESULT = "hallucinated_result"
    """The words claim a value or an effect that no observation supports: see `claims`."""
    GAVE_UP = "gave_up"
    """Finished without a single call where gold needs some."""
    LOOP = "loop"
    """The same call, or the same text, again and again."""
    BUDGET = "budget"
    """Out of turns, tokens, time or context."""
    TOOL_ERROR = "tool_error"
    """The last call was answered with an error and the agent stopped there."""
    WRONG_ANSWER = "wrong_answer"
    """Every call as in gold, yet the verifier says no: the final answer is wrong."""
    UNEXPLAINED = "unexplained"
    """Well-formed calls, no gold to compare with."""


class Match(StrEnum):
    """How one executed or gold call compares."""

    WRONG_TOOL = "wrong_tool"
    WRONG_ARGUMENT = "wrong_argument"
    MISSING_CALL = "missing_call"
    EXTRA_CALL = "extra_call"


@dataclass(frozen=True, slots=True)
class Departure:
    """One difference between what was called and what gold calls."""

    match: Match
    turn: int | None
    """Turn of the call; None for a missing one."""
    called: ToolCall | None
    gold: ToolCall | None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments that differ, of a `wrong_argument`."""
        if self.match is not Match.WRONG_ARGUMENT or self.called is None or self.gold is None:
            return ()
        made, wanted = self.called.parsed_arguments(), self.gold.parsed_arguments()
        return tuple(sorted(key for key in made.keys() | wanted.keys() if made.get(key) != wanted.get(key)))


@dataclass(frozen=True, slots=True)
class Finding:
    """What one trajectory came to."""

    kind: SuccessKind | FailureKind
    step: int | None = None
    """Which assistant turn failed first, counted from 1; None for a success or an ending without one."""
    departures: tuple[Departure, ...] = ()


_MALFORMED = {
    ParseStatus.NOT_JSON: FailureKind.PARSE,
    ParseStatus.TRUNCATED: FailureKind.PARSE,
    ParseStatus.NOT_A_CALL: FailureKind.FORMAT,
    ParseStatus.SALVAGEABLE: FailureKind.FORMAT,
    ParseStatus.UNKNOWN_TOOL: FailureKind.UNKNOWN_TOOL,
    ParseStatus.BAD_ARGUMENTS: FailureKind.SCHEMA,
}
_BUDGETS = {
    Termination.TURN_BUDGET,
    Termination.TOKEN_BUDGET,
    Termination.TIME_BUDGET,
    Termination.CONTEXT_OVERFLOW,
}
_LOOP_LENGTH = 3


def find(trajectory: Trajectory, gold: Sequence[Turn] | None = None) -> Finding:
    """The kind of success or failure of one trajectory. `gold`: a dialogue that solves its task."""
    calls = list(attempts(trajectory))
    departures = () if gold is None else tuple(compare(calls, calls_of(gold)))
    if trajectory.reward is None:
        return Finding(FailureKind.INFRA)
    if trajectory.success:
        return Finding(_success(calls, departures), departures=departures)
    kind, turn = _failure(trajectory, calls, gold, departures)
    return Finding(kind, _step(trajectory, turn), departures)


def compare(calls: Sequence[Attempt], gold: Sequence[ToolCall]) -> list[Departure]:
    """Differences between the executed calls and gold, wrong ones first, each in order of occurrence."""
    wanted = list(gold)
    made: list[Attempt] = []
    for attempt in (attempt for attempt in calls if attempt.executed):
        same = next((call for call in wanted if _key(call) == _key(attempt.call)), None)
        if same is None:
            made.append(attempt)
        else:
            wanted.remove(same)
    departures = []
    for attempt in list(made):
        named = next((call for call in wanted if call.name == attempt.call.name), None)
        if named is not None:
            departures.append(Departure(Match.WRONG_ARGUMENT, attempt.turn, attempt.call, named))
            made.remove(attempt)
            wanted.remove(named)
    paired = min(len(made), len(wanted))
    pairs = zip(made[:paired], wanted[:paired], strict=True)
    departures += [Departure(Match.WRONG_TOOL, attempt.turn, attempt.call, call) for attempt, call in pairs]
    departures.sort(key=lambda departure: departure.turn or 0)
    departures += [Departure(Match.MISSING_CALL, None, None, call) for call in wanted[paired:]]
    departures += [Departure(Match.EXTRA_CALL, attempt.turn, attempt.call, None) for attempt in made[paired:]]
    return departures


def _success(calls: Sequence[Attempt], departures: Sequence[Departure]) -> SuccessKind:
    if any(attempt.failed_in_tool or not attempt.call.ok for attempt in calls):
        return SuccessKind.RECOVERED
    extra = any(departure.match is Match.EXTRA_CALL for departure in departures)
    return SuccessKind.ROUNDABOUT if extra else SuccessKind.CLEAN


def _failure(
    trajectory: Trajectory,
    calls: Sequence[Attempt],
    gold: Sequence[Turn] | None,
    departures: Sequence[Departure],
) -> tuple[FailureKind, int | None]:
    """Kind and turn of the first failing step."""
    if trajectory.termination is Termination.REPETITION or _is_loop(calls):
        return FailureKind.LOOP, calls[-1].turn if calls else None
    step = _first_wrong_step(trajectory, calls, departures)
    if step is not None:
        return step
    if not calls and gold and calls_of(gold) and trajectory.termination is Termination.FINISHED:
        return FailureKind.GAVE_UP, None
    if trajectory.termination in _BUDGETS:
        return FailureKind.BUDGET, None
    if calls and calls[-1].failed_in_tool:
        return FailureKind.TOOL_ERROR, calls[-1].turn
    if departures:
        return FailureKind(departures[0].match), departures[0].turn
    if gold is None:
        return FailureKind.UNEXPLAINED, None
    out_of_order = _out_of_order(calls, gold)
    if out_of_order is not None and _same_answer(trajectory.turns, gold):
        return FailureKind.ORDER, out_of_order
    return FailureKind.WRONG_ANSWER, None


def _first_wrong_step(
    trajectory: Trajectory, calls: Sequence[Attempt], departures: Sequence[Departure]
) -> tuple[FailureKind, int] | None:
    """The earliest of a malformed call that stayed so, a wrong call and an unsupported claim."""
    found: list[tuple[int, FailureKind]] = []
    unrecovered = _unrecovered(calls)
    if unrecovered is not None:
        found.append((unrecovered.turn, _MALFORMED[unrecovered.call.status]))
    wrong = next((d for d in departures if d.match in (Match.WRONG_ARGUMENT, Match.WRONG_TOOL)), None)
    if wrong is not None and wrong.turn is not None:
        found.append((wrong.turn, FailureKind(wrong.match)))
    claim = first_claim(trajectory)
    if claim is not None:
        found.append((claim, FailureKind.HALLUCINATED_RESULT))
    first = min(found, key=lambda each: each[0], default=None)
    return None if first is None else (first[1], first[0])


def _out_of_order(calls: Sequence[Attempt], gold: Sequence[Turn]) -> int | None:
    """Turn of the first executed call that gold's turns have at another place; None where there is none.

    For calls that match gold as a multiset. The calls of one gold turn have no order among themselves.
    """
    executed = [attempt for attempt in calls if attempt.executed]
    start = 0
    for turn in gold:
        wanted = Counter(_key(call) for call in turn.tool_calls)
        for attempt in executed[start : start + wanted.total()]:
            if not wanted[_key(attempt.call)]:
                return attempt.turn
            wanted[_key(attempt.call)] -= 1
        start += len(turn.tool_calls)
    return None


def _same_answer(turns: Sequence[Turn], gold: Sequence[Turn]) -> bool:
    """Whether the last typed words are gold's, or gold has no words."""
    words = [
        next((turn for turn in reversed(said) if turn.role is Role.ASSISTANT and not turn.tool_calls), None)
        for said in (turns, gold)
    ]
    if words[1] is None:
        return True
    return words[0] is not None and read_answer(words[0].text) == read_answer(words[1].text)


def _unrecovered(calls: Sequence[Attempt]) -> Attempt | None:
    """The first malformed call of the run of malformed calls that the episode ended on."""
    first = None
    for attempt in reversed(calls):
        if attempt.call.ok:
            break
        first = attempt
    return first


def _is_loop(calls: Sequence[Attempt]) -> bool:
    tail = [_key(attempt.call) for attempt in calls[-_LOOP_LENGTH:]]
    return len(tail) == _LOOP_LENGTH and len(set(tail)) == 1


def _key(call: ToolCall) -> str:
    """Equal for calls of one tool with equal arguments; malformed calls compare by their raw text."""
    return (
        canonical.digest(call.name, call.parsed_arguments())
        if call.ok
        else canonical.digest(call.status, call.raw)
    )


def _step(trajectory: Trajectory, turn: int | None) -> int | None:
    if turn is None:
        return None
    return sum(said.role is Role.ASSISTANT for said in trajectory.turns[: turn + 1])
