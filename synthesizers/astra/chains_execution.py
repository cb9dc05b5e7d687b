"""A chain executed call by call in a real session, with tools that are down now and then.

Each call is grounded by what the world answered before; nothing is assumed. A call counts as dependent where
an argument comes from an earlier answer or is one of an earlier call, too, or where it fails, or answers
otherwise, once an earlier call is left out: that is tried, not guessed. An injected failure is an outage of
the task's world (`blueprint.Outage`): the tool refuses its first call of the turn, gold calls it again, and
every replay meets the same. We do not let gold make mistakes of its own, since that would teach them. Not
covered: which chain (`chains_graph`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from data.messages import ToolResult, ToolSpec, ToolStatus, text_parts
from data.tasks import Task
from pipeline.environments.base import Environment
from pipeline.environments.blueprint import Outage, PlannedCall, result_digest
from synthesizers.astra.chains_graph import Chain
from synthesizers.execution import Executed, Trial
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.graph.observations import telling
from synthesizers.grounding.calls import (
    GroundedCall,
    OutputPort,
    Provenance,
    ground,
    sources_of,
    worked,
)
from synthesizers.grounding.evidence import ValuePool
from synthesizers.grounding.planned import answered_names, planned_call, port_name

FAILURES = 0.2
"""Share of calls that meet an outage first. From the paper: 20 % injected failures; per call: ours."""
_ATTEMPTS = 3
"""Times a call is grounded anew where it passed on no field. Ours."""
OUTAGES = (
    "error: busy, try again",
    "timed out, try again",
    "error: too many at once",
)
"""What a tool that is down says. Ours."""


class ChainRun(NamedTuple):
    """A chain as far as it went: `stuck` is the tool no call of which worked, "" where all did.

    A call that passes on nothing, or a piece of an answer that is no field of it (a heading, half a name),
    has not worked either: nobody would ask for that.
    """

    calls: tuple[GroundedCall, ...]
    stuck: str = ""


async def run_chain(
    trial: Trial,
    chain: Chain,
    tools: Mapping[str, ToolSpec],
    *,
    pool: ValuePool,
    graph: SignatureGraph,
    rng: random.Random,
) -> ChainRun:
    """Ground and make every call of a chain; only the last may end the episode."""
    calls: list[GroundedCall] = []
    first = len(trial.executed)
    for place, name in enumerate(chain):
        wanted = _wanted_ports(chain[:place], name, graph, first=first)
        last = place == len(chain) - 1
        for _ in range(_ATTEMPTS):
            call = await ground(
                trial, tools[name], pool, rng=rng, prefer=wanted, may_finish=last, may_ask=True
            )
            if call is None or not _is_vague(call):
                break
            trial.undo()
            call = None
        if call is None:
            return ChainRun(tuple(calls), name)
        calls.append(await _carried_over(trial, call, tools[name], calls, may_finish=last))
    return ChainRun(tuple(calls))


async def is_dependent(environment: Environment, task: Task, calls: Sequence[GroundedCall]) -> bool:
    """Whether any of the calls depends on an earlier one; `calls` are all that was made in `task`."""
    for place, call in enumerate(calls):
        fed = any(source.of is not None for source in call.of(Provenance.OUTPUT))
        if fed or _shares(call, calls[:place]):
            return True
    for place in range(1, len(calls)):
        if await _needs_earlier(environment, task, calls[: place + 1]):
            return True
    return False


def planned_calls(
    calls: Sequence[GroundedCall], history: Sequence[Executed], outages: Sequence[Outage]
) -> tuple[PlannedCall, ...]:
    """The calls of a turn as gold makes them: each once, twice where its tool is down first."""
    down = {outage.name: outage.text for outage in outages}
    named = partial(port_name, names=answered_names(history))
    planned = []
    for call in calls:
        made = planned_call(call, mentioned=not call.question, named=named)
        text = down.pop(made.name, None)
        if text is not None:
            answer = ToolResult(call_id="", name=made.name, parts=text_parts(text))
            refused = {"result": result_digest(answer), "status": ToolStatus.TOOL_ERROR, "changes": False}
            planned.append(made.model_copy(update=refused))
        planned.append(made)
    return tuple(planned)


def drawn_outages(
    calls: Sequence[GroundedCall], rng: random.Random, *, turn: int, share: float = FAILURES
) -> tuple[Outage, ...]:
    """Outages of a turn's tools, each with probability `share`; a tool is down at most once a turn."""
    names = dict.fromkeys(call.executed.call.name for call in calls)
    return tuple(
        Outage(turn=turn, name=name, text=rng.choice(OUTAGES)) for name in names if rng.random() < share
    )


def _wanted_ports(
    before: Sequence[str], name: str, graph: SignatureGraph, *, first: int
) -> dict[str, OutputPort]:
    """For each parameter the port of the latest earlier call that can feed it, by the graph's best link."""
    wanted: dict[str, OutputPort] = {}
    for place in reversed(range(len(before))):
        edge = graph.edge(before[place], name)
        for link in edge.links if edge else ():
            if link.whole:
                wanted.setdefault(link.input, OutputPort(first + place, link.output))
    return wanted


async def _carried_over(
    trial: Trial,
    call: GroundedCall,
    tool: ToolSpec,
    earlier: Sequence[GroundedCall],
    *,
    may_finish: bool,
) -> GroundedCall:
    """The call about the same things as earlier ones, where it has nothing to do with them and that works.

    A parameter takes the value that an earlier call gave one of the same name: the file that was made is the
    one that is written to.
    """
    if any(source.of is not None for source in call.sources) or _shares(call, earlier):
        return call
    known = {name: value for done in earlier for name, value in done.executed.arguments().items()}
    given = call.executed.arguments()
    same = {name: known[name] for name in given if name in known and telling(known[name])}
    if not same:
        return call
    trial.undo()
    again = await trial.attempt(tool.name, {**given, **same})
    fine = worked(again, shows_state=trial.shows_state)
    if fine and (may_finish or not trial.finished):
        return GroundedCall(again, sources_of(again, tool, trial.executed[:-1]))
    trial.undo()
    return GroundedCall(await trial.attempt(tool.name, given), call.sources)


def _is_vague(call: GroundedCall) -> bool:
    sources = call.of(Provenance.OUTPUT)
    return any(source.value == "" or (source.of is not None and not source.of.path) for source in sources)


def _shares(call: GroundedCall, earlier: Sequence[GroundedCall]) -> bool:
    """Whether an argument says the same telling thing as one of an earlier call."""
    values = [value for done in earlier for value in done.executed.arguments().values()]
    known = {telling(value) for value in values} - {""}
    return any(telling(value) in known for value in call.executed.arguments().values())


async def _needs_earlier(environment: Environment, task: Task, calls: Sequence[GroundedCall]) -> bool:
    """Whether the last call fails, or as a look-up answers otherwise, without one of the earlier ones."""
    last = calls[-1].executed
    for left_out in range(len(calls) - 1):
        async with await Trial.open(environment, task) as trial:
            for place, call in enumerate(calls):
                if place != left_out:
                    again = await trial.attempt(call.executed.call.name, call.executed.arguments())
            if not worked(again, shows_state=trial.shows_state):
                return True
            if not last.changes and again.result.text != last.result.text:
                return True
    return False
