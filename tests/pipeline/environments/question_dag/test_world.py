"""question_dag: episodes in the real sandbox, verdicts, cheats, splits, the checks of every world."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from data import canonical
from data.messages import ToolStatus
from data.tasks import Task
from pipeline.environments.play import play
from pipeline.environments.question_dag import QuestionDagWorld, load
from pipeline.environments.question_dag.calls import HARNESS, call_own_tool
from pipeline.environments.question_dag.questions import shown_value
from pipeline.environments.question_dag.relations import UNSEEN, Op, Relation
from pipeline.environments.question_dag.tables import KINDS, make_tables
from pipeline.environments.question_dag.tasks import asked, own_relations, own_tools
from pipeline.environments.registry import load_environment
from pipeline.errors import ConfigError
from pipeline.rewards.call_f1 import CallF1
from pipeline.sandbox.base import Limits, Program
from synthesizers.execution import Trial
from tests.pipeline.environments.conftest import Run
from tests.pipeline.environments.question_dag.samples import BOTH_SOLVED
from tests.pipeline.environments.scripts import components, listed


@pytest.fixture(scope="module")
def world() -> Iterator[QuestionDagWorld]:
    environment = load(irrelevant=1)
    yield environment
    asyncio.run(environment.runner.close())


def first(world: QuestionDagWorld, template: str, split: str = "train") -> Task:
    return next(task for task in world.tasks(split) if task.template == template)


def gold_steps(task: Task) -> list[tuple[str, dict]]:
    return [(call.tool, call.arguments) for call in asked(task)[1] if call is not None]


def test_gold_solves_and_its_f1_is_one(run: Run, world: QuestionDagWorld) -> None:
    task = first(world, "choose_3")
    played = run(play(world, task, world.gold(task)))
    assert components(played) == BOTH_SOLVED
    reward = CallF1(solved="solved", required="required")
    assert reward.measure(task, played).total == 1.0


def test_a_right_guess_without_the_way_scores_nothing(run: Run, world: QuestionDagWorld) -> None:
    task = first(world, "choose_3")
    played = run(play(world, task, listed(f"ANSWER {asked(task)[0].answer}")))
    found = components(played)
    assert (found["right"], found["solved"], found["f1"], found["success"]) == (1, 0, 0, 0)


def test_the_way_without_the_typed_answer_scores_nothing(run: Run, world: QuestionDagWorld) -> None:
    task = first(world, "choose_3")
    dag, _ = asked(task)
    for words in (f"It is {dag.answer}.", f"ANSWER {dag.answer} or another"):
        found = components(run(play(world, task, listed(*gold_steps(task), words))))
        assert (found["solved"], found["right"], found["success"]) == (2, 0, 0)


def test_needless_calls_cost_precision(run: Run, world: QuestionDagWorld) -> None:
    """Two of two solved by eight calls: r = 1, p = 1/4, so F1 = 0.4; the words still count as success."""
    task = first(world, "choose_3")
    steps = gold_steps(task)
    needless = [(steps[0][0], dict.fromkeys(steps[0][1], "Nowhere"))] * 6
    played = run(play(world, task, listed(*needless, *steps, f"ANSWER {asked(task)[0].answer}")))
    found = components(played)
    assert found["calls"] == 8
    assert found["precision"] == pytest.approx(0.25)
    assert found["f1"] == pytest.approx(0.4)
    assert found["success"] == 1
    assert CallF1(solved="solved", required="required").measure(task, played).total == pytest.approx(0.4)


def test_another_things_number_solves_nothing(run: Run, world: QuestionDagWorld) -> None:
    task = first(world, "choose_3")
    (name, _), second = gold_steps(task)
    played = run(play(world, task, listed((name, second[1]), (name, second[1]), "ANSWER x")))
    assert components(played)["solved"] == 1


def test_symmetric_arguments_and_the_order_of_lists_do_not_matter(run: Run, world: QuestionDagWorld) -> None:
    for template in ("add_5", "most_2"):
        task = first(world, template)
        *way, (name, arguments) = gold_steps(task)
        values = list(arguments.values())
        turned = (
            {key: value[::-1] for key, value in arguments.items()}
            if isinstance(values[0], list)
            else dict(zip(arguments, values[::-1], strict=True))
        )
        played = run(play(world, task, listed(*way, (name, turned), f"ANSWER {asked(task)[0].answer}")))
        assert components(played)["success"] == 1, template


def test_errors_are_observations(run: Run, world: QuestionDagWorld) -> None:
    task = first(world, "choose_3")
    name, arguments = gold_steps(task)[0]
    parameter = next(iter(arguments))

    async def answers() -> list:
        async with await world.open(task) as session:
            asks = [{parameter: "Nowhere"}, {parameter: 3}, {}, {**arguments, "more": 1}]
            results = [await session.call(name, ask, str(number)) for number, ask in enumerate(asks)]
            return [*results, await session.call("nothing", {}, "9")]

    found = run(answers())
    assert all(result.status is ToolStatus.TOOL_ERROR for result in found)
    texts = [result.text for result in found]
    assert texts[0] == f"no {parameter} 'Nowhere'"
    assert "must be string" in texts[1]
    assert "missing argument" in texts[2]
    assert "unknown argument: more" in texts[3]
    assert texts[4].startswith("no tool nothing; tools: ")


def test_every_tool_answers_the_same_in_the_sandbox(run: Run, world: QuestionDagWorld) -> None:
    """All of them in one program, from the harness' own text, on arguments that fit and that do not."""
    asks: list[list[Any]] = []
    for name, relation in own_relations().items():
        tables = make_tables(relation.subject, "dev/0") if relation.kind else {}
        for wild in (False, True):
            asks.append([name, relation.tool.code, tables, drawn_arguments(relation, tables, wild=wild)])
    code = f"{HARNESS.partition('if __name__')[0]}\nasks = json.load(open('asks.json'))\n"
    code += "print(json.dumps([outcome(code, data, name, given) for name, code, data, given in asks]))"
    program = Program(code, files={"asks.json": canonical.dumps(asks).encode()})
    limits = Limits(seconds=60, memory_mib=512, output_bytes=1 << 20)
    there = canonical.loads(run(world.runner.run(program, limits)).stdout)
    own = own_tools()
    here = [call_own_tool(own[name], given, data=tables) for name, _, tables, given in asks]
    assert len(here) == 2 * len(own)
    assert [answer.ok for answer in here] == ["value" in said for said in there]
    assert [answer.text for answer in here] == [
        shown_value(said["value"]) if "value" in said else said["error"] for said in there
    ]
    # Ties have no answer, and sums of anything have one.
    assert sum(answer.ok for answer in here[::2]) > 240 and sum(answer.ok for answer in here[1::2]) < 50


def drawn_arguments(relation: Relation, tables: dict, *, wild: bool) -> dict:
    """Arguments of a relation's tool: of its tables, or of nothing in them."""
    kind = KINDS.get(relation.kind)
    names = sorted(tables[relation.kind]) if kind else []
    parents = (
        sorted({row[kind.parent] for row in tables[relation.kind].values()}) if kind and kind.parent else []
    )
    given: dict = {}
    for name, schema in relation.parameters.items():
        if schema["type"] == "integer":
            given[name] = 10**30 if wild else 1
        elif schema["type"] == "array":
            given[name] = ["Nowhere", "Nowhere"] if wild else names[:1] * 2
        elif "enum" in schema:
            word = tables[relation.kind][names[0]][kind.word] if kind else ""
            given[name] = "nothing" if wild else word
        else:
            fits = parents if kind and name == kind.parent and relation.op is not Op.PARENT else names
            given[name] = "Nowhere" if wild else fits[len(given) % len(fits)]
    return given


def test_splits_have_worlds_and_step_kinds_of_their_own(world: QuestionDagWorld) -> None:
    sample = {split: list(itertools.islice(world.tasks(split), 120)) for split in world.splits}
    worlds = {split: {task.state_value()["world"] for task in tasks} for split, tasks in sample.items()}
    assert not any(worlds[a] & worlds[b] for a, b in itertools.combinations(worlds, 2))
    for split, tasks in sample.items():
        kinds = [{own_relations()[name].op for name, _ in gold_steps(task)} for task in tasks]
        assert all(bool(ops & UNSEEN) == (split == "heldout_unseen") for ops in kinds)
        if split != "heldout_unseen":
            shown = {name for task in tasks for name in task.tools or ()}
            assert not {own_relations()[name].op for name in shown} & UNSEEN
    assert len({task.task_id for tasks in sample.values() for task in tasks}) == 480


def test_tools_shown_are_the_needed_and_three_strangers(world: QuestionDagWorld) -> None:
    for task in itertools.islice(world.tasks("train"), 60):
        needed = {name for name, _ in gold_steps(task)}
        assert needed <= set(task.tools)
        strangers = set(task.tools) - needed
        assert len(strangers) == 3
        domains = {own_tools()[name].domain for name in needed}
        assert not domains & {own_tools()[name].domain for name in strangers}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_train_has_twelve_thousand_distinct_tasks() -> None:
    tasks = {task.task_id for task in load().tasks("train")}
    assert len(tasks) == 12_000


def test_prompts_are_short(world: QuestionDagWorld) -> None:
    """Rules, question and tools of the longest of many tasks, in characters: about four to a token."""

    async def length(task: Task) -> int:
        async with await world.open(task) as session:
            return sum(len(turn.text) for turn in task.prompt) + sum(
                len(canonical.dumps(tool.openai())) for tool in session.tools
            )

    lengths = [asyncio.run(length(task)) for task in itertools.islice(world.tasks("train"), 120)]
    assert max(lengths) < 2600


def test_looking_up_changes_no_state(run: Run, world: QuestionDagWorld) -> None:
    task = first(world, "choose_3")

    async def digests() -> list[str]:
        async with await Trial.open(world, task) as trial:
            made = [await trial.attempt(*step) for step in gold_steps(task)]
            return [digest for one in made for digest in (one.before, one.after)]

    assert len(set(run(digests()))) == 1


def test_options_are_checked() -> None:
    assert next(iter(load(hops=(3,), subjects=("sky",)).tasks("dev"))).template.endswith("_3")
    for options, problem in (
        ({"hops": [7]}, "hops are"),
        ({"subjects": ["people"]}, "subjects are"),
        ({"irrelevant": -1}, "irrelevant must be"),
        ({"embedder": "no.such:thing"}, "embedder"),
        ({"items": "/does/not/exist.jsonl"}, "does/not/exist"),
    ):
        with pytest.raises(ConfigError, match=problem):
            load(**options)
    with pytest.raises(ConfigError, match="belongs to environment"):
        task = next(load_environment("counter").tasks("train"))
        asyncio.run(load().open(task))
