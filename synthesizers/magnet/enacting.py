"""A path acted out: every turn is executed before its request is written, and written before the next.

Calls are grounded in a real session, along the path's dependencies where an edge names the ports. Taken
back, with the reason counted, are a call for which nothing works, an inserted call that uses nothing of what
should feed it, a turn with an answer that tells of a failure, and a turn that cannot be put into words. Which
calls a request leaves unmentioned is decided by what was executed: a step towards another call of the same
turn that uses its answer, and a mere look-up, for nobody wants a change unasked. So of a nested pair the
request names the outer call, and the inner one has to be thought of. Not covered: Split and irrelevance
(`missing`).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from data.messages import ToolSpec, Turn, assistant, user
from pipeline.environments.blueprint import PlannedCall, PlannedTurn
from synthesizers.execution import Executed, Trial
from synthesizers.graph.dependency import SignatureGraph
from synthesizers.graph.fields import fields_of
from synthesizers.grounding.calls import Choice, GroundedCall, OutputPort, Provenance, ground
from synthesizers.grounding.evidence import ValuePool, digest_of
from synthesizers.grounding.planned import answered_names, planned_call, port_name
from synthesizers.magnet.paths import CallOrigin, Path, PathCall, PathTurn
from synthesizers.magnet.translation import Translator, Unwritten, Written, played
from synthesizers.phrasing.referring import goes_unsaid
from synthesizers.phrasing.requests import TurnCalls, phrase_closing
from synthesizers.phrasing.saying import answer_cells, values_to_say
from synthesizers.phrasing.twins import twins_of

_FAILURE = re.compile(
    r"\b(?:bad request|not found|no such|does not exist|cannot be|could not|unable to|failed|failure|"
    r"unauthori[sz]ed|forbidden|denied|not logged in|not authenticated)\b",
    re.IGNORECASE,
)
"""What tells a failed call. The paper drops turns by such words, of which it names the first."""
_SHORT = 160
"""Longer texts are somebody's words, not the tool's. Ours."""
_INSERTED = frozenset({CallOrigin.NESTED, CallOrigin.LONG})
"""Insert puts these in because they can use an answer; one that does not in execution goes."""
PREREQUISITE = -1
"""Key of a call that no path planned: what a question needs to be answered."""
_STEPS = frozenset({CallOrigin.NESTED, CallOrigin.MAGNIFIED})


@dataclass(slots=True)
class Enacted:
    """One user turn that was executed and put into words."""

    path: PathTurn
    turn: TurnCalls
    written: Written
    reply: str
    before: str
    """State digest before it."""
    after: str

    @property
    def names(self) -> tuple[str, ...]:
        """The tools it called."""
        return tuple(call.executed.call.name for call in self.turn.calls)

    @property
    def is_single(self) -> bool:
        """Whether the user asks for one thing only."""
        return len(self.turn.calls) - len(self.turn.unmentioned) == 1


@dataclass(slots=True, kw_only=True)
class Stage:
    """The dialogue in the making. `act` adds a turn of a path or takes it back."""

    trial: Trial
    tools: tuple[ToolSpec, ...]
    graph: SignatureGraph
    pool: ValuePool
    translator: Translator
    rng: random.Random
    turns: list[Enacted] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    choice: Choice = Choice.EVIDENCE
    links: Counter[str] = field(default_factory=Counter)
    """Of calls that the path says are fed: how many were `planned`, and how many `used` an answer of it."""
    unworkable: set[str] = field(default_factory=set)
    """Tools for which nothing worked."""
    _made: dict[int, int] = field(default_factory=dict)
    """Key of a call in the path -> its place among all executed calls."""

    async def act(self, planned: PathTurn, *, may_finish: bool = False) -> bool:
        """Whether the turn was added; where not, `dropped` says why."""
        before, start = self.trial.state, len(self.trial.executed)
        if self._has_twin(planned):
            self.dropped["ambiguous_tool"] += 1
            return False
        calls, path_calls = await self._grounded(planned, may_finish=may_finish)
        if not calls or any(has_failed(call.executed) for call in calls):
            self._take_back("failed_result" if calls else "", start)
            return False
        specs = {tool.name: tool for tool in self.tools}
        unsaid = {
            place for place, call in enumerate(calls) if goes_unsaid(call, specs[call.executed.call.name])
        }
        hidden = (_hidden(path_calls, calls, start) & unsaid) | _prerequisites(path_calls)
        if len(hidden) == len(calls):
            hidden = frozenset()
        history = tuple(self.trial.executed)
        turn = TurnCalls(tuple(calls), self.tools, history, hidden)
        try:
            written = await self.translator.request(turn, dialogue=self.dialogue, rng=self.rng)
        except Unwritten as reason:
            self._take_back(reason.reason, start)
            return False
        cells = [cell for call in calls if call.question for cell in answer_cells(call.executed.result.text)]
        reply = phrase_closing(turn, rng=self.rng, must_say=cells)
        path = PathTurn(tuple(path_calls))
        self.turns.append(Enacted(path, turn, written, reply, before, self.trial.state))
        return True

    async def play(self, path: Path) -> None:
        """Act out every turn of the path."""
        for turn in path.turns:
            if self.trial.finished:
                return
            await self.act(turn)

    async def close(self, tools: Sequence[ToolSpec], graph: SignatureGraph) -> None:
        """A last turn with one of the tools that end an episode, where an edge of `graph` leads there and an
        answer is used."""
        for tool in tools:
            feeding = [
                key
                for key, place in self._made.items()
                if graph.edge(self.trial.executed[place].call.name, tool.name) is not None
            ]
            if feeding:
                here, shown = self.graph, self.tools
                self.graph, self.tools = graph, (*shown, tool)
                call = PathCall(tool.name, max(self._made) + 1, fed_by=(feeding[-1],), origin=CallOrigin.LONG)
                if await self.act(PathTurn((call,)), may_finish=True):
                    return
                self.graph, self.tools = here, shown

    @property
    def num_fed(self) -> int:
        """Calls of the dialogue that use an answer which the path says they use."""
        pairs = (zip(enacted.path.calls, enacted.turn.calls, strict=True) for enacted in self.turns)
        return sum(self._is_fed(call, made) for turn in pairs for call, made in turn)

    @property
    def dialogue(self) -> list[Turn]:
        """What was said and done so far, as gold says it."""
        return dialogue_of(self.turns)

    @property
    def said(self) -> str:
        """What the user has said so far."""
        return "\n".join(enacted.written.text for enacted in self.turns)

    def _take_back(self, reason: str, start: int) -> None:
        """Undo all calls from place `start` on; "" is no reason to be counted."""
        if reason:
            self.dropped[reason] += 1
        self.trial.back_to(start)
        self._made = {key: place for key, place in self._made.items() if place < start}

    def _has_twin(self, planned: PathTurn) -> bool:
        """Whether a request of the turn would fit another tool of the dialogue as well."""
        called = {done.call.name for done in self.trial.executed} | {call.name for call in planned.calls}
        return bool(twins_of([call.name for call in planned.calls], self.tools) & called)

    async def _grounded(
        self, planned: PathTurn, *, may_finish: bool
    ) -> tuple[list[GroundedCall], list[PathCall]]:
        """The calls of the turn that worked."""
        calls: list[GroundedCall] = []
        path_calls: list[PathCall] = []
        specs = {tool.name: tool for tool in self.tools}
        for call in planned.calls:
            made = await ground(
                self.trial,
                specs[call.name],
                self.pool,
                rng=self.rng,
                prefer=self._ports(call),
                said="\n".join([self.said, *_told(calls)]),
                choice=self.choice,
                may_finish=may_finish,
                may_ask=True,
            )
            if made is None:
                self.dropped["no_call_works"] += 1
                self.unworkable.add(call.name)
                continue
            fed = self._is_fed(call, made)
            if call.origin in _INSERTED and not fed:
                self.dropped["not_fed"] += 1
                self.trial.undo()
                continue
            if made.question:
                made = await self._prepared(call, made, calls, path_calls)
            self.links += Counter(planned=bool(call.fed_by), used=fed)
            self._made[call.key] = len(self.trial.executed) - 1
            calls.append(made)
            there = tuple(key for key in call.fed_by if key in self._made)
            path_calls.append(replace(call, fed_by=there))
        return calls, path_calls

    async def _prepared(
        self, call: PathCall, made: GroundedCall, calls: list[GroundedCall], path_calls: list[PathCall]
    ) -> GroundedCall:
        """The call, made again behind what gold looks at first to answer such a question."""
        known = {done.call.name for done in self.trial.executed}
        asked = self.pool.questions[digest_of(call.name, made.executed.arguments())]
        lacking = [name for name in asked.before if name not in known]
        if not lacking:
            return made
        self.trial.undo()
        for name in lacking:
            calls.append(GroundedCall(await self.trial.attempt(name, {}), ()))
            path_calls.append(PathCall(name, PREREQUISITE))
        return made._replace(executed=await self.trial.attempt(call.name, made.executed.arguments()))

    def _is_fed(self, call: PathCall, made: GroundedCall) -> bool:
        """Whether the call uses an answer that the path says it uses."""
        feeding = {self._made[key] for key in call.fed_by if key in self._made}
        return any(source.of is not None and source.of.call in feeding for source in made.sources)

    def _ports(self, call: PathCall) -> dict[str, OutputPort]:
        """For each parameter that a feeding call can bring, the best port of the edge."""
        ports: dict[str, OutputPort] = {}
        for key in call.fed_by:
            if key not in self._made:
                continue
            place = self._made[key]
            edge = self.graph.edge(self.trial.executed[place].call.name, call.name)
            for link in edge.links if edge is not None else ():
                if link.whole:
                    ports.setdefault(link.input, OutputPort(place, link.output))
        return ports


def has_failed(executed: Executed) -> bool:
    """Whether an answer, though no error by its status, says in one of its short texts that it failed."""
    texts = [str(field.value) for field in fields_of(executed.result.text)]
    return any(_FAILURE.search(text) for text in [executed.result.text, *texts] if len(text) <= _SHORT)


def dialogue_of(turns: Sequence[Enacted]) -> list[Turn]:
    """User, calls, results and closings in order."""
    said: list[Turn] = []
    for enacted in turns:
        said.append(user(enacted.written.text))
        said += [turn for call in enacted.turn.calls for turn in played(call)]
        said.append(assistant(enacted.reply))
    return said


def planned_turn(enacted: Enacted, *, text: Written | None = None) -> PlannedTurn:
    """The turn as a blueprint holds it; `text` is said instead of its own request."""
    written = text or enacted.written
    mentioned = enacted.turn.mentioned
    asked = [call.executed for call in mentioned if not call.question]
    cells = [cell for call in mentioned if call.question for cell in answer_cells(call.executed.result.text)]
    told = values_to_say(asked, enacted.reply, request=enacted.written.text)
    return PlannedTurn(
        text=written.text,
        text_by=written.by,
        calls=tuple(_planned_calls(enacted)),
        reply=enacted.reply,
        must_say=tuple(dict.fromkeys([*told, *cells])),
        state=enacted.after,
    )


def _planned_calls(enacted: Enacted) -> Iterator[PlannedCall]:
    named = partial(port_name, names=answered_names(enacted.turn.history))
    for place, call in enumerate(enacted.turn.calls):
        mentioned = place not in enacted.turn.unmentioned and not call.question
        yield planned_call(call, mentioned=mentioned, named=named)


def _told(calls: Sequence[GroundedCall]) -> Iterator[str]:
    """What the turn's request will say for the calls so far."""
    for call in calls:
        yield from (str(source.value) for source in call.of(Provenance.USER))


def _prerequisites(path_calls: Sequence[PathCall]) -> frozenset[int]:
    return frozenset(place for place, call in enumerate(path_calls) if call.key == PREREQUISITE)


def _hidden(path_calls: Sequence[PathCall], calls: Sequence[GroundedCall], start: int) -> frozenset[int]:
    """Places of the calls that the request leaves unmentioned; see the module docstring.

    What such a call needs must be in the request or come from another one, or nobody could think of it.
    """
    stepping = {
        place
        for place, call in enumerate(path_calls)
        for later in path_calls[place + 1 :]
        if call.key in later.fed_by and (later.origin is CallOrigin.NESTED or call.origin in _STEPS)
    }
    used = {source.of.call - start for call in calls for source in call.sources if source.of is not None}
    hidden: set[int] = set()
    for place in sorted(stepping & used):
        needs = {source.of.call - start for source in calls[place].sources if source.of is not None}
        if not calls[place].executed.changes and needs <= hidden:
            hidden.add(place)
    return frozenset(hidden)
