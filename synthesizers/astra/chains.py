"""ASTRA's tool chains (arXiv 2601.21558): chain, round trip, augmentation, execution, scoring of tasks.

A plan draws a chain inside one tool set, executes it in a base task's world, writes the request, reads it
back, and becomes a task only where the reading gives the chain exactly. A server-only task starts from the
tool set alone: its chain follows the tools' signatures, not what anybody did with them. Where a chat plays a
role it is asked, elsewhere observed gold, execution and templates do the work; tags of the task say which.
Not covered: scores of trajectories (`filters.astra_score`), tools that only exist as documents
(environment `simulated`).
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from data.errors import ConfigError
from data.messages import ToolSpec
from data.tasks import Task
from data.trajectories import Trajectory
from filters.astra_judges import JUDGES as SCORE_JUDGES
from filters.astra_parts import FailedCall
from filters.astra_score import scored
from pipeline.chat.base import Chat
from pipeline.checks.options import check_least, check_shares
from pipeline.environments.blueprint import Blueprint, PlannedTurn, blueprint_task
from synthesizers.astra.chains_execution import FAILURES, is_dependent, run_chain
from synthesizers.astra.chains_graph import MAX_LENGTH, Chain, random_chain
from synthesizers.astra.chains_judging import proposed_chains, task_ratings, votes_down
from synthesizers.astra.chains_plan import ChainPlan, Dialogue, Unplanned
from synthesizers.astra.chains_sets import OBSERVED, ToolSet, learn_sets, sets_of
from synthesizers.astra.chains_writing import PROGRAM, READERS
from synthesizers.base import Made
from synthesizers.execution import Trial
from synthesizers.grounding.calls import GroundedCall
from synthesizers.grounding.evidence import ValuePool, make_pool
from synthesizers.phrasing.twins import twins_of
from synthesizers.planning import Planned, Planner, given_up
from synthesizers.worlds import whole_world

AUGMENTATIONS = ("none", "diversity", "complexity", "persona")
"""What is done with a request. The three kinds are the paper's; drawn with equal chance: ours."""
SERVER_ONLY = 0.25
"""Share of tasks that start from the tool set alone. Ours."""
DRAWS = 4
"""Chains drawn per plan until one makes sense and works in the base task's world. Ours."""
LEAST_RATING = 3
"""Least rating, 1 to 5, of a task that goes on; its selection difficulty only becomes a tag. Ours."""


@dataclass(kw_only=True)
class AstraChains(Planner):
    """See the module docstring.

    `candidates`: weighted walks (paper) or any of all depth-first paths (code). `failures`: share of calls
    whose tool is down first. `distractors`: tools shown besides those of the chain, of the same set.
    `proposals`: pairs asked of a proposer per tool set; `observed`: tasks whose gold gives chains.
    `random_choice`: any tools of the set in any order.
    `threshold` and `failed_call`: of the score that every trajectory gets, with a verdict (`astra_score`).
    """

    name: ClassVar[str] = "astra_chains"
    role_names: ClassVar[tuple[str, ...]] = (
        *("chain_proposer", "chain_validator", "back_translator", "chain_reader", "chain_reader_*"),
        *("augmenter", "task_scorer", *SCORE_JUDGES),
    )
    candidates: Literal["walks", "paths"] = "walks"
    failures: float = FAILURES
    server_only: float = SERVER_ONLY
    augment: bool = True
    distractors: int = 3
    proposals: int = 24
    observed: int = OBSERVED
    threshold: float = 0.7
    failed_call: FailedCall = "paper"
    sets: dict[str, ToolSet] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self, "failures", "server_only")
        check_least(self, {"distractors": 0, "proposals": 1, "observed": 1})
        if self.candidates not in ("walks", "paths"):
            raise ConfigError(f"candidates is walks or paths, got {self.candidates!r}")
        if len(self._readers()) == 1:
            raise ConfigError(
                f"a majority needs more readers than one: name chain_reader_1 to chain_reader_{READERS} in "
                "`chats`, or chain_reader for one chat that reads as often"
            )

    async def prepare(self, tasks: Sequence[Task]) -> None:
        """Learn tool sets and transitions; a proposer's chains add to the observed ones."""
        self.sets = await learn_sets(self.environment, observed=self.observed)
        proposer = self.roles.of("chain_proposer")
        if proposer is not None:
            for tool_set in self.sets.values():
                for chain in await proposed_chains(proposer, tool_set, number=self.proposals):
                    tool_set.transitions.add(chain)

    async def _made(
        self, base: Task, index: int, *, done: Collection[str], failed: Collection[str]
    ) -> AsyncGenerator[Made]:
        """As any planner; every trajectory comes scored, behind the verdict on it.

        In this order: a kill between the two leaves no trajectory that is done and has no verdict.
        """
        async with aclosing(super()._made(base, index, done=done, failed=failed)) as made:
            async for record in made:
                if isinstance(record, Trajectory):
                    record, verdict = await scored(
                        record, self.roles.of, threshold=self.threshold, failed_call=self.failed_call
                    )
                    yield verdict
                yield record

    async def plan(self, base: Task, rng: random.Random) -> Planned:
        """One chain in the world of `base`; see the module docstring for the gates."""
        world = whole_world(base)
        async with await Trial.open(self.environment, world) as trial:
            present = sets_of(self.environment, world, trial.tools)
            tool_set = self._chosen_set(present, rng)
            if tool_set is None:
                return given_up("no_chains", f"no chains known of {', '.join(present)}")
            mode = "server_only" if rng.random() < self.server_only else "chain"
            made = ChainPlan(base=base, world=world, trial=trial, tool_set=tool_set, mode=mode, rng=rng)
            try:
                return await self._planned(made)
            except Unplanned as why:
                return given_up(why.reason, why.detail)

    async def _planned(self, made: ChainPlan) -> Planned:
        """The first of DRAWS chains that makes sense and works here, made a task. Raises Unplanned."""
        pool = await make_pool(self.environment, made.world)
        for draw in range(DRAWS):
            made.chain = self._candidate(made.tool_set, made.mode, made.rng)
            try:
                calls = await self._executed(made, pool)
            except Unplanned:
                if draw == DRAWS - 1:
                    raise
                made.trial.back_to(0)
                continue
            return await self._written(made, calls, pool)
        raise AssertionError("the last draw returns or raises")

    def _chosen_set(self, present: dict[str, list[ToolSpec]], rng: random.Random) -> ToolSet | None:
        """One of the base task's tool sets that has chains."""
        known = [self.sets[name] for name in present if name in self.sets]
        usable = [tool_set for tool_set in known if tool_set.transitions.lengths]
        return rng.choice(usable) if usable else None

    def _candidate(self, tool_set: ToolSet, mode: str, rng: random.Random) -> Chain:
        length = tool_set.transitions.drawn_length(rng)
        if self.random_choice:
            return random_chain(list(tool_set.tools), rng, length=length)
        if mode == "server_only":
            return tool_set.signature_walk(rng, length=length)
        if self.candidates == "paths":
            return rng.choice(tool_set.transitions.paths())
        return tool_set.transitions.walk(rng, length=length)

    async def _checked(self, made: ChainPlan) -> None:
        """Raise Unplanned where the chain makes no sense before anything is executed."""
        if len(made.chain) < 2:
            raise Unplanned("no_candidate", f"{made.mode} of {made.tool_set.name}")
        if twins := twins_of(made.chain, list(made.tool_set.tools.values())) & set(made.chain):
            raise Unplanned("ambiguous", f"one request fits {', '.join(sorted(twins))}")
        unlinked = made.tool_set.unlinked(made.chain)
        if unlinked and not self.random_choice:
            raise Unplanned("unlinked", unlinked)
        validator = self.roles.of("chain_validator")
        if validator is not None and (reasons := await votes_down(validator, made.chain, made.tool_set)):
            raise Unplanned("voted_down", reasons)

    async def _executed(self, made: ChainPlan, pool: ValuePool) -> tuple[GroundedCall, ...]:
        """The chain's calls, made. Unplanned where it makes no sense or does not work in this world."""
        await self._checked(made)
        run = await run_chain(
            made.trial,
            made.chain,
            made.tool_set.tools,
            pool=pool,
            graph=made.tool_set.graph,
            rng=made.rng,
        )
        if run.stuck:
            raise Unplanned("stuck", f"{run.stuck} of {' > '.join(made.chain)}")
        if not await is_dependent(self.environment, made.world, run.calls):
            raise Unplanned("independent_calls", " > ".join(made.chain))
        return run.calls

    async def _written(self, made: ChainPlan, calls: Sequence[GroundedCall], pool: ValuePool) -> Planned:
        """Request, round trip, augmentation, scores; the task, or Unplanned."""
        dialogue = Dialogue(
            made,
            shown=self._shown(made),
            writer=self.roles.of("back_translator"),
            augmenter=self.roles.of("augmenter"),
            readers=self._readers(),
            failures=self.failures,
        )
        kinds = [kind for kind in AUGMENTATIONS if kind != "complexity" or not made.trial.finished]
        kind = made.rng.choice(kinds) if self.augment else "none"
        await dialogue.add(calls, augmentation=kind)
        if kind == "complexity":
            await dialogue.add_request(pool)
        return given_up_or_task(made, dialogue, await self._rated(dialogue), kind=kind, name=self.name)

    def _shown(self, made: ChainPlan) -> list[ToolSpec]:
        """The chain's tools and some others of the set, in the order of the set."""
        twins = twins_of(made.chain, list(made.tool_set.tools.values()))
        others = [name for name in made.tool_set.tools if name not in {*made.chain, *twins}]
        kept = {*made.chain, *made.rng.sample(others, min(self.distractors, len(others)))}
        return [tool for name, tool in made.tool_set.tools.items() if name in kept]

    def _readers(self) -> list[Chat]:
        """Three readers: `chain_reader_1` and so on where they are named, else the one chat thrice."""
        chats = [
            self.roles.of(
                f"chain_reader_{number}" if f"chain_reader_{number}" in self.chats else "chain_reader"
            )
            for number in range(1, READERS + 1)
        ]
        return [chat for chat in chats if chat is not None]

    async def _rated(self, dialogue: Dialogue) -> dict[str, int]:
        scorer = self.roles.of("task_scorer")
        return await task_ratings(scorer, dialogue) if scorer is not None else {}


def given_up_or_task(
    made: ChainPlan, dialogue: Dialogue, ratings: dict[str, int], *, kind: str, name: str
) -> Planned:
    """The task of a finished dialogue, unless it is rated low."""
    judged = {key: value for key, value in ratings.items() if key != "selection_difficulty"}
    if low := [f"{key} {value}" for key, value in judged.items() if value < LEAST_RATING]:
        return given_up("low_rating", ", ".join(low))
    turns: tuple[PlannedTurn, ...] = tuple(dialogue.turns)
    tags = [made.mode, f"augmented:{kind}", f"round_trip:{'chat' if dialogue.readers else PROGRAM}"]
    tags += ["recover"] if dialogue.outages else []
    tags += [f"difficulty:{ratings['selection_difficulty']}"] if ratings else []
    blueprint = Blueprint(base=made.world, turns=turns, outages=tuple(dialogue.outages))
    template = f"{made.tool_set.name}/{min(len(made.chain), MAX_LENGTH)} tools"
    task = blueprint_task(blueprint, synthesizer=name, template=template, tags=tags, parent=made.base)
    hints = tuple(
        f"Call {', then '.join(dict.fromkeys(call.name for call in turn.calls))}." for turn in turns
    )
    return Planned(task, hints=hints)
