"""Building the API graph: candidates from signatures and gold, confirmed or removed by executed calls.

- Data prerequisites are candidates where the signature graph has a link. In worlds that have both tools the
  source is called, then the target with the answer's value: one call that works with it confirms, none
  removes. A link to a part of an argument (a table's name in a query) stands where gold was seen to use it.
- State prerequisites are what gold of all worlds showed (`states`), of tools that these worlds have.
- Constraints: integers are moved up and down from one that works until the tool refuses, allowed values are
  tried one by one.

Only what lies on a way to a failure tool is tried, so another failure set makes another graph. Not covered:
which failures (`failures`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data import canonical
from data.messages import ToolSpec
from data.tasks import Task
from pipeline.environments.base import Environment
from synthesizers.execution import Trial
from synthesizers.graph.dependency import Evidence, Link, SignatureGraph
from synthesizers.grounding.calls import GroundedCall, OutputPort, Provenance, ground, worked
from synthesizers.grounding.reading import parts_of
from synthesizers.grounding.scoring import Parameters
from synthesizers.hardgen.api_graph import ApiGraph, Constraint, Need, Prerequisite, narrowed_tools
from synthesizers.hardgen.states import Episode, Pools
from synthesizers.magnet.enacting import has_failed
from synthesizers.phrasing.wording import mentions

WORLDS = 4
"""Tries of a prerequisite, each in another world. Ours."""
_FAR = 1_000_000
_MOST_PROBES = 48
"""Calls to find the ends of an integer's range; bisection needs about 20 for each. Ours."""
_SPREAD = 3
"""Fewer values that work are no range: the parameter names a thing, not a number of things. Ours."""
_MOST_ALLOWED = 12
_IDS = frozenset({"id", "number", "no", "code", "key"})
_STATE_SHARE = 0.5


@dataclass(kw_only=True)
class Refiner:
    """Makes the graph of one tool set from the gold of all worlds of its environment."""

    environment: Environment
    tools: tuple[ToolSpec, ...]
    links: SignatureGraph
    episodes: Sequence[Episode]
    states: Sequence[Prerequisite]
    """Of all worlds (`states.state_needs`)."""
    pools: Pools
    seed: int = 0

    async def graph(self, targets: Sequence[str], *, failures: str) -> ApiGraph:
        """The refined graph toward `targets`."""
        known = {tool.name for tool in self.tools}
        wanted = tuple(name for name in targets if name in known)
        states = [one for one in self.states if {one.source, one.target} <= known]
        candidates = [*_candidates(self.links), *(one for one in states if _holds(one))]
        near = _near(candidates, wanted)
        removed = [one for one in states if not _holds(one) and {one.source, one.target} <= near]
        kept = [one for one in states if _holds(one) and one.target in near]
        for one in _candidates(self.links):
            if one.target not in near or one.source not in near:
                continue
            tried = one if not one.whole else await self._tried(one, kept)
            (kept if tried.confirmed else removed).append(tried)
        binding = _binding(self.episodes, kept)
        graph = ApiGraph(failures, wanted, self.tools, tuple(kept), tuple(removed), (), binding)
        constraints = [one for name in sorted(near) for one in await self._constraints(name, graph)]
        narrowed = narrowed_tools(self.tools, constraints)
        return replace(graph, tools=narrowed, constraints=tuple(constraints))

    async def _tried(self, one: Prerequisite, kept: Sequence[Prerequisite]) -> Prerequisite:
        """The prerequisite with how often it was tried and confirmed; tried until it is confirmed."""
        specs = {tool.name: tool for tool in self.tools}
        pair = one.source, one.target
        first = [other.source for other in kept if other.need is Need.STATE and other.target in pair]
        for place, world in enumerate(self._worlds_for(one)):
            if one.confirmed or one.tried == WORLDS:
                break
            rng = random.Random(f"hardgen/{self.seed}/{one.source}/{one.target}/{one.parameter}/{place}")
            async with await Trial.open(self.environment, world, seed=self.seed) as trial:
                pool, made, said = await self.pools.of(world), None, ""
                for name in dict.fromkeys((*(name for name in first if name not in pair), one.source)):
                    made = await ground(trial, specs[name], pool, rng=rng, may_finish=False)
                    said += "\n".join(str(s.value) for s in made.of(Provenance.USER)) if made else ""
                if made is None:
                    continue
                port = OutputPort(len(trial.executed) - 1, one.output)
                prefer = {one.parameter: port}
                fed = await ground(
                    trial, specs[one.target], pool, rng=rng, prefer=prefer, said=said, may_finish=False
                )
                if fed is None and not await ground(
                    trial, specs[one.target], pool, rng=rng, said=said, may_finish=False
                ):
                    continue  # the target works with nothing here: no word on this value
                used = fed is not None and takes(fed, one.parameter, port.call)
                one = one._replace(tried=one.tried + 1, confirmed=one.confirmed + used)
        return one

    def _worlds_for(self, one: Prerequisite) -> list[Task]:
        """The worlds that have both tools, those first whose gold calls them."""
        pair = {one.source, one.target}
        having = [episode for episode in self.episodes if pair <= episode.names]
        found = sorted(having, key=lambda episode: -len(pair & {step.name for step in episode.steps}))
        return [episode.task for episode in found[: 2 * WORLDS]]

    async def _constraints(self, name: str, graph: ApiGraph) -> list[Constraint]:
        """What calls of the tool say of its parameters, in the first world where it works."""
        spec = graph.specs[name]
        fed = set(graph.providers(name))
        schemas = {
            key: schema
            for key, schema in Parameters.of(spec).properties.items()
            if key not in fed and (schema.get("enum") or _is_number_of_things(key, schema))
        }
        if not schemas:
            return []
        for place, world in enumerate(self._worlds_for(Prerequisite(name, name, Need.STATE))):
            rng = random.Random(f"hardgen/{self.seed}/{name}/constraints/{place}")
            async with await Trial.open(self.environment, world, seed=self.seed) as trial:
                pool = await self.pools.of(world)
                for source in _way(name, graph):
                    await ground(trial, graph.specs[source], pool, rng=rng, may_finish=False)
                made = await ground(trial, spec, pool, rng=rng, may_finish=False)
                if made is None:
                    continue
                arguments = made.executed.arguments()
                trial.undo()
                found = [
                    await _constraint(trial, name, key, schema, arguments)
                    for key, schema in schemas.items()
                    if key in arguments
                ]
                return [one for one in found if one is not None]
        return []


def takes(call: GroundedCall, parameter: str, place: int) -> bool:
    """Whether the call takes that parameter from the answer of executed call number `place`."""
    return any(
        source.name == parameter and source.of is not None and source.of.call == place
        for source in call.sources
    )


def _candidates(graph: SignatureGraph) -> Iterator[Prerequisite]:
    """The best link of each parameter; a part of an argument counts with what gold was seen to do."""
    for edge in graph.edges:
        best: dict[str, Link] = {}
        for link in sorted(
            edge.links, key=lambda link: (link.evidence is not Evidence.OBSERVED, -link.score)
        ):
            if link.whole or (link.evidence is Evidence.OBSERVED and link.times > 1):
                best.setdefault(link.input, link)
        for link in best.values():
            seen = 0 if link.whole else link.times
            yield Prerequisite(
                edge.source, edge.target, Need.DATA, link.input, link.output, seen, seen, link.whole
            )


def _holds(one: Prerequisite) -> bool:
    return one.confirmed > 0 and one.confirmed >= _STATE_SHARE * one.tried


def _near(candidates: Sequence[Prerequisite], targets: Sequence[str]) -> set[str]:
    """The targets and all tools on a way to one."""
    near, frontier = set(targets), list(targets)
    while frontier:
        name = frontier.pop()
        for one in candidates:
            if one.target == name and one.source not in near:
                near.add(one.source)
                frontier.append(one.source)
    return near


def _binding(
    episodes: Sequence[Episode], prerequisites: Sequence[Prerequisite]
) -> frozenset[tuple[str, str]]:
    """(tool, parameter) with a provider whose value no user was seen to say, and gold was seen to give."""
    said: Counter[tuple[str, str]] = Counter()
    given: Counter[tuple[str, str]] = Counter()
    for episode in episodes:
        text = ""
        for step in episode.steps:
            text += f"\n{step.said}"
            for name, value in step.arguments.items():
                given[step.name, name] += 1
                said[step.name, name] += mentions(text, value)
    fed = {(one.target, one.parameter) for one in prerequisites if one.need is Need.DATA}
    return frozenset(pair for pair in fed if given[pair] and not said[pair])


def _way(name: str, graph: ApiGraph) -> list[str]:
    """Tools to call before `name`: what must be, and for each parameter that can be filled one that does."""
    found: dict[str, None] = {}

    def visit(tool: str, depth: int) -> None:
        sources = [*graph.states(tool), *(some[0].source for some in graph.providers(tool).values())]
        for source in sources if depth else ():
            if source not in found and source != name:
                visit(source, depth - 1)
                found[source] = None

    visit(name, 4)
    return list(found)


def _is_number_of_things(name: str, schema: Mapping[str, Any]) -> bool:
    """Whether a parameter counts; an id is a number of its thing."""
    return schema.get("type") == "integer" and (parts_of(name) or [""])[-1] not in _IDS


async def _constraint(
    trial: Trial, tool: str, key: str, schema: dict[str, Any], arguments: dict[str, Any]
) -> Constraint | None:
    tried: dict[str, bool] = {}

    async def is_taken(value: Any) -> bool:
        text = canonical.dumps(value)
        if text not in tried:
            made = await trial.attempt(tool, {**arguments, key: value})
            tried[text] = worked(made, shows_state=trial.shows_state) and not has_failed(made)
            trial.undo()
        return tried[text]

    if schema.get("enum"):
        values = schema["enum"][:_MOST_ALLOWED]
        refused = tuple([canonical.dumps(value) for value in values if not await is_taken(value)])
        return (
            Constraint(tool, key, refused=refused, tried=len(tried)) if len(refused) < len(values) else None
        )
    start = arguments[key]
    if not isinstance(start, int) or isinstance(start, bool):
        return None
    low, high = await _end(is_taken, start, -_FAR), await _end(is_taken, start, _FAR)
    if high - low + 1 < _SPREAD or len(tried) > _MOST_PROBES:
        return None
    ends = low if low > -_FAR else None, high if high < _FAR else None
    return Constraint(tool, key, *ends, tried=len(tried)) if ends != (None, None) else None


async def _end(is_taken: Callable[[Any], Awaitable[bool]], good: int, bad: int) -> int:
    """The last integer from `good` toward `bad` that works, found by bisection; `bad` where all do."""
    if await is_taken(bad):
        return bad
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        if await is_taken(middle):
            good = middle
        else:
            bad = middle
    return good
