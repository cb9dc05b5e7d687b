"""ASTRA environments end to end: by rules and by scripted chats in every role, opened and played."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data.tasks import Task
from data.trajectories import Trajectory
from data.verdicts import Verdict
from pipeline.environments.play import play
from pipeline.environments.question_dag import QuestionDagWorld, load
from pipeline.environments.question_dag.tasks import asked
from pipeline.environments.registry import load_environment
from pipeline.environments.sandboxed import SandboxRunner
from pipeline.errors import ConfigError
from pipeline.renderers.chatml import ChatMLRenderer
from synthesizers.astra.dag import Source
from synthesizers.astra.environments import (
    AstraEnvironments,
    ItemMaker,
    document_of,
    graphs_of,
    make_items,
    read_sources,
    source_of,
    write_items,
)
from tests.pipeline.environments.question_dag.samples import BOTH_SOLVED
from tests.pipeline.environments.scripts import components, listed
from tests.pipeline.rollout_world import Speaker
from tests.synthesizers.astra.env_samples import (
    CONSTANT,
    CREW_DOC,
    DOCUMENT,
    JUDGED,
    PLAN,
    RICH_CODE,
    RICH_DOC,
    SHIP_CODE,
    SHIP_DOC,
    SOURCE,
    chat,
    playing,
)
from tests.tiny import make_tiny_tokenizer

CALLS = [{"arguments": {"voyage": "Alba"}}, {"arguments": {"ship": "Brio"}}]


@pytest.fixture(scope="module")
def runner() -> Iterator[SandboxRunner]:
    runner = SandboxRunner()
    yield runner
    asyncio.run(runner.close())


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatMLRenderer:
    return ChatMLRenderer.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def every_role(**other: Any) -> dict[str, Any]:
    """Chats for all roles; the code writer is sent back once."""
    judges = {f"{name}_judge": chat(JUDGED) for name in ("dependency", "atomicity", "order", "completeness")}
    writers = {
        "decomposer": chat(PLAN),
        "doc_writer": chat(SHIP_DOC, CREW_DOC),
        "complexity_scaler": chat(SHIP_DOC, RICH_DOC),
        "call_writer": chat(*CALLS),
        "code_writer": chat(SHIP_CODE, CONSTANT, RICH_CODE),
        "intent_clusterer": chat({"groups": [["ship_of_voyage"], ["crew_of_ship"]]}),
    }
    return judges | writers | other


def test_every_role_by_a_chat_makes_an_item_that_plays(runner: SandboxRunner, tmp_path: Path) -> None:
    maker = ItemMaker(runner=runner, roles=playing(**every_role()))
    items = asyncio.run(make_items(maker, [SOURCE]))
    assert dict(maker.counts) == {
        "sources": 1,
        "graphs": 1,
        "judged": 1,
        "graphs kept": 1,
        "tools made": 2,
        "perturbed calls": 8,
        "with all tools": 1,
        "tools left by merging": 2,
        "merges refused": 0,
        "items": 1,
    }
    assert list(items[0].tools[1].parameters["properties"]) == ["ship", "year"]
    write_items(tmp_path / "items.jsonl", items)
    world = load(items=tmp_path / "items.jsonl")
    world.runner = runner
    [task] = world.tasks("train")
    played = asyncio.run(play(world, task, world.gold(task)))
    assert components(played) == BOTH_SOLVED
    spam = [(name, {key: "Alba"}) for name, key in (("ship_of_voyage", "voyage"), ("crew_of_ship", "ship"))]
    found = components(asyncio.run(play(world, task, listed(*spam, "ANSWER 420"))))
    assert (found["solved"], found["success"]) == (1, 0)


def test_one_tool_that_cannot_be_made_ends_the_item(runner: SandboxRunner) -> None:
    roles = every_role(
        code_writer=chat(SHIP_CODE, CONSTANT, CONSTANT),
        complexity_scaler=None,
    )
    maker = ItemMaker(runner=runner, roles=playing(**roles), inner=2, outer=1)
    assert asyncio.run(make_items(maker, [SOURCE])) == []
    assert maker.counts["refused/tool_failed"] == 1
    assert maker.counts["items"] == 0


def test_a_failing_judge_ends_the_item(runner: SandboxRunner) -> None:
    maker = ItemMaker(runner=runner, roles=playing(**every_role(order_judge=chat("1.0, I think"))))
    assert asyncio.run(make_items(maker, [SOURCE])) == []
    assert maker.counts == {"sources": 1, "graphs": 1, "graphs kept": 0, "refused/judge_failed": 1}


def test_of_judged_graphs_the_best_share_is_kept(runner: SandboxRunner) -> None:
    scores = [0.5, 1, 1, 0.5]
    roles = every_role(
        decomposer=chat(*[PLAN] * 4), order_judge=chat(*({**JUDGED, "score": s} for s in scores))
    )
    only = {name: roles[name] for name in ("decomposer", "order_judge")}
    maker = ItemMaker(runner=runner, roles=playing(**only))
    graphs = asyncio.run(graphs_of(maker, [SOURCE] * 4, share=0.5))
    assert [getattr(graph, "reason", "") for graph in graphs] == [
        "below_top_share",
        "",
        "",
        "below_top_share",
    ]
    assert maker.counts["graphs kept"] == 2


def test_without_a_chat_typed_steps_become_tools(runner: SandboxRunner) -> None:
    world = load()
    base = next(task for task in world.tasks("train") if task.template == "choose_3")
    maker = ItemMaker(runner=runner)
    item = asyncio.run(maker.typed(base, random.Random(0)))
    # Two look-ups of one relation were two tools with rows of their own; one with the rows of both is left.
    assert maker.counts["tools made"] == 2 and len(item.tools) == 1
    assert [call.tool if call else None for call in item.calls] == [item.tools[0].name] * 2 + [None]
    assert item.dag == asked(base)[0]
    kind = next(iter(item.tools[0].data))
    asked_for = [next(iter(call.arguments.values())) for call in item.calls if call]
    assert set(asked_for) <= set(item.tools[0].data[kind])


class _Nothing(Speaker):
    """An engine that is never asked."""

    def __init__(self) -> None:
        pass


def synthesizer(renderer: ChatMLRenderer, **options: Any) -> AstraEnvironments:
    return AstraEnvironments(
        environment=load_environment("question_dag"), engine=_Nothing(), renderer=renderer, **options
    )


def records(made: AstraEnvironments, bases: list[Task]) -> list[Any]:
    async def collect() -> list[Any]:
        return [record async for record in made.synthesize(bases)]

    return asyncio.run(collect())


def bases(number: int) -> list[Task]:
    return list(itertools.islice(QuestionDagWorld(subjects=("sky",), hops=(2,)).tasks("train"), number))


def test_the_synthesizer_by_rules(renderer: ChatMLRenderer) -> None:
    base = bases(1)
    task, trajectory = records(synthesizer(renderer), base)
    assert isinstance(task, Task) and isinstance(trajectory, Trajectory)
    assert trajectory.task_id == task.task_id and trajectory.success
    assert task.parents == (base[0].task_id,) and task.synthesizer == "astra_environments"
    assert set(task.state_value()) == {"tools"}
    assert len(task.tools or ()) == len(asked(task)[0].steps) + 3
    assert task.prompt == base[0].prompt


def test_the_synthesizer_by_chats_over_other_documents(renderer: ChatMLRenderer, tmp_path: Path) -> None:
    path = tmp_path / "sources.jsonl"
    path.write_text(f"{SOURCE.model_dump_json()}\n", encoding="utf-8")
    made = synthesizer(renderer, chats=every_role(), sources=str(path))
    *tasks, trajectory, verdict = sorted(
        records(made, bases(2)), key=lambda record: isinstance(record, Verdict)
    )
    assert [task.prompt[1].text for task in tasks] == [SOURCE.question]
    assert trajectory.success
    assert (verdict.keep, verdict.reason) == (False, "no_source")


def test_a_base_task_is_a_document_with_question_and_answer() -> None:
    [base] = bases(1)
    source = source_of(base)
    assert (source.question, source.domain) == (base.prompt[1].text, "sky")
    assert source.answer == asked(base)[0].answer
    assert (
        document_of({"star": {"Alba": {"tint": "blue", "distance": 4}}}) == "star Alba: tint blue, distance 4"
    )
    assert source.document.count("\n") == 38


def test_options_are_checked(renderer: ChatMLRenderer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kept share"):
        synthesizer(renderer, kept_share=0.0)
    with pytest.raises(ConfigError, match="no random_choice"):
        synthesizer(renderer, random_choice=True)
    with pytest.raises(ConfigError, match="needs the environment question_dag"):
        AstraEnvironments(environment=load_environment("counter"), engine=_Nothing(), renderer=renderer)
    path = tmp_path / "sources.jsonl"
    path.write_text('{"document": ""}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"sources\.jsonl, line 1"):
        read_sources(path)
    path.write_text(Source(document=DOCUMENT).model_dump_json(), encoding="utf-8")
    with pytest.raises(ConfigError, match="a chat that plays decomposer"):
        records(synthesizer(renderer, sources=str(path)), bases(1))
