"""Environment `reasoning_gym`: the procedural tasks of the package of that name, with its difficulty knobs.

One tool, `answer`; the package's own `score_answer` is the verifier, and its partial credit is a component.
Answers are hostile text, and some of the package's scorers evaluate them: what is not harmless
(`scored_text`) scores 0 and is never given to them. All splits are index ranges of one seeded dataset:
held-out, then dev, then train; a question that an earlier index asked in the same words is passed over, so no
split repeats another. Not covered: datasets whose entries have no stored answer (their gold cannot be
played), images, and the package's curricula (give the knobs themselves).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

from data import canonical
from data.messages import assistant, user
from data.tasks import Budget, Task
from data.trajectories import Trajectory
from pipeline.environments.adapters.scored_text import Evaluates, evaluates, is_harmless
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.toolkit import ToolEnvironment, ToolSession
from pipeline.environments.tools import ToolLimits, tool
from pipeline.errors import ConfigError, MissingExtraError

_NO_NUMBER = re.compile(r"(?<![a-z])(?:nan|inf|infinity)[ij]?(?![a-z])", re.IGNORECASE)
"""Compared with anything, such a number is close enough to some scorers."""
_OURS = ("seed", "size")
"""Fields of a dataset's configuration that are no difficulty knobs."""


class ReasoningGymSession(ToolSession):
    """State: {"answer": what was submitted last, or null}."""

    dataset: Any = None
    evaluates: Evaluates = Evaluates.SYMPY

    @tool
    def answer(self, text: str) -> str:
        """Submit the final answer, nothing but the answer."""
        self.state["answer"] = text
        return "submitted"

    def judge(self, trajectory: Trajectory) -> Mapping[str, float]:
        """`score`: the package's, 0 to 1; `success`: a full score of a submitted answer."""
        if self.state["answer"] is None:
            return {"success": 0.0, "score": 0.0}
        score = self._score(self.state["answer"])
        return {"success": float(score >= 1.0), "score": score}

    def _score(self, answer: str) -> float:
        """The package's score, and 0 where that is no verdict on the answer.

        That is: where it must not be evaluated or is no number at all, where the scorer takes a lone "?" just
        as well, and where the answer breaks a scorer that reads the stored one.
        """
        private = self.task.private_value()
        stored, entry = private["answer"], self.dataset[private["index"]]
        is_stored = answer.strip().casefold() == str(stored).strip().casefold()
        if not is_stored and (_NO_NUMBER.search(answer) or not is_harmless(answer, self.evaluates)):
            return 0.0
        try:
            score = float(self.dataset.score_answer(answer, entry))
            takes_anything = not is_stored and score >= 1.0 and self.dataset.score_answer("?", entry) >= 1.0
            return 0.0 if takes_anything else score
        except Exception:
            if stored is None or is_stored:
                raise
            self.dataset.score_answer(stored, entry)
            return 0.0


class ReasoningGymEnvironment(ToolEnvironment):
    """`dataset`: a name of the package; `knobs`: its configuration; `seed`: another set of tasks.

    The sizes are indices, before repeated questions are passed over; slow generators want small ones.
    """

    name = "reasoning_gym"
    splits = ("train", "dev", "heldout")
    session = ReasoningGymSession

    def __init__(
        self,
        *,
        dataset: str = "chain_sum",
        knobs: Mapping[str, Any] | None = None,
        seed: int = 0,
        heldout: int = 500,
        dev: int = 200,
        train: int = 20_000,
        limits: ToolLimits | None = None,
    ) -> None:
        super().__init__(limits=limits)
        if min(heldout, dev, train) < 1:
            raise ConfigError(f"every split needs a task, got heldout={heldout}, dev={dev}, train={train}")
        self.dataset_name = dataset
        self._ranges = {
            "heldout": (0, heldout),
            "dev": (heldout, heldout + dev),
            "train": (heldout + dev, heldout + dev + train),
        }
        self.dataset, package = _make(dataset, dict(knobs or {}), seed=seed, size=heldout + dev + train)
        self._evaluates = evaluates(self.dataset.score_answer)
        identity = (self.version, dataset, dict(knobs or {}), seed, self._ranges, package)
        self.version = canonical.digest(*identity, length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """The questions of the split's indices that no earlier index asked."""
        self.check_split(split)
        start, end = self._ranges[split]
        seen = {self.dataset[index]["question"] for index in range(start)}
        for index in range(start, end):
            entry = self.dataset[index]
            if entry["question"] not in seen:
                seen.add(entry["question"])
                yield self._task(split, index, entry)

    def gold(self, task: Task) -> PlannedGold:
        """Submits the stored answer. ConfigError where the dataset stores none."""
        stored = task.private_value()["answer"]
        if stored is None:
            raise ConfigError(
                f"reasoning_gym dataset {self.dataset_name!r} stores no answers, it only scores them; it has "
                f"no gold: evaluate or train on it, and synthesise demonstrations elsewhere"
            )
        return PlannedGold(_plan(stored))

    async def open(self, task: Task, *, seed: int = 0) -> ToolSession:
        """A session that scores with this environment's dataset."""
        session = await super().open(task, seed=seed)
        assert isinstance(session, ReasoningGymSession)
        session.dataset, session.evaluates = self.dataset, self._evaluates
        return session

    def _task(self, split: str, index: int, entry: Mapping[str, Any]) -> Task:
        answer = entry["answer"]
        return Task(
            environment=self.name,
            split=split,
            template=self.dataset_name,
            tags=("reasoning", self.dataset_name),
            prompt=(user(entry["question"]),),
            state=canonical.dumps({"answer": None}),
            private=canonical.dumps({"index": index, "answer": None if answer is None else str(answer)}),
            verifier=f"reasoning_gym/{self.dataset_name}/1",
            budget=Budget(max_turns=4, max_tokens=4096),
        )


def load(**options: Any) -> ReasoningGymEnvironment:
    """The environment; options are those of ReasoningGymEnvironment."""
    return ReasoningGymEnvironment(**options)


def _make(name: str, knobs: dict[str, Any], *, seed: int, size: int) -> tuple[Any, str]:
    """The dataset over all indices, and the package's version."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise MissingExtraError(
            f"reasoning_gym is not installed ({error}); pip install 'trajsmith[reasoning-gym]'"
        ) from error
    if name not in DATASETS:
        raise ConfigError(f"reasoning_gym has no dataset {name!r}; it has {', '.join(sorted(DATASETS))}")
    allowed = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in _OURS]
    unknown = sorted(set(knobs) - set(allowed))
    if unknown:
        raise ConfigError(f"reasoning_gym {name} has no knobs {unknown}; it has {', '.join(allowed)}")
    try:
        made = reasoning_gym.create_dataset(name, seed=seed, size=size, **knobs)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"reasoning_gym {name} refuses {knobs}: {error}") from error
    return _Remembering(made), version("reasoning-gym")


class _Remembering:
    """A dataset that makes the entry of an index once while it is in use."""

    def __init__(self, dataset: Any) -> None:
        self.entry = functools.lru_cache(maxsize=4096)(dataset.__getitem__)
        self.score_answer = dataset.score_answer

    def __getitem__(self, index: int) -> Any:
        return self.entry(index)


def _plan(answer: str) -> Plan:
    yield call("answer", text=answer)
    yield assistant("Done.")
