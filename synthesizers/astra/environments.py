"""Verifiable environments from questions (ASTRA, arXiv 2601.21558, its second pipeline).

Question -> graph of sub-questions -> judges, top share kept -> one tool per sub-question that needs one,
tried and perturbed in the sandbox -> tools of one intent merged, tests re-run -> a task of `question_dag`
that brings its tools, with irrelevant ones of three bands mixed in. Base tasks of question_dag give the
questions: without a chat their typed steps are the graph and the tools are generated from them; with one, the
base's tables in words are the document, and every part is written by a role. `sources` names other documents,
one for each base task. `ItemMaker.counts` holds the yield of every stage. Not covered: training with the F1
reward (`pipeline.rewards`, `call_f1`).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError

from data import canonical
from data.files import numbered_lines, write_atomically
from data.tasks import Task
from pipeline.checks.options import check_least
from pipeline.environments.question_dag.dag import QuestionDag
from pipeline.environments.question_dag.items import Item, MadeCall, MadeTool
from pipeline.environments.question_dag.similarity import Distractors
from pipeline.environments.question_dag.tables import Tables, make_tables
from pipeline.environments.question_dag.tasks import NAME, asked, filled_tools, item_task, own_relations
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.errors import ConfigError
from synthesizers.astra.dag import (
    DECOMPOSER,
    HOPS,
    JUDGES,
    KEPT_SHARE,
    Refused,
    RoleOf,
    Source,
    decompose,
    judge,
    keep_top,
    require_rules,
)
from synthesizers.astra.merge import (
    DATA_EXTENDER,
    INTENT_CLUSTERER,
    MERGE_TRIES,
    Merged,
    merge_tools,
    renamed,
)
from synthesizers.astra.tools import INNER_TRIES, OUTER_TRIES, TOOL_ROLES, ToolWriter, typed_tool
from synthesizers.astra.trials import ProvenTool
from synthesizers.base import Made
from synthesizers.planning import Planned, Planner, given_up


def nobody(role: str) -> None:
    """No chat plays any role."""


@dataclass(kw_only=True)
class ItemMaker:
    """Makes items. Constants: `inner`, `outer`, `merge_tries` as in the paper's code, `hops` ours."""

    runner: SandboxRunner
    roles: RoleOf = nobody
    hops: int = HOPS
    inner: int = INNER_TRIES
    outer: int = OUTER_TRIES
    merge_tries: int = MERGE_TRIES
    counts: Counter[str] = field(default_factory=Counter)
    """What reached each stage, and `refused/REASON`."""

    async def graph(self, source: Source) -> tuple[QuestionDag, float | None]:
        """A source's graph and the judges' mean score. Raises Refused."""
        self.counts["sources"] += 1
        chat = self.roles(DECOMPOSER.name)
        if chat is None:
            raise Refused("nobody_writes", f"no chat plays {DECOMPOSER.name}")
        dag = await decompose(chat, source, hops=self.hops)
        self.counts["graphs"] += 1
        score = await judge(dag, self.roles)
        self.counts["judged"] += score is not None
        return dag, score

    async def written(self, dag: QuestionDag, *, domain: str, split: str = "train") -> Item:
        """The item of a graph, its tools written by chats. Raises Refused."""
        writer = ToolWriter(runner=self.runner, roles=self.roles, inner=self.inner, outer=self.outer)
        made = list[ProvenTool]()
        for index in _needing(dag):
            tested = await writer.write(dag, index, domain=domain)
            made.append(_apart(tested, made))
            self._count_tool(tested)
        return await self._item(dag, made, domain=domain, split=split, template=f"item_{len(dag.steps)}")

    async def typed(self, base: Task, rng: random.Random) -> Item:
        """The item of a base task over our own tables, each tool with rows of its own. Raises Refused."""
        dag, calls = asked(base)
        self.counts["sources"] += 1
        require_rules(dag, hops=len(dag.steps))
        self.counts["graphs"] += 1
        world, made = base.state_value()["world"], list[ProvenTool]()
        for index, call in enumerate(calls):
            if call is None:
                continue
            relation = own_relations()[call.tool]
            taken = {tested.tool.name for tested in made}
            tested = await typed_tool(
                self.runner,
                relation,
                make_tables(relation.subject, world) if relation.kind else {},
                call.arguments,
                name=_free(call.tool, taken),
                index=index,
                rng=rng,
            )
            made.append(tested)
            self._count_tool(tested)
        return await self._item(
            dag, made, domain=subject_of(calls), split=base.split, template=base.template, tags=base.tags
        )

    async def _item(
        self,
        dag: QuestionDag,
        made: Sequence[ProvenTool],
        *,
        domain: str,
        split: str,
        template: str,
        tags: tuple[str, ...] = (),
    ) -> Item:
        self.counts["with all tools"] += 1
        merged = await merge_tools(made, runner=self.runner, roles=self.roles, tries=self.merge_tries)
        self.counts["tools left by merging"] += len(merged.tools)
        self.counts["merges refused"] += len(merged.refused)
        try:
            item = Item(
                dag=dag,
                calls=_calls(dag, merged),
                tools=tuple(tested.tool for tested in merged.tools),
                domain=domain,
                split=split,
                template=template,
                tags=tags,
            )
        except ValidationError as error:
            raise Refused("item", str(error)) from error
        self.counts["items"] += 1
        return item

    def _count_tool(self, tested: ProvenTool) -> None:
        self.counts["tools made"] += 1
        self.counts["perturbed calls"] += sum(len(test.others) for test in tested.tests)


@dataclass(kw_only=True)
class AstraEnvironments(Planner):
    """The maker as a planning synthesizer; see `Planner` for the other options.

    `sources`: a JSONL file of documents (`Source`). `kept_share`: of the judged graphs, the best.
    `irrelevant`: distractors of each band. `sandbox`: by name.
    """

    sources: str = ""
    kept_share: float = KEPT_SHARE
    hops: int = HOPS
    inner_tries: int = INNER_TRIES
    outer_tries: int = OUTER_TRIES
    merge_tries: int = MERGE_TRIES
    irrelevant: int = 1
    sandbox: str = "bubblewrap"
    name: ClassVar[str] = "astra_environments"
    role_names: ClassVar[tuple[str, ...]] = (
        DECOMPOSER.name,
        *(role.name for role in JUDGES),
        *(role.name for role in TOOL_ROLES),
        INTENT_CLUSTERER.name,
        DATA_EXTENDER.name,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        keep_top([], share=self.kept_share)
        check_least(self, {"hops": 1, "inner_tries": 1, "outer_tries": 1, "merge_tries": 0, "irrelevant": 0})
        if self.environment.name != NAME:
            raise ConfigError(f"{self.name} needs the environment {NAME}, got {self.environment.name}")
        if self.random_choice:
            raise ConfigError(
                "astra_environments has no random_choice: a random tool never gives the sub-answer"
            )
        self._sources = read_sources(Path(self.sources)) if self.sources else ()
        self.maker = ItemMaker(
            runner=SandboxRunner(self.sandbox),
            roles=self.roles.of,
            hops=self.hops,
            inner=self.inner_tries,
            outer=self.outer_tries,
            merge_tries=self.merge_tries,
        )
        self._graphs: dict[str, tuple[QuestionDag, str] | Refused] = {}

    async def prepare(self, tasks: Sequence[Task]) -> None:
        """Cut up and judge all questions, because which are the best is known only then."""
        if self.roles.of(DECOMPOSER.name) is None:
            if self._sources:
                raise ConfigError(f"sources need a chat that plays {DECOMPOSER.name}: set `chat` or `chats`")
            return
        sources = self._sources or [source_of(task) for task in tasks]
        graphs = await graphs_of(self.maker, sources[: len(tasks)], share=self.kept_share)
        for task, source, found in zip(tasks, sources, graphs, strict=False):
            kept = found if isinstance(found, Refused) else (found, source.domain or "documents")
            self._graphs[task.task_id] = kept

    async def plan(self, base: Task, rng: random.Random) -> Planned:
        """A task with made tools, or the stage that refused it."""
        try:
            item = await self._item(base, rng)
        except Refused as error:
            self.maker.counts[f"refused/{error.reason}"] += 1
            return given_up(error.reason, error.detail)
        pool = Distractors([*_distractors(base), *item.tools])
        task = item_task(
            item, distractors=pool, per_band=self.irrelevant, synthesizer=self.name, parents=(base.task_id,)
        )
        return Planned(task=task)

    async def synthesize(
        self, tasks: Iterable[Task], *, done: Collection[str] = (), failed: Collection[str] = ()
    ) -> AsyncGenerator[Made]:
        """See `Synthesizer`."""
        try:
            async with aclosing(super().synthesize(tasks, done=done, failed=failed)) as made:
                async for record in made:
                    yield record
        finally:
            await self.maker.runner.close()

    async def _item(self, base: Task, rng: random.Random) -> Item:
        if self.roles.of(DECOMPOSER.name) is None:
            return await self.maker.typed(base, rng)
        found = self._graphs.get(base.task_id, Refused("no_source", "fewer sources than base tasks"))
        if isinstance(found, Refused):
            raise found
        dag, domain = found
        return await self.maker.written(dag, domain=domain, split=base.split)


async def graphs_of(
    maker: ItemMaker, sources: Sequence[Source], *, share: float = KEPT_SHARE
) -> list[QuestionDag | Refused]:
    """A graph for each source or why there is none; of those that were judged, the best share."""
    found = await asyncio.gather(*(maker.graph(source) for source in sources), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException) and not isinstance(error, Refused):
            raise error
    scored = {
        index: outcome[1]
        for index, outcome in enumerate(found)
        if not isinstance(outcome, BaseException) and outcome[1] is not None
    }
    best = {list(scored)[place] for place in keep_top(list(scored.values()), share=share)}
    graphs: list[QuestionDag | Refused] = []
    for index, outcome in enumerate(found):
        if isinstance(outcome, Refused):
            graphs.append(outcome)
        elif not isinstance(outcome, BaseException):
            left_out = Refused("below_top_share", f"score {outcome[1]} is not among the best {share:.0%}")
            graphs.append(left_out if index in scored.keys() - best else outcome[0])
    maker.counts["graphs kept"] += sum(isinstance(graph, QuestionDag) for graph in graphs)
    return graphs


async def make_items(
    maker: ItemMaker, sources: Sequence[Source], *, share: float = KEPT_SHARE, split: str = "train"
) -> list[Item]:
    """The items of sources, written by chats; what was refused is in `maker.counts`."""
    items = []
    for source, graph in zip(sources, await graphs_of(maker, sources, share=share), strict=True):
        try:
            if isinstance(graph, Refused):
                raise graph
            items.append(await maker.written(graph, domain=source.domain or "documents", split=split))
        except Refused as error:
            maker.counts[f"refused/{error.reason}"] += 1
    return items


def write_items(path: Path, items: Sequence[Item]) -> None:
    """A JSONL file that question_dag opens with `items=path`."""
    write_atomically(path, "".join(canonical.dumps(item.model_dump(mode="json")) + "\n" for item in items))


def read_sources(path: Path) -> tuple[Source, ...]:
    """Sources of a JSONL file. Raises ConfigError naming the file, the line and what is wrong."""
    found = []
    try:
        lines = numbered_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"sources {path}: {error}; give a JSONL file of documents") from error
    for number, line in lines:
        try:
            found.append(Source.model_validate_json(line))
        except ValidationError as error:
            raise ConfigError(f"sources {path}, line {number}: {str(error)[:300]}") from error
    return tuple(found)


def source_of(base: Task) -> Source:
    """A base task over our own tables as a document with a question and its answer."""
    dag, calls = asked(base)
    subject, world = subject_of(calls), base.state_value()["world"]
    document = document_of(make_tables(subject, world))
    return Source(document=document, question=dag.question, answer=dag.answer, domain=subject)


def document_of(tables: Tables) -> str:
    """Tables in words, one line for each thing."""
    return "\n".join(
        f"{kind} {name}: " + ", ".join(f"{label} {value}" for label, value in row.items())
        for kind, rows in tables.items()
        for name, row in rows.items()
    )


def subject_of(calls: Sequence[MadeCall | None]) -> str:
    """The subject that the calls of a question over our own tables are about."""
    relations = [own_relations()[call.tool] for call in calls if call is not None]
    return next((relation.subject for relation in relations if relation.kind), "arithmetic")


def _distractors(base: Task) -> list[MadeTool]:
    return list(_filled(base.state_value().get("world", "train/0")))


@functools.lru_cache(maxsize=16)
def _filled(world: str) -> tuple[MadeTool, ...]:
    return tuple(filled_tools(world))


def _needing(dag: QuestionDag) -> list[int]:
    return [index for index in dag.order() if dag.steps[index].needs_tool]


def _free(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is taken."""
    names = (f"{name[:60]}_{number}" for number in itertools.count(2))
    return name if name not in taken else next(other for other in names if other not in taken)


def _apart(tested: ProvenTool, made: Sequence[ProvenTool]) -> ProvenTool:
    name = _free(tested.tool.name, {other.tool.name for other in made})
    return tested if name == tested.tool.name else renamed(tested, name)


def _calls(dag: QuestionDag, merged: Merged) -> tuple[MadeCall | None, ...]:
    calls: list[MadeCall | None] = [None] * len(dag.steps)
    for tested in merged.tools:
        for test in tested.tests:
            calls[test.step] = MadeCall(tool=tested.tool.name, arguments=dict(test.arguments))
    return tuple(calls)
