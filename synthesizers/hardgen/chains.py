"""Legal chains toward a failure tool, drawn by the graph and made in a real session (HardGen, step 3).

A set of executed tools is kept; a tool is callable only where its prerequisites are in the set, and of the
callable ones the nearest to the target comes next. Parameters that bind are always filled by an earlier
answer, others that can be at first, and later by chance: that makes a chain deeper. State prerequisites are
drawn only where the target does not work without them: a world may meet them already. Whatever call the end
does not need is taken back: played again without it, the rest works and takes nothing from it. Not covered:
the request (`requests`), other chains to the same end (`uniqueness`).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data.messages import ToolSpec
from data.tasks import Task
from pipeline.environments.base import Environment
from synthesizers.execution import Executed, Trial
from synthesizers.graph.fields import fields_of
from synthesizers.grounding.calls import (
    ArgumentSource,
    GroundedCall,
    OutputPort,
    Provenance,
    ground,
    sources_of,
)
from synthesizers.grounding.evidence import ValuePool, digest_of
from synthesizers.grounding.scoring import Parameters
from synthesizers.hardgen.api_graph import ApiGraph, Need, Prerequisite
from synthesizers.hardgen.refinement import takes
from synthesizers.hardgen.states import works
from synthesizers.phrasing.clauses import noun_of
from synthesizers.phrasing.closings import TurnCalls
from synthesizers.phrasing.referring import goes_unsaid, refer

MAX_CALLS = 8
"""Calls of a chain. From the paper."""
FILL = 0.3
"""Chance that a parameter which a user could say is filled by an earlier answer instead, once chains in which
all are have failed. Ours."""
_RIVALS = 8
"""Other values of an answer that are tried where the first cannot be asked for. Ours."""
_AT_RANDOM = 3
"""Calls before the target where the steps are drawn at random."""


class Step(NamedTuple):
    """A call to make: which parameters are filled by which prerequisite."""

    tool: str
    feeds: Mapping[str, Prerequisite] = {}


class Unmade(Exception):
    """No chain came of a draw; `reason` is a stable identifier."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


@dataclass(slots=True)
class Chain:
    """Calls that were made, the target's last, and why the inner ones are needed."""

    calls: list[GroundedCall]
    state: str
    """State digest at the end."""
    history: tuple[Executed, ...]
    needed_for_state: frozenset[int] = frozenset()
    """Places of inner calls without which a later one does not work."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tools in order."""
        return tuple(call.executed.call.name for call in self.calls)

    @property
    def target(self) -> GroundedCall:
        """The last call."""
        return self.calls[-1]


def draw_steps(
    graph: ApiGraph,
    target: str,
    *,
    rng: random.Random,
    max_calls: int = MAX_CALLS,
    fill: float = FILL,
    states: bool = False,
    avoid: Collection[str] = (),
) -> list[Step]:
    """Steps of a legal chain without the tools in `avoid`. Raises Unmade where there is none of at most
    `max_calls`."""
    wanted: dict[str, Step] = {}

    def want(tool: str, above: Collection[str]) -> None:
        feeds = {}
        for parameter, some in graph.providers(tool).items():
            usable = [one for one in some if one.source not in above and one.source not in avoid]
            if usable and ((tool, parameter) in graph.binding or rng.random() < fill):
                feeds[parameter] = rng.choice(usable)
        wanted[tool] = Step(tool, feeds)
        first = graph.states(tool) if states else ()
        for source in dict.fromkeys([*(one.source for one in feeds.values()), *first]):
            if source not in wanted and source not in above:
                want(source, {*above, tool})

    want(target, ())
    steps: list[Step] = []
    while len(steps) < len(wanted):
        executed = {step.tool for step in steps}
        legal = [
            step
            for step in wanted.values()
            if step.tool not in executed
            and {one.source for one in step.feeds.values()} <= executed
            and graph.is_callable(step.tool, executed, states=states)
        ]
        if not legal or len(wanted) > max_calls:
            raise Unmade("no_legal_chain", f"{len(wanted)} calls toward {target}, {len(steps)} of them legal")
        steps.append(min(legal, key=lambda step: graph.distance(step.tool, target)))
    return steps


def depth(graph: ApiGraph, target: str, *, avoid: Collection[str] = ()) -> int:
    """Calls of a chain to `target` in which answers fill what they can, and state is met as far as it can be;
    0 where there is none."""
    found = [0]
    for states in (False, True):
        try:
            steps = draw_steps(graph, target, rng=random.Random(0), fill=1.0, states=states, avoid=avoid)
            found.append(len(steps))
        except Unmade:
            continue
    return max(found)


def draw_at_random(graph: ApiGraph, target: str, *, rng: random.Random) -> list[Step]:
    """The ablation: any tools, in any order, then the target."""
    others = [name for name in graph.specs if name != target]
    drawn = rng.sample(others, min(len(others), rng.randint(0, _AT_RANDOM)))
    return [*(Step(name) for name in drawn), Step(target)]


@dataclass(kw_only=True)
class Maker:
    """Makes chains in the world of `task`."""

    environment: Environment
    task: Task
    graph: ApiGraph
    pool: ValuePool
    rng: random.Random
    seed: int = 0
    lenient: bool = False
    """Go on where an inner call does not work (steps at random know nothing of what works)."""
    failed: set[str] = field(default_factory=set)
    """Tools of which no call worked in this world."""

    async def make(self, steps: Sequence[Step]) -> Chain:
        """The chain of `steps`, without calls that it does not need. Raises Unmade."""
        async with await Trial.open(self.environment, self.task, seed=self.seed) as trial:
            calls = await self._called(trial, steps)
            chain = Chain(calls, trial.state, tuple(trial.executed))
        return await self._needed(chain)

    async def _called(self, trial: Trial, steps: Sequence[Step]) -> list[GroundedCall]:
        calls: list[GroundedCall] = []
        places: dict[str, int] = {}
        for step in steps:
            last = step is steps[-1]
            prefer = {
                parameter: OutputPort(places[one.source], one.output)
                for parameter, one in step.feeds.items()
                if one.whole
            }
            made = await ground(
                trial,
                self.graph.specs[step.tool],
                self.pool,
                rng=self.rng,
                prefer=prefer,
                said="\n".join(_said(calls)),
                may_finish=False,
                may_ask=last,
            )
            if made is None or not works(made.executed):
                self.failed |= {step.tool} if not step.feeds and not self.graph.states(step.tool) else set()
                if made is not None:
                    trial.undo()
                if last or not self.lenient:
                    raise Unmade("no_call_works", step.tool)
                continue
            for parameter, port in prefer.items():
                if not takes(made, parameter, port.call):
                    raise Unmade("not_fed", f"{step.tool}.{parameter} from {steps[port.call].tool}")
            made = await self._told_apart(trial, made, calls)
            places[step.tool] = len(trial.executed) - 1
            calls.append(made)
        return calls

    async def _told_apart(
        self, trial: Trial, made: GroundedCall, calls: Sequence[GroundedCall]
    ) -> GroundedCall:
        """The call, where need be with another value of the same answer: one that a user can ask for."""
        for source in made.of(Provenance.OUTPUT):
            if source.of is None or not is_positional(reference(source, [*calls, made], self.graph)):
                continue
            arguments = made.executed.arguments()
            fields = fields_of(trial.executed[source.of.call].result.text)
            rivals = [f.value for f in fields if f.path == source.of.path and f.value != source.value]
            for value in dict.fromkeys(rivals[:_RIVALS]):
                trial.undo()
                tried = await trial.attempt(made.executed.call.name, {**arguments, source.name: value})
                other = self._sourced(tried, trial.executed[:-1], calls)
                told = [
                    reference(one, [*calls, other], self.graph)
                    for one in other.sources
                    if one.name == source.name and one.of is not None
                ]
                if works(tried) and told and not is_positional(told[0]):
                    return other
            raise Unmade("no_way_to_ask", f"{made.executed.call.name}.{source.name}")
        return made

    def _sourced(
        self, executed: Executed, earlier: Sequence[Executed], calls: Sequence[GroundedCall]
    ) -> GroundedCall:
        spec = self.graph.specs[executed.call.name]
        return GroundedCall(executed, sources_of(executed, spec, earlier, said="\n".join(_said(calls))))

    async def _needed(self, chain: Chain) -> Chain:
        """The chain without the calls that its end does not need, from the last inner one to the first."""
        for place in reversed(range(len(chain.calls) - 1)):
            if _is_used(place, chain.calls) or self._is_asked_first(place, chain):
                continue
            rest = [call for at, call in enumerate(chain.calls) if at != place]
            again = await self.replayed(rest)
            if again is None:
                chain.needed_for_state |= {place}
                continue
            chain = replace_calls(again, chain, place)
        return chain

    def _is_asked_first(self, place: int, chain: Chain) -> bool:
        """Whether a written answer rests on this call: gold looks there before it writes."""
        name = chain.calls[place].executed.call.name
        return bool(chain.target.question) and any(
            one.source == name and one.need is Need.DATA and not one.whole
            for one in self.graph.prerequisites
            if one.target == chain.names[-1]
        )

    async def with_forced(self, chain: Chain) -> Chain:
        """The chain; an argument of an inner call for which no other value lets the rest work is nobody's
        to say: who makes the call finds it out.
        """
        for place in sorted(chain.needed_for_state):
            call = chain.calls[place]
            for source in call.of(Provenance.USER):
                others = _other_values(source.value, self.graph.specs[call.executed.call.name], source.name)
                if others and not [v for v in others if await self._works_with(chain, place, source.name, v)]:
                    call = call._replace(
                        sources=tuple(
                            one._replace(provenance=Provenance.WRITTEN) if one is source else one
                            for one in call.sources
                        )
                    )
            chain.calls[place] = call
        return chain

    async def _works_with(self, chain: Chain, place: int, parameter: str, value: Any) -> bool:
        """Whether the rest of the chain works where an inner call is made with another value."""
        async with await Trial.open(self.environment, self.task, seed=self.seed) as trial:
            for at, call in enumerate(chain.calls):
                arguments = call.executed.arguments()
                if at == place:
                    arguments[parameter] = value
                if not works(await trial.attempt(call.executed.call.name, arguments)) and at != place:
                    return False
            return True

    async def replayed(self, calls: Sequence[GroundedCall]) -> Chain | None:
        """The same calls in a fresh session; None where one does not work there."""
        async with await Trial.open(self.environment, self.task, seed=self.seed) as trial:
            made: list[GroundedCall] = []
            for call in calls:
                tried = await trial.attempt(call.executed.call.name, call.executed.arguments())
                if not works(tried):
                    return None
                if call.question:
                    made.append(call._replace(executed=tried))
                else:
                    made.append(self._sourced(tried, trial.executed[:-1], made))
            return Chain(made, trial.state, tuple(trial.executed))


def replace_calls(again: Chain, old: Chain, left_out: int) -> Chain:
    """`again` with what was known of the calls that stay."""
    kept = {place - (place > left_out) for place in old.needed_for_state if place != left_out}
    again.needed_for_state = frozenset(kept)
    return again


def reference(
    source: ArgumentSource,
    calls: Sequence[GroundedCall],
    graph: ApiGraph,
    *,
    rng: random.Random | None = None,
) -> str:
    """How a user who never heard of the inner calls points at a value that one of them finds.

    What is his (a list of my bookings) he knows, and may tell apart by what stands beside it; of anything
    else he can only name a criterion. `rng` chooses among ways to point; by default the value decides.
    """
    assert source.of is not None
    found = calls[source.of.call].executed
    own = not found.arguments() and goes_unsaid(GroundedCall(found, ()), graph.specs[found.call.name])
    history = tuple(call.executed for call in calls)
    turn = TurnCalls(calls, graph.tools, history)
    rng = rng or random.Random(digest_of(source.name, {"value": source.value}))
    told = refer(source, turn, noun=noun_of(source.name), rng=rng, tail="" if own else " ", nested=True)
    return " ".join(told.split())


def _other_values(value: Any, spec: ToolSpec, parameter: str) -> list[Any]:
    """Other values of a closed choice: the schema's, a list without one item, numbers around it."""
    schema = Parameters.of(spec).properties.get(parameter, {})
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, list):
        return [value[:place] + value[place + 1 :] for place in range(len(value))] if len(value) > 1 else []
    if schema.get("enum"):
        return [other for other in schema["enum"] if other != value]
    if isinstance(value, int):
        return [value // 2, value * 2 + 1]
    return [value / 2, value * 2 + 1] if isinstance(value, float) else []


def is_positional(phrase: str) -> bool:
    """Whether a phrase points at a place in a list that the user has not seen."""
    return "on the list" in phrase


def _said(calls: Sequence[GroundedCall]) -> list[str]:
    return [str(source.value) for call in calls for source in call.of(Provenance.USER)]


def _is_used(place: int, calls: Sequence[GroundedCall]) -> bool:
    return any(
        source.of is not None and source.of.call == place
        for call in calls[place + 1 :]
        for source in call.sources
    )
