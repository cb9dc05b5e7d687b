"""The environment question_dag: questions over our own tables by default, items of a file where one is named.

Our own: every split has worlds of its own (`PER_WORLD` questions of a subject each), heldout_unseen also
step kinds of its own; the six subjects take turns. A file's items (`items=path`) bring their tools, which run
in the sandbox like any. Irrelevant tools are mixed in from three bands of similarity (`similarity`),
`irrelevant` of each; the shown order is drawn. Not covered: making items (`synthesizers.astra`).
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data import canonical
from data.media import MediaStore
from data.messages import assistant
from data.tasks import Task
from pipeline.dotted import load_dotted
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.host import HostEnvironment
from pipeline.environments.question_dag.dag import QuestionDag
from pipeline.environments.question_dag.items import MadeCall, read_items
from pipeline.environments.question_dag.questions import HOPS, Drawn, draw_questions
from pipeline.environments.question_dag.session import QuestionSession
from pipeline.environments.question_dag.similarity import Distractors
from pipeline.environments.question_dag.tables import SUBJECTS
from pipeline.environments.question_dag.tasks import (
    NAME,
    asked,
    data_of,
    item_task,
    make_task,
    mixed,
    own_distractors,
    own_tools,
    tools_of,
)
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.environments.toolkit import source_digest
from pipeline.environments.tools import ToolLimits, tool_limits
from pipeline.errors import ConfigError
from pipeline.sandbox.load import SandboxChoice

NUM_TASKS = {"train": 12_000, "dev": 600, "heldout": 1_200, "heldout_unseen": 600}
PER_WORLD = 50
"""Questions asked of a subject in one world."""
_UNSEEN = "heldout_unseen"


class QuestionDagWorld(HostEnvironment):
    """See `pipeline.environments.base.Environment`."""

    name = NAME

    def __init__(
        self,
        *,
        items: str | Path = "",
        hops: Sequence[int] = HOPS,
        subjects: Sequence[str] = tuple(SUBJECTS),
        irrelevant: int = 1,
        embedder: str = "",
        sandbox: SandboxChoice = "bubblewrap",
        limits: ToolLimits | Mapping[str, Any] | None = None,
    ) -> None:
        """`items`: a JSONL file of items instead of our own questions. `hops`: numbers of sub-questions.

        `irrelevant`: distractors of each band. `embedder`: dotted path of a function from texts to rows of
        numbers; default lexical. `sandbox`: of the tools that items bring, a name or
        `{name: remote, url: ...}`.
        """
        if not hops or not set(hops) <= set(HOPS):
            raise ConfigError(f"question_dag hops are {HOPS}, got {list(hops)}")
        if not subjects or not set(subjects) <= SUBJECTS.keys():
            raise ConfigError(f"question_dag subjects are {', '.join(SUBJECTS)}, got {list(subjects)}")
        if irrelevant < 0:
            raise ConfigError(f"question_dag irrelevant must be 0 or more, got {irrelevant}")
        self.hops, self.subjects, self.irrelevant = tuple(hops), tuple(subjects), irrelevant
        self.items = read_items(Path(items)) if items else ()
        self.splits = tuple(dict.fromkeys(item.split for item in self.items)) or tuple(NUM_TASKS)
        self.limits, self.runner = tool_limits(limits), SandboxRunner(sandbox)
        self.media: MediaStore | None = None
        self._embedder = load_dotted(embedder, what="embedder") if embedder else None
        self.version = canonical.digest(source_digest(__name__), repr(self.limits), length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """`NUM_TASKS[split]` tasks, the subjects taking turns; of a file, its items of the split."""
        self.check_split(split)
        if self.items:
            return (
                item_task(item, distractors=self._item_pool, per_band=self.irrelevant)
                for item in self.items
                if item.split == split
            )
        return self._own_tasks(split)

    async def open(self, task: Task, *, seed: int = 0) -> QuestionSession:
        """A session over the task's tools. Raises ConfigError for a foreign task or a broken state."""
        self.check_task(task)
        tools, state = tools_of(task), task.state_value()
        session = QuestionSession(
            task,
            tools=tools,
            data=functools.partial(data_of, world=state.get("world", "")),
            runner=None if "world" in state else self.runner,
            limits=self.limits,
            seed=seed,
            on_close=self._session_closed,
        )
        self.num_open += 1
        return session

    def gold(self, task: Task) -> PlannedGold:
        """The call of each sub-question, what is built on first, then the answer."""
        return PlannedGold(_plan(*asked(task)))

    def _own_tasks(self, split: str) -> Iterator[Task]:
        streams = [self._questions(subject, split) for subject in self.subjects]
        for index in range(NUM_TASKS[split]):
            yield self._drawn_task(next(streams[index % len(streams)]), split, index)

    def _questions(self, subject: str, split: str) -> Iterator[Drawn]:
        for number in itertools.count():
            world = f"{split}/{number}"
            rng = random.Random(f"question_dag/{subject}/{world}/questions")
            drawn = draw_questions(subject, world, rng, hops=self.hops, unseen=split == _UNSEEN)
            yield from itertools.islice(drawn, PER_WORLD)

    def _drawn_task(self, drawn: Drawn, split: str, index: int) -> Task:
        own = own_tools()
        used = [own[call.tool] for call in drawn.calls if call is not None]
        pool = self._unseen_pool if split == _UNSEEN else self._seen_pool
        rng = random.Random(f"question_dag/{split}/{index}/tools")
        return make_task(
            drawn.dag,
            drawn.calls,
            tools=[tool.name for tool in mixed(used, pool, rng, per_band=self.irrelevant)],
            state={"world": drawn.world},
            split=split,
            template=drawn.template,
            tags=drawn.tags,
        )

    @functools.cached_property
    def _seen_pool(self) -> Distractors:
        return own_distractors(unseen=False, embedder=self._embedder)

    @functools.cached_property
    def _unseen_pool(self) -> Distractors:
        return own_distractors(unseen=True, embedder=self._embedder)

    @functools.cached_property
    def _item_pool(self) -> Distractors:
        return Distractors([tool for item in self.items for tool in item.tools], embedder=self._embedder)


def load(**options: Any) -> QuestionDagWorld:
    """The question_dag environment; options are those of QuestionDagWorld."""
    return QuestionDagWorld(**options)


def _plan(dag: QuestionDag, calls: Sequence[MadeCall | None]) -> Plan:
    for index in dag.order():
        made = calls[index]
        if made is not None:
            yield call(made.tool, **made.arguments)
    yield assistant(f"ANSWER {dag.answer}")
