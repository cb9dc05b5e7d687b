"""Whether the implicit chain is the only sensible one: a search for other legal chains in the real world.

Tried are chains of the shown tools, no longer than gold's, that use what the request says and nothing else:
its values where a parameter fits them, values of answers where the graph says so, and at the end only values
that the request's way to point picks out. Look-ups and what is needed for state may come before; the end is
the target or a tool that may do its work. Decided is:

- another chain that ends in the same state with the same answer is another way to do what is asked: it is
  accepted, provided that the task's verifier accepts it, which is played (`accepted`);
- another chain that fits the request and ends elsewhere shows that the request leaves open what is meant:
  the plan is given up.

A question has its answer for a check, so no chain is searched. Not covered: chains longer than gold's, and
what a request could be taken to mean by the words alone.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from data import canonical
from data.messages import ToolSpec, assistant
from data.tasks import Task
from pipeline.environments.agents import ListedAgent
from pipeline.environments.base import Environment
from pipeline.environments.gold import call as called
from pipeline.environments.play import play
from synthesizers.execution import Executed, Trial
from synthesizers.graph.fields import fields_of
from synthesizers.grounding.calls import ArgumentSource, GroundedCall, OutputPort, Provenance
from synthesizers.grounding.evidence import digest_of
from synthesizers.grounding.scoring import Parameters
from synthesizers.hardgen.api_graph import ApiGraph, Need
from synthesizers.hardgen.chains import Chain, reference
from synthesizers.hardgen.macro import Macro
from synthesizers.hardgen.states import works
from synthesizers.magnet.knowledge import alike
from synthesizers.phrasing.wording import mentions

MAX_CALLS = 160
"""Calls made in one search. Ours."""
_MOST_SETS = 8
_MOST_VALUES = 4

Calls = tuple[tuple[str, str], ...]
"""(name, arguments as JSON) of a chain."""


class Found(NamedTuple):
    """What a search found. `same` chains do the same as gold, `other` ones end elsewhere."""

    tried: int = 0
    same: tuple[Calls, ...] = ()
    other: tuple[Calls, ...] = ()


@dataclass(kw_only=True)
class Search:
    """Looks for other chains; see the module docstring."""

    environment: Environment
    task: Task
    graph: ApiGraph
    chain: Chain
    macro: Macro
    shown: Sequence[ToolSpec]
    seed: int = 0
    max_calls: int = MAX_CALLS
    tried: int = 0
    same: dict[Calls, Calls] = field(default_factory=dict)
    """Sorted calls -> a legal order of them: another order of the same calls is no other chain."""
    other: dict[Calls, Calls] = field(default_factory=dict)

    async def run(self) -> Found:
        """The other chains found within `max_calls` calls, up to the first that ends elsewhere."""
        if self.macro.question:
            return Found()
        async with await Trial.open(self.environment, self.task, seed=self.seed) as trial:
            await self._visit(trial)
        gold = tuple(sorted(_as_calls([call.executed for call in self.chain.calls])))
        self.same.pop(gold, None)
        return Found(self.tried, tuple(self.same.values()), tuple(self.other.values()))

    async def _visit(self, trial: Trial) -> None:
        made = {digest_of(done.call.name, done.arguments()) for done in trial.executed}
        for spec in self._next(trial):
            for arguments in self._argument_sets(spec, trial):
                if self.tried >= self.max_calls or self.other:
                    return  # one chain that ends elsewhere is enough
                if digest_of(spec.name, arguments) in made:
                    continue
                self.tried += 1
                done = await trial.attempt(spec.name, arguments)
                if works(done):
                    if self._is_goal(spec):
                        self._note(trial, done)
                    elif not done.changes or spec.name in self._state_tools:
                        await self._visit(trial)
                trial.undo()

    def _next(self, trial: Trial) -> Iterator[ToolSpec]:
        """Goals first, then helpers as long as the chain stays no longer than gold's."""
        depth, executed = len(trial.executed), {done.call.name for done in trial.executed}
        yield from (spec for spec in self.shown if self._is_goal(spec))
        if depth + 1 < len(self.chain.calls):
            helpers = self._helpers()
            yield from (spec for spec in self.shown if spec.name in helpers and spec.name not in executed)

    def _is_goal(self, spec: ToolSpec) -> bool:
        target = self.graph.specs[self.chain.names[-1]]
        return spec.name == target.name or alike(spec, target)

    @property
    def _state_tools(self) -> set[str]:
        inner = {self.chain.names[place] for place in self.chain.needed_for_state}
        needed = [one.source for one in self.graph.prerequisites if one.need is Need.STATE]
        return inner | {name for name in needed if name in self.chain.names[:-1]}

    def _helpers(self) -> set[str]:
        """Tools on a way to a goal, and those that the chain calls."""
        goals = [spec.name for spec in self.shown if self._is_goal(spec)]
        found = {name for goal in goals for name in self.graph.ancestors(goal)}
        return (found | set(self.chain.names[:-1])) - set(goals)

    def _argument_sets(self, spec: ToolSpec, trial: Trial) -> Iterator[dict[str, Any]]:
        """Arguments that the request and the answers so far offer."""
        needs = Parameters.of(spec)
        choices: dict[str, list[Any]] = {}
        for name in needs.properties:
            options = self._options(spec, name, needs, trial)
            if options:
                choices[name] = options
            elif name in needs.required:
                return
        for values in itertools.islice(itertools.product(*choices.values()), _MOST_SETS):
            yield dict(zip(choices, values, strict=True))

    def _options(self, spec: ToolSpec, name: str, needs: Parameters, trial: Trial) -> list[Any]:
        pointed = [one.text for one in self.macro.arguments if one.reference and one.name == name]
        fed = list(self._from_answers(spec.name, name, needs, trial, pointed if self._is_goal(spec) else []))
        if pointed and self._is_goal(spec):
            return fed
        said = [one for one in self.macro.said if needs.fits(name, one.value)]
        same = [one.value for one in said if one.name.rstrip("_0123456789") == name or one.name == name]
        values = [*fed, *(same or ([one.value for one in said] if name in needs.required else []))]
        values += [
            source.value
            for call in self.chain.calls
            if call.executed.call.name == spec.name
            for source in call.of(Provenance.WRITTEN)
            if source.name == name
        ]
        unique = {canonical.dumps(value): value for value in values}
        return list(unique.values())[:_MOST_VALUES]

    def _from_answers(
        self, tool: str, parameter: str, needs: Parameters, trial: Trial, pointed: Sequence[str]
    ) -> Iterator[Any]:
        """Values that an earlier answer has for a parameter; where the request points, those it means."""
        calls = [GroundedCall(done, ()) for done in trial.executed]
        for one in self.graph.providers(tool).get(parameter, ()):
            for place, done in enumerate(trial.executed):
                if done.call.name != one.source:
                    continue
                for found in fields_of(done.result.text):
                    value = needs.as_typed(parameter, found.value) if found.path == one.output else None
                    source = ArgumentSource(
                        parameter, value, Provenance.OUTPUT, OutputPort(place, one.output)
                    )
                    if value is not None and (not pointed or self._means(source, calls, pointed)):
                        yield value

    def _means(self, source: ArgumentSource, calls: Sequence[GroundedCall], pointed: Sequence[str]) -> bool:
        ways = (reference(source, calls, self.graph, rng=rng) for rng in (_First(0), _Last(0)))
        return any(way in pointed for way in ways)

    def _note(self, trial: Trial, done: Executed) -> None:
        """Judge a chain that came to an end."""
        written = " ".join(made.call.arguments for made in trial.executed)
        if not all(mentions(written, one.value) for one in self.macro.said):
            return
        gold = self.chain.target.executed
        alike_end = trial.state == self.chain.state and (gold.changes or done.result.text == gold.result.text)
        calls = _as_calls(trial.executed)
        (self.same if alike_end else self.other).setdefault(tuple(sorted(calls)), calls)


def _as_calls(made: Sequence[Executed]) -> Calls:
    return tuple((done.call.name, canonical.dumps(done.arguments(), sort_keys=True)) for done in made)


async def accepted(environment: Environment, task: Task, calls: Calls, reply: str) -> bool:
    """Whether the task's verifier takes another chain, ended with gold's words, for a success."""
    said = [called(name, **canonical.loads(arguments)) for name, arguments in calls]
    played = await play(environment, task, ListedAgent([*said, assistant(reply)]))
    return bool(played.success)


class _First(random.Random):
    """Chooses what comes first."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


class _Last(random.Random):
    """Chooses what comes last."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]
