"""The tasks of question_dag: questions over our own tables by default, items of a file where one is named.

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
from data.messages import assistant, system, user
from data.tasks import Budget, Task
from pipeline.dotted import load_dotted
from pipeline.environments.gold import Plan, PlannedGold, call
from pipeline.environments.question_dag.dag import QuestionDag
from pipeline.environments.question_dag.items import Item, MadeCall, MadeTool, read_items
from pipeline.environments.question_dag.questions import HOPS, Drawn, draw_questions
from pipeline.environments.question_dag.relations import relations
from pipeline.environments.question_dag.session import QuestionSession
from pipeline.environments.question_dag.similarity import Distractors
from pipeline.environments.question_dag.tables import SUBJECTS, make_tables
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.environments.toolkit import source_digest
from pipeline.environments.tools import ToolLimits, tool_limits
from pipeline.errors import ConfigError

NAME = "question_dag"
NUM_TASKS = {"train": 12_000, "dev": 600, "heldout": 1_200, "heldout_unseen": 600}
PER_WORLD = 50
"""Questions asked of a subject in one world."""
SYSTEM = "Call tools to find out. End with ANSWER and the answer."
VERIFIER = "question_dag/sub_questions/1"
_UNSEEN = "heldout_unseen"


class QuestionDagWorld:
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
        sandbox: str = "bubblewrap",
        limits: ToolLimits | Mapping[str, Any] | None = None,
    ) -> None:
        """`items`: a JSONL file of items instead of our own questions. `hops`: numbers of sub-questions.

        `irrelevant`: distractors of each band. `embedder`: dotted path of a function from texts to rows of
        numbers; default lexical. `sandbox`: by name.
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
        self.num_open = 0
        self._embedder = load_dotted(embedder, what="embedder") if embedder else None
        self.version = canonical.digest(source_digest(__name__), repr(self.limits), length=12)

    def tasks(self, split: str) -> Iterator[Task]:
        """`NUM_TASKS[split]` tasks, the subjects taking turns; of a file, its items of the split."""
        if split not in self.splits:
            raise ConfigError(f"environment {NAME} has no split {split!r}; it has {', '.join(self.splits)}")
        if self.items:
            for item in self.items:
                if item.split == split:
                    yield self._item_task(item)
            return
        streams = [self._questions(subject, split) for subject in self.subjects]
        for index in range(NUM_TASKS[split]):
            yield self._drawn_task(next(streams[index % len(streams)]), split, index)

    async def open(self, task: Task, *, seed: int = 0) -> QuestionSession:
        """A session over the task's tools. Raises ConfigError for a foreign task or broken state."""
        if task.environment != NAME:
            raise ConfigError(
                f"task {task.task_id} belongs to environment {task.environment!r}, not {NAME!r}"
            )
        state = task.state_value()
        known = _own_tools() if "world" in state else _tools_of(task.task_id, state)
        unknown = [name for name in task.tools or () if name not in known]
        if unknown:
            raise ConfigError(f"task {task.task_id} shows tools {unknown[:3]} that it does not bring")
        shown = {name: known[name] for name in (known if task.tools is None else task.tools)}
        session = QuestionSession(
            task,
            tools=shown,
            data=functools.partial(_data_of, str(state.get("world", ""))),
            runner=self.runner,
            limits=self.limits,
            seed=seed,
            on_close=self._session_closed,
        )
        self.num_open += 1
        return session

    def gold(self, task: Task) -> PlannedGold:
        """The call of each sub-question, what is built on first, then the answer."""
        return PlannedGold(_plan(canonical.loads(task.private_value()["item"])))

    def _questions(self, subject: str, split: str) -> Iterator[Drawn]:
        for number in itertools.count():
            world = f"{split}/{number}"
            rng = random.Random(f"question_dag/{subject}/{world}/questions")
            drawn = draw_questions(subject, world, rng, hops=self.hops, unseen=split == _UNSEEN)
            yield from itertools.islice(drawn, PER_WORLD)

    def _drawn_task(self, drawn: Drawn, split: str, index: int) -> Task:
        own = _own_tools()
        used = [own[call.tool] for call in drawn.calls if call is not None]
        pool = self._own_distractors(split == _UNSEEN)
        return self._task(
            drawn.dag,
            drawn.calls,
            used=used,
            pool=pool,
            rng=random.Random(f"question_dag/{split}/{index}/tools"),
            split=split,
            template=drawn.template,
            tags=drawn.tags,
            state={"world": drawn.world},
        )

    def _item_task(self, item: Item) -> Task:
        rng = random.Random(f"question_dag/items/{item.dag.question}")
        return self._task(
            item.dag,
            item.calls,
            used=item.tools,
            pool=self._item_distractors,
            rng=rng,
            split=item.split,
            template=item.template,
            tags=item.tags,
            state=None,
        )

    def _task(
        self,
        dag: QuestionDag,
        calls: Sequence[MadeCall | None],
        *,
        used: Sequence[MadeTool],
        pool: Distractors,
        rng: random.Random,
        split: str,
        template: str,
        tags: tuple[str, ...],
        state: dict[str, Any] | None,
    ) -> Task:
        tools = list({tool.name: tool for tool in used}.values())
        tools += pool.draw(tools, rng, per_band=self.irrelevant) if self.irrelevant else []
        rng.shuffle(tools)
        if state is None:
            state = {"tools": [tool.model_dump(mode="json") for tool in tools]}
        return make_task(
            dag,
            calls,
            tools=[tool.name for tool in tools],
            state=state,
            split=split,
            template=template,
            tags=tags,
        )

    @functools.cached_property
    def _item_distractors(self) -> Distractors:
        return Distractors([tool for item in self.items for tool in item.tools], embedder=self._embedder)

    def _own_distractors(self, unseen: bool) -> Distractors:
        if self._embedder is None:
            return _lexical_distractors(unseen)
        key = f"_pool_{unseen}"
        if key not in vars(self):
            pool = [relation.tool for relation in relations(unseen=unseen)]
            vars(self)[key] = Distractors(pool, embedder=self._embedder)
        return vars(self)[key]  # type: ignore[no-any-return]

    def _session_closed(self) -> None:
        self.num_open -= 1


def make_task(
    dag: QuestionDag,
    calls: Sequence[MadeCall | None],
    *,
    tools: Sequence[str],
    state: Mapping[str, Any],
    split: str,
    template: str,
    tags: tuple[str, ...] = (),
    synthesizer: str = "",
) -> Task:
    """The task of a question. The private part is one text: names in it stand in the question, too."""
    order = dag.order()
    steps = [
        {
            "text": dag.resolved(index),
            "answer": dag.steps[index].answer,
            "depends_on": [order.index(parent) for parent in dag.steps[index].depends_on],
            "call": made.model_dump(mode="json") if (made := calls[index]) is not None else None,
        }
        for index in order
    ]
    num_calls = sum(call is not None for call in calls)
    return Task(
        environment=NAME,
        split=split,
        template=template,
        tags=tags,
        prompt=(system(SYSTEM), user(dag.question)),
        tools=tuple(tools),
        state=canonical.dumps(dict(state)),
        private=canonical.dumps({"item": canonical.dumps({"answer": dag.answer, "steps": steps})}),
        verifier=VERIFIER,
        budget=Budget(max_turns=2 * num_calls + 2, max_tokens=2048),
        synthesizer=synthesizer,
    )


def load(**options: Any) -> QuestionDagWorld:
    """The question_dag environment; options are those of QuestionDagWorld."""
    return QuestionDagWorld(**options)


@functools.cache
def _own_tools() -> dict[str, MadeTool]:
    return {relation.tool.name: relation.tool for relation in relations(unseen=True)}


@functools.cache
def _lexical_distractors(unseen: bool) -> Distractors:
    return Distractors([relation.tool for relation in relations(unseen=unseen)])


def _tools_of(task_id: str, state: Any) -> dict[str, MadeTool]:
    try:
        tools = [MadeTool.model_validate_json(canonical.dumps(tool)) for tool in state["tools"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"task {task_id} brings no tools that can be read: {str(error)[:300]}") from None
    return {tool.name: tool for tool in tools}


def _data_of(world: str, tool: MadeTool) -> Mapping[str, Any]:
    return make_tables(tool.domain, world) if world and tool.domain in SUBJECTS else tool.data


def _plan(item: Mapping[str, Any]) -> Plan:
    for step in item["steps"]:
        if step["call"] is not None:
            yield call(step["call"]["tool"], **step["call"]["arguments"])
    yield assistant(f"ANSWER {item['answer']}")
