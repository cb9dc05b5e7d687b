"""A search on one task: branches draw candidates, the better ones go on, and every choice is written down.

Decided here: a candidate that the infrastructure broke leaves the pool and is recorded; where fewer than
`width` are left, the whole search is an infrastructure failure without a reward, since what it would give is
no sample of anything. What all candidates cost is shared out over the trajectories that are kept, so that the
sum of their usage is what was paid. Not covered: how many searches run, and retries (`batch`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from data import canonical
from data.messages import NamedValue
from data.trajectories import Blame, Termination, Trajectory, make_trajectory_id
from data.verdicts import Verdict
from pipeline.errors import TrajsmithError
from pipeline.rollout_episode import STOP_EVERYTHING
from synthesizers.tree_search.branch import Branch, together
from synthesizers.tree_search.choosing import Standing, choose, ranking
from synthesizers.tree_search.records import REPLAYED, WEIGHT, Candidate, Choice
from synthesizers.tree_search.scores import StepScores
from synthesizers.tree_search.settings import Pick, SearchKind, SearchSettings


@dataclass(slots=True)
class Line:
    """A branch in the pool of a step, and what is known of it there."""

    branch: Branch
    id: str = ""
    """Of the candidate that its latest step is; "" at the start."""
    parent: str = ""
    turn: int = 0
    """Where its latest step begins in the dialogue."""
    sampled: int = 0
    """Tokens that were sampled before that step."""
    weight: float = 1.0
    choices: tuple[Choice, ...] = ()
    drawn: bool = False
    """Whether the step is new; an episode that had ended is compared again as it is."""
    parts: dict[str, float] = field(default_factory=dict)
    score: float = 0.0
    error: str = ""
    """What the infrastructure broke."""

    def standing(self) -> Standing:
        """What the choice looks at."""
        return Standing(self.score, self.weight, self.branch.parsable, self.branch.over)

    def candidate(self, rank: int, *, chosen: bool) -> Candidate:
        """The latest step as it is recorded."""
        return Candidate(
            id=self.id,
            parent=self.parent,
            turns=self.branch.turns[self.turn :],
            token_ids=self.branch.sampled_ids()[self.sampled :],
            logprobs=self.branch.author.logprobs[self.sampled :],
            parts=self.parts,
            rank=rank,
            parsable=self.branch.parsable,
            error=self.error,
            score=self.score,
            chosen=chosen,
        )


@dataclass(slots=True)
class Found:
    """What one search gives: `width` trajectories, and a verdict on every candidate."""

    trajectories: list[Trajectory]
    verdicts: list[Verdict]


class Search:
    """One search from `root`, a branch that has not begun. Run it once.

    Its trajectories are the rollouts from the root's `rollout_index` on.
    """

    def __init__(self, root: Branch, *, settings: SearchSettings, scores: StepScores) -> None:
        self.root, self.settings, self.scores = root, settings, scores
        who = root.identity
        self._rng = random.Random(canonical.digest("search", root.task.task_id, who.seed, who.rollout_index))
        self._id = make_trajectory_id(who.group_id, who.rollout_index, who.attempt)
        self._candidates: dict[str, Candidate] = {}
        self._open = {root}

    async def run(self) -> Found:
        """Search to the end. Raises only what stops everything, and CancelledError."""
        try:
            await self.root.begin()
            beam, step = [Line(self.root)], 0
            while any(not line.branch.over for line in beam):
                pool = await self._expanded(beam, step)
                await self._score_all(pool)
                beam, step = await self._chosen(pool, step), step + 1
                if len(beam) < self.settings.width:
                    return self._broken(pool)
            return await self._leaves(beam)
        finally:
            for branch in list(self._open):
                await self._release(branch)

    async def _expanded(self, beam: Sequence[Line], step: int) -> list[Line]:
        """The pool of a step: what the branches that go on draw, and those that have ended."""
        pool: list[Line] = []
        for line in beam:
            if line.branch.over:
                pool.append(replace(line, drawn=False))
                continue
            turn, sampled = len(line.branch.turns), len(line.branch.author.logprobs)
            for branch in await line.branch.forks(self.settings.candidates):
                self._open.add(branch)
                id = f"{self._id}#{step}.{len(pool)}"
                pool.append(Line(branch, id, line.id, turn, sampled, line.weight, line.choices, drawn=True))
        whole = self.settings.kind is SearchKind.BEST_OF_N
        await together([line.branch.advance(to_the_end=whole) for line in pool if line.drawn])
        return pool

    async def _score_all(self, pool: Sequence[Line]) -> None:
        """Set scores, and w_j: a branch's weight over the number of its candidates that are left."""
        await together([self._score(line) for line in pool if line.drawn])
        siblings = Counter(line.parent for line in pool if line.drawn and not line.error)
        for line in pool:
            if line.drawn and not line.error:
                line.weight /= siblings[line.parent]

    async def _score(self, line: Line) -> None:
        """Set the scores of a line, where `depth` further steps lead with lookahead; or what broke."""
        branch = line.branch
        try:
            if self.settings.kind is SearchKind.LOOKAHEAD and not branch.over:
                branch = await branch.ahead(self.settings.depth)
                self._open.add(branch)
            if branch.broken:
                line.error = branch.so_far().error or "it ended without a reward"
                return
            line.parts = await self.scores.parts(branch)
            line.score = self.scores.total(line.parts)
        except STOP_EVERYTHING:
            raise
        except TrajsmithError as error:
            line.error = f"{type(error).__name__}: {error}"
        finally:
            if branch is not line.branch:
                await self._release(branch)

    async def _chosen(self, pool: Sequence[Line], step: int) -> list[Line]:
        """The lines that go on, each with the choice on record. All others are released."""
        left = [line for line in pool if not line.error]
        standings = [line.standing() for line in left]
        ranks = ranking(standings, self._rng)
        beam: list[Line] = []
        for kept in choose(standings, ranks, self.settings, self._rng):
            line = left[kept.place]
            choice = Choice(step, line.branch.last, len(left), kept.rank, line.score, kept.probability)
            beam.append(replace(line, weight=kept.weight, choices=(*line.choices, choice)))
        going = {line.branch for line in beam}
        places = {line.id: rank for line, rank in zip(left, ranks, strict=True)}
        for line in pool:
            if line.drawn:
                chosen = line.branch in going
                self._candidates[line.id] = line.candidate(places.get(line.id, 0), chosen=chosen)
            if line.branch not in going:
                await self._release(line.branch)
        return beam

    async def _leaves(self, beam: Sequence[Line]) -> Found:
        """The records of the beam; an episode that ended before its first step is one for all."""
        width = self.settings.width
        lines = [beam[place % len(beam)] for place in range(width)]
        records = [await line.branch.finished() for line in lines]
        made = []
        for place, (line, record) in enumerate(zip(lines, records, strict=True)):
            named = [value for choice in line.choices for value in choice.named()]
            if self.settings.pick is Pick.SOFT and line.choices:
                named.append(NamedValue(name=WEIGHT, value=line.weight * width))
            labels = (REPLAYED,) if line.branch.replay else ()
            made.append(
                self._placed(record, place).model_copy(update={"scores": tuple(named), "labels": labels})
            )
        kept_in: dict[str, str] = {}
        for line, trajectory in zip(lines, made, strict=True):
            id = line.id
            while id:
                kept_in.setdefault(id, trajectory.trajectory_id)
                id = self._candidates[id].parent
        return Found(made, [each.verdict(kept_in.get(each.id, "")) for each in self._candidates.values()])

    def _broken(self, pool: Sequence[Line]) -> Found:
        """An infrastructure failure in place of every trajectory."""
        line = next(line for line in pool if line.error)
        update = {
            "reward": None,
            "termination": Termination.INFRA_FAILURE,
            "blame": Blame.INFRASTRUCTURE,
            "error": f"too few candidates of a search are left; one broke: {line.error}",
        }
        record = line.branch.so_far().model_copy(update=update)
        failures = [self._placed(record, place) for place in range(self.settings.width)]
        return Found(failures, [each.verdict() for each in self._candidates.values()])

    def _placed(self, record: Trajectory, place: int) -> Trajectory:
        """A record as trajectory number `place` of the search, with its share of what was paid."""
        who, cost, width = self.root.identity, self.root.cost, self.settings.width
        index = who.rollout_index + place
        paid = {
            "generated_tokens": cost.tokens,
            "engine_calls": cost.engine_calls,
            "tool_calls": cost.tool_calls,
        }
        shares = {name: total // width + (place < total % width) for name, total in paid.items()}
        update = {
            "rollout_index": index,
            "trajectory_id": make_trajectory_id(who.group_id, index, who.attempt),
            "usage": record.usage.model_copy(update=shares),
        }
        return record.model_copy(update=update)

    async def _release(self, branch: Branch) -> None:
        self._open.discard(branch)
        await branch.close()
