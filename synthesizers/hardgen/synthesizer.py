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
from typing import ClassVar

from data.errors import ConfigError
from data.messages import ToolSpec
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.checks.options import check_least
from pipeline.environments.blueprint import Blueprint, PlannedTurn, blueprint_task
from synthesizers.grounding.evidence import NUM_CORPUS, make_pool
from synthesizers.hardgen.api_graph import ApiGraph, Need
from synthesizers.hardgen.chains import (
    FILL,
    MAX_CALLS,
    Chain,
    Maker,
    Step,
    Unmade,
    depth,
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
from synthesizers.hardgen.joining import Goal, joined, names_of, replaced
from synthesizers.hardgen.macro import fold
from synthesizers.hardgen.making import named
from synthesizers.hardgen.reasoning import ChatPlayer, Player, PolicyPlayer, Reasoning
from synthesizers.hardgen.record import UNREASONED, Plan, planned_verdict
from synthesizers.hardgen.requests import write_request
from synthesizers.hardgen.roles import QUERY_WRITER, REASONER, TOOL_MAKER, VERIFIER
from synthesizers.hardgen.turns import joined_turn
from synthesizers.hardgen.uniqueness import Found, Search, accepted
from synthesizers.magnet.missing import shown_tools
from synthesizers.planning import Planned, Planner, given_up
from synthesizers.worlds import whole_world

DRAWS, DRAWS_OF_TARGET = 16, 6
"""Chains tried for one plan, and of those toward one failure tool. Ours."""
LOOKED_AT = 3
"""Failure tools drawn for one chain, of which that of the longest is taken. Ours: worlds are shallow, and one
call is no implicit chain."""
LONG_DRAWS = 4
"""Chains that were made and refused, after which long ones are no longer preferred. Ours."""
LEARNED = ("no_call_works", "no_legal_chain")
"""Reasons that say what a world has not, and nothing against long chains."""
MAX_TRIES = 3
"""Tries of the reasoner. From the paper: K_max."""
_CHECKED = 2
"""Other chains that the verifier is asked about. Ours."""
EDGE_JUDGE = "edge_judge"


@dataclass(kw_only=True)
class HardGen(Planner):
    """See the module docstring.

    `failures`: the two policies, as `failures.check_setting` reads them. `share`: of a tool's probes at which
    both must be wrong. `goals`: most failure tools that one request asks for (`joining`). `min_calls`,
    `max_calls`: of a chain, the most of all goals together. `max_tools`: tools shown, where the chain needs
    no more. `observed`: tasks whose gold is played to learn the graph. `max_tries`: of the reasoner.
    `random_choice`: any tool is a target, the steps to it are drawn at random. Roles: edge_judge, tool_maker,
    query_writer, reasoner, verifier.
    """

    failures: Sequence[Setting] = ()
    share: float = SHARE
    goals: int = 1
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
        positive = ("goals", "min_calls", "max_calls", "max_tools", "observed", "max_tries")
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
        if REASONER.name in self.chats and self.teacher != "gold":
            raise ConfigError(
                f"chats.reasoner and teacher: {self.teacher} both act; leave teacher out for the chat to "
                "reason, or the reasoner, and write teacher: hinted, for the policy to reason with hints"
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
        detail, refused = "", 0
        vain: Counter[str] = Counter()
        for _ in range(DRAWS):
            left = [
                name for name in graph.targets if vain[name] < DRAWS_OF_TARGET and name not in maker.failed
            ]
            if not left:
                break
            is_late = refused >= LONG_DRAWS
            target = self._target(left, maker, looked_at=1 if is_late else LOOKED_AT)
            fill = FILL if is_late or vain[target] > 1 else 1.0
            try:
                return await self._drawn(maker, target, base, whole, fill=fill)
            except Unmade as reason:
                reasons[reason.reason] += 1
                refused += reason.reason not in LEARNED
                detail = str(reason)
                vain[target] += DRAWS_OF_TARGET if reason.reason == "no_legal_chain" else 1
        self.dropped += reasons
        most = max(reasons, key=lambda reason: (reasons[reason], reason))
        return given_up(most, detail)

    async def _drawn(self, maker: Maker, target: str, base: Task, whole: Task, *, fill: float) -> Planned:
        """One chain, and the task that comes of it. Raises Unmade."""
        alone = [await self._goal(maker, target, fill=fill)]
        while len(alone) < self.goals and (other := await self._another(maker, alone)) is not None:
            alone.append(other)
        goals = await joined(maker, alone, most=self.max_calls) if len(alone) > 1 else alone
        graph, names = maker.graph, names_of(goals)
        shown = shown_tools(graph.tools, used=set(names), most=self.max_tools, rng=maker.rng)
        found = [
            await self._searched(whole, graph, goal, [graph.specs[name] for name in shown]) for goal in alone
        ]
        turn = joined_turn(goals, graph, rng=maker.rng).model_copy(update={"tools": shown})
        task = self._task(turn, base, whole, goals)
        await self._check_accepted(task, goals, found, turn.reply)
        secrets = secrets_of(task, graph.tools, goals[-1].chain.history, goals[0].macro.name)
        secrets = secrets._replace(names=(*secrets.names, *(goal.macro.name for goal in goals[1:])))
        first, search = (
            goals[0],
            Found(sum(one.tried for one in found), tuple(s for f in found for s in f.same)),
        )
        also = tuple((goal.target, goal.macro.name) for goal in goals[1:])
        plan = Plan(graph.failures, first.target, first.macro, names, search, secrets, also)
        self.plans_made[task.task_id] = plan
        return Planned(task=task, hints=("",))

    async def _goal(self, maker: Maker, target: str, *, fill: float) -> Goal:
        """A chain to the target, folded and asked for. Raises Unmade."""
        graph = maker.graph
        chain = await self._chain(maker, target, fill=fill)
        if len(chain.calls) < self.min_calls:
            raise Unmade("too_short", f"{len(chain.calls)} calls to {target}")
        chain = await maker.with_forced(chain)
        macro = await named(fold(chain, graph), chain, graph, self.roles.of(TOOL_MAKER.name))
        chat = self.roles.of(QUERY_WRITER.name)
        return Goal(chain, macro, await write_request(macro, chain, graph, rng=maker.rng, chat=chat))

    async def _another(self, maker: Maker, goals: Sequence[Goal]) -> Goal | None:
        """One more goal that goes with these, if need be toward the same tool; None where a few draws find
        none."""
        asked = {goal.target for goal in goals}
        on_the_way = {*names_of(goals)} - asked
        for number in range(DRAWS_OF_TARGET):
            left = [
                name
                for name in maker.graph.targets
                if name not in on_the_way and depth(maker.graph, name, avoid=maker.failed)
            ]
            if number < DRAWS_OF_TARGET // 2:
                left = [name for name in left if name not in asked] or left
            if not left:
                break
            try:
                other = await self._goal(maker, self._target(left, maker), fill=1.0)
                await joined(maker, [*goals, other], most=self.max_calls)
                return other
            except Unmade as reason:
                self.dropped[f"joined/{reason.reason}"] += 1
        return None

    async def _searched(self, whole: Task, graph: ApiGraph, goal: Goal, shown: Sequence[ToolSpec]) -> Found:
        """Other chains to a goal. Raises Unmade where one ends elsewhere."""
        search = Search(
            environment=self.environment,
            task=whole,
            graph=graph,
            chain=goal.chain,
            macro=goal.macro,
            shown=shown,
            seed=self.seed,
        )
        found = await search.run()
        if found.other:
            raise Unmade("ambiguous_chain", " -> ".join(name for name, _ in found.other[0]))
        return found

    def _target(self, targets: Sequence[str], maker: Maker, *, looked_at: int = LOOKED_AT) -> str:
        """Of a few failure tools, each the more likely the more often both failed at it, the one that takes
        most calls in this world, as far as is known."""
        if self.random_choice or self.failure_set is None:
            return maker.rng.choice(targets)
        depths = {name: depth(maker.graph, name, avoid=maker.failed) for name in targets}
        weights = [self.failure_set.weight(name) if depths[name] else 0.0 for name in targets]
        if not any(weights):
            return targets[0]
        return max(maker.rng.choices(targets, weights=weights, k=looked_at), key=depths.__getitem__)

    async def _chain(self, maker: Maker, target: str, *, fill: float) -> Chain:
        """The chain of a draw; with state prerequisites where the target does not work without them."""
        if self.random_choice:
            return await maker.make(draw_at_random(maker.graph, target, rng=maker.rng))
        try:
            return await maker.make(self._steps(maker, target, fill=fill, states=False))
        except Unmade as reason:
            if reason.reason != "no_call_works" or not _rests_on_state(maker.graph, target):
                raise
        return await maker.make(self._steps(maker, target, fill=fill, states=True))

    def _steps(self, maker: Maker, target: str, *, fill: float, states: bool) -> list[Step]:
        return draw_steps(
            maker.graph,
            target,
            rng=maker.rng,
            max_calls=self.max_calls,
            fill=fill if self.min_calls == 1 else 1.0,
            states=states,
            avoid=maker.failed,
        )

    def _task(self, turn: PlannedTurn, base: Task, whole: Task, goals: Sequence[Goal]) -> Task:
        number = len(names_of(goals))
        tags = {"implicit_chain"} if number > len(goals) else {"single_call"}
        if any(goal.chain.needed_for_state for goal in goals):
            tags.add("state_prerequisite")
        if len(goals) > 1:
            tags.add("several_goals")
        return blueprint_task(
            Blueprint(base=whole, seed=self.seed, turns=(turn,)),
            synthesizer=self.name,
            template=f"{self.name}/{number}_calls",
            tags=sorted(tags),
            parent=base,
        )

    async def _check_accepted(
        self, task: Task, goals: Sequence[Goal], found: Sequence[Found], reply: str
    ) -> None:
        """Another way to the same end must be a success, or the task would punish who takes it."""
        for place, one in enumerate(found):
            for calls in one.same[:_CHECKED]:
                if not await accepted(self.environment, task, replaced(goals, place, calls), reply):
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
        if chat is not None and self.teacher == "gold":
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


def _rests_on_state(graph: ApiGraph, target: str) -> bool:
    return any(
        one.need is Need.STATE
        for name in (target, *graph.ancestors(target))
        for one in graph.prerequisites
        if one.target == name
    )
