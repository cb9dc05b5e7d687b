"""Evolving rubrics: criteria that a model writes from the group they then score, beside fixed ones.

R = sum of weight * score / sum of positive weights, at most 1, possibly negative. Source: RLER of DR Tulu
(arXiv 2511.19399). Per group: the first judge reads the rollouts and writes up to `new_rubrics` positive (+1)
or negative (-1) traits that tell them apart; every judge scores each trait 0, 1 or 2 (halved); traits without
spread over the group are retired for good, and at most `max_active` stay. Fixed (`persistent`) traits are
never pruned. An episode without a final answer scores 0. `strictness: evolving` is the other published
reading: the judges are told to be lenient, exact or strict as verified success of the last groups rises.

Two things differ from the released code: a failed judge gives no score (there it scores 0), and a group in
which nothing differs retires nothing (there it retires all). Criteria that grow with the policy invite
gaming: the part `agreement` says how often fixed and evolving traits order two rollouts the same way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import canonical
from data.files import write_atomically
from data.summaries import damaged, read_value
from data.tasks import Task
from data.trajectories import RewardBy, RewardComponent, Trajectory
from pipeline.chat.base import Chat
from pipeline.errors import ConfigError, JudgeError
from pipeline.rewards.base import Score, submitted_answer
from pipeline.rewards.panel import MAX_CHARACTERS, Panel, fill, shown
from pipeline.rewards.rubric_book import Rubric, RubricBook, agreement, rubric_reward

PERSISTENT = ("The request of the user is fulfilled, and the record shows it.",)
STRICTNESS = (
    "Be lenient: give credit for a step in the right direction.",
    "",
    "Be strict: only what is exact, complete and supported by the record counts as fully shown.",
)
"""Told to judges while fewer than 30 %, fewer than 70 %, and more of the last episodes succeed."""
_RECENT = "success.json"
"""Where a directory keeps the success rates of the last groups."""
_WINDOW = 32
"""Groups that the success rate is taken over."""


class Rubrics:
    """Parts: `persistent`, `evolving`, `active` (their number), `agreement`, `strictness`, `unanswered`."""

    name = "rubrics"
    by = RewardBy.MODEL
    per_group = True

    def __init__(
        self,
        *,
        judges: Sequence[Mapping[str, Any] | Chat],
        persistent: Sequence[str] = PERSISTENT,
        new_rubrics: int = 5,
        max_active: int = 5,
        strictness: str = "fixed",
        state_dir: Path | None = None,
    ) -> None:
        """`persistent`: traits of weight +1; `new_rubrics`: most that a group may add, 0 = none evolve.
        Calls per rollout: judges x (persistent + active)."""
        self.panel = Panel(judges, reward=self.name)
        self.persistent = [Rubric(1.0, trait) for trait in persistent]
        if not self.persistent or new_rubrics < 0 or max_active < 0:
            raise ConfigError(
                "reward rubrics needs at least one persistent trait, and new_rubrics and max_active of 0 or "
                f"more; got {len(self.persistent)}, {new_rubrics} and {max_active}"
            )
        if strictness not in ("fixed", "evolving"):
            raise ConfigError(f"reward rubrics: strictness must be fixed or evolving, got {strictness!r}")
        self.new_rubrics, self.max_active, self.state_dir = new_rubrics, max_active, state_dir
        self.evolving_strictness = strictness == "evolving"
        self._books: dict[str, RubricBook] = {}
        stored = None if state_dir is None else state_dir / _RECENT
        known = _recent(stored) if stored and stored.is_file() else ()
        self._recent: deque[float] = deque(known, maxlen=_WINDOW)

    async def score(self, task: Task, group: Sequence[Trajectory]) -> list[Score]:
        """See `RewardFunction.score`."""
        judged = [item for item in group if item.reward is not None and submitted_answer(item)]
        level = self._strictness()
        try:
            book = await self._evolved(task, judged)
        except JudgeError as error:
            return [_failed(item, error) if item in judged else _unanswered(item) for item in group]
        rubrics = [*self.persistent, *book.active]
        found = await asyncio.gather(*(self._scores(item, rubrics, level) for item in judged))
        scored = {id(item): values for item, values in zip(judged, found, strict=True)}
        whole = [values for values in found if not isinstance(values, JudgeError)]
        same = _agreement(whole, len(self.persistent), book.active)
        if len(whole) > 1:
            traits = [rubric.trait for rubric in rubrics]
            columns = dict(zip(traits, zip(*whole, strict=True), strict=True))
            book.prune(columns, most=self.max_active)
        self._remember(task, book, group)
        return [
            self._joined(item, scored[id(item)], rubrics, same, level)
            if id(item) in scored
            else _unanswered(item)
            for item in group
        ]

    async def close(self) -> None:
        """Release connections."""
        await self.panel.close()

    async def _evolved(self, task: Task, judged: Sequence[Trajectory]) -> RubricBook:
        """The task's book with what this group adds; one rollout alone has nothing to be told apart from."""
        path = self._path(task)
        known = self._books.get(task.task_id) or (RubricBook.load(path) if path else RubricBook())
        book = RubricBook(list(known.active), list(known.retired))
        if self.new_rubrics and len(judged) > 1:
            each = MAX_CHARACTERS // len(judged)
            existing = [rubric.trait for rubric in (*self.persistent, *book.active)]
            prompt = fill(
                "new_rubrics",
                most=str(self.new_rubrics),
                existing="\n".join(f"- {trait}" for trait in existing),
                records="\n\n".join(shown(item.turns, max_characters=each) for item in judged),
            )
            reply = await self.panel.ask_one(0, prompt, _new_schema(self.new_rubrics))
            weights = {"positive": 1.0, "negative": -1.0}
            new = [Rubric(weights[rubric["sign"]], rubric["trait"]) for rubric in reply["rubrics"]]
            book.add(new, persistent=self.persistent)
        return book

    async def _scores(
        self, trajectory: Trajectory, rubrics: Sequence[Rubric], level: int
    ) -> tuple[float, ...] | JudgeError:
        record = shown(trajectory.turns)
        prompts = [
            fill("rubric", trait=rubric.trait, record=record, strictness=STRICTNESS[level])
            for rubric in rubrics
        ]
        try:
            replies = await asyncio.gather(*(self.panel.ask(prompt, _SCORE_SCHEMA) for prompt in prompts))
        except JudgeError as error:
            return error
        return tuple(sum(reply["score"] for reply in asked) / 2 / len(asked) for asked in replies)

    def _joined(
        self,
        trajectory: Trajectory,
        values: tuple[float, ...] | JudgeError,
        rubrics: Sequence[Rubric],
        same: float | None,
        level: int,
    ) -> Score:
        if isinstance(values, JudgeError):
            return _failed(trajectory, values)
        weighted = [(rubric.weight, value) for rubric, value in zip(rubrics, values, strict=True)]
        fixed, evolving = weighted[: len(self.persistent)], weighted[len(self.persistent) :]
        parts = {
            "persistent": rubric_reward(fixed),
            "active": float(len(evolving)),
            "strictness": float(level),
            "unanswered": 0.0,
        }
        if evolving:
            parts["evolving"] = sum(weight * value for weight, value in evolving)
        if same is not None:
            parts["agreement"] = same
        components = [RewardComponent(name=name, value=value, by=self.by) for name, value in parts.items()]
        return Score(rubric_reward(weighted), tuple(components), trajectory.success)

    def _strictness(self) -> int:
        """0 lenient, 1 as written, 2 strict."""
        if not self.evolving_strictness:
            return 1
        rate = sum(self._recent) / len(self._recent) if self._recent else 0.0
        return (rate >= 0.3) + (rate >= 0.7)

    def _remember(self, task: Task, book: RubricBook, group: Sequence[Trajectory]) -> None:
        self._books[task.task_id] = book
        path = self._path(task)
        if path is not None:
            book.save(path)
        outcomes = [bool(item.success) for item in group if item.reward is not None]
        if outcomes:
            self._recent.append(sum(outcomes) / len(outcomes))
        if self.state_dir is not None:
            write_atomically(self.state_dir / _RECENT, canonical.dumps(list(self._recent)))

    def _path(self, task: Task) -> Path | None:
        return None if self.state_dir is None else self.state_dir / "rubrics" / f"{task.task_id}.json"


def _recent(path: Path) -> list[float]:
    """The last successes as they were kept. StoreError where the file is damaged."""
    told = {"of": "the last successes", "again": "delete it to count them anew"}
    value = read_value(path, **told)
    if not isinstance(value, list) or not all(isinstance(each, int | float) for each in value):
        raise damaged(path, "it holds no list of numbers", **told)
    return value


def _agreement(scores: Sequence[tuple[float, ...]], fixed: int, active: Sequence[Rubric]) -> float | None:
    """How often fixed and evolving traits order two rollouts of the group the same way."""
    evolving = [
        sum(rubric.weight * value for rubric, value in zip(active, values[fixed:], strict=True))
        for values in scores
    ]
    return agreement([sum(values[:fixed]) for values in scores], evolving)


def _failed(trajectory: Trajectory, error: JudgeError) -> Score:
    return Score(None, success=trajectory.success, error=f"JudgeError: {error}")


def _unanswered(trajectory: Trajectory) -> Score:
    """0 for an episode that gave no answer, no score for one that says nothing of the agent."""
    if trajectory.reward is None:
        return Score(total=None)
    return Score(0.0, (RewardComponent(name="unanswered", value=1.0),), trajectory.success)


_SCORE_SCHEMA = {
    "type": "object",
    "properties": {"reasons": {"type": "string"}, "score": {"enum": [0, 1, 2]}},
    "required": ["reasons", "score"],
    "additionalProperties": False,
}


def _new_schema(most: int) -> dict[str, Any]:
    rubric = {
        "type": "object",
        "properties": {
            "sign": {"enum": ["positive", "negative"]},
            "trait": {"type": "string", "minLength": 1},
        },
        "required": ["sign", "trait"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"rubrics": {"type": "array", "items": rubric, "maxItems": most}},
        "required": ["rubrics"],
        "additionalProperties": False,
    }
