"""HardGen (arXiv 2601.01498): hard requests from the tools that two policies both fail at.

failure tools -> API graph around them, refined by executed calls -> a legal chain to a failure tool, made in
a real session -> folded into a macro tool -> a request against the macro tool, which mentions nothing of the
chain -> a search for other chains -> the task, solved with the primitive tools -> reasoning checked by
execution, with hints that reveal nothing. The graph is made anew when the failure set is another one; a
plan's verdict row says for which set it was made. Not covered: probing (`failures` reads what is stored), and
training between two failure sets (`flows.stages.loop`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from data.errors import ConfigError
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.checks.options import check_least
from pipeline.environments.blueprint import Blueprint, PlannedTurn, blueprint_task
from synthesizers.grounding.evidence import NUM_CORPUS, make_pool
from synthesizers.grounding.planned import planned_call, port_name
from synthesizers.hardgen.api_graph import ApiGraph, Need
from synthesizers.hardgen.chains import (
    FILL,
    MAX_CALLS,
    Chain,
    Maker,
    Step,
    Unmade,
    draw_at_random,
    draw_steps,
)
from synthesizers.hardgen.failures import (
    SHARE,
    FailureSet,
    Setting,
    Stored,
    check_setting,
    find_failures,
    rollouts_digest,
)
from synthesizers.hardgen.graphs import Graphs
from synthesizers.hardgen.hints import secrets_of
from synthesizers.hardgen.macro import Macro, fold
from synthesizers.hardgen.making import named
from synthesizers.hardgen.reasoning import ChatPlayer, Player, PolicyPlayer, Reasoning
from synthesizers.hardgen.record import UNREASONED, Plan, planned_verdict
from synthesizers.hardgen.requests import Written, write_request
from synthesizers.hardgen.roles import QUERY_WRITER, REASONER, TOOL_MAKER, VERIFIER
from synthesizers.hardgen.uniqueness import Found, Search, accepted
from synthesizers.magnet.missing import shown_tools
from synthesizers.phrasing.closings import TurnCalls, phrase_closing
from synthesizers.phrasing.saying import answer_cells, values_to_say
from synthesizers.planning import Planned, Planner, given_up
from synthesizers.worlds import whole_world

DRAWS, DRAWS_OF_TARGET = 10, 4
"""Chains tried for one plan, and of those toward one failure tool. Ours."""
MAX_TRIES = 3
"""Tries of the reasoner. From the paper: K_max."""
_CHECKED = 2
"""Other chains that the verifier is asked about. Ours."""
EDGE_JUDGE = "edge_judge"


@dataclass(kw_only=True)
class HardGen(Planner):
    """See the module docstring.

    `failures`: the two policies, as `failures.check_setting` reads them. `share`: of a tool's probes at which
    both must be wrong. `min_calls`, `max_calls`: of a chain. `max_tools`: tools shown, where the chain needs
    no more. `observed`: tasks whose gold is played to learn the graph. `max_tries`: of the reasoner.
    `random_choice`: any tool is a target, the steps to it are drawn at random. Roles: edge_judge, tool_maker,
    query_writer, reasoner, verifier.
    """

    failures: Sequence[Setting] = ()
    share: float = SHARE
    min_calls: int = 1
    max_calls: int = MAX_CALLS
    max_tools: int = 8
    observed: int = 64
    max_tries: int = MAX_TRIES
    store: Stored | None = None
    name: ClassVar[str] = "hardgen"
    role_names: ClassVar[tuple[str, ...]] = (
        EDGE_JUDGE,
        TOOL_MAKER.name,
        QUERY_WRITER.name,
        REASONER.name,
        VERIFIER.name,
    )
    dropped: Counter[str] = field(default_factory=Counter, init=False)
    """Why draws came to nothing, over all plans so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive = ("min_calls", "max_calls", "max_tools", "observed", "max_tries")
        check_least(self, dict.fromkeys(positive, 1))
        if not self.min_calls <= self.max_calls <= MAX_CALLS:
            raise ConfigError(
                f"min_calls {self.min_calls} and max_calls {self.max_calls}: "
                f"chains have up to {MAX_CALLS} calls"
            )
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(f"share is above 0 and at most 1, got {self.share}")
        if self.failures or not self.random_choice:
            check_setting(self.failures)
        if REASONER.name in self.chats and self.teacher == "policy":
            raise ConfigError(
                "chats.reasoner and teacher: policy both act; leave teacher out for the chat to reason, "
                "or write teacher: hinted for the policy to reason with hints"
            )
        self.failure_set: FailureSet | None = None
        self.plans_made: dict[str, Plan] = {}  # two plans of one base may come to the same task
        self.graphs = Graphs(environment=self.environment, observed=self.observed, seed=self.seed)
        self._is_prepared = False

    def inputs(self) -> dict[str, str]:
        """What of the store a finished synthesis rests on: with other rollouts failures may have moved."""
        if not self.failures or self.store is None:
            return {}
        return {"rollouts": rollouts_digest(self.failures, store=self.store, without=self.name)}

    async def prepare(self, tasks: Sequence[Task]) -> None:
        """Find the failure tools, and learn from gold what the graph is made of."""
        if self.failures:
            if self.store is None:
                raise ConfigError("failures are read from a run's store; hand it over as `store`")
            self.failure_set = await find_failures(
                self.environment, self.failures, store=self.store, share=self.share, without=self.name
            )
            if not self.failure_set.names and not self.random_choice:
                raise ConfigError(self.failure_set.none_fails)
        await self.graphs.learn(self.roles.of(EDGE_JUDGE))
        self._is_prepared = True

    async def plan(self, base: Task, rng: random.Random) -> Planned:
        """See `Planner`."""
        if not self._is_prepared:
            await self.prepare([base])
        whole = whole_world(base)
        tools = await self.graphs.tools(whole)
        graph = await self.graphs.of(tools, None if self.random_choice else self.failure_set)
        if not graph.targets:
            return given_up("no_failure_tool", f"none of {len(tools)} tools of this world")
        maker = Maker(
            environment=self.environment,
            task=whole,
            graph=graph,
            pool=await make_pool(self.environment, base, num_corpus=min(self.observed, NUM_CORPUS)),
            rng=rng,
            seed=self.seed,
            lenient=self.random_choice,
        )
        reasons: Counter[str] = Counter()
        detail = ""
        vain: Counter[str] = Counter()
        for _ in range(DRAWS):
            left = [
                name for name in graph.targets if vain[name] < DRAWS_OF_TARGET and name not in maker.failed
            ]
            if not left:
                break
            target = self._target(left, maker.rng)
            try:
                return await self._drawn(maker, target, base, whole)
            except Unmade as reason:
                reasons[reason.reason] += 1
                detail = str(reason)
                vain[target] += DRAWS_OF_TARGET if reason.reason == "no_legal_chain" else 1
        self.dropped += reasons
        most = max(reasons, key=lambda reason: (reasons[reason], reason))
        return given_up(most, detail)

    async def _drawn(self, maker: Maker, target: str, base: Task, whole: Task) -> Planned:
        """One chain, and the task that comes of it. Raises Unmade."""
        graph = maker.graph
        chain = await self._chain(maker, target)
        if len(chain.calls) < self.min_calls:
            raise Unmade("too_short", f"{len(chain.calls)} calls to {target}")
        chain = await maker.with_forced(chain)
        macro = await named(fold(chain, graph), chain, graph, self.roles.of(TOOL_MAKER.name))
        written = await write_request(
            macro, chain, graph, rng=maker.rng, chat=self.roles.of(QUERY_WRITER.name)
        )
        names = shown_tools(graph.tools, used=set(chain.names), most=self.max_tools, rng=maker.rng)
        search = Search(
            environment=self.environment,
            task=whole,
            graph=graph,
            chain=chain,
            macro=macro,
            shown=[graph.specs[name] for name in names],
            seed=self.seed,
        )
        found = await search.run()
        if found.other:
            raise Unmade("ambiguous_chain", " -> ".join(name for name, _ in found.other[0]))
        turn = planned_turn(chain, macro, written, graph, rng=maker.rng).model_copy(update={"tools": names})
        task = self._task(turn, base, whole, chain)
        await self._check_accepted(task, found, turn.reply)
        secrets = secrets_of(task, graph.tools, chain.history, macro.name)
        self.plans_made[task.task_id] = Plan(graph.failures, target, macro, chain.names, found, secrets)
        return Planned(task=task, hints=("",))

    def _target(self, targets: Sequence[str], rng: random.Random) -> str:
        """A failure tool, the more likely the more often both failed at it."""
        if self.random_choice or self.failure_set is None:
            return rng.choice(targets)
        weights = [self.failure_set.weight(name) for name in targets]
        return rng.choices(targets, weights=weights)[0]

    async def _chain(self, maker: Maker, target: str) -> Chain:
        """The chain of a draw; with state prerequisites where the target does not work without them."""
        if self.random_choice:
            return await maker.make(draw_at_random(maker.graph, target, rng=maker.rng))
        try:
            return await maker.make(self._steps(maker, target, states=False))
        except Unmade as reason:
            if reason.reason != "no_call_works" or not _rests_on_state(maker.graph, target):
                raise
        return await maker.make(self._steps(maker, target, states=True))

    def _steps(self, maker: Maker, target: str, *, states: bool) -> list[Step]:
        return draw_steps(
            maker.graph,
            target,
            rng=maker.rng,
            max_calls=self.max_calls,
            fill=FILL if self.min_calls == 1 else 1.0,
            states=states,
            avoid=maker.failed,
        )

    def _task(self, turn: PlannedTurn, base: Task, whole: Task, chain: Chain) -> Task:
        tags = {"implicit_chain"} if len(chain.calls) > 1 else {"single_call"}
        if chain.needed_for_state:
            tags.add("state_prerequisite")
        return blueprint_task(
            Blueprint(base=whole, seed=self.seed, turns=(turn,)),
            synthesizer=self.name,
            template=f"{self.name}/{len(chain.calls)}_calls",
            tags=sorted(tags),
            parent=base,
        )

    async def _check_accepted(self, task: Task, found: Found, reply: str) -> None:
        """Another way to the same end must be a success, or the task would punish who takes it."""
        for calls in found.same[:_CHECKED]:
            if not await accepted(self.environment, task, calls, reply):
                raise Unmade("alternative_refused", " -> ".join(name for name, _ in calls))

    async def _taught(
        self, planned: Planned, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncGenerator[Trajectory]:
        """The reasoner's tries where there is a reasoner, else the teacher's; gold thinks nothing."""
        assert planned.task is not None
        player = self._player()
        if player is None:
            async with aclosing(super()._taught(planned, done=done, failed=failed)) as taught:
                async for trajectory in taught:
                    yield _unreasoned(trajectory) if self.teacher == "gold" else trajectory
            return
        plan = self.plans_made[planned.task.task_id]
        reasoning = Reasoning(
            player=player,
            verifier=self.roles.of(VERIFIER.name),
            max_tries=self.max_tries,
            filter=self.name,
        )
        tries = reasoning.tries(planned.task, plan.secrets, done=done, failed=failed)
        async with aclosing(tries) as tried:
            async for trajectory in tried:
                yield trajectory
        plan.reasoning, plan.failure = reasoning.outcome, reasoning.verdict

    def _player(self) -> Player | None:
        """Who reasons: the chat of that role; the policy where the teacher is hinted; else nobody."""
        chat = self.roles.of(REASONER.name)
        if chat is not None and self.teacher != "policy":
            return ChatPlayer(
                chat=chat,
                environment=self.environment,
                renderer=self.renderer,
                settings=self.settings,
                synthesizer=self.name,
                seed=self.seed,
                run_id=self.run_id,
                load=self.load,
            )
        if self.teacher != "hinted":
            return None
        sampler = self._sampler()
        sampler.k = 1
        return PolicyPlayer(sampler=sampler, renderer=self.renderer)

    async def further(
        self, planned: Planned, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncIterator[Trajectory | Verdict]:
        """The record of the plan, and the verdict on its reasoning where that failed."""
        assert planned.task is not None
        plan = self.plans_made[planned.task.task_id]
        if plan.failure is not None:
            yield plan.failure
        yield planned_verdict(planned.task, plan, filter_=self.name)


def _unreasoned(trajectory: Trajectory) -> Trajectory:
    return trajectory.model_copy(update={"labels": (*trajectory.labels, UNREASONED)})


def planned_turn(
    chain: Chain, macro: Macro, written: Written, graph: ApiGraph, *, rng: random.Random
) -> PlannedTurn:
    """The one user turn of a chain: only its last call is asked for."""
    inner = range(len(chain.calls) - 1)
    turn = TurnCalls(chain.calls, graph.tools, chain.history, inner)
    target = chain.target
    cells = answer_cells(target.executed.result.text) if macro.question else ()
    reply = phrase_closing(turn, rng=rng, must_say=cells)
    how = partial(port_name, names=chain.names)
    told = cells if macro.question else values_to_say([target.executed], reply, request=written.text)
    return PlannedTurn(
        text=written.text,
        text_by=written.by,
        calls=tuple(
            planned_call(call, mentioned=call is target and not call.question, named=how)
            for call in chain.calls
        ),
        reply=reply,
        must_say=tuple(dict.fromkeys(told)),
        state=chain.state,
    )


def _rests_on_state(graph: ApiGraph, target: str) -> bool:
    return any(
        one.need is Need.STATE
        for name in (target, *graph.ancestors(target))
        for one in graph.prerequisites
        if one.target == name
    )
