"""Tasks of question_dag: a question with its graph, the tools shown, and irrelevant ones mixed in.

Decides what is public and what is not: `state` holds what tools need (a world's name, or the tools with code
and data), `private` the graph with the answers and the calls. Not covered: where questions come from.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from data import canonical
from data.messages import system, user
from data.tasks import Budget, Task
from pipeline.environments.question_dag.dag import QuestionDag
from pipeline.environments.question_dag.items import Item, MadeCall, MadeTool
from pipeline.environments.question_dag.relations import Relation, relations
from pipeline.environments.question_dag.similarity import Distractors, Embedder
from pipeline.environments.question_dag.tables import SUBJECTS, make_tables
from pipeline.errors import ConfigError

NAME = "question_dag"
SYSTEM = "Call tools to find out. End with ANSWER and the answer."
VERIFIER = "question_dag/sub_questions/1"


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
    parents: tuple[str, ...] = (),
) -> Task:
    """The task of a question. The private part is one text: names in it stand in the question, too."""
    item = {
        "dag": dag.model_dump(mode="json"),
        "calls": [call.model_dump(mode="json") if call is not None else None for call in calls],
    }
    num_calls = sum(call is not None for call in calls)
    return Task(
        environment=NAME,
        split=split,
        template=template,
        tags=tags,
        prompt=(system(SYSTEM), user(dag.question)),
        tools=tuple(tools),
        state=canonical.dumps(dict(state)),
        private=canonical.dumps({"item": canonical.dumps(item)}),
        verifier=VERIFIER,
        budget=Budget(max_turns=2 * num_calls + 2, max_tokens=2048),
        synthesizer=synthesizer,
        parents=parents,
    )


def item_task(
    item: Item,
    *,
    distractors: Distractors,
    per_band: int,
    synthesizer: str = "",
    parents: tuple[str, ...] = (),
) -> Task:
    """The task of an item, which brings its tools. `distractors` must hold the item's tools, too."""
    rng = random.Random(f"question_dag/items/{item.dag.question}")
    tools = mixed(item.tools, distractors, rng, per_band=per_band)
    return make_task(
        item.dag,
        item.calls,
        tools=[tool.name for tool in tools],
        state={"tools": [tool.model_dump(mode="json") for tool in tools]},
        split=item.split,
        template=item.template,
        tags=item.tags,
        synthesizer=synthesizer,
        parents=parents,
    )


def mixed(
    used: Sequence[MadeTool], distractors: Distractors, rng: random.Random, *, per_band: int
) -> list[MadeTool]:
    """The tools of a task, each once, with irrelevant ones of each band, in drawn order."""
    tools = list({tool.name: tool for tool in used}.values())
    tools += distractors.draw(tools, rng, per_band=per_band) if per_band else []
    rng.shuffle(tools)
    return tools


def asked(task: Task) -> tuple[QuestionDag, tuple[MadeCall | None, ...]]:
    """The graph and the calls in the private part of a task of ours."""
    item = canonical.loads(task.private_value()["item"])
    calls = [None if made is None else MadeCall.model_validate(made) for made in item["calls"]]
    return QuestionDag.model_validate_json(canonical.dumps(item["dag"])), tuple(calls)


def tools_of(task: Task) -> dict[str, MadeTool]:
    """The tools a task shows, in its order. Raises ConfigError where it does not bring what it shows."""
    state = task.state_value()
    try:
        known = (
            own_tools()
            if "world" in state
            else {
                tool.name: tool
                for tool in (MadeTool.model_validate_json(canonical.dumps(value)) for value in state["tools"])
            }
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"tools of task {task.task_id} cannot be read: {str(error)[:300]}") from None
    unknown = [name for name in task.tools or () if name not in known]
    if unknown:
        raise ConfigError(f"task {task.task_id} shows tools {unknown[:3]} that it does not bring")
    return {name: known[name] for name in (known if task.tools is None else task.tools)}


def data_of(tool: MadeTool, *, world: str) -> Mapping[str, Any]:
    """What a tool sees as DATA: the tables of its subject in a world; without a world its own data."""
    return make_tables(tool.domain, world) if world and tool.domain in SUBJECTS else tool.data


@functools.cache
def own_relations() -> dict[str, Relation]:
    """Every relation over our own tables that has a tool, by the tool's name."""
    return {relation.tool.name: relation for relation in relations(unseen=True)}


@functools.cache
def own_tools() -> dict[str, MadeTool]:
    """Every tool over our own tables, without data, by name."""
    return {name: relation.tool for name, relation in own_relations().items()}


def own_distractors(*, unseen: bool, embedder: Embedder | None = None) -> Distractors:
    """Our own tools as a pool; those of unseen step kinds only where asked for."""
    return Distractors([relation.tool for relation in relations(unseen=unseen)], embedder=embedder)


def filled_tools(world: str) -> list[MadeTool]:
    """Our own tools of seen step kinds with the rows they need, to be mixed into the tasks of items."""
    return [
        relation.tool_named(
            relation.tool.name,
            {relation.kind: make_tables(relation.subject, world)[relation.kind]} if relation.kind else {},
        )
        for relation in relations(unseen=False)
    ]
