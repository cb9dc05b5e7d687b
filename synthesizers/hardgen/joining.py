"""Several goals in one request: hard requests of one world, said one after the other (`goals` above 1; ours).

The worlds at hand have few tools, so that a legal chain is two or three calls long; who wants two things of a
world has a longer way to go. Each goal is a chain with a macro tool and a request of its own. They are joined
where the calls of all, made in turn in a fresh session, answer every look-up as before, so that what one
request points at is still what it meant; where no goal is what another one does on its way; and where no
request mentions an inner call of another. Not covered: drawing the goals (`synthesizer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from data import canonical
from synthesizers.execution import Executed, Trial
from synthesizers.grounding.calls import GroundedCall, OutputPort
from synthesizers.hardgen.api_graph import ApiGraph
from synthesizers.hardgen.chains import Chain, Maker, Unmade
from synthesizers.hardgen.macro import Macro
from synthesizers.hardgen.requests import Written, inner_problem
from synthesizers.hardgen.states import works

_ALSO = "Also, "
_KEPT = ("I ", "I'")


class Goal(NamedTuple):
    """A thing that the user wants: its chain, the macro tool it was folded into, and the request."""

    chain: Chain
    macro: Macro
    written: Written

    @property
    def target(self) -> str:
        """The failure tool."""
        return self.chain.names[-1]


def names_of(goals: Sequence[Goal]) -> tuple[str, ...]:
    """The tools of all calls in order."""
    return tuple(name for goal in goals for name in goal.chain.names)


async def joined(maker: Maker, goals: Sequence[Goal], *, most: int) -> list[Goal]:
    """The goals with their chains as they are made one after the other. Raises Unmade where they do not join.

    `most`: calls of all goals together.
    """
    graph, names = maker.graph, names_of(goals)
    if len(names) > most:
        raise Unmade("too_long", f"{len(names)} calls")
    for place, goal in enumerate(goals):
        others = [*goals[:place], *goals[place + 1 :]]
        on_the_way = any(goal.target in other.chain.names[:-1] for other in others)
        if goal.macro.question or on_the_way or any(_is_same(goal, other) for other in others):
            raise Unmade("no_goal_of_its_own", goal.target)
    _refuse_mentions(goals, graph)
    made: list[Goal] = []
    async with await Trial.open(maker.environment, maker.task, seed=maker.seed) as trial:
        for goal in goals:
            made.append(goal._replace(chain=await _made_again(trial, goal.chain)))
    return made


def joined_text(goals: Sequence[Goal]) -> str:
    """What the user says: the requests in turn."""
    first, *rest = (goal.written.text for goal in goals)
    return " ".join([first, *(_also(text) for text in rest)])


def replaced(
    goals: Sequence[Goal], place: int, calls: Sequence[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """All calls (name, arguments as JSON) where the goal at `place` is reached by other `calls`."""
    made: list[tuple[str, str]] = []
    for number, goal in enumerate(goals):
        gold = (call.executed for call in goal.chain.calls)
        made += calls if number == place else [(one.call.name, _arguments(one)) for one in gold]
    return tuple(made)


def _is_same(one: Goal, other: Goal) -> bool:
    return one.target == other.target and _arguments(one.chain.target.executed) == _arguments(
        other.chain.target.executed
    )


def _arguments(made: Executed) -> str:
    return canonical.dumps(made.arguments(), sort_keys=True)


def _also(text: str) -> str:
    return _ALSO + (text if text.startswith(_KEPT) else text[:1].lower() + text[1:])


def _refuse_mentions(goals: Sequence[Goal], graph: ApiGraph) -> None:
    said = [one.value for goal in goals for one in goal.macro.said]
    for goal in goals:
        for other in goals:
            problem = "" if other is goal else inner_problem(other.written.text, goal.chain, graph, said=said)
            if problem:
                raise Unmade("mentions_inner_call", problem)


async def _made_again(trial: Trial, chain: Chain) -> Chain:
    """The chain made after what was made before; its sources name the calls of the whole session."""
    before, calls = len(trial.executed), list[GroundedCall]()
    for call in chain.calls:
        tried = await trial.attempt(call.executed.call.name, call.executed.arguments())
        is_same = call is chain.target or tried.result.text == call.executed.result.text
        if not works(tried) or not is_same:
            raise Unmade("not_independent", call.executed.call.name)
        sources = tuple(
            one if one.of is None else one._replace(of=OutputPort(one.of.call + before, one.of.path))
            for one in call.sources
        )
        calls.append(call._replace(executed=tried, sources=sources))
    return replace(chain, calls=calls, state=trial.state, history=tuple(trial.executed))
