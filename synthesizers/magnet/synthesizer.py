"""Magnet (arXiv 2503.07826): dialogues planned as paths through the signature graph, each turn executed.

walk -> MAGNIFY or CONNECT -> Merge -> Insert -> acted out turn by turn with back-and-forth translation ->
sometimes Split's copy instead. A share of items are irrelevance: one request that no shown tool can serve.
With a rolling teacher the student's own wrong turns make preference pairs. Not covered: training on pairs
(`rl`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from data.messages import ToolSpec
from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Pair
from pipeline.checks.options import check_least, check_shares
from pipeline.environments.blueprint import Blueprint, Expects, PlannedTurn, blueprint_task
from synthesizers.execution import Trial
from synthesizers.grounding.calls import Choice
from synthesizers.grounding.evidence import NUM_CORPUS, make_pool
from synthesizers.magnet.enacting import Enacted, planned_turn
from synthesizers.magnet.enacting import Stage as Acting
from synthesizers.magnet.knowledge import Knowledge, learn
from synthesizers.magnet.missing import Lacking, draw_lacking, refused, shown_tools, with_lacking
from synthesizers.magnet.negatives import Negatives
from synthesizers.magnet.paths import MERGE_SHARE, NESTED_SHARE, CallOrigin, Missing, PathCall, PathTurn
from synthesizers.magnet.roles import EDGE_JUDGE, ERROR_JUDGE, FORWARD_TRANSLATOR
from synthesizers.magnet.routes import (
    CONNECT_SHARE,
    MAGNIFY_SHARE,
    SPLIT_SHARE,
    STEPS,
    Operations,
    draw_path,
    renumbered,
    without,
)
from synthesizers.magnet.translation import Translator, Unwritten
from synthesizers.phrasing.back_translation import BACK_TRANSLATOR
from synthesizers.phrasing.requests import PhrasingError
from synthesizers.planning import Planned, Planner, given_up
from synthesizers.worlds import whole_world

IRRELEVANCE = 6_200 / 34_000
"""Share of items without a fitting tool. From the paper's mix: 6,200 of 34,000."""
PATHS = 3
"""Paths acted out for one dialogue; later ones go without the tools that did not work. Ours."""


@dataclass(kw_only=True)
class Magnet(Planner):
    """See the module docstring.

    `steps`: tools of the walk (the paper: 7). `merge` ... `split`: chances of the operations (`Operations`).
    `paths`: paths acted out one after the other until there are as many calls as steps; compare
    `random_choice` at 1, or later paths make up for what did not work. `min_calls`: fewer make no task, and
    where the graph has edges, fewer than `min_fed` of them that execution used make none, either.
    `max_tools`: tools shown, where the plan needs no more. `observed`: tasks whose gold is played to learn
    the graph. `negatives`: rollouts per wrong turn with the wrong call as a misleading hint (the paper: 10).
    `random_choice`: edges and ports are drawn at random, and no answer is used but along them. Roles:
    edge_judge, back_translator, forward_translator, error_judge.
    """

    steps: int = STEPS
    merge: float = MERGE_SHARE
    insert: float = 1.0
    nested: float = NESTED_SHARE
    magnify: float = MAGNIFY_SHARE
    connect: float = CONNECT_SHARE
    split: float = SPLIT_SHARE
    irrelevance: float = IRRELEVANCE
    paths: int = PATHS
    min_calls: int = 3
    min_fed: int = 1
    max_tools: int = 8
    observed: int = 64
    negatives: int = 0
    name: ClassVar[str] = "magnet"
    role_names: ClassVar[tuple[str, ...]] = (
        EDGE_JUDGE,
        BACK_TRANSLATOR.name,
        FORWARD_TRANSLATOR.name,
        ERROR_JUDGE.name,
    )
    dropped: Counter[str] = field(default_factory=Counter, init=False)
    """Why calls and turns of plans were taken back, over all plans so far."""
    links: Counter[str] = field(default_factory=Counter, init=False)
    """Dependencies along paths: how many were `planned`, and how many execution `used`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, {"steps": 1, "paths": 1, "min_calls": 1, "max_tools": 1})
        check_least(self, {"min_fed": 0, "observed": 0, "negatives": 0})
        check_shares(self, "irrelevance")
        self.operations = Operations(
            merge=self.merge,
            insert=self.insert,
            nested=self.nested,
            magnify=self.magnify,
            connect=self.connect,
            split=self.split,
        )
        self.translator = Translator()
        self.knowledge: Knowledge | None = None

    async def prepare(self, tasks: Sequence[Task]) -> None:
        """Learn the tools and how their answers feed each other."""
        back, forward = self.roles.of(BACK_TRANSLATOR.name), self.roles.of(FORWARD_TRANSLATOR.name)
        self.translator = Translator(back=back, forward=forward)
        self.knowledge = await learn(
            self.environment, observed=self.observed, judge=self.roles.of(EDGE_JUDGE)
        )

    async def plan(self, base: Task, rng: random.Random) -> Planned:
        """See `Planner`."""
        if self.knowledge is None:
            await self.prepare([base])
        assert self.knowledge is not None
        whole = whole_world(base)
        irrelevant = rng.random() < self.irrelevance
        async with await Trial.open(self.environment, whole, seed=self.seed) as trial:
            tools = self.knowledge.usable(trial.tools)
            if not tools:
                return given_up("no_tools", "no tool of this world may stand in a path")
            closing = self.knowledge.closing(trial.tools)
            whole_graph = await self.knowledge.graph_of((*tools, *closing))
            if self.random_choice:
                whole_graph = whole_graph.rewired(seed=self.seed)
            acting = Acting(
                trial=trial,
                tools=tools,
                graph=without(whole_graph, {tool.name for tool in closing}),
                choice=Choice.PORTS if self.random_choice else Choice.EVIDENCE,
                pool=await make_pool(self.environment, base, num_corpus=min(self.observed, NUM_CORPUS)),
                translator=self.translator,
                rng=rng,
            )
            if irrelevant:
                planned = await self._irrelevant(acting, base, whole)
            else:
                await self._acted(acting)
                await acting.close(closing, whole_graph)
                planned = await self._dialogue(acting, base, whole)
            self.dropped += acting.dropped
            self.links += acting.links
            return planned

    async def pairs(self, task: Task, taught: Sequence[Trajectory]) -> AsyncIterator[Pair]:
        """The student's first wrong turn against gold's, and what a misleading hint makes of it."""
        if self.teacher == "gold":
            return
        maker = Negatives(
            environment=self.environment,
            renderer=self.renderer,
            sampler=self._sampler() if self.negatives else None,
            rollouts=self.negatives,
            judge=self.roles.of(ERROR_JUDGE.name),
            name=self.name,
        )
        async for pair in maker.pairs(task, taught):
            yield pair

    async def _acted(self, acting: Acting) -> None:
        """Paths acted out one after the other."""
        planned = 0
        for _ in range(self.paths):
            left = self.steps - len(acting.trial.executed)
            graph = without(acting.graph, acting.unworkable)
            if left <= 0 or not len(graph):
                break
            path = draw_path(graph, self.operations, steps=left, rng=acting.rng)
            await acting.play(renumbered(path, planned))
            planned += len(path.calls)

    async def _dialogue(self, acting: Acting, base: Task, whole: Task) -> Planned:
        num_calls = len(acting.trial.executed)
        if num_calls < self.min_calls:
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(acting.dropped.items()))
            return given_up("too_few_calls", f"{num_calls} calls; dropped: {reasons or 'none'}")
        if acting.num_fed < self.min_fed and len(acting.graph.edges):
            return given_up("unconnected", f"{acting.num_fed} of {acting.links['planned']} dependencies used")
        lacking, turns = None, [planned_turn(turn) for turn in acting.turns]
        if acting.rng.random() < self.split:
            lacking = draw_lacking(acting.turns, acting.graph, acting.tools, rng=acting.rng)
            if lacking is None:
                acting.dropped["nothing_to_split"] += 1
            else:
                lacking, turns = await self._split(lacking, acting, turns)
        turns = self._with_tools(turns, acting, lacking)
        tags = sorted(_tags(acting.turns, lacking))
        return self._planned(turns, base, whole, tags=tags, kind=lacking.missing if lacking else "dialogue")

    async def _split(
        self, lacking: Lacking, acting: Acting, turns: list[PlannedTurn]
    ) -> tuple[Lacking | None, list[PlannedTurn]]:
        """The copy, or the path as it was where the copy cannot be put into words."""
        try:
            copy = await with_lacking(lacking, acting.turns, translator=self.translator, rng=acting.rng)
        except (Unwritten, PhrasingError):
            acting.dropped["split_unwritten"] += 1
            return None, turns
        return lacking, copy

    async def _irrelevant(self, acting: Acting, base: Task, whole: Task) -> Planned:
        """One request whose tool is not shown; that it could be served with it was tried."""
        for tool in acting.rng.sample(acting.tools, len(acting.tools)):
            shown = shown_tools(
                acting.tools, used=(), without=(tool.name,), most=self.max_tools, rng=acting.rng
            )
            if shown and await acting.act(PathTurn((PathCall(tool.name, 0),))):
                turn = refused(acting.turns[0]).model_copy(update={"tools": shown})
                return self._planned([turn], base, whole, tags=["irrelevance"], kind="irrelevance")
        return given_up("no_irrelevant_request", ", ".join(sorted(acting.dropped)))

    def _with_tools(
        self, turns: Sequence[PlannedTurn], acting: Acting, lacking: Lacking | None
    ) -> list[PlannedTurn]:
        """The turns with the tools shown from the first on and, after a missing one, where it appears."""
        used = {name for turn in acting.turns for name in turn.names}
        withheld = (lacking.lacks,) if lacking and lacking.missing is Missing.FUNC else ()
        shown = shown_tools(acting.tools, used=used, without=withheld, most=self.max_tools, rng=acting.rng)
        made = [turns[0].model_copy(update={"tools": shown}), *turns[1:]]
        if lacking and withheld:
            at = lacking.at + 1
            every = _in_order(acting.tools, {*shown, *withheld})
            made[at] = made[at].model_copy(update={"tools": every})
        return made

    def _planned(
        self, turns: Sequence[PlannedTurn], base: Task, whole: Task, *, tags: Sequence[str], kind: str
    ) -> Planned:
        task = blueprint_task(
            Blueprint(base=whole, seed=self.seed, turns=tuple(turns)),
            synthesizer=self.name,
            template=f"{self.name}/{kind}",
            tags=tags,
            parent=base,
        )
        return Planned(task=task, hints=tuple(hint_of(turn) for turn in turns))


def hint_of(turn: PlannedTurn) -> str:
    """What a hinted teacher is told: the reference calls, or the typed answer."""
    if turn.expects is not Expects.ACT:
        return f"Call nothing; say {turn.reply}."
    calls = "; ".join(f"{call.name} {call.arguments}" for call in turn.calls)
    return f"Call in this order: {calls}"


def _in_order(tools: Sequence[ToolSpec], names: set[str]) -> tuple[str, ...]:
    return tuple(tool.name for tool in tools if tool.name in names)


def _tags(turns: Sequence[Enacted], lacking: Lacking | None) -> set[str]:
    """Which operations the dialogue shows."""
    tags = {"multi_turn"} if len(turns) + bool(lacking) > 1 else set()
    if lacking:
        tags.add(str(lacking.missing))
    for enacted in turns:
        if enacted.turn.unmentioned:
            tags.add("nested")
        if len(enacted.turn.calls) - len(enacted.turn.unmentioned) > 1:
            tags.add("merged")
        if any(_is_long(enacted, place) for place in range(len(enacted.turn.calls))):
            tags.add("long_dependency")
    return tags


def _is_long(enacted: Enacted, place: int) -> bool:
    """Whether a call uses what an earlier user turn found, of a tool it was inserted for."""
    inserted = enacted.path.calls[place].origin is CallOrigin.LONG
    sources = enacted.turn.calls[place].sources
    return inserted and any(s.of is not None and s.of.call < enacted.turn.seen for s in sources)
